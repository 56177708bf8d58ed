"""Histories, statuses and frames for the tests of top."""

from __future__ import annotations

from rich.text import Text

from elasticrun.core.history.history import History
from elasticrun.core.protocol.chronicle import (
    Happening,
    JobEnded,
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
from elasticrun.core.protocol.messages import AgentPhase
from elasticrun.core.protocol.status import JobPhase, JobStatus, NodeStatus

BEGAN = 1_000_000.0


def joined(node: str) -> NodeJoined:
    return NodeJoined(node, "host", 2, returns=False)


def story(*names: str) -> list[tuple[float, Happening]]:
    """Nodes train, a worker fails at 100 s, and they train again from 102 s on."""
    failed = WorkerFailed(0, names[0], "host", 1, 1, 77, "exit", 3, 9, "rank 1 exited with 3")
    round_ = RoundStarted(0, len(names), 2 * len(names), names[:64], 0, None, "all are ready")
    again = RoundStarted(1, len(names), 2 * len(names), names[:64], 1, 9, "all are ready")
    return [
        (0, MasterStarted(1, is_first=True)),
        *((1, joined(name)) for name in names),
        (2, round_),
        *((3, NodeChanged(name, "running", 0)) for name in names),
        (4, MilestoneReached(names[0], 0, "first_step")),
        (90, StepsDone(0, 9, 0.1)),
        (100, failed),
        (100, RoundStopping(0, "worker failed", "rank 1 exited with 3")),
        (100.5, RoundStopped(0)),
        (100.5, again),
        *((101, NodeChanged(name, "running", 1)) for name in names),
        (102, StepsDone(1, 10, None)),
        (150, StepsDone(1, 1234, 24.5)),
    ]


def entries(told: list[tuple[float, Happening]]) -> list[LogEntry]:
    return [LogEntry(event, at, BEGAN + at, it) for event, (at, it) in enumerate(told, 1)]


def history(*names: str, is_over: bool = False) -> History:
    made = History()
    for entry in entries(
        [*story(*names), *([(160, JobEnded("succeeded", "all is done"))] if is_over else [])]
    ):
        made.take(entry)
    return made


def status(*names: str, waiting_for: str = "") -> JobStatus:
    nodes = tuple(NodeStatus(name, rank, AgentPhase.RUNNING) for rank, name in enumerate(names))
    return JobStatus("my job", JobPhase.RUNNING, 1, 1, 1000, 1, 3, waiting_for, nodes)


def plain_lines(lines: list[Text]) -> list[str]:
    return [line.plain.rstrip() for line in lines]
