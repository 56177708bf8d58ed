"""What the shares of a cluster are decided by, and the decision.

A cluster is so many *units* of some kinds: GPUs of one type, or processors. Each node of a job takes the
same number of units of one kind. That is enough, because one kind is always the scarce one: processors and
memory of a GPU host are handed out in proportion to its GPUs. Which host a node comes to is the business of
the platform's scheduler; what that cannot place, for fragments, is no capacity here.
"""

from __future__ import annotations

from collections.abc import Mapping

from elasticrun.core.cluster.curve import Curve
from elasticrun.dataclass import dataclass

#: Priorities beyond count as these.
LEAST_PRIORITY, MOST_PRIORITY = -10, 10


@dataclass(frozen=True, slots=True)
class Job:
    """One job, as it is now. ``1 <= least <= most``, ``takes >= 1``, and the curve reaches to ``most``."""

    name: str
    least: int  # nodes; below that it does not run
    most: int  # nodes; as many as least: a rigid job
    curve: Curve
    nodes: int = 0  # now; 0: it waits
    submitted: float = 0.0  # in seconds of the same clock as ``now``
    priority: int = 0  # a node of one more is worth twice as much
    takes: int = 1  # units of each node
    besides: int = 0  # units of what it needs besides its nodes, such as parameter servers
    kind: str = ""  # of its units
    rescale: float = 30.0  # seconds in which a change of its size stops its work

    @property
    def is_rigid(self) -> bool:
        """Whether it has one size only."""
        return self.least == self.most

    @property
    def pledge(self) -> int:
        """Units that it keeps as long as it runs."""
        return self.uses(self.least)

    def uses(self, nodes: int) -> int:
        """Units that it needs with so many nodes."""
        return self.besides + nodes * self.takes

    @property
    def worth(self) -> float:
        """Of one effective node."""
        return self.takes * 2.0 ** max(LEAST_PRIORITY, min(self.priority, MOST_PRIORITY))


@dataclass(frozen=True, slots=True)
class Rules:
    """What an administrator may set."""

    horizon: float = 300.0  # seconds within which a change of size has to pay
    aging: float = 1800.0  # seconds of waiting that count as much as one of priority
    patience: float = 600.0  # seconds for which later jobs may pass one that finds no room

    def turn(self, submitted: float, priority: int, name: str) -> tuple[float, str]:
        """The place of a job among those that wait: the least is asked first."""
        return submitted - self.aging * priority, name

    def may_be_passed(self, submitted: float, now: float) -> bool:
        """Whether later jobs may still pass one that finds no room."""
        return now - submitted < self.patience


@dataclass(frozen=True, slots=True)
class Change:
    """Of one job's number of nodes."""

    job: str
    before: int
    nodes: int
    reason: str


@dataclass(frozen=True, slots=True)
class Plan:
    """How many nodes each job gets, and what that changes, in the order in which it is to be done."""

    nodes: Mapping[str, int]
    changes: tuple[Change, ...]  # those that free units come first
    waiting: Mapping[str, str]  # jobs that get none, and why
