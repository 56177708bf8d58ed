"""Which nodes of a changing set belong to which world, counted as the set changes.

``core/membership/quorum.py`` asks of a set of nodes how many of them were members of a world, and whether one
of them was to be a member and has not voted for it. Both are sums over the nodes, so a node that comes, goes
or votes changes them by its own share: as many steps as the node has votes, however many nodes there are.
A world is counted anew only when the names of its members become known.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from elasticrun.core.protocol.messages import MAX_VOTES, Vote, World

Votes = tuple[Vote, ...]
Members = frozenset[str]  # the incarnations of a world's members


@dataclass(slots=True)
class Presence:
    """How many members of one world are in the set."""

    members: Members
    here: int = 0
    voted: int = 0  # that voted for it


class Tally:
    """A set of nodes by their incarnations, each with its votes."""

    def __init__(self, nodes: Mapping[str, Votes] | None = None) -> None:
        self.nodes: dict[str, Votes] = {}
        self.voted: dict[World, int] = {}  # how many nodes voted for it; never 0
        self.full = 0  # nodes that have no room for another vote
        self._by_members: dict[World, Presence] = {}
        for incarnation, votes in (nodes or {}).items():
            self.put(incarnation, votes)

    def put(self, incarnation: str, votes: Votes) -> None:
        """Put a node with these votes into the set, in place of its earlier votes."""
        known = self.nodes.get(incarnation)
        if known == votes:
            return
        if known is not None:
            self._count(incarnation, known, -1)
        self.nodes[incarnation] = votes
        self._count(incarnation, votes, 1)

    def drop(self, incarnation: str) -> None:
        """Remove a node from the set; no error if it is not there."""
        votes = self.nodes.pop(incarnation, None)
        if votes is not None:
            self._count(incarnation, votes, -1)

    def present(self, world: World, members: Members | None) -> int:
        """How many of the nodes were members of a world; if these are unknown, how many voted for it."""
        return self.voted.get(world, 0) if members is None else self._presence(world, members).here

    def refute(self, world: World, members: Members | None) -> bool:
        """Whether one of the nodes was to be a member of a world, and has not voted for it."""
        if members is None:
            return False
        presence = self._presence(world, members)
        return presence.voted < presence.here

    def forget_before(self, round_: int) -> None:
        """Drop the counts of worlds older than this round: they are not asked for any more."""
        for world in [world for world in self._by_members if world.round < round_]:
            del self._by_members[world]

    def _count(self, incarnation: str, votes: Votes, change: int) -> None:
        worlds = {vote.world for vote in votes}
        self.full += change if len(votes) >= MAX_VOTES else 0
        for world in worlds:
            count = self.voted.get(world, 0) + change
            if count:
                self.voted[world] = count
            else:
                del self.voted[world]
        for world, presence in self._by_members.items():
            if incarnation in presence.members:
                presence.here += change
                presence.voted += change if world in worlds else 0

    def _presence(self, world: World, members: Members) -> Presence:
        presence = self._by_members.get(world)
        if presence is None or presence.members is not members:
            votes = [self.nodes[name] for name in self.nodes.keys() & members]
            voted = sum(any(vote.world == world for vote in each) for each in votes)
            presence = self._by_members[world] = Presence(members, len(votes), voted)
        return presence
