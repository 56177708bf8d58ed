"""What runs on a node, and how it ends: the workers of a round, or the processes of a probe.

It ends in at most three steps, each bounded in time. Workers get a signal, and some *grace* to end by
themselves. Then the group is *swept*: SIGKILL for whatever is left of it, grandchildren included, even if no
worker is. Only the confirmation that nothing is left ends the group; if that does not come, the node is
lost.

The servers of a TensorFlow job come last: they hold what the chief saves when it is told to stop. So they
get their signal once everybody else has ended. A node that has nothing but servers cannot know when that is;
if the others may save, because a node leaves with grace, it keeps them for the whole grace.

Invariant: a group is swept once, and the timers of the three steps are set only while they are under way.
"""

from __future__ import annotations

from collections.abc import Iterable

from elasticrun.core.agent_events import AgentTerms, SignalWorkers, SweepWorkers
from elasticrun.core.agent_leave import SIGTERM
from elasticrun.core.timers import Deadlines

GRACE = "grace"
KILL = "kill"
#: Seconds between the stop signal and SIGKILL for workers that make no steps any more.
HUNG_GRACE = 3.0


class Group:
    """The processes of one round, or of a probe. ``now`` is the agent's monotonic clock in seconds."""

    def __init__(self, terms: AgentTerms, timers: Deadlines[str]) -> None:
        self.alive: set[int] = set()  # local ranks of workers that run
        self._servers: set[int] = set()  # of these, and of others that are gone
        self._keeps_servers = False  # while somebody may need them
        self.hangs = False  # there is evidence that they make no steps any more
        self.ends_well = False  # so what workers detached may live on
        self.imports = False  # a worker that started now would wait for them
        self._has_begun = False  # workers have run here
        self._terms = terms
        self._timers = timers

    def begin(self, local_ranks: Iterable[int], servers: Iterable[int] = ()) -> None:
        """These workers start, some of which only serve the others."""
        self._has_begun = True
        self.alive = set(local_ranks)
        self._servers = set(servers)
        self.hangs = False

    def add(self, local_rank: int, serves: bool) -> None:
        """One more starts."""
        self.alive.add(local_rank)
        if serves:
            self._servers.add(local_rank)

    def end(self) -> None:
        """Nothing is left."""
        self.alive.clear()
        self._timers.cancel(GRACE)
        self._timers.cancel(KILL)

    @property
    def is_warming(self) -> bool:
        """A world that runs need not wait for this node yet.

        Not true of a node whose workers have run: its place in the next world, and its vote, are worth the
        wait for a warm parent that had to be replaced.
        """
        return self.imports and not self._has_begun

    @property
    def is_swept(self) -> bool:
        """SIGKILL is on its way, or has arrived; the confirmation has not."""
        return KILL in self._timers

    @property
    def grace(self) -> float:
        """Seconds for workers to end by themselves; those that hang would only use them up."""
        timeout = self._terms.shutdown_timeout
        return min(timeout, HUNG_GRACE) if self.hangs else timeout

    @property
    def awaited(self) -> set[int]:
        """Those who end by themselves."""
        return self.alive - self._servers

    def stop(self, round_: int, signum: int, drains: bool, now: float) -> SignalWorkers | SweepWorkers:
        """The first step, or the second one if no worker is left."""
        if not self.alive:
            return self.sweep(round_, now)
        self._keeps_servers = bool(self.awaited) or drains
        if not self._keeps_servers:
            return self._stop_servers(now)
        self._timers.set(GRACE, now + self.grace)
        return SignalWorkers(signum, drains, frozenset(self.alive & self._servers))

    def go_on(self, round_: int, now: float) -> SignalWorkers | SweepWorkers | None:
        """The next step after one of those that were told to stop has ended, if it is time for one."""
        if not self.alive:
            return self.sweep(round_, now)
        if self.awaited or not self._keeps_servers:
            return None
        self._keeps_servers = False
        return self._stop_servers(now)

    def _stop_servers(self, now: float) -> SignalWorkers:
        self._timers.set(GRACE, now + min(self.grace, HUNG_GRACE))
        return SignalWorkers(SIGTERM)

    def sweep(self, round_: int, now: float) -> SweepWorkers:
        """The second step."""
        self._timers.cancel(GRACE)
        self._timers.set(KILL, now + self._terms.kill_timeout)
        return SweepWorkers(round_, self.ends_well)
