"""Which master may form the next world, if several hosts may become the master's.

Any listed host can start a master, and a network that falls apart can leave several alive, each believing
that the others are dead. No measurement by one of them refutes that, so no clock decides here which one is
*the* master. There may be many masters, but only one world that can train. This is dynamic voting (Jajodia
and Mutchler, 1990), with the nodes of the last world as the voters.

**Words.** A world is named by its round and the epoch in which it was formed; epochs of the master on
endpoint i of k are i modulo k, and one that starts without a journal of its own draws its first epoch at
random, so no two masters form the same world. A member *votes* for a world when it starts its workers. It
remembers the vote for as long as its incarnation lives, and shows its votes with each status; in worlds of
moderate size a vote also names the members. A world is *complete* once every member has voted for it; only
then can it train, as each step needs all of its members. The *base* of a world is the newest world that the
master which formed it knew to be complete, because it had heard every vote, or because some vote names that
world as its base. The very first world counts as a base as soon as it is formed, complete or not.

**Rule.** A master forms a world W on the base B only if W has a *quorum* of B: more than half of B's
members; or exactly half, if this master formed B and its journal goes back to that moment without a gap.
The same must hold for each world V newer than B that a member of W voted for, or that this master formed
itself, for V may have become complete without this master's knowledge; unless a member of W is known to have
been a member of V and did not vote for it.

**A vote is a compare-and-swap.** Each member is told, in its ``Proposal``, which vote was its newest when W
was formed. It votes for W only if that is still so, and W's round is larger than that of any world it ever
voted for. Therefore what W's master knew of the votes is still true when W becomes complete: a
late status, a stream that broke between Hello and Welcome, or a member that visited another master in between
can make W fail, but not wrong.

**Claim.** The complete worlds C0, C1, ... in the order of their rounds form one chain: each has a quorum of
the one before it, so shares a member with it, and that member stopped its workers in the older world before
it started them in the newer one. So at no time can two worlds train.

**Proof.** Let W be complete, Cn the newest complete world before it, and Cj with j <= n the base of W. By
the rule W has a quorum of Cj; if j = n, this is the claim. Otherwise C(j+1) has a quorum of Cj as well, by
induction. If one of the two is more than a half, some node x is in both, and has voted for both. The rounds
differ, as a node's votes have growing rounds; C(j+1) is the older one, so by the compare-and-swap the master
of W knew that x had voted for C(j+1). No member of C(j+1) that is in W lacks its vote for C(j+1), because
both worlds are complete. So the rule was applied to C(j+1): W has a quorum of it. If both are
exactly a half, one master with one journal formed both, hence knew C(j+1) when it formed W, and the rule
was applied likewise. Repeat with j+1 until j = n. A node forgets votes older than a base it was told of;
then that base is known to the master of W, and j was not the newest. Two complete worlds of one round would
share a node, which votes only once in a round. Nothing in this depends on time, on who is attached
where, or on any copy of a journal: a copy adds names, which can only show that more worlds never started.

**The first world** has no voters before it. Only the master on the first endpoint forms it, with a journal
of its own from the job's beginning, and only while an agent of each listed host is with it and ready, and
none of the nodes has ever heard of a world; the same hosts must be there for each further world until every
one of their agents has heard of a world. So a listed host that lost its memory cannot begin the job a
second time, even if the network hides from it what goes on; and the agent of a listed host looks for
masters on the other endpoints before it serves the first one or follows it.

**What is not promised.** If half of a world's nodes are lost at once (both halves of a network that broke
in the middle, or one of two nodes), the job goes on only with the master that formed the world, and with
less than half it does not go on at all, however many spares there are; a third node or host decides. If a
master is lost in the moment in which it tells a world of more than ``MAX_NAMED_MEMBERS`` nodes to its
members, and no copy of its journal tells who they were, those that voted for it must be a majority of it.
Without a copy the votes are still counted right, but the restart budget starts anew. And the job could begin
a second time if all listed hosts forget everything, by a restart with a temporary state directory, while none
of them can reach the rest: name a ``--state-dir`` that survives to rule that out.

If half of the last world was lost with the journal of the master that formed it, the job does not go on even
if agents of all listed hosts are here again. What a master hears cannot show that this would be safe: take
two listed hosts A and B, and a node N of a third. While B was cut off, A's master could form {A, N} on half
of {A, B}, and then {N} on half of that. If A now loses its state while N trains on, cut off, then new agents
of A and the old one of B are all that the list names, and know nothing of N.

That nodes are dead for good only somebody outside can know, who has removed them. ``is_lost`` says what
follows if no others live than those that are here. Still these may not just go on: the dead may have formed a
further world with newcomers, which live elsewhere. So whoever knows ends all of them, and begins the job anew
(``core/fleet/decide.py``).

**Times.** They decide how soon a job goes on, never whether it is safe. An agent leaves an endpoint that
does not answer after ``TAKEOVER_DELAY``: a master that was only killed is back in less than a second. A
master that cannot get a quorum steps down after its ``patience``. That doubles along the list, so it
covers the patience of all masters before it and the walk along the list together: if masters wait for one
another's nodes, all but the last of them step down while that one waits, and their agents come. Where no
master can ever lead again, agents do not walk for ever: see ``core/agent/search.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from elasticrun.core.membership.tally import Members, Tally, Votes
from elasticrun.core.protocol.messages import MAX_NAMED_MEMBERS, MAX_VOTES, Proposal, Vote, World

#: Seconds after which an agent tries the next endpoint.
TAKEOVER_DELAY = 3.0
#: Seconds after which a master that waits for the job's first nodes lets them look elsewhere.
FOUNDING_PATIENCE = 30.0
#: Seconds in which a master hears from the nodes that it knows, and from those that look for it.
SETTLING = 15.0
#: The most worlds whose members agents may name. Only a few worlds matter, but an agent may tell of any.
#: Without the names, those that voted are counted as the members, which is as safe.
MAX_NAMED_WORLDS = 256


def next_epoch(above: int, endpoints: int, position: int) -> int:
    """The smallest epoch larger than ``above`` that belongs to the master on an endpoint."""
    return above + 1 + (position - above - 1) % endpoints


def walk(endpoints: int) -> float:
    """Seconds in which an agent has tried each endpoint, and the first one again."""
    return TAKEOVER_DELAY * (endpoints + 1)


def longest_stay(endpoints: int) -> float:
    """Seconds after which each master that cannot lead has stepped down, wherever it is in the list."""
    return SETTLING + max(FOUNDING_PATIENCE, walk(endpoints) * 2.0 ** (endpoints - 1))


def newest(votes: Votes) -> World | None:
    """The world that a node voted for last."""
    return votes[-1].world if votes else None


def accepts(votes: Votes, proposal: Proposal | None) -> bool:
    """Whether a node with these votes may vote for the world that is proposed, or has done so already."""
    return proposal is None or newest(votes) in (proposal.prior, proposal.world)


def with_vote(votes: Votes, proposal: Proposal | None) -> Votes:
    """The votes of a node that votes for what is proposed, or hears more of a world that it voted for."""
    if proposal is None:
        return votes
    bases = [proposal.base, *[vote.base for vote in votes if vote.world == proposal.world]]
    base = _newer(bases)
    kept = (v for v in votes if v.world != proposal.world and (base is None or v.world.round >= base.round))
    return (*kept, Vote(proposal.world, base, proposal.members))


class Quorum:
    """What one master knows of the worlds that matter for the next one; changes by journaled events only.

    With a single endpoint there is nothing to decide: every method agrees.
    """

    def __init__(self, endpoints: int) -> None:
        self.endpoints = endpoints
        self.position = 0  # of this master in the list of endpoints
        self.base: World | None = None
        self._line = -1  # the first epoch since which this journal has seen all that this endpoint did
        self._is_founder = False
        self._informed: set[int] = set()  # positions of listed hosts whose agents have heard of a world
        self._members_of: dict[World, Members] = {}  # the base's and those of later worlds, if known
        self._formed: list[World] = []  # by masters of this journal; the base and later ones

    @property
    def is_needed(self) -> bool:
        """Whether several hosts may become the master's."""
        return self.endpoints > 1

    @property
    def is_blank(self) -> bool:
        """Whether this master may not begin a job, and knows of none that has begun."""
        return self.is_needed and self.base is None and not self._is_founder

    @property
    def patience(self) -> float:
        """For how many seconds a master without a quorum waits for one."""
        is_founding = self.base is None and self._is_founder
        return FOUNDING_PATIENCE if is_founding else walk(self.endpoints) * 2**self.position

    def start(self, epoch: int) -> None:
        """Note that a master takes up the journal, perhaps a copy of another one's."""
        position = epoch % self.endpoints
        if self._line < 0:
            self._line, self._is_founder = epoch, position == 0
        elif position != self.position:
            self._line, self._is_founder = epoch, False
        self.position = position

    def hear(self, votes: Votes, position: int = -1, round_: int = -1) -> None:
        """Learn from a node's status which worlds were complete, and whether a listed host knows of one."""
        if round_ >= 0:
            self._informed.add(position)
        for vote in votes:
            self._learn(vote.base or vote.world)
        for vote in votes:
            is_new = self.base is not None and vote.world.round >= self.base.round
            if vote.members and is_new and len(self._members_of) < MAX_NAMED_WORLDS:
                self._members_of.setdefault(vote.world, frozenset(vote.members))

    def is_voter(self, incarnation: str, votes: Votes) -> bool:
        """Whether a node was a member of the base."""
        members = self._members_of.get(self.base) if self.base is not None else frozenset[str]()
        if members is not None:
            return incarnation in members
        return any(vote.world == self.base for vote in votes)

    def obstacle_to_begin(self, positions: Iterable[int], is_known: bool) -> str:
        """Why the first world may not be formed; "" if it may, or if the job has begun.

        ``positions`` are those of the listed hosts whose agents are ready; ``is_known`` says whether any node
        has heard of a world.
        """
        hosts = set(range(self.endpoints))
        has_begun = self.base is not None and (not self._is_founder or hosts <= self._informed)
        if not self.is_needed or has_begun:
            return ""
        if self.base is None and (is_known or not self._is_founder):
            return "the job has begun, but none of its last world's nodes is here"
        missing = sorted(hosts - set(positions))
        if not missing:
            return ""
        numbers = ", ".join(str(position + 1) for position in missing)
        return f"the job begins once all hosts of --rdzv-endpoint are here; missing: number {numbers}"

    def obstacle(self, nodes: Tally) -> str:
        """Why these nodes may not form the next world; "" if they may."""
        if not self.is_needed or self.base is None:
            return ""
        if nodes.full:
            return f"the last {MAX_VOTES} worlds did not start everywhere; restart the job"
        if why := self.lacks_base(nodes):
            return why
        doubts = (self._missing(world, nodes) for world in self._in_doubt(self.base, nodes))
        return next(filter(None, doubts), "")

    def lacks_base(self, nodes: Tally) -> str:
        """Why neither these nodes nor any part of them may form the next world, as far as the base says."""
        if self.base is None:
            return ""
        nodes.forget_before(self.base.round)
        return self._missing(self.base, nodes)

    def is_lost(self, nodes: Tally, has_leader: Callable[[int], bool]) -> bool:
        """Whether no master could lead these nodes, if no other node lives.

        A master elsewhere may know which of the worlds in doubt was complete, so each of them has to be lost.
        ``has_leader``: whether the node of a listed host is here as a member of the base. It has its journal
        then, so its master may go on with half of what it formed.
        """
        if self.base is None or not self.obstacle(nodes):
            return False
        for world in (self.base, *self._in_doubt(self.base, nodes)):
            here = nodes.present(world, self._members_of.get(world))
            if 2 * here > world.size or (2 * here == world.size and has_leader(world.epoch % self.endpoints)):
                return False
        return True

    def form(self, round_: int, epoch: int, members: Mapping[str, Votes]) -> dict[str, Proposal]:
        """Note a new world of these incarnations. Returns the proposal for each of them."""
        if not self.is_needed:
            return {}
        world, base = World(round_, epoch, len(members)), self.base
        self._members_of[world] = frozenset(members)
        self._formed.append(world)
        if base is None:
            self._learn(world)
        named = tuple(members) if len(members) <= MAX_NAMED_MEMBERS else ()
        return {name: Proposal(world, base, newest(votes), named) for name, votes in members.items()}

    def complete(self, proposal: Proposal | None) -> bool:
        """Note that a world is complete. Returns whether that is news that its members should be told."""
        if proposal is None or proposal.world == self.base:
            return False
        self._learn(proposal.world)
        return True

    def _learn(self, world: World) -> None:
        if self.base is None or world.round > self.base.round:
            self.base = world
            known = self._members_of
            self._members_of = {each: known[each] for each in known if each.round >= world.round}
            self._formed = [formed for formed in self._formed if formed.round >= world.round]

    def _in_doubt(self, base: World, nodes: Tally) -> list[World]:
        """Worlds after the base that may have become complete, as far as that matters; oldest first."""
        seen = {*nodes.voted, *filter(self._is_own, self._formed)}
        later = [world for world in seen if world.round > base.round]
        # Refuted: a member among these nodes has not voted, and never will once the next world starts.
        possible = [world for world in later if not nodes.refute(world, self._members_of.get(world))]
        return sorted(possible, key=lambda world: (world.round, world.epoch))

    def _is_own(self, world: World) -> bool:
        """Whether this journal saw everything that this endpoint's masters did since they formed it."""
        by_us = world.epoch % self.endpoints == self.position and world.epoch >= self._line
        return by_us and world in self._formed

    def _missing(self, world: World, nodes: Tally) -> str:
        here = nodes.present(world, self._members_of.get(world))
        needed = (world.size + 1) // 2 if self._is_own(world) else world.size // 2 + 1
        if here >= needed:
            return ""
        return (
            f"{here} of {world.size} nodes of the last world {_are(here)} here;"
            f" {needed} {_are(needed)} needed, as another master may have taken over; a host that lost its"
            " state comes back as a new one: give each a --state-dir that survives, and start the job anew"
        )


def _newer(worlds: Iterable[World | None]) -> World | None:
    return max((world for world in worlds if world is not None), key=lambda w: w.round, default=None)


def _are(count: int) -> str:
    return "is" if count == 1 else "are"
