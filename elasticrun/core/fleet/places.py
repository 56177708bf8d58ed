"""Which places replicas hold: all of a job, those of one role, and the slots with a name.

Theory. A replica that ends still holds its place until it is gone, as its successor beside it would be one
too many. But one that should be gone for long, or is lost with its host, holds none: nobody can tell when it
will be gone.
"""

from __future__ import annotations

from collections.abc import Container, Mapping

from elasticrun.core.fleet.replicas import Cause, Live, Phase, Seen

#: Seconds beyond its grace after which a replica that should be gone holds no place any more.
OVERDUE = 30.0


def live_of(live: Mapping[int, Live], role: str) -> dict[int, Live]:
    """Those of a role that are meant to run."""
    return {index: each for index, each in live.items() if each.role == role}


def running_among(seen: Mapping[int, Seen], among: Container[int]) -> int:
    """How many of these replicas run."""
    return sum(each.phase is Phase.RUNNING for index, each in seen.items() if index in among)


class Places:
    """The places of one job at one moment."""

    def __init__(self, seen: Mapping[int, Seen], now: float) -> None:
        self._seen = seen
        self._now = now
        self.looks: list[float] = []  # when a place will be given up by itself

    def holding(self, live: Mapping[int, Live], role: str | None = None) -> int:
        """How many replicas are meant to run, or still end and will be gone soon; of all roles, or of one."""
        meant = sum(role in (None, each.role) for each in live.values())
        return meant + len([seen for seen in self._leaving(live) if role in (None, seen.role)])

    def slots(self, live: Mapping[int, Live], slots: range) -> tuple[list[int], int]:
        """Those of these slots that are free; and how many will be, once those that have them have ended."""
        taken = {each.slot for each in live.values()}
        free = [slot for slot in slots if slot not in taken]
        busy = {seen.slot for seen in self._leaving(live)}
        return [slot for slot in free if slot not in busy], len(busy.intersection(free))

    def are_alone(self, live: Mapping[int, Live], stranded: int, until: float | None) -> bool:
        """Whether all that may run are stranded. ``until``: others may still be told to leave, and save."""
        if stranded and until is not None and self._now < until:
            self.looks.append(until)
            return False
        may_run = sum(it.phase is Phase.RUNNING or _is_placed(it) for it in self._seen.values())
        return running_among(self._seen, live) > 0 and may_run <= stranded

    def _leaving(self, live: Mapping[int, Live]) -> list[Seen]:
        others = [seen for index, seen in self._seen.items() if index not in live]
        return [seen for seen in others if self._holds_place(seen)]

    def _holds_place(self, seen: Seen) -> bool:
        if (seen.phase is Phase.ENDED and not seen.lingers) or seen.cause is Cause.HOST_LOST:
            return False
        if seen.leaves_by is None:
            return True
        over = seen.leaves_by + OVERDUE
        if self._now < over:
            self.looks.append(over)
        return self._now < over


def _is_placed(seen: Seen) -> bool:
    """Whether it may run already, though the platform does not show that yet."""
    return seen.phase is Phase.PENDING and bool(seen.host)
