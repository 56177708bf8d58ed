"""What runs on a node, and how it ends: the workers of a round, or the processes of a probe.

It ends in at most three steps, each bounded in time. Workers get a signal, and some *grace* to end by
themselves. Then the group is *swept*: SIGKILL for whatever is left of it, grandchildren included, even if no
worker is. Only the confirmation that nothing is left ends the group; if that does not come, the node is lost.

Invariant: a group is swept once, and the timers of the three steps are set only while they are under way.
"""

from __future__ import annotations

from elasticrun.core.agent_events import AgentTerms, SignalWorkers, SweepWorkers
from elasticrun.core.protocol import Stall
from elasticrun.core.timers import Deadlines

GRACE = "grace"
KILL = "kill"
#: Seconds between the stop signal and SIGKILL for workers that make no steps any more.
HUNG_GRACE = 3.0


class Group:
    """The processes of one round, or of a probe. ``now`` is the agent's monotonic clock in seconds."""

    def __init__(self, terms: AgentTerms, timers: Deadlines[str]) -> None:
        self.alive: set[int] = set()  # local ranks of workers that run
        self.stall: Stall | None = None  # they have stopped making steps
        self._terms = terms
        self._timers = timers

    def begin(self, size: int) -> None:
        """So many workers start."""
        self.alive = set(range(size))
        self.stall = None

    def end(self) -> None:
        """Nothing is left."""
        self.alive.clear()
        self._timers.cancel(GRACE)
        self._timers.cancel(KILL)

    @property
    def is_swept(self) -> bool:
        """SIGKILL is on its way, or has arrived; the confirmation has not."""
        return KILL in self._timers

    @property
    def grace(self) -> float:
        """Seconds for workers to end by themselves; those that hang would only use them up."""
        timeout = self._terms.shutdown_timeout
        return timeout if self.stall is None else min(timeout, HUNG_GRACE)

    def stop(self, round_: int, signum: int, drains: bool, now: float) -> SignalWorkers | SweepWorkers:
        """The first step, or the second one if no worker is left."""
        if not self.alive:
            return self.sweep(round_, now)
        self._timers.set(GRACE, now + self.grace)
        return SignalWorkers(signum, drains)

    def sweep(self, round_: int, now: float) -> SweepWorkers:
        """The second step."""
        self._timers.cancel(GRACE)
        self._timers.set(KILL, now + self._terms.kill_timeout)
        return SweepWorkers(round_)
