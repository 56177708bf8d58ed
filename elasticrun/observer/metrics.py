"""The figures of a job for Prometheus: ``GET /metrics``.

Theory. Each scrape is computed from the follower's history, which is a fold over the event log; nothing is
kept between scrapes, and nothing is collected where workers are forked. So an observer that starts anew
shows the same figures, as far as the log goes. Counters are those of ``core/history/totals.py``, and of the
books the time that is settled: neither falls while the job lives.

Invariants. How many series there are does not depend on the job: no label names a node, a rank or a text of
the log. What comes from outside (the job's id) is made plain and cut. The cost is O(nodes), for the goodput;
the rest is O(1). ``elasticrun/manual/metrics.md`` describes each metric; a test compares it with this module.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from elasticrun import __version__
from elasticrun.core.accounting.activities import Activity
from elasticrun.core.accounting.from_log import micros
from elasticrun.core.accounting.summary import LOST
from elasticrun.core.history.history import History
from elasticrun.core.history.totals import label
from elasticrun.core.history.views import NodeView, RoundView
from elasticrun.core.protocol.messages import AgentPhase
from elasticrun.observer.exposition import Count, Facts, Family, Gauge, Histogram, exposed

if TYPE_CHECKING:
    from elasticrun.core.protocol.status import JobStatus
    from elasticrun.follower import Follower

#: Seconds by which agents may be late with what they tell. Counters of time are so far behind.
LATE = 10.0
#: States of a node that its agent does not tell itself.
DETACHED, OTHER = "detached", "other"
_STATES = (*(phase.value for phase in AgentPhase), DETACHED, OTHER)


def render(follower: Follower) -> tuple[bytes, str]:
    """The answer to a scrape, and its content type."""
    return exposed(families(follower))


# -- what there is


def families(follower: Follower) -> Iterator[Family]:
    """All metrics. One without a value, as nothing is known yet, is left out."""
    history = follower.history
    now = history.last[0] if follower.trouble else follower.now  # the job's clock stands while no master is
    found = (
        *_of_job(history, follower.status),
        *_of_time(history, now),
        *_of_steps(history),
        *_of_data(history),
        *_of_nodes(history, follower.status),
        *_of_use(follower.status),
        *_of_ends(history),
        *_of_saves(history),
        *_of_observer(follower),
    )
    yield from (family for family in found if family.values)


def _of_job(history: History, status: JobStatus | None) -> Iterator[Family]:
    if status is not None:
        known = {"job_id": status.job_id, "version": __version__}
        yield Facts("info", "The job, and the version of elasticrun that tells of it.", known)
        yield Gauge(
            "restarts_used", "Restarts of the budget that are used.", _one(float(status.restarts_used))
        )
        yield Gauge("restarts_max", "Restarts that the budget allows.", _one(float(status.max_restarts)))
    yield Gauge(
        "job_over", "Whether the job is over: 1 if it is, else 0.", _one(float(bool(history.outcome)))
    )
    yield Gauge("master_epoch", "How many masters the job has had.", _one(float(history.epoch)))
    current = history.current
    number = None if current is None else float(current.number)
    yield Gauge("round", "The number of the newest round.", _one(number))


def _of_time(history: History, now: float) -> Iterator[Family]:
    settled = history.books.settle(micros(now - LATE))
    summary = history.summary(now)
    lost = {label(each.value): settled[each] / 1e6 for each in sorted(LOST, key=lambda it: it.value)}
    about = "Time of the job that was no work on new steps, by what it was."
    yield Count("badput_seconds_total", about, lost, "kind")
    productive = settled[Activity.PRODUCTIVE] / 1e6
    yield Count("productive_seconds_total", "Time of the job that was work on new steps.", _one(productive))
    ratio = "The share of all time of all nodes that was work on new steps, since the job began."
    yield Gauge("goodput_ratio", ratio, _one(summary.goodput))
    ratio = "The share of the job's time in which its world made new steps, since the job began."
    yield Gauge("ettr_ratio", ratio, _one(summary.ettr))


def _of_steps(history: History) -> Iterator[Family]:
    totals, current = history.totals, history.current
    step = None if totals.step < 0 else float(totals.step)
    rate = None if current is None or current.rate is None else current.rate
    if current is not None and _is_ended(current, history):
        rate = 0.0
    yield Gauge("last_step", "The newest training step that all workers have done.", _one(step))
    about = "When a step was told of last, by the clock of the master's host."
    yield Gauge("last_step_timestamp_seconds", about, _one(totals.stepped))
    yield Gauge(
        "steps_per_second", "Training steps per second, as told last; 0 while no round runs.", _one(rate)
    )


def _of_data(history: History) -> Iterator[Family]:
    """Of all shared datasets together: scripts name them, and may name many."""
    rows = history.data.values()
    if not rows:
        return
    count = {name: float(sum(getattr(it, name) for it in rows)) for name in ("done", "leased", "failed")}
    waiting = sum(max(0, it.total - it.done - it.leased - it.failed) for it in rows)
    about = "Shards of the datasets that ranks share, of the epochs that are read, by what became of them."
    yield Gauge("data_shards", about, {**count, "waiting": float(waiting)}, "state")
    about = "The epoch that is read of the shared dataset that is in its latest one."
    yield Gauge("data_epoch", about, _one(float(max(it.epoch for it in rows))))


def _of_nodes(history: History, status: JobStatus | None) -> Iterator[Family]:
    states = Counter(map(_state, history.nodes.values()))
    yield Gauge(
        "nodes", "Nodes that are here, by what they do.", {it: float(states[it]) for it in _STATES}, "state"
    )
    current = history.current
    runs = None if current is None or _is_ended(current, history) else current
    workers = 0.0 if runs is None else float(runs.workers)
    yield Gauge("world_size", "Workers of the round that runs; 0 if none does.", _one(workers))
    nodes = 0.0 if runs is None else float(runs.nodes)
    yield Gauge("world_nodes", "Nodes of the round that runs; 0 if none does.", _one(nodes))
    if status is not None:
        yield Gauge("min_nodes", "The fewest nodes with which the job runs.", _one(float(status.min_nodes)))
        yield Gauge("max_nodes", "The most nodes with which the job runs.", _one(float(status.max_nodes)))
    slow = [node.slowness for node in history.nodes.values() if node.slowness > 1.0]
    yield Gauge("stragglers", "Nodes that are slower than the others.", _one(float(len(slow))))
    about = "How many times as long as the others the slowest node takes; 1 if none is slow."
    yield Gauge("slowest_node_ratio", about, _one(max(slow, default=1.0)))


def _of_use(status: JobStatus | None) -> Iterator[Family]:
    """What workers use, of all nodes whose status has figures together."""
    said = [] if status is None else [node.figures for node in status.nodes]
    found = [it for it in said if it is not None]
    if not found:
        return
    yield Gauge("cpu_busy_cores", "Cores that are busy with workers.", _sum(it.cpu for it in found))
    yield Gauge("cpu_cores", "Cores that workers may use.", _sum(it.cpus for it in found))
    yield Gauge("memory_bytes", "Memory of workers.", _sum(it.memory for it in found))
    yield Gauge("memory_limit_bytes", "Memory that there is.", _sum(it.memory_limit for it in found))
    fullest = max(it.memory / max(1, it.memory_limit) for it in found)
    about = "The share of its memory that workers use, on the node where it is the largest."
    yield Gauge("fullest_node_memory_ratio", about, _one(fullest))
    traffic = {"received": sum(it.received for it in found), "sent": sum(it.sent for it in found)}
    yield Gauge("network_bytes_per_second", "Traffic of all hosts.", traffic, "direction")
    gpus = [gpu for it in found for gpu in it.gpus]
    busy = [gpu.busy for gpu in gpus if gpu.busy is not None]
    yield Gauge("gpus", "GPUs of the nodes.", _one(float(len(gpus))))
    if gpus:
        mean = sum(busy) / len(busy) if busy else None
        yield Gauge("gpu_busy_ratio", "The share of the time that GPUs are busy, on average.", _one(mean))
        yield Gauge("gpu_memory_bytes", "Memory of GPUs that is used.", _sum(it.memory for it in gpus))
        limit = _sum(it.memory_limit for it in gpus)
        yield Gauge("gpu_memory_limit_bytes", "Memory that GPUs have.", limit)


def _of_ends(history: History) -> Iterator[Family]:
    totals = history.totals
    about = "Rounds after the first one, by why the round before was stopped."
    yield Count("restarts_total", about, totals.restarts, "reason")
    about = "From the end of the work of a round to the first work of the next one, by phase."
    yield Histogram("recovery_seconds", about, totals.recoveries, "phase")
    yield Count("worker_failures_total", "Workers that failed by themselves, by how.", totals.failures, "how")
    yield Count(
        "hangs_total", "How often it was found that workers make no steps.", _one(float(totals.hangs))
    )


def _of_saves(history: History) -> Iterator[Family]:
    count = {place.value: float(number) for place, number in history.totals.saves.items()}
    yield Count("saves_total", "States that were saved, by how safe the place is.", count, "place")
    steps = {place.value: float(saved.step) for place, saved in history.saved.items()}
    yield Gauge("saved_step", "The step of the newest saved state, by place.", steps, "place")
    times = {place.value: saved.time for place, saved in history.saved.items()}
    about = "When the newest saved state got there, by the clock of the master's host."
    yield Gauge("saved_timestamp_seconds", about, times, "place")


def _of_observer(follower: Follower) -> Iterator[Family]:
    history = follower.history
    yield Gauge(
        "observer_connected",
        "Whether the observer hears the job's master: 1 if it does, else 0.",
        _one(float(not follower.trouble)),
    )
    about = "Whether entries of the event log are missing: then counters are too low."
    yield Gauge("observer_entries_missed", about, _one(float(history.missed)))
    yield Count(
        "event_log_lost_total",
        "Entries that the event log itself says it has lost; a loss of unknown size counts as one.",
        _one(float(history.totals.lost)),
    )
    if history.first is not None:
        about = "When the oldest entry that the observer knows was written: counters begin there."
        yield Gauge("event_log_start_timestamp_seconds", about, _one(history.first[1]))
        about = "When the newest entry of the event log was written."
        yield Gauge("event_log_last_timestamp_seconds", about, _one(history.last[1]))


def _one(value: float | None) -> dict[str, float]:
    """The values of a metric without labels; none if it is not known."""
    return {} if value is None else {"": value}


def _is_ended(current: RoundView, history: History) -> bool:
    """Whether a round makes no steps any more."""
    return current.stopping is not None or current.stopped is not None or bool(history.outcome)


def _sum(values: Iterable[float]) -> dict[str, float]:
    return {"": float(sum(values))}


def _state(node: NodeView) -> str:
    if not node.is_attached:
        return DETACHED
    return node.phase if node.phase in _STATES else OTHER
