"""The rule by which a world may be formed, case by case; tests/property/test_quorum.py tries to break it."""

from __future__ import annotations

import pytest

from elasticrun.core.membership.quorum import (
    FOUNDING_PATIENCE,
    TAKEOVER_DELAY,
    Quorum,
    accepts,
    next_epoch,
    with_vote,
)
from elasticrun.core.membership.tally import Tally, Votes
from elasticrun.core.protocol.messages import MAX_NAMED_MEMBERS, MAX_VOTES, Proposal, Vote, World

FIRST = World(0, 2, 3)
SECOND = World(1, 2, 2)


def sits(*worlds: World, base: World | None = FIRST) -> Votes:
    """The votes of a node in these worlds, all on one base."""
    return tuple(Vote(world, base if world != FIRST else None) for world in worlds)


def master(epoch: int, *heard: Votes, endpoints: int = 2) -> Quorum:
    quorum = Quorum(endpoints)
    quorum.start(epoch)
    for votes in heard:
        quorum.hear(votes)
    return quorum


def founder(*names: str) -> Quorum:
    """The master that formed the first world, of these nodes."""
    quorum = master(2)
    quorum.form(0, 2, dict.fromkeys(names, ()))
    return quorum


@pytest.mark.parametrize("endpoints", [1, 2, 3])
def test_each_endpoint_has_epochs_of_its_own(endpoints: int) -> None:
    for above in range(7):
        epochs = [next_epoch(above, endpoints, position) for position in range(endpoints)]
        assert sorted(epochs) == list(range(above + 1, above + 1 + endpoints))
        assert [epoch % endpoints for epoch in epochs] == list(range(endpoints))


# -- a node's votes


def test_a_vote_is_given_once_and_for_all() -> None:
    votes = with_vote((), Proposal(FIRST, None, None, ("a", "b", "c")))
    assert votes == (Vote(FIRST, None, ("a", "b", "c")),)
    assert accepts(votes, Proposal(FIRST, None, None)), "it is the one it has"
    assert accepts(votes, Proposal(SECOND, FIRST, FIRST))
    assert not accepts(votes, Proposal(SECOND, None, None)), "the master did not know of it"
    assert accepts(votes, None)


def test_votes_older_than_the_base_are_forgotten() -> None:
    votes = with_vote(sits(FIRST, SECOND), Proposal(World(2, 2, 2), SECOND, SECOND))
    assert votes == (Vote(SECOND, FIRST), Vote(World(2, 2, 2), SECOND))


def test_what_a_node_knows_of_the_base_it_keeps() -> None:
    told = with_vote(sits(FIRST, SECOND), Proposal(SECOND, SECOND, FIRST))
    assert told == (Vote(SECOND, SECOND),)
    assert with_vote(told, Proposal(SECOND, FIRST, FIRST)) == told
    assert with_vote(told, None) == told


# -- with one endpoint


def test_a_single_endpoint_asks_nobody() -> None:
    quorum = master(1, endpoints=1)
    assert not quorum.is_needed
    assert not quorum.is_blank
    assert quorum.obstacle_to_begin([], is_known=True) == ""
    assert quorum.form(0, 1, {"a": ()}) == {}
    assert quorum.obstacle(Tally({"z": ()})) == ""
    assert not quorum.complete(None)
    assert not quorum.is_voter("a", ())


# -- the first world


def test_the_job_begins_with_all_listed_hosts() -> None:
    quorum = master(2)
    assert quorum.patience == FOUNDING_PATIENCE
    assert quorum.obstacle_to_begin([-1, 1, 0], is_known=False) == ""
    assert "missing: number 2" in quorum.obstacle_to_begin([0, -1], is_known=False)
    assert "has begun" in quorum.obstacle_to_begin([0, 1], is_known=True)
    assert quorum.form(0, 2, {"a": ()}) == {"a": Proposal(World(0, 2, 1), None, None, ("a",))}


def test_the_job_has_begun_once_all_listed_hosts_have_heard_of_it() -> None:
    quorum = founder("a")
    assert "missing: number 2" in quorum.obstacle_to_begin([0], is_known=True)
    quorum.hear((), 0, 0)
    quorum.hear((), -1, 0)
    assert "missing: number 2" in quorum.obstacle_to_begin([0], is_known=True)
    quorum.hear((), 1, 0)
    assert quorum.obstacle_to_begin([], is_known=True) == ""
    assert master(3, sits(FIRST)).obstacle_to_begin([], is_known=True) == "", "who takes over does not begin"


def test_only_the_first_host_begins_and_only_with_a_journal_of_its_own() -> None:
    other = master(3)
    assert other.is_blank
    assert "has begun" in other.obstacle_to_begin([0, 1], is_known=False)
    other.start(4)  # the first host goes on with a copy
    assert other.is_blank
    assert not founder("a").is_blank
    assert not master(3, sits(FIRST)).is_blank


# -- the next ones


def test_more_than_half_of_the_last_world() -> None:
    quorum = master(3, sits(FIRST))
    assert quorum.obstacle(Tally({"a": sits(FIRST), "b": sits(FIRST), "z": ()})) == ""
    assert quorum.obstacle(Tally({"a": sits(FIRST), "y": (), "z": ()})) == (
        "1 of 3 nodes of the last world is here; 2 are needed, as another master may have taken over; a host"
        " that lost its state comes back as a new one: give each a --state-dir that survives, and start the"
        " job anew"
    )
    assert quorum.is_voter("a", sits(FIRST))
    assert not quorum.is_voter("z", ())


def test_members_are_known_by_their_names_as_well() -> None:
    quorum = founder("a", "b", "c")
    assert quorum.obstacle(Tally({"a": (), "b": ()})) == ""
    told = master(3, (Vote(FIRST, None, ("a", "b", "c")),))
    assert told.obstacle(Tally({"a": sits(FIRST), "b": ()})) == ""


def test_the_master_that_formed_the_last_world_goes_on_with_half() -> None:
    quorum = founder("a", "b")
    assert quorum.obstacle(Tally({"a": ()})) == ""
    assert "0 of 2 nodes" in quorum.obstacle(Tally({"z": ()}))
    quorum.start(4)
    assert quorum.obstacle(Tally({"a": ()})) == "", "its journal has no gap"
    quorum.start(5)
    assert "1 of 2 nodes" in quorum.obstacle(Tally({"a": ()})), "another host goes on with a copy"
    quorum.start(6)
    assert "1 of 2 nodes" in quorum.obstacle(Tally({"a": ()})), (
        "a copy of a copy may lack what we did meanwhile"
    )


def test_a_world_in_doubt_has_to_agree_too() -> None:
    third = World(2, 3, 5)
    votes = sits(FIRST, third)
    quorum = master(4, votes)
    assert "1 of 5 nodes" in quorum.obstacle(Tally({"a": votes, "b": sits(FIRST)}))
    assert quorum.obstacle(Tally({"a": votes, "b": votes, "d": sits(third)})) == ""


def test_a_world_of_which_a_member_is_here_without_a_vote_never_was() -> None:
    third = World(2, 3, 3)
    votes = (*sits(FIRST), Vote(third, FIRST, ("a", "b", "d")))
    quorum = master(4, votes)
    assert quorum.obstacle(Tally({"a": votes, "b": sits(FIRST)})) == ""
    assert "1 of 3" in quorum.obstacle(Tally({"a": votes, "c": sits(FIRST)}))


def test_a_master_does_not_forget_what_it_formed_itself() -> None:
    quorum = founder("a", "b", "c")
    quorum.form(1, 2, {"a": sits(FIRST)})
    assert "0 of 1 nodes" in quorum.obstacle(Tally({"b": sits(FIRST), "c": sits(FIRST)}))


def test_nodes_are_lost_only_if_each_world_that_may_have_trained_is() -> None:
    first, doubted = World(0, 2, 5), World(1, 3, 3)
    votes = (Vote(first, None), Vote(doubted, first))
    quorum = master(3)
    quorum.hear(votes)
    assert quorum.is_lost(Tally({"a": votes}), lambda _: True)
    two = Tally({"a": votes, "b": votes})
    assert quorum.obstacle(two)
    assert not quorum.is_lost(two, lambda _: False), "another master may know that they were most of a world"


def test_a_world_that_started_everywhere_is_the_next_base() -> None:
    quorum = founder("a", "b", "c")
    proposals = quorum.form(1, 2, {"a": sits(FIRST), "b": sits(FIRST)})
    assert proposals["a"] == Proposal(SECOND, FIRST, FIRST, ("a", "b"))
    assert quorum.complete(proposals["a"])
    assert not quorum.complete(proposals["a"]), "no news"
    assert quorum.base == SECOND
    assert quorum.obstacle(Tally({"a": sits(FIRST, SECOND)})) == ""


def test_the_newest_base_anybody_names_counts() -> None:
    quorum = master(3, sits(FIRST))
    quorum.hear((Vote(World(5, 2, 2), SECOND),))
    assert quorum.base == SECOND
    quorum.hear(sits(FIRST))
    assert quorum.base == SECOND


def test_long_rolls_are_not_sent() -> None:
    quorum = master(2)
    proposals = quorum.form(0, 2, {f"n{number}": () for number in range(MAX_NAMED_MEMBERS + 1)})
    assert proposals["n0"].members == ()
    assert quorum.is_voter("n7", ()), "but the master knows"


def test_a_node_with_too_many_votes_cannot_give_another() -> None:
    votes = tuple(Vote(World(number, 2, 1), FIRST) for number in range(MAX_VOTES))
    quorum = master(3, sits(FIRST))
    assert "restart the job" in quorum.obstacle(Tally({"a": votes}))


@pytest.mark.parametrize("endpoints", [2, 3, 4])
def test_patience_outlasts_that_of_all_masters_before_and_a_walk(endpoints: int) -> None:
    spent = endpoints * TAKEOVER_DELAY
    for position in range(endpoints):
        patience = master(12 + position, sits(FIRST), endpoints=endpoints).patience
        assert patience > spent
        spent += patience
