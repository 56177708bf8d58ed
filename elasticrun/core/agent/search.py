"""How long an agent looks for a master that can lead, if several hosts may become the master's.

Masters that lack the votes for a world step down, one after the other (``core/membership/quorum.py``). Each
counts the job's ``join_timeout`` only while it serves, in a journal of its own. So the agent counts too,
across masters, by its own clock: from the moment at which it first could start workers, or the last group
here ended.

Three waits never end a node:

- A master that stays longer than ``longest_stay`` has not stepped down, so it can lead: this node is a spare
  of its round, or it checks nodes, or holds the job back after failures, or waits for nodes, which its own
  timer ends. The count begins anew when such a master is lost. Streams to one master, known by its epoch,
  are one stay, even if the network breaks them.
- Without any master, time counts up to the walk along the list; ``--master-timeout`` bounds the rest.
- With a single endpoint no masters take turns: nothing is counted.

The agent decides when *another* master welcomes it, because only then the one before is known to have stepped
down or died. The search is over if it had lasted longer than ``join_timeout`` when that one was lost, and
longer than ``longest_stay``, so that no master is judged by less. So a node that no master can use ends, at
the latest, after the longer of these two times plus one stay and one walk along the list.
"""

from __future__ import annotations

from dataclasses import replace

from elasticrun.core.membership.quorum import longest_stay, walk
from elasticrun.dataclass import dataclass


@dataclass(frozen=True, slots=True)
class Search:
    """Where the search stands. Times are of the agent's monotonic clock, in seconds."""

    join_timeout: float
    endpoints: int
    since: float = 0.0  # nothing has run here, and no master has stayed
    epoch: int = -1  # of the master that was met last; -1: none
    met_at: float = 0.0
    lost_at: float | None = None  # None: it is there
    is_over: bool = False

    @property
    def is_lost(self) -> bool:
        """Whether there is no master now."""
        return self.lost_at is not None

    def begin(self, now: float) -> Search:
        """Begin the count: from now on nothing runs here."""
        return replace(self, since=now, is_over=False)

    def lose(self, now: float) -> Search:
        """The stream to the master broke; or another attempt failed, which changes nothing."""
        return self if self.lost_at is not None else replace(self, lost_at=now)

    def meet(self, epoch: int, now: float) -> Search:
        """A master welcomes this agent."""
        if epoch == self.epoch:
            return replace(self, lost_at=None, is_over=False)
        lost_at = now if self.lost_at is None else self.lost_at
        stay = longest_stay(self.endpoints)
        has_stayed = lost_at - max(self.met_at, self.since) > stay
        since = now if self.epoch < 0 else lost_at if has_stayed else self.since
        is_over = self.endpoints > 1 and lost_at - since > max(self.join_timeout, stay)
        absence = max(0.0, now - lost_at - walk(self.endpoints))
        return replace(self, since=since + absence, epoch=epoch, met_at=now, lost_at=None, is_over=is_over)
