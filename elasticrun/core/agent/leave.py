"""How an agent leaves its job.

A departure is decided once, as later reasons are mostly its consequences; only a node that turns out to be
stuck goes at once, and says why. A farewell is said as soon as it is decided, and again on each new stream;
the node goes when nothing runs any more.

Invariant: a departing node is idle for no longer than one event.
"""

from __future__ import annotations

from elasticrun.core.agent.departure import Departure
from elasticrun.core.agent.events import ENDING, IDLE, AgentTerms, Broken, Preempted, StopSignal
from elasticrun.core.agent.group import Group
from elasticrun.core.agent.outbox import Outbox
from elasticrun.core.agent.state import AgentState
from elasticrun.core.protocol.messages import AgentPhase


class Leaving:
    """Decides that this node leaves, and says when it has left."""

    def __init__(self, state: AgentState, group: Group, outbox: Outbox, terms: AgentTerms) -> None:
        self._state = state
        self._group = group
        self._outbox = outbox
        self._terms = terms

    def depart(self, departure: Departure) -> None:
        """Leave once the workers are gone; what was decided first stands."""
        if self._state.departure is None:
            self._state.departure = departure
            self._outbox.say_farewell()

    def stop_signalled(self, event: StopSignal) -> None:
        """The launcher was told to stop; told again, it kills the workers at once."""
        if self._state.departure is None:
            self.depart(Departure.stopped(event.signum))
        elif self._state.phase in ENDING and not self._group.is_swept:
            self._outbox.warn("asked to stop again: killing the workers now")
            self._group.sweep()

    def preempted(self, event: Preempted) -> None:
        """The platform takes this node away."""
        self._outbox.warn(f"this node leaves: {event.reason}")
        self.depart(Departure.preempted(event.reason))

    def broken(self, event: Broken) -> None:
        """The launcher cannot go on."""
        self.depart(Departure.broken(event.exit_status, event.reason))

    def lose_patience(self) -> None:
        """Leave, because a single task survives SIGKILL."""
        self.depart(Departure.stuck(self._terms.kill_timeout))

    def give_up(self) -> None:
        """Leave at once, because workers survive SIGKILL."""
        self._state.departure = Departure.stuck(self._terms.kill_timeout)
        self._outbox.say_farewell()
        self.conclude()

    def conclude(self) -> bool:
        """Nothing runs: finish if this node is to leave. Returns whether it is."""
        departure = self._state.departure
        if departure is not None:
            self._state.is_done = True
            self._outbox.put(departure.finish)
        return departure is not None

    def check(self) -> None:
        """Raise AssertionError unless the invariant holds."""
        state = self._state
        if state.departure is not None:
            assert state.phase not in IDLE, "this node wants to go, and nothing keeps it"
            assert state.phase in ENDING or state.phase is AgentPhase.CHECKING, "its workers were not told"
