"""Which nodes could be in the next world, which must be checked first, and whether they have the votes.

The master asks this after every event, and the answers are sums over all nodes; computed anew each time, the
first world of n nodes would cost n * n steps. So the sums are kept: how many ready nodes have each standing,
which listed hosts' agents are among them, and the votes (``core/membership/tally.py``) of all nodes that are
here and of those that could be members. The invariant: after each event these sums are what a count of all
nodes would give. It holds because every change passes through here: a node becomes ready or ceases to be,
votes, changes its health or is gone.

The choice of the members costs a pass over all nodes, once for each world.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import Enum

from elasticrun.config import HealthCheckMode, HealthConfig
from elasticrun.core.health.checkup import Checkup, HealthBook, Judgement
from elasticrun.core.membership.nodes import Node
from elasticrun.core.membership.quorum import Quorum
from elasticrun.core.membership.rendezvous import Candidate, WorldLimits, choose_world
from elasticrun.core.membership.tally import Tally
from elasticrun.core.protocol.messages import Vote


class Standing(Enum):
    """What is known of the health of a node that is ready."""

    TRUSTED = "trusted"
    UNKNOWN = "unknown"
    SUSPECT = "suspect"
    DOUBTFUL = "doubtful"


class Candidates:
    """The ready nodes outside a round, with sums over them."""

    def __init__(self, nodes: Mapping[str, Node], quorum: Quorum, health: HealthBook) -> None:
        self._nodes = nodes
        self._quorum = quorum
        self._health = health
        self.ready: dict[str, Standing] = {}  # in the order in which they became ready
        self.standings = dict.fromkeys(Standing, 0)  # how many of these have each
        self.positions: dict[int, int] = {}  # of hosts in the list: how many ready nodes each has; never 0
        self.here = Tally()  # of all nodes; empty if nobody votes
        self.able = Tally()  # of those that could be members

    # -- what changes

    def hear(self, node: Node) -> None:
        """Take in the newest status of a node that is here."""
        if self._quorum.is_needed:
            self.here.put(node.info.incarnation, node.status.votes)
            if node.info.node in self.ready:
                self._file(node, self.ready[node.info.node])

    def add(self, node: Node) -> None:
        """Add a ready node; it is not among them yet."""
        self._health.arrive(node.info.node, node.info.host)
        self._file(node, self._standing(node.info.node))
        if self._quorum.is_needed:
            position = node.info.position
            self.positions[position] = self.positions.get(position, 0) + 1

    def remove(self, node: Node) -> None:
        """Remove a node that is no longer a candidate; no error if it is not among them."""
        standing = self.ready.pop(node.info.node, None)
        if standing is None:
            return
        self.standings[standing] -= 1
        self.able.drop(node.info.incarnation)
        if self._quorum.is_needed:
            position = node.info.position
            self.positions[position] -= 1
            if not self.positions[position]:
                del self.positions[position]

    def forget(self, node: Node) -> None:
        """Forget a node that is gone."""
        self.remove(node)
        self.here.drop(node.info.incarnation)
        self._health.forget(node.info.node, node.info.host)

    def suspect(self, name: str) -> None:
        """Note that an event speaks against a node."""
        self._health.suspect(name)
        self._review((name,))

    def conclude(self, check: Checkup, config: HealthConfig) -> Judgement:
        """Take over what a check found, and say what follows."""
        judgement = self._health.conclude(check, config, self._nodes)
        self._review(self._nodes)
        return judgement

    def distrust_all(self) -> None:
        """Forget which nodes passed a check: each is checked again."""
        self._health.trusted.clear()
        self._review(self._nodes)

    def _review(self, names: Iterable[str]) -> None:
        """Update the standing of these nodes."""
        for name in names:
            if name in self.ready:
                self._file(self._nodes[name], self._standing(name))

    def _file(self, node: Node, standing: Standing) -> None:
        """Give a ready node this standing, and keep the sums."""
        before = self.ready.get(node.info.node)
        if before is not None:
            self.standings[before] -= 1
        self.ready[node.info.node] = standing
        self.standings[standing] += 1
        if standing is Standing.DOUBTFUL:
            self.able.drop(node.info.incarnation)
        elif self._quorum.is_needed:
            self.able.put(node.info.incarnation, node.status.votes)

    def _standing(self, name: str) -> Standing:
        health = self._health
        if name in health.doubtful:
            return Standing.DOUBTFUL
        if name in health.trusted:
            return Standing.TRUSTED
        return Standing.SUSPECT if name in health.suspects else Standing.UNKNOWN

    # -- what can be said

    @property
    def available(self) -> int:
        """How many nodes could be members of the next world."""
        return len(self.ready) - self.standings[Standing.DOUBTFUL]

    @property
    def are_lost(self) -> bool:
        """Whether the job cannot go on with the nodes that are here, whoever leads them."""
        return self._quorum.is_lost(self.here, self._has_member_at)

    def _has_member_at(self, position: int) -> bool:
        """Whether the node of a listed host is here, and was a member of the last complete world."""
        found = (each for each in self._nodes.values() if each.info.position == position)
        return any(self._quorum.is_voter(each.info.incarnation, each.status.votes) for each in found)

    def trusted(self) -> list[str]:
        """The nodes that are ready and passed their last check."""
        return [name for name, standing in self.ready.items() if standing is Standing.TRUSTED]

    def unchecked(self, config: HealthConfig, is_first_world: bool, is_single: bool) -> list[str]:
        """Which of the nodes that are ready have to be checked first; none if no check has to be made now.

        A node that a check could not judge is checked again only together with a new or suspect node, or when
        it is the only one left: nothing else could change the answer. A single node has no other to reach, so
        its self test decides, if it may work alone at all.
        """
        asked = _asked(config, is_first_world, is_single)
        is_alone = len(self.ready) == 1
        if not any(self.standings[standing] for standing in asked if is_alone or standing in _FRESH):
            return []
        return [name for name, standing in self.ready.items() if standing in asked]

    def choose(self, previous: tuple[str, ...], limits: WorldLimits) -> tuple[list[str], str]:
        """The members of the next world in order of preference, with the reason in words."""
        able = [self._nodes[name] for name, it in self.ready.items() if it is not Standing.DOUBTFUL]
        candidates = [Candidate(n.info.node, n.arrival, n.info.node_rank) for n in able]
        voters = [n.info.node for n in able if self._quorum.is_voter(n.info.incarnation, n.status.votes)]
        return choose_world(candidates, tuple(dict.fromkeys((*previous, *voters))), limits)

    def votes_of(self, names: Iterable[str]) -> dict[str, tuple[Vote, ...]]:
        """The votes of these nodes, by incarnation."""
        nodes = [self._nodes[name] for name in names]
        return {node.info.incarnation: node.status.votes for node in nodes}

    def obstacle(
        self, previous: tuple[str, ...], limits: WorldLimits, is_known: bool, more_may_come: bool
    ) -> str:
        """Why this master may not lead the nodes that could be members; "" if it may.

        As long as these are too few, those that are still busy count as well: their votes are on the way.
        The choice of members matters only if there are more than a world takes, and it is to be formed now.
        """
        quorum = self._quorum
        if not quorum.is_needed:
            return ""
        if why := quorum.obstacle_to_begin(self.positions, is_known):
            return why
        size = limits.usable(self.available)
        if size in (0, self.available) or more_may_come:
            return quorum.obstacle(self.able if size else self.here)
        if why := quorum.lacks_base(self.able):
            return why
        return quorum.obstacle(Tally(self.votes_of(self.choose(previous, limits)[0])))


#: Standings of nodes that a check still has to judge.
_FRESH = frozenset({Standing.UNKNOWN, Standing.SUSPECT})


def _asked(config: HealthConfig, is_first_world: bool, is_single: bool) -> frozenset[Standing]:
    """The standings of nodes that have to be checked before they work."""
    always = config.mode is HealthCheckMode.ALWAYS
    if config.mode is HealthCheckMode.OFF and not config.only:
        return frozenset()
    if is_single and not always and not config.only:
        return frozenset()
    if is_first_world or always:
        return frozenset({*_FRESH, Standing.DOUBTFUL})
    if config.mode is HealthCheckMode.START:
        return frozenset()
    return frozenset({Standing.SUSPECT, Standing.DOUBTFUL})
