"""Publishing, and its end."""

from __future__ import annotations

import asyncio

import pytest

from elasticrun.core.history.staleness import LATER, SOON
from elasticrun.core.protocol.chronicle import Happening, LogEntry, NodeGone, StepsDone
from elasticrun.core.protocol.status import JobStatus
from elasticrun.observer import live as live_module
from elasticrun.observer.live import Live
from tests.support.processes import DEADLINE
from tests.support.watched import Pretended


def test_publishing_ends_though_something_happens_at_that_moment() -> None:
    async def work() -> None:
        for turns in range(6):
            live = Live(Pretended(2, 1))
            task = asyncio.ensure_future(live.run())
            live._touched.clear()  # so that it waits for news
            for _ in range(turns):
                await asyncio.wait([asyncio.ensure_future(asyncio.Event().wait())], timeout=0)
            live.take()
            task.cancel()
            await asyncio.wait({task}, timeout=DEADLINE)
            assert task.done()

    asyncio.run(work())


def test_a_master_that_is_silent_does_not_keep_a_scrape_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live_module, "PATIENCE", 0.01)

    async def work() -> None:
        job, asked = Pretended(2, 1), asyncio.Queue[None]()

        async def wait() -> JobStatus:
            asked.put_nowait(None)
            await asyncio.Event().wait()
            return job.describe()

        job.refresh = wait  # type: ignore[method-assign]
        live = Live(job)
        for _ in range(2):
            state = await asyncio.wait_for(live.current(), DEADLINE)
            assert len(state.nodes) == 2
        assert asked.qsize() == 1
        assert live._asking is not None
        live._asking.cancel()
        await asyncio.wait({live._asking})

    asyncio.run(work())


def test_a_master_that_is_away_is_not_asked_how_the_job_is() -> None:
    async def work() -> None:
        job = Pretended(2, 1)
        job.trouble = "nothing answers"
        live = Live(job)
        assert (await live.current()).job.trouble == "nothing answers"
        asked = [job.refreshed]
        job.trouble = ""
        await live.current()
        assert [*asked, job.refreshed] == [0, 1]

    asyncio.run(work())


def test_progress_does_not_have_the_status_asked_for_as_soon_as_what_changes_nodes() -> None:
    async def work() -> None:
        job = Pretended(2, 1)
        live = Live(job)

        async def ask_after(told: Happening) -> int:
            live.take([LogEntry(90, 90.0, 90.0, told)])
            live._asked = asyncio.get_running_loop().time() - (SOON + LATER) / 2
            live._ask()
            if live._asking is not None:
                await asyncio.wait({live._asking}, timeout=DEADLINE)
            return job.refreshed

        live.join()
        assert live._asking is not None
        await asyncio.wait({live._asking}, timeout=DEADLINE)
        assert job.refreshed == 1
        assert await ask_after(StepsDone(0, 7, 1.0)) == 1
        assert await ask_after(NodeGone("a", "it left")) == 2
        assert await ask_after(StepsDone(0, 8, 1.0)) == 2

    asyncio.run(work())
