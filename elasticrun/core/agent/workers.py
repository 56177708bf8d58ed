"""What happens to the workers of a round, and what follows for the others.

A node whose worker fails stops its own group at once; it does not wait for the master to tell it. Only a
failure that echoes another one waits for that, for a moment (``core/agent/echoes.py``). A worker's end counts
as a failure only while the phase is RUNNING: once the launcher has begun to stop a group, an end in it
changes nothing any more, and the master is told of it only if the worker had failed by itself
(``core/recovery/own_failures.py``). Events of another round are ignored, and those of an attempt at a task
that is not the newest one, or has ended: reading an error file takes time, in which much may have happened.

Invariants: a round has failed here exactly if there is a failure to tell. Echoes are kept back while the
round runs, and not for ever.
"""

from __future__ import annotations

from elasticrun.core.agent.departure import SIGTERM
from elasticrun.core.agent.echoes import ECHO, Echoes
from elasticrun.core.agent.events import (
    ENDING,
    STOPPABLE,
    AgentTrigger,
    StallSeen,
    StoreLost,
    WorkerFailed,
    WorkerFinished,
)
from elasticrun.core.agent.group import Group
from elasticrun.core.agent.leave import Leaving
from elasticrun.core.agent.outbox import Outbox
from elasticrun.core.agent.phases import Phases
from elasticrun.core.agent.recovery import Recovery
from elasticrun.core.agent.state import AgentState
from elasticrun.core.hangs import is_hang
from elasticrun.core.protocol.messages import AgentPhase, Failure
from elasticrun.core.recovery.own_failures import is_own, kept
from elasticrun.core.timers import Deadlines


class Workers:
    """Takes in how the workers of the round that runs fare."""

    def __init__(
        self,
        state: AgentState,
        group: Group,
        outbox: Outbox,
        phases: Phases,
        leaving: Leaving,
        timers: Deadlines[str],
        recovery: Recovery,
    ) -> None:
        self._state = state
        self._group = group
        self._outbox = outbox
        self._phases = phases
        self._leaving = leaving
        self._timers = timers
        self._recovery = recovery
        self._echoes = Echoes(timers)

    def failed(self, event: WorkerFailed, may_wait: bool = True) -> None:
        """A worker ended badly; with ``may_wait``, an echo is kept back."""
        state, failure = self._state, event.failure
        if not self._is_heard(event.round, failure.local_rank, event.attempt):
            return
        if state.phase is not AgentPhase.RUNNING:
            if state.phase in ENDING and is_own(failure, event.stopping):
                self._failed_too(failure)
            self._gone(failure.local_rank)
        elif state.scope.is_alone(failure.local_rank):
            self._task_ended(failure.local_rank, failure)
        else:
            self._recovery.interrupted()
            if may_wait and self._echoes.keep(event, state.now):
                return
            state.scope.ended(failure.local_rank, failure)
            self._group.lose(failure.local_rank)
            self._fail(AgentTrigger.WORKER_FAILED, failure)

    def settle_echoes(self) -> None:
        """Release the echoes once no other rank is left that could fail and explain them."""
        if self._echoes and not self._may_be_explained():
            self.take_echoes()

    def take_echoes(self) -> None:
        """Treat what was kept back as failures of their own."""
        for echo in self._echoes.take():
            self.failed(echo, may_wait=False)

    def _may_be_explained(self) -> bool:
        state = self._state
        assert state.assignment is not None
        others = len(self._group.alive) > len(self._echoes) or state.assignment.group_world_size > 1
        return state.phase is AgentPhase.RUNNING and others

    def finished(self, event: WorkerFinished) -> None:
        """A worker ended well."""
        state = self._state
        if not self._is_heard(event.round, event.local_rank, event.attempt):
            return
        if state.phase is not AgentPhase.RUNNING:
            self._gone(event.local_rank)
        elif state.scope.is_alone(event.local_rank):
            self._task_ended(event.local_rank, None)
        else:
            is_news = state.scope.ended(event.local_rank, None)
            self._gone(event.local_rank)
            if is_news:
                self._outbox.report()  # a job ends with its chief

    def store_lost(self, event: StoreLost) -> None:
        """The store that the workers of all nodes need was served here, and is gone."""
        if event.round == self._state.round and self._state.phase in STOPPABLE:
            self._recovery.interrupted()
            self._fail(AgentTrigger.STORE_LOST, event.failure)

    def stall_seen(self, event: StallSeen) -> None:
        """The workers make no steps, or make them again."""
        state = self._state
        if event.round == state.round and state.phase is AgentPhase.RUNNING:
            assert state.assignment is not None
            state.stall = event.stall
            state.hangs = is_hang(event.stall, state.assignment.max_restarts)
            self._outbox.report()

    def overdue(self, timer: str) -> None:
        """The time that a single task had to end is over."""
        kill = self._state.scope.expire(timer, self._state.now)
        if kill is None:
            self._leaving.lose_patience()
        else:
            self._outbox.put(kill)

    def _is_heard(self, round_: int, local_rank: int, attempt: int) -> bool:
        """Whether an event is of this round, and of the attempt that runs."""
        return round_ == self._state.round and self._state.scope.runs(local_rank, attempt)

    def _fail(self, trigger: AgentTrigger, failure: Failure) -> None:
        """End the round."""
        self._state.failures = kept(self._state.failures, failure)
        self._phases.move(trigger)
        self._outbox.warn(failure.summary)
        self._group.stop(SIGTERM)

    def _failed_too(self, failure: Failure) -> None:
        """Add a failure while the group stops; report only if it is kept, as the master judges at the end."""
        before, self._state.failures = self._state.failures, kept(self._state.failures, failure)
        self._outbox.warn(failure.summary)
        if self._state.failures != before:
            self._outbox.report()

    def _gone(self, local_rank: int) -> None:
        """Remove a worker, and take the step that follows."""
        self._group.lose(local_rank)
        if self._state.phase in ENDING and not self._group.is_swept:
            self._group.go_on()
        elif self._state.phase is AgentPhase.RUNNING and not self._group.alive:
            self._phases.move(AgentTrigger.ALL_FINISHED)

    def _task_ended(self, local_rank: int, failure: Failure | None) -> None:
        """A task that can be lost alone has ended."""
        self._group.lose(local_rank)
        if self._state.scope.ended(local_rank, failure):
            if failure is not None:
                self._outbox.warn(failure.summary)
            self._outbox.report()

    def check(self) -> None:
        """Raise AssertionError unless the invariants hold."""
        is_kept = bool(self._echoes)
        assert is_kept is (ECHO in self._timers), "what is kept back and its timer go together"
        assert not is_kept or self._state.phase is AgentPhase.RUNNING, "a failure is kept back for nothing"
        if self._state.phase is AgentPhase.FAILED:
            assert self._state.failures, "a round has failed, and nothing says why"
        elif self._state.phase in STOPPABLE:
            assert not self._state.failures, "a worker has failed, and its round goes on"
