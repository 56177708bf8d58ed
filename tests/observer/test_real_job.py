"""Metrics and traces of a real job, which is followed through its master's socket."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from elasticrun.control import JobControl
from elasticrun.core.history.history import History
from elasticrun.core.protocol.chronicle import LogEntry
from elasticrun.follower import Follower
from elasticrun.observer import metrics
from elasticrun.observer.traces import Tracer
from tests.observer.collector import Collector
from tests.observer.followed import parsed
from tests.support.cluster import Cluster
from tests.support.processes import DEADLINE


class Observer:
    """Follows a job, and tells when its history is as somebody waits for."""

    def __init__(self, pid: int, url: str) -> None:
        self.tracer = Tracer(url, "real")
        self.follower = Follower(lambda: JobControl.on_this_host(launcher=pid), self._take)
        self._news = asyncio.Event()

    def _take(self, entries: Sequence[LogEntry], _: Sequence[str]) -> None:
        self.tracer.take(entries)
        self._news.set()

    async def until(self, condition: Callable[[History], bool]) -> None:
        while not condition(self.follower.history):
            self._news.clear()
            await asyncio.wait_for(self._news.wait(), DEADLINE)


def is_running(number: int) -> Callable[[History], bool]:
    return lambda history: (
        history.current is not None
        and history.current.number == number
        and history.current.running is not None
    )


async def fail_twice(cluster: Cluster, collector: Collector) -> str:
    """What a scrape tells when the third round runs."""
    launcher = cluster.alone("--nproc-per-node", "2", "--max-restarts", "3")
    await asyncio.to_thread(cluster.director.round, 0, 2)
    observer = Observer(launcher.pid, collector.url)
    following = asyncio.ensure_future(observer.follower.run())
    try:
        for number in range(3):
            workers = await asyncio.to_thread(cluster.director.round, number, 2)
            await observer.until(is_running(number))
            if number < 2:
                workers[0].tell("exit 3")
        await observer.follower.refresh()
        body, kind = metrics.render(observer.follower)
        assert kind.startswith("text/plain")
    finally:
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)
        observer.tracer.close()
    for worker in workers:
        worker.tell("exit 0")
    await asyncio.to_thread(cluster.wait_all)
    return body.decode()


def test_a_job_that_fails_twice(cluster: Cluster, collector: Collector) -> None:
    figures = parsed(asyncio.run(fail_twice(cluster, collector)))

    def value(name: str, **labels: str) -> float:
        return figures[f"elasticrun_{name}", frozenset(labels.items())]

    assert value("restarts_total", reason="worker_failed") == 2
    assert value("worker_failures_total", how="exit") == 2
    assert value("recovery_seconds_count", phase="total") >= 1
    assert value("recovery_seconds_sum", phase="total") > 0
    assert (value("world_size"), value("world_nodes"), value("nodes", state="running")) == (2, 1, 1)
    assert (value("restarts_used"), value("restarts_max")) == (2, 3)
    assert (value("round"), value("job_over"), value("observer_connected")) == (2, 0, 1)
    assert len({span.trace_id for span in collector.spans}) == 1
    names = [span.name for span in collector.spans]
    assert {"job", "round 0", "round 1", "round 2", "recovery"} <= set(names)
    recovery = next(span for span in collector.spans if span.name == "recovery")
    assert collector.below(recovery)
    assert [event.name for event in collector.get("round 0").events] == ["worker failed"]
