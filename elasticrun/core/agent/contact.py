"""Whether this node has a master: streams that come and break, and how long to wait without one.

Workers that run need no master, so they are left alone; an agent without work, or with workers that hang,
gives up on a master that is gone for long. If several hosts may run the master, an agent that finds none that
can lead gives up as well: see ``core/agent/search.py``.

Invariant: the timer for a master's return is set only while there is no stream to one.
"""

from __future__ import annotations

from dataclasses import replace

from elasticrun.core.agent.departure import Departure
from elasticrun.core.agent.events import AgentTerms, LinkDown, LinkUp
from elasticrun.core.agent.leave import Leaving
from elasticrun.core.agent.outbox import Outbox
from elasticrun.core.agent.state import AgentState
from elasticrun.core.protocol.messages import AgentPhase, AgentStatus
from elasticrun.core.timers import Deadlines

MASTER = "master"


class Contact:
    """Follows the streams to the masters of this job."""

    def __init__(
        self,
        state: AgentState,
        outbox: Outbox,
        leaving: Leaving,
        terms: AgentTerms,
        timers: Deadlines[str],
    ) -> None:
        self._state = state
        self._outbox = outbox
        self._leaving = leaving
        self._terms = terms
        self._timers = timers
        self._greeted: AgentStatus | None = None  # what the newest Hello told

    def greet(self, status: AgentStatus) -> None:
        """Note that a Hello with this status is on its way. It tells no stall: that has to be seen again."""
        self._state.stall = None
        self._greeted = status

    def up(self, event: LinkUp) -> None:
        """A master welcomes this agent."""
        state = self._state
        if state.desired.epoch >= 0:
            self._outbox.warn(f"the master is back (epoch {event.epoch})")
        state.desired = replace(state.desired, epoch=max(state.desired.epoch, event.epoch))
        self._timers.cancel(MASTER)
        self._outbox.say_farewell()
        state.search = state.search.meet(event.epoch, state.now)
        if state.search.is_over and state.phase is AgentPhase.READY:
            self._leaving.depart(Departure.leaderless(state.now - state.search.since, state.round >= 0))
        if self._outbox.status() != self._greeted:
            self._outbox.report()  # what changed between Hello and Welcome was not sent

    def down(self, event: LinkDown) -> None:
        """The stream broke."""
        state = self._state
        if state.departure is None:
            goes_on = "; the workers go on" if state.phase is AgentPhase.RUNNING else ""
            self._outbox.warn(f"lost the master ({event.reason}){goes_on}")
        self._timers.set_default(MASTER, state.now + self._terms.master_timeout)
        state.search = state.search.lose(state.now)
        self._leaving.release()

    def miss(self) -> None:
        """The master has been away for long: leave, unless workers are of use without it."""
        timeout = self._terms.master_timeout
        if self._state.works:
            self._outbox.warn(f"no master for {timeout:g} s; the workers go on")
            self._timers.set(MASTER, self._state.now + timeout)
        else:
            self._leaving.depart(Departure.deserted(timeout, hangs=self._state.hangs))

    def check(self) -> None:
        """Raise AssertionError unless the invariant holds."""
        is_lost = self._state.search.lost_at is not None
        assert is_lost or MASTER not in self._timers, "a master that is here is waited for"
