"""The copies of others' parts that a node takes in, keeps and drops."""

from __future__ import annotations

from typing import Any

import pytest

from elasticrun.core.protocol.commits import MAX_HOLDINGS, MAX_PARTS, CommitId, Holding, Part
from elasticrun.core.state.events import (
    Accept,
    Arrived,
    BufferMade,
    BufferRefused,
    CopiesChanged,
    Decline,
    DropBuffer,
    Interrupted,
    Judged,
    MakeBuffer,
    Offer,
    Offered,
    Piece,
    Pinned,
    RoundBegins,
)
from elasticrun.core.state.replicas import MAX_UNHEARD, Replicas

OLD, NEW, NEWER = CommitId(0, 5), CommitId(0, 6), CommitId(0, 7)


def offer(commit: CommitId = OLD, rank: int = 1, length: int = 10, ranks: tuple[int, ...] = ()) -> Offer:
    """The part of one node, whose workers have these ranks."""
    pieces = tuple(Piece(each, length, f"d{each}") for each in ranks or (rank,))
    return Offer(commit, 4, Part(rank, f"digest {rank}", True), pieces)


def judged(safe: CommitId | None = None, copying: CommitId | None = None) -> Judged:
    return Judged(copying, None, safe, copying)


def begun(round_: int = 0) -> Replicas:
    """A node that runs a round."""
    replicas = Replicas()
    assert replicas.handle(RoundBegins(round_, 0, 4, (0,))) == []
    return replicas


class Node:
    """Runs a round, and has all memory that it asks for, at once."""

    def __init__(self) -> None:
        self.replicas = begun()
        self.sizes: dict[int, int] = {}

    def do(self, event: Any) -> list[Any]:
        """The effects of an event, without those on buffers."""
        found = []
        for effect in self.replicas.handle(event):
            match effect:
                case MakeBuffer(number, size):
                    self.sizes[number] = size
                    found += self.do(BufferMade(number))
                case DropBuffer(number):
                    del self.sizes[number]
                case _:
                    found.append(effect)
        return found

    def store(self, offered: Offer) -> None:
        label = offered.commit, offered.part.group_rank
        [accepted] = self.do(Offered(offered))
        assert isinstance(accepted, Accept)
        assert self.do(Arrived(*label)) == [CopiesChanged()]

    def parts(self, commit: CommitId) -> list[int]:
        return sorted(
            part.group_rank
            for holding in self.replicas.holdings(())
            for part in holding.parts
            if holding.commit == commit
        )


def test_a_part_is_told_of_once_all_of_it_is_here() -> None:
    node = Node()
    assert node.do(Offered(offer(ranks=(2, 3)))) == [Accept(OLD, 1, (0, 1))]
    assert node.parts(OLD) == []
    assert node.replicas.stored(OLD) == []
    assert node.do(Arrived(OLD, 1)) == [CopiesChanged()]
    assert node.parts(OLD) == [1]
    assert [(it.rank, it.length, it.digest) for it in node.replicas.stored(OLD)] == [
        (2, 10, "d2"),
        (3, 10, "d3"),
    ]
    assert node.replicas.offer(OLD, 1) == offer(ranks=(2, 3))
    assert node.replicas.offer(OLD, 2) is None
    assert node.do(Arrived(OLD, 1)) == [], "it was here already"


def test_a_part_that_does_not_come_leaves_its_memory_to_the_next_one() -> None:
    node = Node()
    node.do(Offered(offer()))
    assert node.do(Interrupted(OLD, 1)) == []
    assert node.do(Offered(offer(NEW))) == [Accept(NEW, 1, (0,))]
    assert node.sizes == {0: 10}


def test_a_part_that_does_not_come_takes_no_other_one_with_it() -> None:
    node = Node()
    node.do(Offered(offer(rank=1)))
    node.do(Offered(offer(rank=2)))
    node.do(Interrupted(OLD, 1))
    assert node.do(Interrupted(OLD, 1)) == [], "it was given up already"
    node.do(Arrived(OLD, 2))
    assert node.parts(OLD) == [2]


@pytest.mark.parametrize("is_here", [False, True])
def test_a_part_is_not_taken_in_twice(is_here: bool) -> None:
    node = Node()
    node.do(Offered(offer()))
    if is_here:
        node.do(Arrived(OLD, 1))
    [declined] = node.do(Offered(offer()))
    assert isinstance(declined, Decline)
    assert declined.is_here is is_here
    [other] = node.do(Offered(Offer(OLD, 4, Part(1, "another", True), (Piece(1, 10, "x"),))))
    assert isinstance(other, Decline)
    assert not other.is_here


def test_no_two_parts_of_a_commit_have_the_same_ranks() -> None:
    node = Node()
    node.store(offer(ranks=(1, 2)))
    [declined] = node.do(Offered(offer(rank=2, ranks=(2, 3))))
    assert declined == Decline(OLD, 2, "another part of that commit has the same ranks")


def test_a_node_takes_no_more_than_it_can_tell_of() -> None:
    node = Node()
    for rank in range(MAX_PARTS - 1):
        node.store(offer(rank=rank))
    [declined] = node.do(Offered(offer(rank=99)))
    assert declined.reason == f"{MAX_PARTS - 1} parts of that commit are here already"


def test_without_room_a_part_is_declined_with_the_reason() -> None:
    node = Node()
    [made] = node.replicas.handle(Offered(offer()))
    assert made == MakeBuffer(0, 10)
    assert node.do(BufferRefused(0, "no room")) == [Decline(OLD, 1, "no room")]
    assert node.do(BufferRefused(0, "no room")) == [], "nobody waits for it"


def test_only_the_part_without_room_is_declined() -> None:
    replicas = begun()
    assert replicas.handle(Offered(offer(rank=1))) == [MakeBuffer(0, 10)]
    assert replicas.handle(Offered(offer(rank=2))) == [MakeBuffer(1, 10)]
    assert replicas.handle(BufferRefused(1, "no room")) == [Decline(OLD, 2, "no room")]
    assert replicas.handle(BufferMade(0)) == [Accept(OLD, 1, (0,))]


def test_a_part_that_waits_for_memory_is_declined_once_nobody_needs_it() -> None:
    replicas = begun()
    replicas.handle(Offered(offer()))
    assert replicas.handle(judged(safe=NEW)) == [Decline(OLD, 1, "nobody needs it any more")]
    [declined] = replicas.handle(Offered(offer()))
    assert declined == Decline(OLD, 1, "nobody needs it any more")


def test_nothing_is_taken_in_of_a_round_that_has_not_begun_here() -> None:
    """What a node tells the master of such a one would contradict itself."""
    assert Replicas().handle(Offered(offer())) == [Decline(OLD, 1, "round 0 has not begun here")]
    [declined] = begun(3).handle(Offered(offer(CommitId(4, 1))))
    assert declined == Decline(CommitId(4, 1), 1, "round 4 has not begun here")


def test_a_spare_takes_in_of_later_rounds_what_the_master_has_named() -> None:
    """Its last round is over, and it will be a member of the next world."""
    replicas, later = begun(), CommitId(4, 1)
    replicas.handle(judged(copying=later))
    assert [type(effect) for effect in replicas.handle(Offered(offer(later)))] == [MakeBuffer]
    [declined] = replicas.handle(Offered(offer(CommitId(4, 2))))
    assert declined == Decline(CommitId(4, 2), 1, "round 4 has not begun here")


def test_only_few_commits_are_taken_in_before_the_master_tells_of_them() -> None:
    node = Node()
    for step in range(1, MAX_UNHEARD + 1):
        node.store(offer(CommitId(0, step)))
    node.store(offer(CommitId(0, 1), rank=2))
    [declined] = node.do(Offered(offer(CommitId(0, 99))))
    assert declined.reason == f"the master has not told of the last {MAX_UNHEARD} commits yet"
    node.do(judged(copying=CommitId(0, 1)))
    node.store(offer(CommitId(0, 99)))
    node.store(offer(CommitId(0, 1), rank=3))


def test_what_is_kept_is_told_of_before_what_nobody_asked_for() -> None:
    node = Node()
    node.store(offer(OLD))
    node.do(judged(safe=OLD))
    many = tuple(Holding(CommitId(0, 10 + step), 1, (Part(0),)) for step in range(MAX_HOLDINGS))
    assert [it.commit for it in node.replicas.holdings(many)] == [OLD, *(it.commit for it in many[1:])]


def test_what_is_safe_is_kept_while_the_next_one_comes() -> None:
    node = Node()
    node.store(offer(OLD))
    node.do(judged(safe=OLD, copying=NEW))
    node.store(offer(NEW))
    assert (node.parts(OLD), node.parts(NEW)) == ([1], [1])
    assert node.do(judged(safe=NEW, copying=NEW)) == [CopiesChanged()]
    assert (node.parts(OLD), node.parts(NEW)) == ([], [1])
    node.store(offer(NEWER))
    assert node.sizes == {0: 10, 1: 10}, "its buffer is used again"


def test_a_master_that_forgot_what_is_safe_does_not_free_it() -> None:
    node = Node()
    node.store(offer(OLD))
    node.do(judged(safe=OLD, copying=OLD))
    node.do(judged(copying=NEW))
    assert node.parts(OLD) == [1]
    assert node.replicas.handle(judged(safe=CommitId(0, 4), copying=NEW)) == []


def test_what_the_round_restored_is_kept() -> None:
    node = Node()
    node.store(offer(OLD))
    node.do(RoundBegins(1, 0, 2, (0,), OLD))
    node.do(judged(copying=CommitId(1, 1)))
    assert node.parts(OLD) == [1]
    node.do(RoundBegins(2, 0, 2, (0,), CommitId(1, 1)))
    assert node.parts(OLD) == []


def test_what_a_node_holds_in_all_is_told_by_commit() -> None:
    node = Node()
    node.store(offer(OLD))
    node.store(offer(NEW))
    own = (Holding(OLD, 4, (Part(0, "mine"),)), Holding(NEWER, 4, (Part(0, "mine"),)))
    told = node.replicas.holdings(own)
    assert [(it.commit, [part.group_rank for part in it.parts]) for it in told] == [
        (OLD, [0, 1]),
        (NEW, [1]),
        (NEWER, [0]),
    ]
    assert node.replicas.holdings((Holding(OLD, 4, (Part(1, "mine"),)),))[0].parts == (Part(1, "mine"),)
    many = tuple(Holding(CommitId(0, 10 + step), 1, (Part(0),)) for step in range(MAX_HOLDINGS))
    assert node.replicas.holdings(many) == many, "the newest ones"


def test_a_copy_that_is_written_to_the_storage_stays() -> None:
    node = Node()
    node.store(offer(OLD))
    assert node.do(Pinned(OLD)) == []
    assert node.do(judged(safe=NEW, copying=NEWER)) == []
    assert node.parts(OLD) == [1]
    assert node.do(Pinned(None)) == [CopiesChanged()]
    assert node.parts(OLD) == []
