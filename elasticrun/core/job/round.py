"""The facts about one round, as the master hears them."""

from __future__ import annotations

from dataclasses import field

from elasticrun.core.hangs import Silences, evidence_text
from elasticrun.core.protocol.messages import (
    AgentPhase,
    AgentStatus,
    Assignment,
    Failure,
    FailureKind,
    NodeInfo,
)
from elasticrun.core.recovery.budget import StopCause, excused
from elasticrun.core.recovery.own_failures import kept
from elasticrun.core.recovery.settlement import Recovery
from elasticrun.core.tensorflow.role_recovery import Loss, has_saved
from elasticrun.core.tensorflow.round_tasks import RoundTasks
from elasticrun.dataclass import dataclass

#: Phases of a member that voted for its world and started its workers.
STARTED = frozenset({AgentPhase.RUNNING, AgentPhase.FAILED, AgentPhase.FINISHED})


@dataclass(frozen=True, slots=True)
class Repair:
    """Lost tasks that start again while their round goes on, as one event."""

    losses: tuple[Loss, ...]
    before: Recovery  # what the job remembered of its failures until then
    at: float  # when the first one was judged, in seconds of the master's clock
    lasted: float  # seconds since the round started, or was repaired before
    verdict: str = ""  # what followed, for the nodes that start tasks again


@dataclass(slots=True)
class Round:
    """The members of a round, which of them may still run, and why it has to stop, if it has to."""

    assignments: dict[str, Assignment] = field(default_factory=dict)
    pending: set[str] = field(default_factory=set)  # members whose workers may be alive
    finished: set[str] = field(default_factory=set)  # a node stays in it if it is lost afterwards
    failures: list[Failure] = field(default_factory=list)  # in the order in which they were heard
    accepted: set[str] = field(default_factory=set)  # members that started their workers
    silences: Silences = field(default_factory=Silences)  # of members whose workers make no steps
    silence: str = ""  # why a silence of all members is not acted upon, as told last
    start_reason: str = ""
    after: str = ""  # why the round before this one has stopped
    cause: str = ""  # why this one has stopped, once it has
    started_at: float = 0.0  # seconds of the master's clock
    lasted: float = 0.0  # seconds until it was told to stop
    stop: tuple[StopCause, str] | None = None
    tasks: RoundTasks | None = None  # of TensorFlow; None: its workers make one world of torch
    serving: set[str] = field(default_factory=set)  # members that are told to stop last
    repair: Repair | None = None  # the last one
    releases: bool = False  # tasks that were kept only for the chief can be dropped

    @property
    def all_finished(self) -> bool:
        """Whether every member's workers ended with 0."""
        return len(self.finished) == len(self.assignments)

    @property
    def is_committed(self) -> bool:
        """Whether every member has started its workers at some time."""
        return len(self.accepted) == len(self.assignments)

    @property
    def is_silent(self) -> bool:
        """Whether no unfinished member makes steps any more.

        A member without training steps of its own, a parameter server for instance, is not waited for.
        """
        busy = len(self.assignments) - len(self.finished)
        if self.tasks is not None:
            busy = len(self.tasks.trainers) - len(self.finished & self.tasks.trainers)
        return 0 < len(self.silences) >= busy

    @property
    def stop_reason(self) -> str:
        """Why the round stops, in words; empty if it does not."""
        return self.stop[1] if self.stop is not None else ""

    def must_stop(self, cause: StopCause, reason: str) -> None:
        """Note why the round has to stop; a cause noted before stays unless this one excuses it."""
        if self.stop is None or excused(self.stop[0], cause) is not self.stop[0]:
            self.stop = (cause, reason)

    def absorb(self, name: str, status: AgentStatus, now: float) -> None:
        """Take in what a member that may run says of this round."""
        if status.phase in STARTED:
            self.accepted.add(name)
        self.silences.hear(name, None if name in self.finished else status.stall, now)
        for failure in status.failures:
            self.hear(failure)
        if self.tasks is not None and self.tasks.absorb(name, status.tasks):
            self.releases = True
        if status.phase is AgentPhase.FINISHED:
            if name not in self.finished:
                self.silences.clear()
            self.finished.add(name)
        elif status.phase is AgentPhase.READY:
            self.pending.discard(name)
            if self.stop is None:
                self.must_stop(StopCause.MEMBER_LOST, f"{name} has no workers left")

    def hear(self, failure: Failure) -> None:
        """Note a failure; one that was heard before changes nothing."""
        if failure in self.failures:
            return
        self.failures = list(kept(self.failures, failure))
        self.must_stop(self._cause(failure), failure.summary)

    def _cause(self, failure: Failure) -> StopCause:
        first = next(iter(self.assignments.values()), None)  # all members were told the same
        is_hosted = first is not None and first.store_hosted
        if is_hosted and failure.kind is FailureKind.STORE_LOST:
            return StopCause.STORE_LOST
        if not is_hosted and failure.kind is FailureKind.PORT_TAKEN and failure.step < 0:
            return StopCause.PORT_TAKEN  # else the store was there, and it was a port of the script's own
        has_tasks = self.tasks is not None
        return StopCause.SAVED if has_tasks and has_saved(failure) else StopCause.WORKER_FAILED

    def blame_hang(self, info: NodeInfo) -> None:
        """Blame the hang of all members on the lagging worker of this node."""
        stall = self.silences[info.node]
        where = f", in {stall.where}" if stall.where else ""
        text = (
            f"made no step for {stall.silence:.1f} s after step {stall.step}"
            f" ({stall.allowed:.1f} s are allowed){where}; {evidence_text(stall)}"
        )
        failure = Failure(
            node=info.node,
            host=info.host,
            rank=stall.rank,
            local_rank=stall.local_rank,
            role=info.role,
            pid=0,
            kind=FailureKind.HANG,
            exit_code=1,
            message=text,
            timestamp=stall.timestamp,
            step=stall.step,
            stacks=stall.stacks,
        )
        self.failures.append(failure)
        self.must_stop(StopCause.HANG, failure.summary)

    def settle(self, failures: tuple[Failure, ...]) -> str:
        """Keep the failures of a stopped round in this order, the cause first. Returns why it stopped."""
        told = self.stop_reason
        if not failures:
            return told
        self.failures = list(failures)
        cause = failures[0].summary
        return told if cause in told else cause

    def lose(self, name: str, reason: str, cause: StopCause = StopCause.MEMBER_LOST) -> None:
        """Note that a member is gone: the round must stop unless its workers had finished."""
        if name in self.pending:
            self.pending.discard(name)
            if name not in self.finished:
                self.must_stop(cause, reason)
