"""What ``elastic-ctl top`` shows of a job at one moment, as values; also its JSON form.

Theory. A frame follows from the history of the job, its clock, and, if the job is asked live, its status:
nothing else. So the past is shown as the present was. What only the status knows (the limits, the figures of
nodes) is missing in a frame of the past, and is None.
"""

from __future__ import annotations

from itertools import islice
from typing import Annotated

from elasticrun.core.accounting.activities import Activity
from elasticrun.core.accounting.summary import by_loss, share
from elasticrun.core.history.history import History
from elasticrun.core.history.views import NodeView, RoundView
from elasticrun.core.protocol.bounds import Counted, Range
from elasticrun.core.protocol.round_progress import NodeFigures
from elasticrun.core.protocol.status import JobPhase, JobStatus, NodeStatus
from elasticrun.dataclass import dataclass

VERSION = 1
#: How many of the newest failures, recoveries and decisions a frame has.
NEWEST = 20
Ratio = Annotated[float, Range(0.0, 1.0)]
Step = Annotated[int, Range(-1, 2**63 - 1)]


@dataclass(frozen=True, slots=True)
class NodeRow:
    """One node."""

    name: str
    rank: Counted | None  # in the world of this round; null: none
    phase: str  # what its agent does
    attached: bool  # false: its agent is away, and may come back
    workers: Counted
    slowness: float  # how many times as long as the others it takes
    doubt: str  # why the health check distrusts it; "": it does not
    figures: NodeFigures | None  # what its workers use; null: not known


@dataclass(frozen=True, slots=True)
class FailedWorker:
    """A worker that failed by itself."""

    at: float  # seconds of the job's clock
    time: float  # of the wall clock of the master's host
    round: Step
    node: str
    rank: Step
    summary: str


@dataclass(frozen=True, slots=True)
class RecoveryRow:
    """From the end of the work of one round to the first work of the next one."""

    at: float  # when it began
    time: float
    round: Step  # that came to be
    seconds: float | None  # null: it is not over, or the next round ended before its first step
    is_failure: bool  # else nodes came or went, or somebody wanted it
    is_open: bool  # it goes on now
    cause: str
    reason: str


@dataclass(frozen=True, slots=True)
class TimeSpent:
    """What a share of all time of all nodes was spent on."""

    activity: Activity
    seconds: float
    share: Ratio


@dataclass(frozen=True, slots=True)
class Frame:
    """A job at one moment."""

    version: int
    job_id: str | None  # null: the log does not say
    at: float  # seconds of the job's clock
    time: float  # the wall clock of the master's host then
    phase: str
    round: Step  # the newest; -1: there was none
    present: Counted  # nodes
    members: Counted  # nodes of the newest round
    workers: Counted  # of the newest round
    min_nodes: Counted | None
    max_nodes: Counted | None
    restarts_used: Counted | None
    max_restarts: Counted | None
    failed_workers: Counted
    goodput: Ratio
    ettr: Ratio
    step: Step
    step_rate: float | None  # steps per second; null: not known
    uptime: float  # seconds since the job began
    waiting_for: str
    reason: str  # of its end; "": it goes on
    trouble: str  # why nothing is heard from the master; "": it is heard
    missed: bool  # entries of the log are missing
    nodes: tuple[NodeRow, ...]  # members first, by rank
    failures: tuple[FailedWorker, ...]  # the newest first
    recoveries: tuple[RecoveryRow, ...]  # the newest first
    spent: tuple[TimeSpent, ...]  # work first, then the largest loss


def frame_of(
    history: History, now: float | None = None, status: JobStatus | None = None, trouble: str = ""
) -> Frame:
    """The frame of a history at a moment of the job's clock; by default at its last entry."""
    last, wall = history.last
    at = last if now is None else max(now, last)
    began = last if history.first is None else history.first[0]
    current, summary = history.current, history.summary(at)
    phase = history.phase if status is None or history.outcome else status.phase.value
    waits = status is not None and not history.outcome
    return Frame(
        version=VERSION,
        job_id=None if status is None else status.job_id,
        at=at,
        time=wall + at - last,
        phase=phase,
        round=-1 if current is None else current.number,
        present=len(history.nodes) if status is None else len(status.nodes) + status.unlisted,
        members=0 if current is None else current.nodes,
        workers=0 if current is None else current.workers,
        min_nodes=None if status is None else status.min_nodes,
        max_nodes=None if status is None else status.max_nodes,
        restarts_used=_restarts(current) if status is None else status.restarts_used,
        max_restarts=None if status is None else status.max_restarts,
        failed_workers=history.failed,
        goodput=summary.goodput,
        ettr=summary.ettr,
        step=-1 if current is None else _newest_step(history, current),
        step_rate=None if current is None or phase != JobPhase.RUNNING.value else current.rate,
        uptime=max(0.0, at - began),
        waiting_for=status.waiting_for if status is not None and waits else "",
        reason=history.end_reason,
        trouble=trouble,
        missed=history.missed,
        nodes=_nodes(history, status),
        failures=_failures(history),
        recoveries=_recoveries(history),
        spent=tuple(
            TimeSpent(each, summary.total[each] / 1e6, share(summary.total[each], summary.total))
            for each in by_loss(summary.total)
        ),
    )


def _restarts(current: RoundView | None) -> int:
    return 0 if current is None else current.restart


def _newest_step(history: History, current: RoundView) -> int:
    """The step of this round; before its first one that is known, the last one of before."""
    if current.step >= 0 or not history.steps:
        return current.step
    return history.steps[-1][1]


# -- nodes


def _nodes(history: History, status: JobStatus | None) -> tuple[NodeRow, ...]:
    if status is not None and not history.outcome:
        return tuple(_live(node, history.nodes.get(node.name)) for node in status.nodes)
    current = history.current
    names = () if current is None or current.stopped is not None else current.names
    ranks = {name: rank for rank, name in enumerate(names)}
    rows = [_past(node, ranks.get(node.name)) for node in history.nodes.values()]
    return tuple(sorted(rows, key=lambda row: (row.rank is None, row.rank or 0)))


def _live(node: NodeStatus, seen: NodeView | None) -> NodeRow:
    return NodeRow(
        name=node.name,
        rank=node.rank,
        phase=node.phase.value,
        attached=node.attached,
        workers=0 if seen is None else seen.workers,
        slowness=1.0 if seen is None else seen.slowness,
        doubt=node.doubt,
        figures=node.figures,
    )


def _past(node: NodeView, rank: int | None) -> NodeRow:
    return NodeRow(node.name, rank, node.phase, node.is_attached, node.workers, node.slowness, "", None)


# -- what happened


def _failures(history: History) -> tuple[FailedWorker, ...]:
    newest = islice(reversed(history.failures), NEWEST)
    return tuple(
        FailedWorker(at, time, told.round, told.node, told.rank, told.summary) for at, time, told in newest
    )


def _recoveries(history: History) -> tuple[RecoveryRow, ...]:
    last, wall = history.last
    current, newest = history.current, history.recoveries[-1] if history.recoveries else None
    rows = []
    for it in islice(reversed(history.recoveries), NEWEST):
        is_pending = it.started is None
        if is_pending and (current is None or current.stopping is None):
            continue  # perhaps of a task that starts again alone
        is_open = it is newest and it.over is None and not history.outcome
        time = wall + it.began - last
        rows.append(
            RecoveryRow(it.began, time, it.round, it.seconds, it.is_failure, is_open, it.cause, it.reason)
        )
    return tuple(rows)
