"""The rounds of one node, one after the other: which one starts, when it has to make way, what changes in it.

Each method is a rule: it compares what is desired with what is, and takes one step if there is one to take.

Invariants. Workers of a round start only when everything the round before left behind is gone. No round is
started twice, nor one that was told to stop. Nothing that is desired waits for another event.
"""

from __future__ import annotations

from elasticrun.core.agent.departure import SIGTERM
from elasticrun.core.agent.events import (
    ENDING,
    STOPPABLE,
    AgentTerms,
    AgentTrigger,
    StartTask,
    StartWorkers,
)
from elasticrun.core.agent.group import Group
from elasticrun.core.agent.outbox import Outbox
from elasticrun.core.agent.phases import Phases
from elasticrun.core.agent.recovery import Recovery
from elasticrun.core.agent.scope import RestartScope, WholeWorld
from elasticrun.core.agent.state import AgentState
from elasticrun.core.membership.quorum import with_vote
from elasticrun.core.protocol.messages import AgentPhase, Assignment, NodeInfo, StartRound
from elasticrun.core.timers import Deadlines


class Rounds:
    """Brings what runs here to what is desired."""

    def __init__(
        self,
        state: AgentState,
        group: Group,
        outbox: Outbox,
        phases: Phases,
        terms: AgentTerms,
        timers: Deadlines[str],
        recovery: Recovery,
    ) -> None:
        self._state = state
        self._group = group
        self._outbox = outbox
        self._phases = phases
        self._terms = terms
        self._timers = timers
        self._recovery = recovery

    def start(self) -> bool:
        """Nothing runs: start the round that is wanted. Returns whether there is one."""
        state = self._state
        wanted = state.desired.next_round(state.round)
        if wanted is None or state.departure is not None:
            return False
        assignment = wanted.assignment
        state.round = assignment.round
        state.assignment = assignment
        state.failures = ()
        state.stall, state.hangs = None, False
        state.votes = with_vote(state.votes, assignment.proposal)
        state.scope = self._scope_of(wanted)
        self._group.begin(assignment.local_ranks(state.info.local_world_size), state.scope.servers)
        say = self._outbox.inform if state.round == 0 else self._outbox.warn
        say(describe_assignment(assignment, state.info, wanted.reason))
        self._outbox.put(StartWorkers(assignment))
        self._phases.move(AgentTrigger.ASSIGNED)
        return True

    def _scope_of(self, wanted: StartRound) -> RestartScope:
        if not wanted.assignment.cluster:
            return WholeWorld()
        from elasticrun.core.agent.tasks import SingleTasks  # most jobs never load it

        return SingleTasks(wanted, self._terms, self._timers)

    def acknowledge_stop(self) -> bool:
        """Nothing runs: accept a stop of rounds that never ran here. Returns whether there is one."""
        state = self._state
        if state.desired.stop_through <= state.round:
            return False
        state.round = state.desired.stop_through
        state.failures = ()
        state.scope = WholeWorld()
        self._outbox.report()
        return True

    def make_way(self) -> bool:
        """Stop the round that runs if it, or this node, has to go. Returns whether it has to."""
        state, departure = self._state, self._state.departure
        if departure is None and not state.desired.outdates(state.round):
            return False
        self._recovery.interrupted()
        self._phases.move(AgentTrigger.TOLD_TO_STOP)
        if departure is not None:
            self._group.stop(departure.signum, departure.drains, departure.is_good)
        elif state.desired.drains:
            self._group.stop(self._terms.drain_signal, drains=True)
        else:
            self._group.stop(SIGTERM)
        return True

    def adjust(self) -> bool:
        """Start, end or restart single workers of the round that runs. Returns whether there was need to."""
        state, wanted, before = self._state, self._state.desired.round, self._state.scope.reports
        if wanted is not None and wanted.assignment.round == state.round and state.scope.want(wanted):
            state.assignment = wanted.assignment
        effects = state.scope.follow(state.now)
        for effect in effects:
            if isinstance(effect, StartTask):
                self._group.add(effect.local_rank, effect.local_rank in state.scope.servers)
        self._outbox.put(*effects)
        if state.scope.reports != before:
            self._outbox.report()
        return bool(effects)

    def check(self) -> None:
        """Raise AssertionError unless the invariants hold."""
        state, desired = self._state, self._state.desired
        if state.phase in STOPPABLE or state.phase in ENDING:
            assert state.assignment is not None, "something runs that nobody assigned"
            assert state.assignment.round == state.round, "what runs is another round than what is told"
        if state.phase in STOPPABLE:
            assert not desired.outdates(state.round), f"round {state.round} should have made way"
        elif state.phase is AgentPhase.READY:
            is_wanted = state.departure is None and desired.next_round(state.round) is not None
            assert not is_wanted, "a round waits to be started"
            assert desired.stop_through <= state.round, "a stop waits to be acknowledged"


def describe_assignment(assignment: Assignment, info: NodeInfo, reason: str) -> str:
    """One line about a round that starts on this node."""
    last = assignment.first_rank + info.local_world_size - 1
    return (
        f"round {assignment.round}: node {assignment.group_rank} of {assignment.group_world_size},"
        f" ranks {assignment.first_rank}-{last} of {assignment.world_size}"
        f" (restart {assignment.restart_count} of {assignment.max_restarts}; {reason})"
    )
