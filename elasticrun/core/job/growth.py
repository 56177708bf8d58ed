"""When a world that runs makes way for a larger one, and which nodes are held back until they can join.

A node that joins a training job says READY long before its workers could make a step: its warm parent still
imports torch. If the world stopped then, all nodes would wait for that import. So such a node is *held back*:
it is no candidate, is not checked, is not counted in votes, and no other node waits for it. That ends once it
says that its imports are done, or no world can be formed without it, or it has been held back for
``WARMING_LIMIT``, in which its agent should have said something.

Invariant: while a round runs, no candidate is known to be warming unless it was held back for that long. So a
node for which a round stops can start its workers by a fork. Before the first world there is no round to
interrupt, so no node is held back: nodes meet while they import.

When many nodes start together, each stop should take in as many as possible. So the first node that is done
waits for the others that import, for ``SETTLE`` at most: there is one stop in each such time.
"""

from __future__ import annotations

from collections import OrderedDict
from enum import Enum

from elasticrun.core.membership.rendezvous import WorldLimits

#: Seconds that a node which could join waits for others that soon can.
SETTLE = 1.0
#: Seconds after which a node that is still warming is taken for ready; its agent gives up long before.
WARMING_LIMIT = 90.0


class Growth(Enum):
    """Whether a world that runs makes way for a larger one."""

    NONE = "none"
    SOON = "soon"  # others are about to join as well
    NOW = "now"


def growth(size: int, available: int, held: int, limits: WorldLimits) -> Growth:
    """Judge a world of ``size`` nodes, if ``available`` others could start and ``held`` are held back."""
    larger = limits.usable(size + available)
    if larger <= size:
        return Growth.NONE
    return Growth.SOON if held and larger < limits.largest else Growth.NOW


class HeldBack:
    """The names of the nodes that are held back, oldest first. Every operation is O(1)."""

    def __init__(self) -> None:
        # Seconds of the master's clock. A plain dict would scan all dropped entries to find the first.
        self.since: OrderedDict[str, float] = OrderedDict()

    def __len__(self) -> int:
        return len(self.since)

    def __contains__(self, name: object) -> bool:
        return name in self.since

    def add(self, name: str, now: float) -> None:
        """Hold a node back from now on; nothing changes if it is already."""
        self.since.setdefault(name, now)

    def drop(self, name: str) -> None:
        """Remove a node; no error if it is not held back."""
        self.since.pop(name, None)

    @property
    def first(self) -> str:
        """The node that was held back first; there must be one."""
        return next(iter(self.since))

    @property
    def deadline(self) -> float | None:
        """When the first one is to be taken for ready; None if there is none."""
        return self.since[self.first] + WARMING_LIMIT if self.since else None
