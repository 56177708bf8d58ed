"""Which nodes of a changing set belong to which world, counted as the set changes.

``core/membership/quorum.py`` asks of a set of nodes how many of them were members of a world, and whether one
of them was to be a member and holds no seat. Both are sums over the nodes, so a node that comes, goes or
takes a seat changes them by its own share: as many steps as the node holds seats, however many nodes there
are. Only a world whose members become known by their names is counted anew, once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from elasticrun.core.protocol.messages import MAX_SEATS, Seat, World

Seats = tuple[Seat, ...]
Roll = frozenset[str]  # the incarnations of a world's members


@dataclass(slots=True)
class Presence:
    """How many members of a world are in the set, by its roll."""

    roll: Roll
    here: int = 0
    seated: int = 0  # that hold a seat in it


class Votes:
    """A set of nodes by their incarnations, each with its seats."""

    def __init__(self, nodes: Mapping[str, Seats] | None = None) -> None:
        self.nodes: dict[str, Seats] = {}
        self.seated: dict[World, int] = {}  # how many nodes hold a seat in it; never 0
        self.full = 0  # nodes that cannot take another seat
        self._by_roll: dict[World, Presence] = {}
        for incarnation, seats in (nodes or {}).items():
            self.put(incarnation, seats)

    def put(self, incarnation: str, seats: Seats) -> None:
        """A node is in the set from now on, with these seats."""
        known = self.nodes.get(incarnation)
        if known == seats:
            return
        if known is not None:
            self._count(incarnation, known, -1)
        self.nodes[incarnation] = seats
        self._count(incarnation, seats, 1)

    def drop(self, incarnation: str) -> None:
        """A node is not in the set any more; no error if it was not."""
        seats = self.nodes.pop(incarnation, None)
        if seats is not None:
            self._count(incarnation, seats, -1)

    def members(self, world: World, roll: Roll | None) -> int:
        """How many of the nodes were members of a world: who is on its roll; if that is unknown, who sits."""
        return self.seated.get(world, 0) if roll is None else self._presence(world, roll).here

    def refute(self, world: World, roll: Roll | None) -> bool:
        """Whether one of the nodes was to be a member of a world, and has no seat in it."""
        if roll is None:
            return False
        presence = self._presence(world, roll)
        return presence.seated < presence.here

    def forget_before(self, round_: int) -> None:
        """Nobody will ask for the members of worlds older than this round."""
        for world in [world for world in self._by_roll if world.round < round_]:
            del self._by_roll[world]

    def _count(self, incarnation: str, seats: Seats, change: int) -> None:
        worlds = {seat.world for seat in seats}
        self.full += change if len(seats) >= MAX_SEATS else 0
        for world in worlds:
            count = self.seated.get(world, 0) + change
            if count:
                self.seated[world] = count
            else:
                del self.seated[world]
        for world, presence in self._by_roll.items():
            if incarnation in presence.roll:
                presence.here += change
                presence.seated += change if world in worlds else 0

    def _presence(self, world: World, roll: Roll) -> Presence:
        presence = self._by_roll.get(world)
        if presence is None or presence.roll is not roll:
            seats = [self.nodes[name] for name in self.nodes.keys() & roll]
            seated = sum(any(seat.world == world for seat in each) for each in seats)
            presence = self._by_roll[world] = Presence(roll, len(seats), seated)
        return presence
