"""The story of a job as its event log tells it: who is here, the rounds, the failures, where the time went.

Everything that shows a job (``elastic-ctl top`` and ``report``, the web page, the metrics, the launcher's
status line) shows a ``History``. So they agree, and the past can be shown as the present was.

Theory. A history is a fold over entries: it depends on them alone, in the order of the log, and on no clock.
Each entry costs O(1), or O(nodes) where it names them all. Memory is bounded: of what is over, only the
newest ``KEPT`` are known. What has to be known of all that ever was is in two folds of their own: counts that
never fall are in ``totals``, so a recovery is among them once it is settled; what each kind of incident cost
is in ``incidents``, and is known only when the next one begins. They have no figure in common.

A recovery is the time from the first failure, or stop, of a round until the first step of the next one is
done, or until its workers run if nobody reports steps. Stops that change the world without a failure count
too: they cost as much. What the order to stop says of the cause holds; failures that are heard after it are
its echo. A failure that is followed by nothing for ``ECHO`` seconds stopped no round: it was that of a task
which starts again alone. If the job ends instead, nothing is recovered.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass as mutable
from dataclasses import field

from elasticrun.core.accounting.books import Books
from elasticrun.core.accounting.from_log import FAILURES, facts_of, micros
from elasticrun.core.accounting.summary import Summary
from elasticrun.core.history.incidents import TOLD, Incidents
from elasticrun.core.history.totals import Totals
from elasticrun.core.history.views import NodeView, Recovery, RoundView, SavedView
from elasticrun.core.protocol import chronicle
from elasticrun.core.protocol.chronicle import MAX_DATASETS, LogEntry, Place
from elasticrun.core.protocol.messages import AgentPhase
from elasticrun.core.protocol.round_progress import Milestone
from elasticrun.core.protocol.status import JobPhase
from elasticrun.core.recovery.budget import StopCause

#: How many rounds, failures, decisions and samples are known at most.
KEPT = 1000
#: Seconds within which a failure and the stop that it causes are heard.
ECHO = 5.0
_STEPPED = Milestone.FIRST_STEP.name.lower()


@mutable(slots=True)
class History:
    """Takes entries, in the order of the log."""

    nodes: dict[str, NodeView] = field(default_factory=dict)
    rounds: deque[RoundView] = field(default_factory=lambda: deque(maxlen=KEPT))
    failures: deque[tuple[float, float, chronicle.WorkerFailed]] = field(
        default_factory=lambda: deque(maxlen=KEPT)
    )  # with the job's clock and the wall clock
    decisions: deque[tuple[float, float, str]] = field(default_factory=lambda: deque(maxlen=KEPT))
    recoveries: deque[Recovery] = field(default_factory=lambda: deque(maxlen=KEPT))
    steps: deque[tuple[float, int, float | None]] = field(default_factory=lambda: deque(maxlen=KEPT))
    data: dict[str, chronicle.DataProgress] = field(default_factory=dict)  # of the newest round, by dataset
    saved: dict[Place, SavedView] = field(default_factory=dict)
    epoch: int = 0  # of the master
    is_checking: bool = False
    restarts: int = 0  # rounds after the first one
    failed: int = 0  # workers that failed by themselves
    reports_steps: bool = False  # somebody does
    outcome: str = ""  # "": it is not over
    end_reason: str = ""
    first: tuple[float, float] | None = None  # the job's clock and the wall clock of the first entry
    last: tuple[float, float] = (0.0, 0.0)  # the same of the newest
    missed: bool = False  # entries are missing in between
    books: Books = field(default_factory=Books)
    totals: Totals = field(default_factory=Totals)
    incidents: Incidents = field(default_factory=Incidents)

    def take(self, entry: LogEntry) -> None:
        """Take in the next entry."""
        if self.first is None:
            self.first = entry.at, entry.time
            self.books = Books(micros(entry.at))
        self.last = max(self.last[0], entry.at), entry.time
        spent = self.books.job_spent(micros(entry.at)) if isinstance(entry.told, TOLD) else None
        for fact in facts_of(entry):
            self.books.take(fact)
        self._see(entry)
        newest = self.recoveries[-1] if self.recoveries else None
        self.totals.take(entry, self.rounds, newest)
        if spent is not None:
            self.incidents.take(entry, newest, spent)

    def summary(self, now: float | None = None) -> Summary:
        """Where the time went until ``now`` by the job's clock; by default until the last entry."""
        return self.books.summary(micros(self.last[0] if now is None else now))

    @property
    def current(self) -> RoundView | None:
        """The newest round."""
        return self.rounds[-1] if self.rounds else None

    @property
    def phase(self) -> str:
        """Where the job stands, as far as the log tells it: see ``JobPhase``."""
        current = self.current
        if self.outcome:
            return self.outcome
        if self.is_checking:
            return JobPhase.CHECKING.value
        if current is None or current.stopped is not None:
            return JobPhase.GATHERING.value
        return JobPhase.RUNNING.value if current.stopping is None else JobPhase.STOPPING.value

    def _see(self, entry: LogEntry) -> None:
        at, told = entry.at, entry.told
        match told:
            case chronicle.MasterStarted():
                self.epoch = told.epoch
            case chronicle.NodeJoined():
                self._joined(at, told)
            case chronicle.NodeDetached() if told.node in self.nodes:
                self.nodes[told.node].is_attached = False
            case chronicle.NodeGone():
                self.nodes.pop(told.node, None)
            case chronicle.NodeChanged() if told.node in self.nodes:
                self._changed(at, self.nodes[told.node], told)
            case chronicle.StragglerFound() if told.node in self.nodes:
                self.nodes[told.node].slowness = told.factor
            case chronicle.WorkerFailed():
                self.failed += 1
                self.failures.append((at, entry.time, told))
                self._begin_recovery(at, told.round, StopCause.WORKER_FAILED.value, told.summary)
            case chronicle.CheckStarted() | chronicle.CheckEnded():
                self.is_checking = isinstance(told, chronicle.CheckStarted)
            case chronicle.StateSaved():
                self.saved[told.place] = SavedView(told.step, at, entry.time)
            case chronicle.DataProgress() if told.dataset in self.data or len(self.data) < MAX_DATASETS:
                self.data[told.dataset] = told
            case chronicle.Decision():
                self.decisions.append((at, entry.time, told.text))
            case chronicle.JobEnded():
                self.outcome, self.end_reason = told.outcome, told.reason
                if self._pending is not None:
                    self.recoveries.pop()
            case chronicle.EntriesLost():
                self.missed = True
            case _:
                self._see_round(at, told)

    def _see_round(self, at: float, told: chronicle.Happening) -> None:
        current = self.current
        if isinstance(told, chronicle.RoundStarted):
            self._started(at, told)
            return
        if current is None or getattr(told, "round", None) != current.number:
            return
        match told:
            case chronicle.RoundStopping():
                self._begin_recovery(at, told.round, told.cause, told.reason)
                current.stopping, current.cause, current.stop_reason = at, told.cause, told.reason
            case chronicle.RoundStopped():
                current.stopped = at
            case chronicle.MilestoneReached():
                current.milestones[told.milestone] = max(at, current.milestones.get(told.milestone, at))
                if told.milestone == _STEPPED:
                    self._stepped(at, current)
            case chronicle.StepsDone():
                current.step, current.rate = max(current.step, told.step), told.rate
                self.steps.append((at, told.step, told.rate))
                self._stepped(at, current)
            case _:
                pass

    # -- nodes

    def _joined(self, at: float, told: chronicle.NodeJoined) -> None:
        known = self.nodes.get(told.node) if told.returns else None
        if known is None:
            self.nodes[told.node] = NodeView(told.node, told.host, told.workers, since=at)
        else:
            known.is_attached = True

    def _changed(self, at: float, node: NodeView, told: chronicle.NodeChanged) -> None:
        node.phase, node.round, node.is_attached = told.phase, told.round, True
        current = self.current
        if current is None or told.round != current.number or told.phase != AgentPhase.RUNNING.value:
            return
        current.runs.add(told.node)
        if len(current.runs) >= current.nodes and current.running is None:
            current.running = at
            if self.recoveries and self.recoveries[-1].round == current.number:
                self.recoveries[-1].running = at
                if not self.reports_steps:
                    self.recoveries[-1].over = at

    # -- rounds

    def _started(self, at: float, told: chronicle.RoundStarted) -> None:
        before = self.current
        if before is not None:
            self.restarts += 1
            before.runs = set()  # of many rounds, those of a large world would be many
            if before.stopped is None:
                before.stopped = at
        if (recovery := self._pending) is not None:
            recovery.round, recovery.started = told.round, at
        self.rounds.append(
            RoundView(
                told.round,
                at,
                told.nodes,
                told.workers,
                told.names,
                told.restart,
                told.restored_step,
                told.reason,
            )
        )
        self.data.clear()
        for node in self.nodes.values():
            node.slowness = 1.0

    def _stepped(self, at: float, current: RoundView) -> None:
        self.reports_steps = True
        if current.first_step is None:
            current.first_step = at
            recovery = self.recoveries[-1] if self.recoveries else None
            if recovery is not None and recovery.round == current.number and recovery.started is not None:
                recovery.over = at

    @property
    def _pending(self) -> Recovery | None:
        """The recovery whose next round has not started."""
        newest = self.recoveries[-1] if self.recoveries else None
        return None if newest is None or newest.started is not None else newest

    def _begin_recovery(self, at: float, number: int, cause: str, reason: str) -> None:
        """Note a sign that a round ends; what comes later may name the cause, until it is told to stop."""
        current = self.current
        if current is None or number != current.number or self.outcome:
            return
        pending, is_failure = self._pending, cause in FAILURES
        if pending is None:
            self.recoveries.append(Recovery(number + 1, at, cause, reason, is_failure, sign=at))
        elif current.stopping is None:
            if at - pending.sign > ECHO:
                pending.began = at
            pending.cause, pending.reason, pending.sign = cause, reason, at
            pending.is_failure = pending.is_failure or is_failure
