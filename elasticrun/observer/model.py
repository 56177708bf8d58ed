"""What the page shows, as values: made from a job's history and its last status, and from nothing else.

Theory. ``view`` is a pure function: the same history, status and instant give the same ``State``, and the
rows of what did not change are equal. So what changed is found by comparing two states (``changes.py``), and
nothing has to tell that it changed. A state is bounded: lists hold the newest rows, texts are cut.

Times are seconds. Instants are those of the job's clock; ``Clock`` says what the wall clock was.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from itertools import islice
from typing import TypeVar

from elasticrun.core.accounting.activities import Activity, Spent
from elasticrun.core.history.history import History
from elasticrun.core.history.views import SLOW, NodeView, Recovery, RoundView
from elasticrun.core.protocol.chronicle import Place, WorkerFailed
from elasticrun.core.protocol.commits import CommitId
from elasticrun.core.protocol.messages import AgentPhase
from elasticrun.core.protocol.status import JobStatus, NodeStatus
from elasticrun.dataclass import dataclass
from elasticrun.observer.datasets import DataRow, data_of
from elasticrun.observer.figures import FigureRow, figures_of

T = TypeVar("T")
VERSION = 1
#: The most rows of a list, characters of a sentence, and nodes.
MAX_ROWS = 300
MAX_SENTENCE = 500
MAX_NODES = 4096
_STATES = {
    AgentPhase.RUNNING.value: "running",
    AgentPhase.READY.value: "waiting",
    AgentPhase.FINISHED.value: "waiting",
    AgentPhase.FAILED.value: "failed",
    AgentPhase.STOPPING.value: "stopping",
}


@dataclass(frozen=True, slots=True)
class Clock:
    """When this state was."""

    at: float  # by the job's clock
    time: float  # by the wall clock of the master's host
    began: float  # the job's clock at the first entry that is known


@dataclass(frozen=True, slots=True)
class JobView:
    """The job as a whole."""

    job_id: str
    phase: str  # see ``JobPhase``; "": not known yet
    round: int  # the newest; -1: there was none
    min_nodes: int
    max_nodes: int
    restarts_used: int
    max_restarts: int
    waiting_for: str
    epoch: int  # of the master
    restarts: int  # rounds after the first one
    failed: int  # workers that failed by themselves
    step: int  # the newest that is done; -1: not known
    rate: float | None  # steps per second
    unlisted: int  # nodes that are not among the rows
    outcome: str  # "": it is not over
    end_reason: str
    trouble: str  # why the master is not heard; "": it is
    missed: bool  # entries are missing: the job is older than what the master remembers
    first_cause: str  # of the newest recovery


@dataclass(frozen=True, slots=True)
class Share:
    """Time that was spent on one thing."""

    name: str  # see ``Activity``
    seconds: float


@dataclass(frozen=True, slots=True)
class TimeView:
    """Where the time went."""

    goodput: float
    ettr: float
    nodes: tuple[Share, ...]  # of all nodes
    job: tuple[Share, ...]  # of the job


@dataclass(frozen=True, slots=True)
class NodeRow:
    """One node."""

    name: str
    host: str
    rank: int | None  # in the round; None: it has none
    state: str  # "running", "starting", "waiting", "stopping", "failed", "away", "doubted" or "slow"
    phase: str  # as its agent said
    round: int
    workers: int
    since: float
    slowness: float
    doubt: str
    figures: FigureRow | None


@dataclass(frozen=True, slots=True)
class RoundRow:
    """One round."""

    number: int
    started: float
    nodes: int
    workers: int
    reason: str
    restored_step: int | None
    running: float | None
    first_step: float | None
    step: int
    stopping: float | None
    cause: str
    stop_reason: str
    stopped: float | None


@dataclass(frozen=True, slots=True)
class FailureRow:
    """A worker that failed by itself."""

    at: float
    time: float
    round: int
    node: str
    rank: int
    pid: int
    how: str
    exit_code: int
    step: int
    summary: str


@dataclass(frozen=True, slots=True)
class RecoveryRow:
    """From the end of the work of one round to the first work of the next one."""

    round: int
    began: float
    cause: str
    reason: str
    is_failure: bool
    seconds: float | None


@dataclass(frozen=True, slots=True)
class DecisionRow:
    """A decision of the master, with its reason."""

    at: float
    time: float
    text: str


@dataclass(frozen=True, slots=True)
class StepRow:
    """A sample of the progress."""

    at: float
    step: int
    rate: float | None


@dataclass(frozen=True, slots=True)
class SaveRow:
    """The newest saved state in a place."""

    place: str  # see ``Place``
    step: int
    at: float | None  # None: before what is known


@dataclass(frozen=True, slots=True)
class State:
    """All that the page shows. GET /api/state answers it."""

    version: int
    sequence: int  # grows with each change
    clock: Clock
    job: JobView
    spent: TimeView
    nodes: tuple[NodeRow, ...]
    rounds: tuple[RoundRow, ...]  # the newest, oldest first, as all lists
    failures: tuple[FailureRow, ...]
    recoveries: tuple[RecoveryRow, ...]
    decisions: tuple[DecisionRow, ...]
    steps: tuple[StepRow, ...]
    saves: tuple[SaveRow, ...]
    data: tuple[DataRow, ...]  # of the datasets that ranks share


def view(
    history: History, status: JobStatus | None, now: float, trouble: str = "", sequence: int = 0
) -> State:
    """The state at ``now`` of the job's clock."""
    at, wall = history.last
    nodes = _nodes(history, status)
    return State(
        VERSION,
        sequence,
        Clock(_short(now), _short(wall + max(0.0, now - at)), _short((history.first or (0.0,))[0])),
        _job(history, status, trouble, max(0, len(history.nodes) - len(nodes))),
        _spent(history, now),
        nodes,
        tuple(map(_round, _newest(history.rounds))),
        tuple(_failure(*each) for each in _newest(history.failures)),
        tuple(map(_recovery, _newest(history.recoveries))),
        tuple(DecisionRow(_short(a), _short(t), _cut(text)) for a, t, text in _newest(history.decisions)),
        tuple(StepRow(_short(a), step, _maybe(rate)) for a, step, rate in _newest(history.steps)),
        _saves(history, status),
        data_of(history.data.values()),
    )


def _newest(rows: deque[T]) -> Iterator[T]:
    return islice(rows, max(0, len(rows) - MAX_ROWS), None)


def _short(seconds: float) -> float:
    return round(seconds, 3)


def _maybe(number: float | None) -> float | None:
    return None if number is None else round(number, 3)


def _cut(text: str) -> str:
    return text if len(text) <= MAX_SENTENCE else f"{text[: MAX_SENTENCE - 1]}…"


def _job(history: History, status: JobStatus | None, trouble: str, unlisted: int) -> JobView:
    current = history.current
    recovery = history.recoveries[-1] if history.recoveries else None
    return JobView(
        job_id=status.job_id if status else "",
        phase=_phase(history, status),
        round=current.number if current else (status.round if status else -1),
        min_nodes=status.min_nodes if status else 0,
        max_nodes=status.max_nodes if status else 0,
        restarts_used=_restarts_used(history, status),
        max_restarts=status.max_restarts if status else 0,
        waiting_for=_cut(status.waiting_for) if status else "",
        epoch=history.epoch,
        restarts=history.restarts,
        failed=history.failed,
        step=current.step if current else -1,
        rate=_maybe(current.rate) if current else None,
        unlisted=unlisted,
        outcome=history.outcome,
        end_reason=_cut(history.end_reason),
        trouble=_cut(trouble),
        missed=history.missed,
        first_cause=_cut(recovery.reason) if recovery else "",
    )


def _restarts_used(history: History, status: JobStatus | None) -> int:
    """Of the budget: as the status says, and those of the rounds that have begun since."""
    if status is None:
        return 0
    then = next((each for each in reversed(history.rounds) if each.number == status.round), None)
    if then is None or history.current is None:
        return status.restarts_used
    return status.restarts_used + history.current.restart - then.restart


def _phase(history: History, status: JobStatus | None) -> str:
    """Where the job stands: entries come sooner than the status."""
    if history.current is None and not history.outcome and not history.is_checking:
        return status.phase.value if status else ""
    return history.phase


def _spent(history: History, now: float) -> TimeView:
    if history.first is None:
        return TimeView(0.0, 0.0, (), ())
    summary = history.summary(now)
    return TimeView(
        round(summary.goodput, 4), round(summary.ettr, 4), _shares(summary.total), _shares(summary.job)
    )


def _shares(spent: Spent) -> tuple[Share, ...]:
    return tuple(Share(each.value, round(spent[each] / 1e6, 1)) for each in Activity if spent[each])


# -- nodes


def _nodes(history: History, status: JobStatus | None) -> tuple[NodeRow, ...]:
    """Those of the history, with what the status says of them; ranks first, then by name."""
    said = {node.name: node for node in status.nodes} if status else {}
    rows = [_node(node, said.get(node.name)) for node in history.nodes.values()]
    rows.sort(key=lambda row: (row.rank is None, row.rank or 0, row.name))
    return tuple(rows[:MAX_NODES])


def _node(node: NodeView, said: NodeStatus | None) -> NodeRow:
    doubt = said.doubt if said else ""
    return NodeRow(
        node.name,
        node.host,
        said.rank if said else None,
        _state_of(node, doubt),
        node.phase,
        node.round,
        node.workers,
        _short(node.since),
        round(node.slowness, 2),
        _cut(doubt),
        figures_of(said.figures) if said and said.figures else None,
    )


def _state_of(node: NodeView, doubt: str) -> str:
    """One word for what a person has to know first."""
    if not node.is_attached:
        return "away"
    if doubt:
        return "doubted"
    if node.slowness >= SLOW:
        return "slow"
    return _STATES.get(node.phase, "starting")


# -- rounds, failures, saves


def _round(it: RoundView) -> RoundRow:
    return RoundRow(
        it.number,
        _short(it.started),
        it.nodes,
        it.workers,
        _cut(it.reason),
        it.restored_step,
        _maybe(it.running),
        _maybe(it.first_step),
        it.step,
        _maybe(it.stopping),
        _cut(it.cause),
        _cut(it.stop_reason),
        _maybe(it.stopped),
    )


def _failure(at: float, time: float, told: WorkerFailed) -> FailureRow:
    return FailureRow(
        _short(at),
        _short(time),
        told.round,
        told.node,
        told.rank,
        told.pid,
        told.how,
        told.exit_code,
        told.step,
        _cut(told.summary),
    )


def _recovery(it: Recovery) -> RecoveryRow:
    return RecoveryRow(
        it.round, _short(it.began), _cut(it.cause), _cut(it.reason), it.is_failure, _maybe(it.seconds)
    )


def _saves(history: History, status: JobStatus | None) -> tuple[SaveRow, ...]:
    """The newest saved state in each place, by what is known best."""
    said: dict[Place, CommitId | None] = {}
    if status is not None:
        said = {Place.MEMORY: status.saved, Place.HOSTS: status.safe, Place.STORAGE: status.durable}
    rows = []
    for place in Place:
        known, commit = history.saved.get(place), said.get(place)
        if known is not None:
            rows.append(SaveRow(place.value, known.step, _short(known.at)))
        elif commit is not None:
            rows.append(SaveRow(place.value, commit.step, None))
    return tuple(rows)
