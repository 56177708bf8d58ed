"""The master's ledger of commits: when one is held, whole, safe, void or lost."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from elasticrun.core.protocol.commits import CommitId, Holding, Part
from elasticrun.core.state.ledger import CommitLedger


class Ledger(CommitLedger):
    """Holds to its invariants after whatever it hears."""

    def hear(self, node: str, holdings: Sequence[Holding]) -> None:
        super().hear(node, holdings)
        assert self.check() == []


def part(
    rank: int,
    step: int,
    round_: int = 0,
    size: int = 2,
    digest: str = "",
    shared: str = "",
    own: bool = True,
) -> Holding:
    """A node's own part of a commit; its digest is that of the rank unless it is given."""
    return Holding(CommitId(round_, step), size, (Part(rank, digest or f"d{rank}", own, shared),))


def begun(*names: str, round_: int = 0) -> Ledger:
    """A ledger whose newest round runs on these nodes."""
    ledger = Ledger()
    ledger.begin(round_, names)
    return ledger


def both_hold(*steps: int, shared: str = "", own: bool = True) -> Ledger:
    """Nodes a and b of round 0 hold these steps."""
    ledger = begun("a", "b")
    for rank, name in enumerate("ab"):
        ledger.hear(name, [part(rank, step, shared=shared, own=own) for step in steps])
    return ledger


# -- names


def test_commits_are_ordered_by_round_and_then_by_step() -> None:
    ids = [CommitId(1, 2), CommitId(0, 9), CommitId(1, 0)]
    assert sorted(ids, key=lambda each: each.age) == [CommitId(0, 9), CommitId(1, 0), CommitId(1, 2)]
    assert str(CommitId(1, 2)) == "step 2 of round 1"


def test_a_part_must_be_numbered_below_the_size() -> None:
    assert part(1, 5).contradiction() == ""
    assert part(2, 5).contradiction() == "parts must be below size 2, got 2"


# -- held and whole


def test_a_commit_is_held_once_each_member_has_told_of_its_own_part() -> None:
    ledger = begun("a", "b")
    ledger.hear("a", [part(0, 5)])
    assert (ledger.newest_held(), ledger.newest_whole(), ledger.nodes) == (None, None, {"a"})
    ledger.hear("b", [part(1, 5)])
    assert ledger.newest_held() == ledger.newest_whole() == CommitId(0, 5)
    assert (ledger.known(CommitId(0, 5)).size, ledger.known(CommitId(0, 5)).missing) == (2, 0)


def test_members_restore_what_they_hold_without_the_help_of_others() -> None:
    ledger = both_hold(5, 6)
    ledger.hear("b", [part(1, 6)])
    ledger.hear("c", [part(1, 5)])
    assert ledger.newest_among(["a", "b"]) == CommitId(0, 6)
    assert ledger.newest_among(["a", "c"]) == CommitId(0, 5)
    assert ledger.newest_among(["a"]) is ledger.newest_among([]) is None
    alike = both_hold(5, shared="x", own=False)
    assert alike.newest_among(["b"]) == CommitId(0, 5)


def test_the_newest_of_several_commits_counts() -> None:
    assert both_hold(5, 6).newest_whole() == CommitId(0, 6)


def test_to_tell_the_same_again_changes_nothing() -> None:
    ledger = both_hold(5)
    ledger.hear("a", [part(0, 5)])
    assert ledger.newest_whole() == CommitId(0, 5)
    ledger.lose("a")
    assert ledger.newest_whole() is None, "it was counted once"


def test_nobody_holds_a_part_of_another_member() -> None:
    ledger = begun("a", "b")
    ledger.hear("a", [part(0, 5), part(1, 6)])
    ledger.hear("a", [Holding(CommitId(0, 5), 2, (Part(0, "d0", True), Part(1, "d1", True)))])
    assert ledger.newest_held() is None
    ledger.hear("b", [part(1, 5, digest="other")])
    assert ledger.newest_whole() == CommitId(0, 5), "its own word counts"


@pytest.mark.parametrize(
    "claim",
    [part(0, 5, round_=4, size=3), part(1, 5, round_=4), part(0, 5, round_=3), part(0, 5, round_=5)],
)
def test_who_names_another_size_part_or_round_is_not_believed(claim: Holding) -> None:
    ledger = begun("a", "b", round_=3)
    ledger.begin(4, "ab")
    ledger.hear("a", [claim])
    assert not ledger.nodes


def test_a_stranger_adds_nothing_to_the_newest_round() -> None:
    ledger = begun("a", "b")
    ledger.hear("z", [part(0, 5), part(1, 5)])
    assert not ledger.nodes


def test_who_gives_a_known_commit_another_size_is_not_believed() -> None:
    ledger = both_hold(5)
    ledger.hear("b", [part(1, 5, size=3)])
    assert (ledger.newest_held(), ledger.newest_whole()) == (CommitId(0, 5), None)
    assert ledger.known(CommitId(0, 5)).missing == 1


def test_the_digest_of_a_held_part_is_fixed() -> None:
    ledger = both_hold(5)
    ledger.hear("b", [part(1, 5, digest="other")])
    assert ledger.newest_whole() is None
    ledger.hear("b", [part(1, 5)])
    assert ledger.newest_whole() == CommitId(0, 5)


def test_before_that_a_member_may_tell_anew() -> None:
    ledger = begun("a", "b")
    ledger.hear("a", [part(0, 5, digest="old")])
    ledger.hear("a", [part(0, 5, digest="new")])
    ledger.hear("b", [part(1, 5)])
    ledger.begin(1, "b")
    ledger.hear("a", [part(0, 5, digest="old")])
    assert ledger.newest_whole() is None
    ledger.hear("a", [part(0, 5, digest="new")])
    assert ledger.newest_whole() == CommitId(0, 5)


# -- replicas


def test_a_replica_counts_if_it_is_as_the_parts_own_node_said() -> None:
    ledger = both_hold(5)
    ledger.hear("z", [part(0, 5)])
    ledger.hear("b", [Holding(CommitId(0, 5), 2, (Part(0, "wrong", True), Part(1, "d1", True)))])
    ledger.lose("a")
    assert ledger.newest_whole() == CommitId(0, 5)
    ledger.lose("z")
    assert (ledger.newest_whole(), ledger.known(CommitId(0, 5)).missing) == (None, 1)


def test_a_replica_may_be_there_before_the_commit_is_held() -> None:
    ledger = begun("a", "b")
    ledger.hear("a", [part(0, 5)])
    ledger.hear("b", [Holding(CommitId(0, 5), 2, (Part(0, "d0", True), Part(1, "d1", True)))])
    ledger.lose("a")
    assert ledger.newest_whole() == CommitId(0, 5)


def test_a_replica_keeps_the_digest_although_the_parts_own_node_is_gone() -> None:
    ledger = begun("a", "b", "c")
    ledger.hear("a", [part(0, 5, size=3)])
    ledger.hear("b", [Holding(CommitId(0, 5), 3, (Part(0, "d0", True), Part(1, "d1", True)))])
    ledger.lose("a")
    ledger.hear("c", [Holding(CommitId(0, 5), 3, (Part(0, "d0", True), Part(2, "d2", True)))])
    assert ledger.newest_whole() == CommitId(0, 5)


# -- what is shared


def test_one_copy_of_what_is_shared_is_enough_but_each_kind_is_needed() -> None:
    for kinds, is_enough in (("xy", False), ("xx", True)):
        ledger = begun("a", "b")
        for rank, name in enumerate("ab"):
            ledger.hear(name, [part(rank, 5, shared=kinds[rank], own=False)])
        assert ledger.newest_whole() == CommitId(0, 5)
        ledger.lose("b")
        assert (ledger.newest_whole() is not None) is is_enough
        assert ledger.newest_held() == CommitId(0, 5)


def test_what_is_shared_is_as_the_parts_own_node_said() -> None:
    ledger = begun("a", "b")
    ledger.hear("a", [part(0, 5, shared="wrong", own=False)])
    ledger.hear("a", [part(0, 5, shared="x", own=False)])
    ledger.hear("b", [part(1, 5, own=False)])
    ledger.lose("a")
    assert ledger.newest_whole() is None
    ledger.hear("b", [part(1, 5, shared="x", own=False)])
    assert ledger.newest_whole() is None, "its part came without"
    ledger.hear("b", [Holding(CommitId(0, 5), 2, (Part(0, "d0"),))])
    assert ledger.newest_whole() == CommitId(0, 5), "a replica has what came with the part"


# -- parts that nobody misses


def test_a_part_without_anything_of_its_own_is_not_missed() -> None:
    ledger = both_hold(5, shared="x", own=False)
    ledger.lose("b")
    assert (ledger.newest_whole(), ledger.known(CommitId(0, 5)).missing) == (CommitId(0, 5), 0)
    ledger.lose("a")
    assert (ledger.newest_whole(), ledger.known(CommitId(0, 5)).missing) == (None, 2)


def test_but_each_member_has_to_save_it_first() -> None:
    ledger = begun("a", "b")
    ledger.hear("a", [part(0, 5, shared="x", own=False)])
    assert ledger.newest_held() is None


def test_whether_a_part_is_missed_is_fixed_once_the_commit_is_held() -> None:
    ledger = both_hold(5, own=False)
    ledger.hear("b", [part(1, 5, own=True)])
    ledger.lose("b")
    assert ledger.newest_whole() == CommitId(0, 5)


# -- lost


def test_a_commit_is_lost_with_a_part_of_it_and_back_with_its_node() -> None:
    ledger = both_hold(5, 6)
    ledger.hear("a", [part(0, 5)])
    assert (ledger.newest_held(), ledger.newest_whole()) == (CommitId(0, 6), CommitId(0, 5))
    ledger.lose("b")
    assert (ledger.newest_held(), ledger.newest_whole()) == (CommitId(0, 6), None)
    assert ledger.known(CommitId(0, 6)).missing == 2
    ledger.begin(1, "a")
    for rank, name in enumerate("ab"):
        ledger.hear(name, [part(rank, 6)])
    assert ledger.newest_whole() == CommitId(0, 6)


def test_what_was_held_may_come_back_while_nothing_newer_is_whole() -> None:
    ledger = both_hold(5, 6)
    for name in "ab":
        ledger.lose(name)
    assert not ledger.nodes
    ledger.begin(1, "ab")
    for rank, name in enumerate("ab"):
        ledger.hear(name, [part(rank, 5)])
    assert (ledger.newest_held(), ledger.newest_whole()) == (CommitId(0, 6), CommitId(0, 5))
    for rank, name in enumerate("ab"):
        ledger.hear(name, [part(rank, 6)])
    assert ledger.newest_whole() == CommitId(0, 6)
    for rank, name in enumerate("ab"):
        ledger.hear(name, [part(rank, 5)])
    assert ledger.newest_whole() is None, "nobody needed it while a newer one was whole"


def test_what_is_safe_may_come_back_although_a_newer_one_is_whole() -> None:
    ledger = both_hold(5, 6)
    ledger.safe = CommitId(0, 5)
    for step in (6, 5):
        for rank, name in enumerate("ab"):
            ledger.hear(name, [part(rank, step)])
    assert ledger.newest_whole() == CommitId(0, 5)


def test_what_was_not_held_is_gone_with_its_round() -> None:
    ledger = begun("a", "b")
    ledger.hear("a", [part(0, 5)])
    ledger.begin(1, "ab")
    ledger.hear("a", [part(0, 5)])
    ledger.hear("b", [part(1, 5)])
    assert (ledger.newest_held(), ledger.nodes) == (None, set())


def test_to_lose_a_node_that_holds_nothing_changes_nothing() -> None:
    ledger = both_hold(5)
    ledger.lose("z")
    assert ledger.newest_whole() == CommitId(0, 5)


# -- void


def test_a_commit_is_void_once_a_member_went_on_without_it() -> None:
    ledger = begun("a", "b")
    ledger.hear("a", [part(0, 5)])
    assert ledger.newest_void() is None
    ledger.hear("b", [part(1, 6)])
    assert ledger.newest_void() == CommitId(0, 5)
    ledger.hear("b", [part(1, 5), part(1, 6)])
    assert ledger.newest_held() is None, "too late"
    ledger.hear("a", [part(0, 5), part(0, 6)])
    assert (ledger.newest_whole(), ledger.newest_void()) == (CommitId(0, 6), CommitId(0, 5))


def test_who_is_the_first_to_tell_of_a_step_that_another_has_passed_is_too_late() -> None:
    ledger = begun("a", "b")
    ledger.hear("b", [part(1, 6)])
    assert ledger.newest_void() is None
    ledger.hear("a", [part(0, 4), part(0, 5)])
    assert (ledger.newest_void(), ledger.nodes) == (CommitId(0, 5), {"b"})


def test_who_has_both_steps_voids_nothing() -> None:
    ledger = begun("a", "b")
    ledger.hear("a", [part(0, 5), part(0, 6)])
    ledger.hear("b", [part(1, 5)])
    assert (ledger.newest_whole(), ledger.newest_void()) == (CommitId(0, 5), None)


def test_a_held_commit_is_never_void() -> None:
    ledger = both_hold(5)
    ledger.hear("a", [part(0, 6)])
    assert ledger.newest_void() is None
    ledger.hear("b", [part(1, 7)])
    assert ledger.newest_void() == CommitId(0, 6)
    ledger.hear("a", [part(0, 5), part(0, 6)])
    ledger.hear("b", [part(1, 5), part(1, 7)])
    assert ledger.newest_whole() == CommitId(0, 5), "although it is older than what is void"


def test_a_new_round_has_nothing_void() -> None:
    ledger = begun("a", "b")
    ledger.hear("b", [part(1, 6)])
    ledger.hear("a", [part(0, 5)])
    ledger.begin(1, "ab")
    assert ledger.newest_void() is None
    ledger.hear("a", [part(0, 1, round_=1)])
    ledger.hear("b", [part(1, 1, round_=1)])
    assert ledger.newest_whole() == CommitId(1, 1)


def test_steps_of_strangers_void_nothing() -> None:
    ledger = both_hold(5)
    ledger.begin(1, "ab")
    ledger.hear("a", [part(0, 1, round_=1)])
    ledger.hear("z", [part(0, 5), part(0, 9, round_=1)])
    assert ledger.newest_void() is None


# -- adopted commits


@pytest.mark.parametrize("begins", [False, True])
def test_a_master_without_a_journal_adopts_commits_that_are_told_of_in_full(begins: bool) -> None:
    ledger = Ledger()
    if begins:
        ledger.begin(8, "xy")
    ledger.hear("a", [part(0, 5, round_=7)])
    assert ledger.newest_held() is None
    ledger.hear("b", [part(1, 5, round_=7)])
    assert ledger.newest_whole() == CommitId(7, 5)
    ledger.hear("c", [part(1, 5, round_=7, digest="wrong"), part(0, 5, round_=7)])
    assert ledger.nodes == {"a", "b", "c"}
    ledger.lose("b")
    assert ledger.newest_whole() is None


def test_the_first_who_tells_of_an_adopted_part_decides_what_it_is() -> None:
    ledger = Ledger()
    ledger.hear("z", [part(0, 5, round_=7, digest="lie")])
    ledger.hear("a", [part(0, 5, round_=7)])
    assert ledger.nodes == {"z"}
    ledger.lose("z")
    ledger.hear("a", [part(0, 5, round_=7)])
    assert ledger.nodes == {"a"}


def test_adopted_commits_are_waited_for_across_rounds() -> None:
    ledger = Ledger()
    ledger.hear("a", [part(0, 5, round_=7)])
    ledger.begin(8, "a")
    ledger.begin(9, "a")
    ledger.hear("b", [part(1, 5, round_=7)])
    assert ledger.newest_whole() == CommitId(7, 5)


@pytest.mark.parametrize("takes_turns", [False, True])
def test_a_master_that_takes_over_adopts_commits_of_rounds_that_it_does_not_know(takes_turns: bool) -> None:
    ledger = Ledger(takes_turns)
    ledger.begin(0, "ab")
    for rank, name in enumerate("ab"):
        ledger.hear(name, [part(rank, 5, round_=3)])
    assert ledger.newest_whole() == (CommitId(3, 5) if takes_turns else None)


def test_a_master_that_takes_over_adopts_nothing_of_rounds_that_it_knows() -> None:
    ledger = Ledger(takes_turns=True)
    for round_ in range(3):
        ledger.begin(round_, "ab")
    for rank, name in enumerate("ab"):
        ledger.hear(name, [part(rank, 5, round_=1)])
    assert not ledger.nodes
    for rank, name in enumerate("ab"):
        ledger.hear(name, [part(rank, 5, round_=2)])
    ledger.begin(3, "ab")
    ledger.hear("a", [part(0, 6, round_=2)])
    assert not ledger.newest_void()
    assert ledger.newest_whole() is None


# -- what it holds to


def test_claims_of_a_commit_that_a_round_drops_are_dropped_with_it() -> None:
    """Else a later claim would create it anew, without what was counted before."""
    ledger = Ledger(takes_turns=True)
    ledger.begin(0, "ab")
    ledger.hear("a", [Holding(CommitId(0, 6), 2, (Part(0, "d0", True),))])
    alone = Holding(CommitId(1, 1), 1, (Part(0, "d0", True),))
    ledger.begin(1, "b")
    ledger.hear("b", [alone])
    ledger.begin(2, "b")
    ledger.hear("b", [Holding(CommitId(0, 6), 2, (Part(1, "d1", True),)), alone])
    ledger.hear("a", [])
    assert ledger.newest_whole() == CommitId(1, 1)


@pytest.mark.parametrize("direction", [1, -1])
def test_a_node_that_makes_commits_up_costs_no_more_and_more_memory(direction: int) -> None:
    ledger = Ledger()
    for step in range(50):
        ledger.hear("liar", [part(0, 100 + direction * step, size=1)])
    known = [step for step in range(50, 150) if has(ledger, CommitId(0, step))]
    assert len(known) <= 2
    assert ledger.newest_whole() == CommitId(0, 100 + direction * 49)


def has(ledger: CommitLedger, commit: CommitId) -> bool:
    try:
        ledger.known(commit)
    except KeyError:
        return False
    return True


def test_what_was_adopted_and_then_lost_may_come_back() -> None:
    ledger = Ledger()
    for rank, name in enumerate("ab"):
        ledger.hear(name, [part(rank, 4), part(rank, 5)])
    for name in "ab":
        ledger.hear(name, [])
    assert ledger.newest_held() == CommitId(0, 5)
    for rank, name in enumerate("ab"):
        ledger.hear(name, [part(rank, 4)])
    assert ledger.newest_whole() == CommitId(0, 4)


def test_it_says_what_does_not_hold() -> None:
    ledger = CommitLedger()
    ledger.hear("a", [part(7, 5, size=1)])  # the codec refuses such a number
    assert ledger.check() == ["parts are numbered below their number"]


# -- who could write it


def test_each_part_is_told_with_all_who_have_it_its_own_node_first() -> None:
    ledger = both_hold(5, shared="x")
    ledger.hear("b", [Holding(CommitId(0, 5), 2, (*part(0, 5).parts, *part(1, 5).parts))])
    ledger.hear("a", [])
    ledger.hear("a", [Holding(CommitId(0, 5), 2, part(0, 5, shared="x").parts)])
    assert ledger.parts(CommitId(0, 5)) == {0: ["a", "b"], 1: ["b"]}
    assert ledger.known(CommitId(0, 5)).here == {0: "x", 1: "x"}
    ledger.lose("b")
    assert ledger.parts(CommitId(0, 5)) == {0: ["a"]}
    assert ledger.known(CommitId(0, 5)).here == {0: "x"}
