"""How an agent leaves its job.

A departure is decided once, as later reasons are mostly its consequences; only a node that turns out to be
stuck goes at once, and says why. A farewell is said as soon as it is decided, and again on each new stream;
the node goes when nothing runs any more.

A node that is taken away with grace may hold the only copy of a saved state, or its workers may save one when
they are told to stop. If the job has a storage, it *lingers*: it stops its workers, and tells the master that
it will leave. The master lets it go once what it holds is elsewhere. After its workers have stopped it waits
for a bounded time, for as long as there is a master, and until it is told again. Where parameter servers hold
the state, it lingers while its tasks run, storage or not: the nodes stop one after the other, as the master
tells them, so that the chief can save.

The first signal takes no grace away, whatever was decided before it; the next one does. A platform that gives
notice, or has a node drained, then stops it by a signal, and so does one that sees a job end elsewhere.

Invariant: a departing node is idle for no longer than one event, unless it lingers, which has a deadline.
"""

from __future__ import annotations

from elasticrun.core.agent.departure import Departure
from elasticrun.core.agent.events import ENDING, IDLE, STOPPABLE, AgentTerms, Broken, Preempted, StopSignal
from elasticrun.core.agent.group import GRACE, Group
from elasticrun.core.agent.outbox import Outbox
from elasticrun.core.agent.state import AgentState
from elasticrun.core.protocol.amounts import count
from elasticrun.core.protocol.messages import AgentPhase
from elasticrun.core.timers import Deadlines

LINGER = "linger"
_SIGINT = 2


class Leaving:
    """Decides that this node leaves, and says when it has left."""

    def __init__(
        self, state: AgentState, group: Group, outbox: Outbox, terms: AgentTerms, timers: Deadlines[str]
    ) -> None:
        self._state = state
        self._group = group
        self._outbox = outbox
        self._terms = terms
        self._timers = timers
        self._was_signalled = False

    def depart(self, departure: Departure) -> None:
        """Leave once the workers are gone; what was decided first stands."""
        state = self._state
        if state.departure is not None:
            return
        state.departure = departure
        has_grace = departure.drains and departure.is_farewell and not state.search.is_lost
        may_hold = self._terms.flush_timeout and (state.stock.holdings or self._group.alive)
        if has_grace and (may_hold or (self._group.alive and state.scope.is_served)):
            state.lingers = True
            self._outbox.report()
        self._outbox.say_farewell()

    def release(self) -> None:
        """Wait for the master no longer: it let us go, there is none, or the time is over."""
        if self._state.lingers:
            self._state.lingers = False
            self._timers.cancel(LINGER)
            self._outbox.say_farewell()

    def stop_signalled(self, event: StopSignal) -> None:
        """The launcher was told to stop; told again, it kills the workers at once."""
        is_first, self._was_signalled = not self._was_signalled, True
        if is_first:
            self.depart(Departure.stopped(event.signum))
            self._announce_stop(event.signum)
            return
        self.release()
        if self._state.phase in ENDING and not self._group.is_swept:
            self._outbox.warn("asked to stop again: killing the workers now")
            self._group.sweep()

    def _announce_stop(self, signum: int) -> None:
        """Tell the user how long this may take, and how to get out of it."""
        alive = len(self._group.alive)
        again = "Ctrl-C again" if signum == _SIGINT else "a second signal"
        if self._state.lingers and not alive:
            seconds = f"up to {self._left(LINGER, self._terms.flush_timeout)} s; {again} ends that"
            self._outbox.warn(f"waiting until what this node holds is elsewhere ({seconds})")
        if alive and not self._group.is_swept:
            them, grace = "it" if alive == 1 else "them", self._left(GRACE, self._group.grace)
            self._outbox.warn(f"stopping {count(alive, 'worker')} (up to {grace} s; {again} kills {them})")

    def _left(self, timer: str, whole: float) -> str:
        """Seconds until a timer is due: all of them, if it is not set yet."""
        at = self._timers.at(timer)
        return f"{whole if at is None else round(at - self._state.now, 1):g}"

    def preempted(self, event: Preempted) -> None:
        """The platform takes this node away."""
        self._outbox.warn(f"this node leaves: {event.reason}")
        self.depart(Departure.preempted(event.reason))

    def broken(self, event: Broken) -> None:
        """The launcher cannot go on."""
        self.depart(Departure.broken(event.exit_status, event.reason))
        self.release()

    def lose_patience(self) -> None:
        """Leave, because a single task survives SIGKILL."""
        self.depart(Departure.stuck(self._terms.kill_timeout))

    def give_up(self) -> None:
        """Leave at once, because workers survive SIGKILL."""
        self.release()
        self._state.departure = Departure.stuck(self._terms.kill_timeout)
        self._outbox.say_farewell()
        self.conclude()

    def conclude(self) -> bool:
        """Nothing runs: finish if this node is to leave. Returns whether it is."""
        departure = self._state.departure
        if not (self._state.stock.holdings and self._terms.flush_timeout):
            self.release()
        elif self._state.lingers:
            self._timers.set_default(LINGER, self._state.now + self._terms.flush_timeout)
        if departure is not None and not self._state.lingers:
            self._state.is_done = True
            self._outbox.put(departure.finish)
        return self._state.is_done

    def check(self) -> None:
        """Raise AssertionError unless the invariant holds."""
        state = self._state
        is_bounded = LINGER in self._timers
        assert is_bounded == (state.lingers and state.phase in IDLE), (
            "an idle node lingers without a deadline"
        )
        if state.lingers:
            assert state.phase not in STOPPABLE, "its workers were not told"
        elif state.departure is not None:
            assert state.phase not in IDLE, "this node wants to go, and nothing keeps it"
            assert state.phase in ENDING or state.phase is AgentPhase.CHECKING, "its workers were not told"
