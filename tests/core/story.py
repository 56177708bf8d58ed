"""Entries of an event log, for tests of what shows a job."""

from __future__ import annotations

from collections.abc import Iterator

from elasticrun.core.protocol.chronicle import (
    Happening,
    LogEntry,
    MasterStarted,
    MilestoneReached,
    NodeChanged,
    NodeJoined,
    RoundStarted,
    RoundStopped,
    RoundStopping,
    StepsDone,
    WorkerFailed,
)

#: The wall clock when the job's clock was 0.
WALL = 1_700_000_000.0
#: Seconds after the start of a round at which its workers get to each milestone.
REACHED = (("spawned", 0.25), ("imported", 2.25), ("connected", 2.5), ("restored", 3.5), ("first_step", 4.0))
#: Seconds that a round of ``story`` lasts, that it takes to stop it, and until the next one starts.
LASTS, STOPS, WAITS = 20.0, 0.5, 1.0
SPAN = LASTS + STOPS + WAITS


def entry(at: float, told: Happening) -> LogEntry:
    return LogEntry(0, at, WALL + at, told)


def failed(number: int, node: str = "a", how: str = "signal", summary: str = "rank 1 died") -> WorkerFailed:
    return WorkerFailed(number, node, f"host-{node}", 1, 1, 4711, how, -9, 12, summary)


def joined(nodes: tuple[str, ...] = ("a", "b")) -> Iterator[LogEntry]:
    """A master, and nodes that are ready."""
    yield entry(0.0, MasterStarted(1, True))
    for name in nodes:
        yield entry(0.0, NodeJoined(name, f"host-{name}", 2, False))
        yield entry(0.0, NodeChanged(name, "ready", -1))


def running(number: int, at: float, nodes: tuple[str, ...] = ("a", "b")) -> Iterator[LogEntry]:
    """A round that starts and makes steps."""
    yield entry(at, RoundStarted(number, len(nodes), 2 * len(nodes), nodes, number, 10, "all are here"))
    for name in nodes:
        yield entry(at + 0.25, NodeChanged(name, "running", number))
    for milestone, after in REACHED:
        for name in nodes:
            yield entry(at + after, MilestoneReached(name, number, milestone))
    yield entry(at + 4.5, StepsDone(number, 10 * number + 11, 2.0))
    yield entry(at + 10.0, StepsDone(number, 10 * number + 20, 2.0))


def stopping(number: int, at: float, cause: str = "worker failed") -> Iterator[LogEntry]:
    """A worker that fails, and the end of its round."""
    yield entry(at, failed(number))
    yield entry(at + 0.125, RoundStopping(number, cause, "rank 1 was killed"))
    for name in ("a", "b"):
        yield entry(at + STOPS, NodeChanged(name, "ready", number))
    yield entry(at + STOPS, RoundStopped(number))


def story(rounds: int, nodes: tuple[str, ...] = ("a", "b")) -> Iterator[LogEntry]:
    """So many rounds, all but the last one ended by a failure."""
    yield from joined(nodes)
    for number in range(rounds):
        begin = number * SPAN
        yield from running(number, begin, nodes)
        if number < rounds - 1:
            yield from stopping(number, begin + LASTS)
