"""When the last status of a job does not tell any more how the job is, for whoever follows its event log too.

Theory. Entries of the log come by themselves, at once; the status is asked for, which costs the master more
than any entry. Most of what is shown follows from entries alone. What only the status has are ranks, doubts,
limits, and what is waited for: they change with few kinds of entries, the *urgent* ones. All others are mere
progress (steps, milestones, what nodes do, saved states, decisions), as are the figures of nodes, which no
entry announces: for these the status may be older. Agents tell figures with their heartbeats, so more often
than these there is nothing new.

A recovery in the same world makes nothing stale: between two rounds it is not known what is waited for, but
once the next one has begun with the same nodes, all ranks are as they were.
"""

from __future__ import annotations

from elasticrun.core.protocol.chronicle import (
    CheckEnded,
    CheckStarted,
    EntriesLost,
    Happening,
    JobEnded,
    MasterStarted,
    NodeDetached,
    NodeGone,
    NodeJoined,
    OrderAnswered,
    RoundStarted,
    RoundStopped,
    ScaleEnded,
    ScaleStarted,
)

#: Seconds from one status to the next: after an urgent entry, and else.
SOON = 2.0
LATER = 10.0
_URGENT = (
    *(MasterStarted, NodeJoined, NodeDetached, NodeGone, CheckStarted, CheckEnded),
    *(OrderAnswered, ScaleStarted, ScaleEnded, JobEnded, EntriesLost),
)


class Staleness:
    """Of the last status of one job."""

    def __init__(self) -> None:
        self._is_stale = True  # nobody has asked yet
        self._is_between = False  # no round runs
        self._world: tuple[int, tuple[str, ...]] | None = None  # workers and names of the newest round

    @property
    def is_urgent(self) -> bool:
        """Whether an urgent entry came since the status was asked for."""
        return self._is_stale or self._is_between

    def take(self, told: Happening) -> None:
        """Take in the next entry."""
        if isinstance(told, _URGENT):
            self._is_stale = True
        elif isinstance(told, RoundStopped):
            self._is_between = True
        elif isinstance(told, RoundStarted):
            world = told.workers, told.names
            is_known = world == self._world and len(told.names) == told.nodes  # else not all are named
            self._is_stale = self._is_stale or not is_known
            self._is_between, self._world = False, world

    def asked(self) -> None:
        """The status is being asked for."""
        self._is_stale = self._is_between = False

    def unanswered(self) -> None:
        """There was no answer."""
        self._is_stale = True

    def due(self, asked: float) -> float:
        """When to ask for the next one, if the last one was asked for at ``asked``."""
        return asked + (SOON if self.is_urgent else LATER)
