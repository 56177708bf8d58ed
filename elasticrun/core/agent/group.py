"""What runs on a node, and how it ends: the workers of a round, or the processes of a probe.

It ends in at most three steps, each bounded in time. Workers get a signal, and some *grace* to end by
themselves. Then the group is *swept*: SIGKILL for whatever is left of it, grandchildren included, even if no
worker is left. Only the confirmation that nothing is left ends the group; if that does not come, the node is
lost.

The servers of a TensorFlow job come last: they hold what the chief saves when it is told to stop. So they
get their signal once all others here have ended. If the chief runs on another node, only the master knows
when it has stopped. So a node that leaves with grace keeps its servers until the master tells it to stop its
round, but not beyond the grace. A node that has the chief needs no master for that.

Invariants. A group is swept once, and the timers of the three steps are set only while they are under way.
Servers are kept only for somebody who may save.
"""

from __future__ import annotations

from collections.abc import Iterable

from elasticrun.core.agent.departure import SIGTERM
from elasticrun.core.agent.events import ENDING, IDLE, AgentTerms, SignalWorkers, SweepWorkers
from elasticrun.core.agent.outbox import Outbox
from elasticrun.core.agent.state import AgentState
from elasticrun.core.protocol.messages import AgentPhase
from elasticrun.core.timers import Deadlines

GRACE = "grace"
KILL = "kill"
#: Seconds between the stop signal and SIGKILL for workers that make no steps any more.
HUNG_GRACE = 3.0


class Group:
    """The processes of one round, or of a probe."""

    def __init__(self, state: AgentState, outbox: Outbox, terms: AgentTerms, timers: Deadlines[str]) -> None:
        self.alive: set[int] = set()  # local ranks of workers that run
        self._servers: set[int] = set()  # local ranks of servers, running or gone
        self._keeps_servers = False  # others may still need them
        self._ends_well = False  # so processes that workers detached may live on
        self._state = state
        self._outbox = outbox
        self._terms = terms
        self._timers = timers

    def begin(self, local_ranks: Iterable[int], servers: Iterable[int] = ()) -> None:
        """Note the workers that start; ``servers`` only serve the others."""
        self.alive = set(local_ranks)
        self._servers = set(servers)

    def add(self, local_rank: int, serves: bool) -> None:
        """Add a worker that starts."""
        self.alive.add(local_rank)
        if serves:
            self._servers.add(local_rank)

    def lose(self, local_rank: int) -> None:
        """Remove a worker that has ended."""
        self.alive.discard(local_rank)

    def end(self) -> None:
        """End the group: nothing is left."""
        self.alive.clear()
        self._keeps_servers = False
        self._timers.cancel(GRACE)
        self._timers.cancel(KILL)

    @property
    def is_swept(self) -> bool:
        """Whether the group is being swept, and its end is not confirmed."""
        return KILL in self._timers

    @property
    def grace(self) -> float:
        """Seconds for workers to end by themselves; fewer if they hang."""
        timeout = self._terms.shutdown_timeout
        return min(timeout, HUNG_GRACE) if self._state.hangs else timeout

    @property
    def _awaited(self) -> set[int]:
        """Live workers that are not servers."""
        return self.alive - self._servers

    @property
    def _others_may_save(self) -> bool:
        """Whether somebody, here or elsewhere, may save what the servers hold."""
        departure = self._state.departure
        leaves_early = departure is not None and departure.drains and departure.is_farewell
        others_run = not self._state.scope.leads and not self._state.desired.outdates(self._state.round)
        return bool(self._awaited) or (leaves_early and others_run)

    def stop(self, signum: int, drains: bool = False, ends_well: bool = False) -> None:
        """Take the first step, or the second if no worker is left. ``ends_well``: the job has succeeded."""
        self._state.scope.stop()
        self._ends_well = ends_well
        if not self.alive:
            self.sweep()
            return
        self._keeps_servers = self._others_may_save
        if not self._keeps_servers:
            self._stop_servers()
            return
        self._timers.set(GRACE, self._state.now + self.grace)
        self._outbox.put(SignalWorkers(signum, drains, frozenset(self.alive & self._servers)))

    def go_on(self) -> None:
        """Take the second step once no worker is left that was told to stop."""
        if not self.alive:
            self.sweep()

    def dismiss_servers(self) -> bool:
        """Tell the servers that were kept to stop, once nobody needs them. Returns whether it is time to."""
        if not self._keeps_servers or self._others_may_save:
            return False
        self._keeps_servers = False
        self._stop_servers()
        return True

    def run_out_of_grace(self) -> None:
        """The time to end is over: take the second step."""
        if self._awaited:
            grace = f"{self.grace:g} s after the stop signal"
            self._outbox.warn(f"killing the workers that are still alive {grace} ({len(self._awaited)})")
        self.sweep()

    def sweep(self) -> None:
        """Take the second step."""
        self._keeps_servers = False
        self._timers.cancel(GRACE)
        self._timers.set(KILL, self._state.now + self._terms.kill_timeout)
        self._outbox.put(SweepWorkers(self._state.round, self._ends_well))

    def _stop_servers(self) -> None:
        self._timers.set(GRACE, self._state.now + min(self.grace, HUNG_GRACE))
        self._outbox.put(SignalWorkers(SIGTERM))

    def check(self) -> None:
        """Raise AssertionError unless the invariant holds."""
        phase, steps = self._state.phase, [name for name in (GRACE, KILL) if name in self._timers]
        if phase in ENDING:
            assert len(steps) == 1, f"the end of the group is not bounded: {steps}"
            assert self.alive or self.is_swept, "nobody is waited for"
        elif phase is AgentPhase.CHECKING:
            assert GRACE not in self._timers, "a probe has no grace"
        else:
            assert not steps, f"the group is not told to end, but there is a deadline: {steps}"
        if phase in IDLE or phase is AgentPhase.FINISHED:
            assert not self.alive, f"{phase} with workers {self.alive}"
        elif phase is AgentPhase.RUNNING:
            self._state.scope.check(self.alive)
        assert not self._keeps_servers or self._others_may_save, "servers are kept for nobody"
