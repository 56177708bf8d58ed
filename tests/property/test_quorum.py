"""Tally under an adversary: any master may form any world at any time from what it last heard of the nodes.

Nothing here keeps masters apart: they never die unless they choose to, act on what was true long ago, and
their offers arrive in any order or never. Nodes know nothing of epochs. What holds must hold by the votes
alone.

Schedules are drawn by seed, not by hypothesis: what breaks a broken rule is a handful of steps out of dozens,
which plain chance finds in thousands of short runs.
"""

from __future__ import annotations

import copy
import itertools
import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import pytest

from elasticrun.core.membership.quorum import Quorum, accepts, next_epoch, with_vote
from elasticrun.core.membership.tally import Tally, Votes
from elasticrun.core.protocol.messages import Proposal, World

NODES = 5
STEPS = 70
SEEDS = 400
CHUNK = 100


@dataclass
class Node:
    """One incarnation's memory."""

    name: str
    votes: Votes = ()
    round: int = -1


@dataclass
class Master:
    """One listed host's master and what it believes of the nodes."""

    quorum: Quorum
    epoch: int
    known: dict[str, Votes] = field(default_factory=dict)
    newest: int = -1


class Adversary:
    """One schedule. After each step the claim of core/membership/quorum.py holds."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.endpoints = self.rng.choice((2, 2, 3))
        self.drawn = 0
        self.lives = itertools.count()
        self.nodes = [Node(f"n{number}") for number in range(NODES)]
        self.masters = [self.new_master(position) for position in range(self.endpoints)]
        self.offers: dict[World, dict[str, Proposal]] = {}
        self.takers: dict[World, set[str]] = {}

    def run(self) -> int:
        """The number of worlds that became complete."""
        steps = [self.hear, self.hear, self.form, self.form, self.deliver, self.deliver, self.notice]
        rare = [self.restart, self.take_over, self.forget, self.die]
        for _ in range(STEPS):
            self.rng.choice(steps if self.rng.random() < 0.93 else rare)()
            self.check()
        return len(self.complete)

    def new_master(self, position: int) -> Master:
        """With an empty journal, and an epoch that none of its kind ever had."""
        self.drawn += 100
        master = Master(Quorum(self.endpoints), next_epoch(self.drawn, self.endpoints, position))
        master.quorum.start(master.epoch)
        return master

    # -- masters

    def hear(self) -> None:
        master = self.rng.choice(self.masters)
        for node in self.rng.sample(self.nodes, self.rng.randint(1, NODES)):
            master.known.pop(node.name, None)
            master.known[node.name] = node.votes
            master.newest = max(master.newest, node.round)
            master.quorum.hear(node.votes, self.nodes.index(node), node.round)

    def form(self) -> None:
        master = self.rng.choice(self.masters)
        count = self.rng.randint(0, len(master.known))
        chosen = {name: master.known[name] for name in self.rng.sample(list(master.known), count)}
        known = master.newest >= 0
        if not chosen or master.quorum.obstacle_to_begin(range(self.endpoints), known):
            return
        if master.quorum.obstacle(Tally(chosen)):
            return
        master.newest += 1
        proposals = master.quorum.form(master.newest, master.epoch, chosen)
        world = next(iter(proposals.values())).world
        assert world not in self.offers, "worlds have names of their own"
        self.offers[world], self.takers[world] = proposals, set()

    def notice(self) -> None:
        """A master finds that a world it formed has started everywhere, and tells."""
        master = self.rng.choice(self.masters)
        for world, proposals in self.offers.items():
            position = self.masters.index(master)
            is_own = world.epoch % self.endpoints == position and world.epoch <= master.epoch
            sits = [any(s.world == world for s in master.known.get(name, ())) for name in proposals]
            if is_own and all(sits) and master.quorum.complete(next(iter(proposals.values()))):
                self.offers[world] = {n: replace(proposal, base=world) for n, proposal in proposals.items()}

    def restart(self) -> None:
        """With its journal."""
        position = self.rng.randrange(self.endpoints)
        master = self.masters[position]
        master.epoch = next_epoch(master.epoch, self.endpoints, position)
        master.quorum.start(master.epoch)
        master.known = {}

    def take_over(self) -> None:
        """With a copy of another one's journal in place of its own."""
        to, of = self.rng.sample(range(self.endpoints), 2)
        old = self.masters[of]
        if old.quorum.base is not None:
            quorum = copy.deepcopy(old.quorum)
            self.drawn = max(self.drawn, old.epoch) + 100
            epoch = next_epoch(self.drawn, self.endpoints, to)
            quorum.start(epoch)
            self.masters[to] = Master(quorum, epoch, newest=old.newest)

    def forget(self) -> None:
        """A listed host comes back without its disk; that the first one does is a case of its own."""
        position = self.rng.randrange(1, self.endpoints)
        self.masters[position] = self.new_master(position)

    # -- nodes

    def deliver(self) -> None:
        """Offers of a world arrive, at some of its members, perhaps again."""
        if self.offers:
            world = self.rng.choice(list(self.offers)[-4:])
            proposals = list(self.offers[world].items())
            count = self.rng.choice((1, len(proposals), len(proposals)))
            for name, proposal in self.rng.sample(proposals, count):
                self.take(name, proposal)

    def take(self, name: str, proposal: Proposal) -> None:
        """As core/agent/intake.py does."""
        node = next((node for node in self.nodes if node.name == name), None)
        if node is None or not accepts(node.votes, proposal):
            return
        if proposal.world.round > node.round:
            node.round = proposal.world.round
            node.votes = with_vote(node.votes, proposal)
            self.takers[proposal.world].add(name)
        elif node.votes and node.votes[-1].world == proposal.world:
            node.votes = with_vote(node.votes, proposal)

    def die(self) -> None:
        """A new incarnation takes a node's place; half of the nodes are spared, or soon nobody could vote."""
        which = self.rng.randrange(NODES // 2)
        self.nodes[which] = Node(f"n{which}.{next(self.lives)}")

    # -- what holds

    @property
    def complete(self) -> list[World]:
        """Worlds that started everywhere, by round."""
        found = [world for world, offers in self.offers.items() if self.takers[world] == offers.keys()]
        return sorted(found, key=lambda world: world.round)

    def check(self) -> None:
        """The complete worlds are a chain."""
        for old, young in itertools.pairwise(self.complete):
            assert old.round < young.round, f"{old} and {young}"
            common = len(self.offers[old].keys() & self.offers[young].keys())
            is_same_host = (old.epoch - young.epoch) % self.endpoints == 0
            assert 2 * common > old.size - is_same_host, f"{old} and {young} share {common}"


@pytest.mark.parametrize("first", range(0, SEEDS, CHUNK))
def test_the_complete_worlds_are_a_chain(first: int) -> None:
    complete = [Adversary(seed).run() for seed in range(first, first + CHUNK)]
    assert sum(complete) > CHUNK, "where no world starts, nothing is tested"


IN_DOUBT: Callable[[Quorum, World, Tally], list[World]] = Quorum._in_doubt


def none(quorum: Quorum, base: World, nodes: Tally) -> list[World]:
    return []


def newest_only(quorum: Quorum, base: World, nodes: Tally) -> list[World]:
    return IN_DOUBT(quorum, base, nodes)[-1:]


def only_seen(quorum: Quorum, base: World, nodes: Tally) -> list[World]:
    return [world for world in IN_DOUBT(quorum, base, nodes) if world in nodes.voted]


@pytest.mark.parametrize(("seed", "weaker"), [(0, none), (6712, newest_only), (140, only_seen)])
def test_a_weaker_rule_about_doubt_breaks_the_chain(
    seed: int, weaker: Callable[..., list[World]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Quorum, "_in_doubt", weaker)
    with pytest.raises(AssertionError, match="share"):
        Adversary(seed).run()


@pytest.mark.parametrize(
    ("seed", "owns"),
    [
        (2, lambda quorum, world: True),
        (6907, lambda quorum, world: world.epoch % quorum.endpoints == quorum.position),
    ],
)
def test_half_of_the_voters_suffice_only_for_the_unbroken_journal_of_the_master_that_formed_their_world(
    seed: int, owns: Callable[[Quorum, World], bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Quorum, "_is_own", owns)
    with pytest.raises(AssertionError, match="share"):
        Adversary(seed).run()


def test_a_vote_has_to_be_a_compare_and_swap(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(globals(), "accepts", lambda votes, proposal: True)
    with pytest.raises(AssertionError, match="share"):
        Adversary(16).run()


def test_only_one_master_may_begin(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Quorum, "obstacle_to_begin", lambda quorum, positions, is_known: "x" * is_known)
    with pytest.raises(AssertionError):
        Adversary(19).run()
