"""The facts about one round, as the master hears them."""

from __future__ import annotations

from dataclasses import dataclass, field

from elasticrun.core.protocol import (
    MAX_FAILURES,
    AgentPhase,
    AgentStatus,
    Assignment,
    Failure,
    FailureKind,
)
from elasticrun.core.restart import StopCause, excused


@dataclass(slots=True)
class Round:
    """Who was seated, who may still run, and why the round has to stop, if it has to."""

    seats: dict[str, Assignment] = field(default_factory=dict)
    pending: set[str] = field(default_factory=set)  # members whose workers may be alive
    finished: set[str] = field(default_factory=set)  # a node stays in it if it is lost afterwards
    failures: list[Failure] = field(default_factory=list)  # in the order in which they were heard
    start_reason: str = ""
    stop: tuple[StopCause, str] | None = None

    @property
    def all_finished(self) -> bool:
        """Every member's workers ended with 0."""
        return len(self.finished) == len(self.seats)

    @property
    def stop_reason(self) -> str:
        """Why the round stops, in words; empty if it does not."""
        return self.stop[1] if self.stop is not None else ""

    def must_stop(self, cause: StopCause, reason: str) -> None:
        """Note why the round has to stop; a cause noted before stays unless this one excuses it."""
        if self.stop is None or excused(self.stop[0], cause) is not self.stop[0]:
            self.stop = (cause, reason)

    def absorb(self, name: str, status: AgentStatus) -> None:
        """Take in what a member that may run says of this round."""
        for failure in status.failures:
            self.hear(failure)
        if status.phase is AgentPhase.FINISHED:
            self.finished.add(name)
        elif status.phase is AgentPhase.READY:
            self.pending.discard(name)
            if self.stop is None:
                self.must_stop(StopCause.MEMBER_LOST, f"{name} has no workers left")

    def hear(self, failure: Failure) -> None:
        """Note a failure; one that was heard before changes nothing."""
        if failure in self.failures:
            return
        if len(self.failures) < MAX_FAILURES:
            self.failures.append(failure)
        taken = failure.kind is FailureKind.PORT_TAKEN
        self.must_stop(StopCause.PORT_TAKEN if taken else StopCause.WORKER_FAILED, failure.summary)

    def lose(self, name: str, reason: str) -> None:
        """A member is gone; that matters unless its workers had finished."""
        if name in self.pending:
            self.pending.discard(name)
            if name not in self.finished:
                self.must_stop(StopCause.MEMBER_LOST, reason)
