"""What the tasks of a TensorFlow job use, and how fast they go: figures per task and per role.

Theory. The agent reads counters that only grow (CPU time, steps, the time of steps) with each heartbeat.
Rates are differences of these. CPU use is that of the last interval, to show what happens now. Steps may be
much longer than an interval, so their rate is taken over ``WINDOW``, which avoids a sawtooth.

Invariants. No difference spans two processes: a new process begins its counters anew. An unknown figure is
None, never a special number. A task without a new reading is forgotten.
"""

from collections.abc import Iterable, Mapping
from typing import Annotated

from elasticrun.config import TaskRole
from elasticrun.core.protocol.bounds import BYTES, RANKS, RATES, STEPS_MADE, Distinct, Length
from elasticrun.core.protocol.tasks import MAX_TASKS
from elasticrun.dataclass import dataclass

#: Seconds that a rate of steps is taken over.
WINDOW = 60.0


@dataclass(frozen=True, slots=True)
class TaskUsage:
    """What one task uses, and how fast it goes; None: not known."""

    local_rank: Annotated[int, RANKS]
    cpu: Annotated[float, RATES] | None = None  # cores that were busy with it since the last heartbeat
    # Bytes that its processes have in memory; shared memory counts for each.
    memory: Annotated[int, BYTES] | None = None
    step: Annotated[int, STEPS_MADE] | None = None  # the last one that it reported
    step_rate: Annotated[float, RATES] | None = None  # steps per second
    graph_time: Annotated[float, RATES] | None = None  # seconds that a step took to compute, on average


TaskUsages = Annotated[tuple[TaskUsage, ...], Length(MAX_TASKS), Distinct("local_rank")]


@dataclass(frozen=True, slots=True)
class Pace:
    """What a process has reported of its steps."""

    owner: int  # its pid
    step: int  # the number of the last one
    timed: int = 0  # how many steps were timed
    seconds: float = 0.0  # of those together


@dataclass(frozen=True, slots=True)
class Reading:
    """The counters of one task at one time."""

    at: float  # seconds of the host's monotonic clock
    pid: int  # of the task
    cpu: float  # seconds that its processes have used
    memory: int  # bytes
    pace: Pace | None = None  # None: it reports no steps


class UsageMeter:
    """Turns the readings of a node's tasks into figures."""

    def __init__(self) -> None:
        self._readings: dict[int, list[Reading]] = {}  # of the last WINDOW, by local rank

    def measure(self, readings: Mapping[int, Reading]) -> tuple[TaskUsage, ...]:
        """The figures for all running tasks, from earlier readings and these newest ones by local rank."""
        self._readings = {
            local_rank: [*_comparable(self._readings.get(local_rank, ()), newest), newest]
            for local_rank, newest in sorted(readings.items())
        }
        return tuple(_usage(local_rank, window) for local_rank, window in self._readings.items())


def _comparable(earlier: Iterable[Reading], newest: Reading) -> list[Reading]:
    return [
        reading
        for reading in earlier
        if reading.pid == newest.pid and newest.at - WINDOW <= reading.at < newest.at
    ]


def _usage(local_rank: int, window: list[Reading]) -> TaskUsage:
    newest = window[-1]
    pace = newest.pace
    paced = [(r.at, r.pace) for r in window if r.pace and pace and r.pace.owner == pace.owner]
    return TaskUsage(
        local_rank,
        cpu=_cpu(window[-2], newest) if len(window) > 1 else None,
        memory=newest.memory,
        step=pace.step if pace is not None and pace.step >= 0 else None,
        step_rate=_step_rate(*paced[0], *paced[-1]) if len(paced) > 1 else None,
        graph_time=_graph_time(paced[0][1] if len(paced) > 1 else None, pace) if pace is not None else None,
    )


def _cpu(before: Reading, after: Reading) -> float:
    """Cores in use, at least 0: a child that ended without being waited for takes its time along."""
    return max(0.0, after.cpu - before.cpu) / (after.at - before.at)


def _step_rate(begin: float, first: Pace, end: float, last: Pace) -> float | None:
    """None if the task has gone back, as to a checkpoint."""
    return (last.step - first.step) / (end - begin) if last.step >= first.step else None


def _graph_time(first: Pace | None, last: Pace) -> float | None:
    """Seconds per step since ``first``, or since the start; None if no step was timed."""
    timed = last.timed - (first.timed if first is not None else 0)
    seconds = last.seconds - (first.seconds if first is not None else 0.0)
    return seconds / timed if timed > 0 and seconds >= 0.0 else None  # a sum that overflowed is unknown


# -- by role


@dataclass(frozen=True, slots=True)
class RoleUsage:
    """What all tasks of a role use together, and the pace of the one that lags; None: not known of any."""

    role: TaskRole
    tasks: int  # of which anything is known
    cpu: float | None  # cores
    memory: int | None  # bytes
    step: int | None  # the lowest
    step_rate: float | None  # the lowest: tasks of a role make the same steps, each of them once
    graph_time: float | None  # the longest


def by_role(usages: Iterable[tuple[TaskRole, TaskUsage]]) -> tuple[RoleUsage, ...]:
    """The usage of each role that has any, in the order of the roles."""
    found: dict[TaskRole, list[TaskUsage]] = {}
    for role, usage in usages:
        found.setdefault(role, []).append(usage)
    return tuple(_of_role(role, found[role]) for role in TaskRole if role in found)


def _of_role(role: TaskRole, usages: list[TaskUsage]) -> RoleUsage:
    cpus = [usage.cpu for usage in usages if usage.cpu is not None]
    memories = [usage.memory for usage in usages if usage.memory is not None]
    return RoleUsage(
        role,
        tasks=len(usages),
        cpu=sum(cpus) if cpus else None,
        memory=sum(memories) if memories else None,
        step=min((usage.step for usage in usages if usage.step is not None), default=None),
        step_rate=min((usage.step_rate for usage in usages if usage.step_rate is not None), default=None),
        graph_time=max((usage.graph_time for usage in usages if usage.graph_time is not None), default=None),
    )


# -- in words


def in_words(usage: TaskUsage | RoleUsage) -> str:
    """The known figures: ``0.97 cores, 512 MiB, step 1200, 8.3 steps/s, 110 ms per step``."""
    parts = (
        "" if usage.cpu is None else f"{usage.cpu:.2f} cores",
        "" if usage.memory is None else f"{usage.memory / 2**20:.0f} MiB",
        "" if usage.step is None else f"step {usage.step}",
        "" if usage.step_rate is None else f"{usage.step_rate:.3g} steps/s",
        "" if usage.graph_time is None else f"{usage.graph_time * 1e3:.3g} ms per step",
    )
    return ", ".join(part for part in parts if part)
