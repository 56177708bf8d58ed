"""One node's vault: who may write into which buffer, what is reported, and what is kept."""

from __future__ import annotations

from typing import TypeVar

import pytest

from elasticrun.core.protocol.commits import CommitId, Holding
from elasticrun.core.protocol.messages import Assignment
from elasticrun.core.state.buffers import Stage
from elasticrun.core.state.events import (
    BufferMade,
    BufferRefused,
    DropBuffer,
    Grant,
    Hold,
    Judged,
    MakeBuffer,
    Pinned,
    Refuse,
    RoundBegins,
    SaveBegins,
    SaveCopied,
    SaveEnds,
    Stored,
    Tick,
    VaultEffect,
    VaultEvent,
    WorkerGone,
)
from elasticrun.core.state.vault import BUFFER_PATIENCE, PATIENCE, Vault

Kind = TypeVar("Kind")


class Keeper:
    """A vault with workers of these ranks in round 0, and memory that is there as soon as it is asked for."""

    def __init__(self, *ranks: int, makes: bool = True) -> None:
        self.vault = Vault()
        self.now = 0.0
        self.makes = makes
        self.asked: list[MakeBuffer] = []  # that nobody has answered
        self.said: list[VaultEffect] = []  # by the newest event, and the answers to what it asked for
        self.held: tuple[Holding, ...] = ()
        self._sizes: dict[int, int] = {}
        self.begin_round(0, *ranks)

    def do(self, event: VaultEvent) -> list[VaultEffect]:
        self.said, events = [], [event]
        while events:
            effects = self.vault.handle(events.pop(0), self.now)
            self.said += effects
            for effect in effects:
                match effect:
                    case MakeBuffer(buffer, size) if self.makes:
                        self._sizes[buffer] = size
                        events.append(BufferMade(buffer))
                    case DropBuffer(buffer):
                        self._sizes.pop(buffer, None)
                    case MakeBuffer():
                        self.asked.append(effect)
                    case Hold(holdings):
                        self.held = holdings
        return self.said

    def sizes(self) -> list[int]:
        """The sizes of all buffers that there are, in bytes."""
        return list(self._sizes.values())

    def begin_round(self, round_: int, *ranks: int, restore: CommitId | None = None) -> None:
        """As the second of three nodes."""
        self.do(RoundBegins(round_, 1, 3, ranks, restore))

    def begin(
        self, rank: int, step: int, contents: str = "", whole: int = 10, share: int = 10
    ) -> list[VaultEffect]:
        return self.do(SaveBegins(rank, step, whole, share, contents))

    def all_begin(self, step: int) -> None:
        """Both of two ranks, which have the same contents."""
        self.begin(0, step, "a")
        self.begin(1, step, "a")
        assert self.granted(0, 1)

    def end(self, rank: int, step: int, digest: str = "d") -> None:
        self.do(SaveEnds(rank, step, 9, digest))

    def save(self, rank: int, step: int, contents: str = "") -> None:
        self.begin(rank, step, contents)
        assert self.granted(rank)
        self.end(rank, step)

    def judge(self, kept: int | None = None, void: int | None = None) -> None:
        """Steps of round 0 are kept and void."""
        self.do(Judged(*(None if step is None else CommitId(0, step) for step in (kept, void))))

    def wait(self, seconds: float) -> None:
        self.now += seconds
        self.do(Tick())

    def of(self, kind: type[Kind]) -> list[Kind]:
        return [effect for effect in self.said if isinstance(effect, kind)]

    def granted(self, *ranks: int) -> bool:
        return [grant.rank for grant in self.of(Grant)] == [*ranks]

    def refused(self) -> str:
        return "; ".join(refusal.reason for refusal in self.of(Refuse))

    def steps(self) -> list[int]:
        """The steps that the vault has told to hold."""
        return [holding.commit.step for holding in self.held]


# -- one worker


def test_a_save_is_granted_once_its_buffer_is_there() -> None:
    keeper = Keeper(0, makes=False)
    assert keeper.begin(0, 1, "a", 30, 20) == [MakeBuffer(0, 20)], "a single rank has all of it"
    assert keeper.vault.next_deadline() == BUFFER_PATIENCE
    [grant, ask] = keeper.do(BufferMade(0))
    assert grant == Grant(0, 1, 0, divides=True)
    assert ask == MakeBuffer(1, 20), "the next save need not wait for its pages"
    assert keeper.vault.next_deadline() is None


def test_a_stored_part_is_told_of_with_the_place_of_this_node() -> None:
    keeper = Keeper(4)
    keeper.save(4, 1)
    [holding] = keeper.held
    [part] = holding.parts
    assert (holding.commit, holding.size, part.group_rank, part.shared) == (CommitId(0, 1), 3, 1, "")
    [buffer] = keeper.vault.stored(CommitId(0, 1))
    assert (buffer.stage, buffer.rank, buffer.length, buffer.digest) == (Stage.STORED, 4, 9, "d")


def test_nothing_is_handed_out_that_was_not_told_of() -> None:
    keeper = Keeper(0, 1)
    keeper.all_begin(1)
    keeper.end(0, 1)
    assert not keeper.of(Hold)
    assert keeper.vault.stored(CommitId(0, 1)) == []
    keeper.end(1, 1)
    assert [buffer.rank for buffer in keeper.vault.stored(CommitId(0, 1))] == [0, 1]


def test_the_digest_says_what_all_parts_of_a_node_are() -> None:
    def digest(*parts: str) -> str:
        keeper = Keeper(0, 1)
        keeper.all_begin(1)
        for rank, part in enumerate(parts):
            keeper.end(rank, 1, part)
        [holding] = keeper.held
        return holding.parts[0].digest

    assert digest("x", "y") == digest("x", "y")
    assert len({digest("x", "y"), digest("x", "z"), digest("y", "x")}) == 3


@pytest.mark.parametrize("own", [(False, False), (True, False), (False, True)])
def test_a_node_has_something_of_its_own_if_one_of_its_ranks_has(own: tuple[bool, bool]) -> None:
    keeper = Keeper(0, 1)
    keeper.all_begin(1)
    for rank in (0, 1):
        keeper.do(SaveEnds(rank, 1, 9, "d", own[rank]))
    [holding] = keeper.held
    assert holding.parts[0].own == any(own)


def test_no_part_is_written_over_before_the_master_has_judged_it() -> None:
    keeper = Keeper(0)
    keeper.save(0, 1)
    assert keeper.begin(0, 2) == []
    keeper.judge(kept=1)
    assert keeper.granted(0)
    keeper.end(0, 2)
    assert keeper.steps() == [1, 2]
    keeper.judge(kept=2)
    assert keeper.steps() == [2]


def test_what_is_kept_stays_until_something_newer_is() -> None:
    keeper = Keeper(0)
    for step in range(1, 6):
        keeper.save(0, step)
        keeper.judge(kept=step)
        keeper.judge(kept=step - 1, void=step)  # late, and the newest one is not void but kept
        assert keeper.steps() == [step]


def test_what_is_void_is_written_over() -> None:
    keeper = Keeper(0)
    keeper.save(0, 1)
    keeper.judge(kept=1)
    keeper.save(0, 2)
    keeper.begin(0, 3)
    keeper.judge(kept=1, void=2)
    assert keeper.granted(0)
    assert keeper.steps() == [1]


def test_a_step_before_this_one_is_void_and_this_one_is_open() -> None:
    keeper = Keeper(0)
    keeper.save(0, 2)
    keeper.judge(void=1)
    assert keeper.steps() == [2]
    assert keeper.begin(0, 3) == []


def test_a_save_does_not_wait_forever_for_the_master() -> None:
    keeper = Keeper(0)
    keeper.save(0, 1)
    keeper.now = 1.0
    keeper.begin(0, 2)
    assert keeper.vault.next_deadline() == 1.0 + PATIENCE
    keeper.wait(PATIENCE)
    told = "the master has not confirmed within 5 s that all ranks have saved step 1"
    assert keeper.refused() == told
    assert keeper.vault.next_deadline() is None
    keeper.begin(0, 3)
    assert keeper.refused(), "it has waited in vain before, and there is no news"
    keeper.judge()
    assert keeper.begin(0, 4) == [], "there is news"
    keeper.judge(kept=1)
    assert keeper.granted(0)


def test_who_is_granted_something_is_patient_again() -> None:
    keeper = Keeper(0, 1)
    keeper.save(0, 1)
    keeper.begin(0, 2)
    keeper.wait(PATIENCE)
    assert keeper.refused()
    keeper.begin(1, 2)  # so that step 1 of rank 0 is of no use
    keeper.save(0, 3)
    keeper.end(1, 2)
    assert keeper.begin(0, 4) == []
    assert keeper.vault.next_deadline() == keeper.now + PATIENCE


def test_a_save_has_more_time_to_get_the_buffer_that_is_being_made() -> None:
    keeper = Keeper(0, makes=False)
    keeper.begin(0, 1)
    keeper.wait(PATIENCE)
    assert keeper.said == []
    keeper.now = BUFFER_PATIENCE  # and it is there at the last moment
    keeper.do(BufferMade(0))
    assert keeper.granted(0)


def test_the_time_to_make_a_buffer_begins_when_others_need_not_be_waited_for_any_more() -> None:
    keeper = Keeper(0, 1, makes=False)
    keeper.begin(0, 1, "a")
    assert keeper.vault.next_deadline() == PATIENCE
    keeper.wait(PATIENCE)
    assert keeper.asked
    assert keeper.vault.next_deadline() == PATIENCE + BUFFER_PATIENCE
    keeper.wait(BUFFER_PATIENCE)
    assert keeper.refused() == "no buffer of 10 bytes was ready within 30 s"


def test_who_waits_for_a_buffer_waits_for_no_new_meeting() -> None:
    """Another rank names other contents meanwhile; nobody would break that meeting up."""
    keeper = Keeper(0, 1, makes=False)
    keeper.begin(0, 1, "a")
    keeper.wait(PATIENCE)
    keeper.begin(1, 1, "a")
    keeper.do(WorkerGone(0))
    keeper.begin(0, 2)
    for made in list(keeper.asked):
        keeper.do(BufferMade(made.buffer))
    assert keeper.vault.next_deadline() is None, "both have one"


def test_a_buffer_that_is_made_too_late_is_free_for_the_next_save() -> None:
    keeper = Keeper(0, makes=False)
    keeper.begin(0, 1, whole=50)
    keeper.wait(BUFFER_PATIENCE)
    assert keeper.refused() == "no buffer of 50 bytes was ready within 30 s"
    assert keeper.vault.next_deadline() is None
    assert keeper.begin(0, 2, whole=50) == [], "it is still being made"
    assert keeper.vault.next_deadline() == keeper.now + BUFFER_PATIENCE
    keeper.wait(BUFFER_PATIENCE)
    assert keeper.refused()
    assert keeper.do(BufferMade(0)) == []
    assert Grant(0, 3, 0) in keeper.begin(0, 3, whole=50)


# -- what workers may not do


def test_a_save_that_makes_no_sense_is_refused() -> None:
    keeper = Keeper(0, 1)
    keeper.begin(7, 1)
    assert keeper.refused() == "rank 7 is none of this node's workers, ranks (0, 1)"
    keeper.begin(0, 1)
    keeper.begin(0, 1)
    assert keeper.refused() == "rank 0 has begun a save that has not ended"
    keeper.end(0, 1)
    keeper.begin(0, 1)
    assert keeper.refused() == "step 1 must come after step 1, which was saved last"
    keeper.begin(0, 2)
    keeper.begin(0, 3)
    assert keeper.refused() == "rank 0 has begun a save that has not ended", "it waits"


def test_before_the_first_round_nobody_saves() -> None:
    vault = Vault()
    [refusal] = vault.handle(SaveBegins(0, 1, 10, 10, ""), 0.0)
    assert refusal == Refuse(0, 1, "rank 0 is none of this node's workers, ranks ()")
    assert vault.handle(Judged(None, None), 0.0) == []


@pytest.mark.parametrize("event", [SaveEnds(0, 2, 9, "d"), SaveEnds(1, 1, 9, "d"), SaveEnds(5, 1, 9, "d")])
def test_only_the_save_that_was_begun_can_end(event: SaveEnds) -> None:
    keeper = Keeper(0, 1)
    keeper.begin(0, 1)
    why = f"rank {event.rank} does not write step {event.step} here"
    assert keeper.do(event) == [Refuse(event.rank, event.step, why)]
    keeper.begin(0, 3)
    assert keeper.refused(), "it is still being written"
    assert Stored(0, 1) in keeper.do(SaveEnds(0, 1, 9, "d"))


def test_only_the_process_that_began_a_save_ends_it_or_gives_it_up() -> None:
    keeper = Keeper(0)
    keeper.do(SaveBegins(0, 1, 10, 10, "", peer=7))
    assert keeper.of(Grant) == [Grant(0, 1, 0, peer=7)]
    assert keeper.do(WorkerGone(0, peer=8)) == []
    why = "rank 0 has begun a save that has not ended"
    assert keeper.do(SaveBegins(0, 1, 10, 10, "", peer=8)) == [Refuse(0, 1, why, peer=8)]
    why = "rank 0 does not write step 1 here"
    assert keeper.do(SaveEnds(0, 1, 9, "d", peer=8)) == [Refuse(0, 1, why, peer=8)]
    assert keeper.steps() == []
    assert Stored(0, 1, peer=7) in keeper.do(SaveEnds(0, 1, 9, "d", peer=7))
    assert keeper.steps() == [1]


def test_a_save_that_waits_is_given_up_by_its_own_process_only() -> None:
    keeper = Keeper(0, makes=False)
    keeper.do(SaveBegins(0, 1, 10, 10, "", peer=7))
    keeper.do(WorkerGone(0, peer=8))
    keeper.do(BufferMade(0))
    assert keeper.granted(0)


def test_a_part_that_is_longer_than_its_buffer_is_not_stored() -> None:
    keeper = Keeper(0)
    keeper.begin(0, 1)
    keeper.do(SaveEnds(0, 1, 11, "d"))
    assert keeper.refused() == "11 bytes are more than the 10 of the buffer"
    assert keeper.steps() == []
    keeper.begin(0, 1)
    assert keeper.granted(0)


# -- workers that go


def test_who_goes_leaves_no_half_of_a_part() -> None:
    keeper = Keeper(0)
    [grant] = [each for each in keeper.begin(0, 1) if isinstance(each, Grant)]
    keeper.do(WorkerGone(0))
    keeper.end(0, 1)
    assert keeper.steps() == []
    keeper.begin(0, 1)
    assert keeper.of(Grant) == [grant], "the same buffer"


def test_who_goes_leaves_a_whole_part_though_its_digests_are_missing() -> None:
    keeper = Keeper(0, 1)
    keeper.save(1, 1)
    keeper.begin(0, 1)
    assert keeper.do(SaveCopied(0, 1, 8, "copied", own=True)) == []
    assert keeper.steps() == [], "its digests may come yet"
    keeper.do(WorkerGone(0))
    assert keeper.steps() == [1]
    [part] = [each for each in keeper.vault.stored(CommitId(0, 1)) if each.rank == 0]
    assert (part.length, part.digest, part.own) == (8, "copied", True)


def test_what_is_given_up_is_not_kept_though_it_is_whole() -> None:
    keeper = Keeper(0)
    keeper.begin(0, 1)
    keeper.do(SaveCopied(0, 1, 9, "copied"))
    keeper.do(WorkerGone(0, gave_up=True))
    assert keeper.steps() == []
    keeper.begin(0, 1)
    keeper.do(WorkerGone(0))
    assert keeper.steps() == [], "what is written next is another part"


@pytest.mark.parametrize(
    "event", [SaveCopied(0, 2, 9, "d"), SaveCopied(1, 1, 9, "d"), SaveCopied(0, 1, 9, "d", peer=8)]
)
def test_what_is_told_of_another_save_changes_nothing(event: SaveCopied) -> None:
    keeper = Keeper(0, 1)
    keeper.begin(0, 1)
    assert keeper.do(event) == []
    keeper.do(WorkerGone(0))
    keeper.save(1, 1)
    assert keeper.steps() == []


def test_a_part_that_would_be_longer_than_its_buffer_is_not_kept() -> None:
    keeper = Keeper(0)
    keeper.begin(0, 1)
    keeper.do(SaveCopied(0, 1, 11, "d"))
    keeper.do(WorkerGone(0))
    assert keeper.steps() == []


def test_digests_that_come_take_the_place_of_none() -> None:
    keeper = Keeper(0)
    keeper.begin(0, 1)
    keeper.do(SaveCopied(0, 1, 9, "copied"))
    keeper.end(0, 1, "sealed")
    keeper.do(WorkerGone(0))
    assert [each.digest for each in keeper.vault.stored(CommitId(0, 1))] == ["sealed"]


def test_who_goes_waits_for_nothing() -> None:
    keeper = Keeper(0, makes=False)
    keeper.begin(0, 1)
    keeper.do(WorkerGone(0))
    assert keeper.vault.next_deadline() is None
    assert keeper.do(BufferMade(0)) == []


def test_what_was_stored_outlives_its_worker() -> None:
    keeper = Keeper(0)
    keeper.save(0, 1)
    keeper.do(WorkerGone(0))
    assert keeper.steps() == [1]


# -- several workers


def test_the_first_save_of_a_round_waits_for_all_ranks_which_then_divide_what_is_shared() -> None:
    keeper = Keeper(0, 1)
    assert keeper.begin(0, 1, "a", whole=30, share=20) == []
    keeper.begin(1, 1, "a", whole=30, share=20)
    assert keeper.of(Grant) == [Grant(0, 1, 0, True), Grant(1, 1, 1, True)]
    assert {ask.size for ask in keeper.of(MakeBuffer)} == {20}
    keeper.end(0, 1)
    keeper.end(1, 1)
    assert keeper.steps() == [1]
    [holding] = keeper.held
    assert holding.parts[0].shared
    keeper.judge(kept=1)
    keeper.begin(0, 2, "a")
    assert keeper.granted(0), "the second one does not wait"


def test_ranks_meet_again_when_what_they_share_has_changed() -> None:
    keeper = Keeper(0, 1)
    for step, contents in enumerate("aab", start=1):
        keeper.begin(1, step, contents, whole=30, share=20)
        keeper.begin(0, step, contents, whole=30, share=20)
        assert all(grant.divides for grant in keeper.of(Grant))
        keeper.end(0, step)
        keeper.end(1, step)
        assert keeper.steps()[-1] == step
        keeper.judge(kept=step)


def test_ranks_that_share_nothing_with_each_other_store_all_of_it() -> None:
    keeper = Keeper(0, 1)
    keeper.begin(0, 1, "a", whole=30, share=20)
    keeper.begin(1, 1, "b", whole=30, share=20)
    assert [grant.divides for grant in keeper.of(Grant)] == [False, False]
    assert {ask.size for ask in keeper.of(MakeBuffer)} == {30}
    keeper.end(0, 1)
    keeper.end(1, 1)
    assert keeper.steps() == [1]


def test_who_waits_for_the_other_ranks_in_vain_stores_all_of_it() -> None:
    keeper = Keeper(0, 1)
    keeper.begin(0, 1, "a", whole=30, share=20)
    keeper.wait(PATIENCE)
    assert [grant.divides for grant in keeper.of(Grant)] == [False]
    keeper.begin(1, 1, "a")
    keeper.begin_round(1, 0, 1)
    assert keeper.begin(0, 1, "a") == [], "each round begins with a wait"


def test_ranks_that_share_nothing_wait_for_nobody() -> None:
    keeper = Keeper(0, 1)
    keeper.save(0, 1)
    keeper.save(1, 1)
    assert keeper.steps() == [1]


def test_a_commit_of_which_something_may_be_missing_is_never_told() -> None:
    keeper = Keeper(0, 1)
    keeper.all_begin(1)
    keeper.end(0, 1)
    keeper.end(1, 1)
    keeper.judge(kept=1)
    keeper.save(0, 2, "a")  # with a share of what it takes for common
    keeper.save(1, 2, "b")
    assert keeper.steps() == [1]
    keeper.begin(0, 3, "b")
    keeper.begin(1, 3, "b")
    assert keeper.granted(0, 1), "and nobody waits for a verdict on it"
    keeper.end(0, 3)
    keeper.end(1, 3)
    assert keeper.steps() == [1, 3]


def test_a_step_that_another_rank_has_passed_is_of_no_use() -> None:
    keeper = Keeper(0, 1)
    keeper.save(0, 1)
    keeper.begin(0, 2)
    assert keeper.said == []
    keeper.begin(1, 2)
    assert keeper.granted(0, 1)


def test_a_step_that_another_rank_still_writes_may_come_to_be() -> None:
    keeper = Keeper(0, 1)
    keeper.all_begin(1)
    keeper.end(0, 1)
    assert keeper.begin(0, 2, "a") == []
    keeper.end(1, 1)
    assert keeper.steps() == [1]


# -- steps that other ranks have not saved


def lost(keeper: Keeper) -> list[int]:
    return [grant.lost for grant in keeper.of(Grant)]


def test_ranks_that_never_save_the_same_step_are_counted() -> None:
    keeper, counts = Keeper(0, 1), []
    for step in range(0, 12, 2):
        for rank in (0, 1):
            keeper.begin(rank, step + rank)
            counts += lost(keeper)
            keeper.end(rank, step + rank)
    assert counts == list(range(12))
    keeper.begin_round(1, 0, 1)
    keeper.begin(0, 20)
    assert lost(keeper) == [0]


def test_steps_that_other_nodes_have_not_saved_are_counted_until_one_is_kept() -> None:
    keeper = Keeper(0, 1)
    for step in (1, 3):
        keeper.save(0, step)
        keeper.save(1, step)
        keeper.judge(void=step)
    keeper.judge(void=3)
    keeper.begin(0, 4)
    assert lost(keeper) == [2], "each step once"
    keeper.end(0, 4)
    keeper.save(1, 4)
    keeper.judge(kept=4, void=3)
    keeper.begin(0, 5)
    assert lost(keeper) == [0]


def test_older_steps_than_the_one_that_is_kept_are_not_lost() -> None:
    keeper = Keeper(0)
    keeper.save(0, 1)
    keeper.judge(kept=1)
    keeper.save(0, 2)
    keeper.judge(kept=2, void=1)
    keeper.begin(0, 3)
    assert lost(keeper) == [0]


# -- rounds


def test_a_round_begins_with_all_workers_of_this_node() -> None:
    restore = CommitId(2, 7)
    given = Assignment(3, 1, 4, 2, 8, 2, 8, "127.0.0.1", 1, 0, 3, restore=restore)
    assert RoundBegins.of(given, 2) == RoundBegins(3, 1, 4, (2, 3), restore)


def test_a_new_round_keeps_what_it_restores_and_nothing_else() -> None:
    keeper = Keeper(0)
    keeper.save(0, 1)
    keeper.judge(kept=1)
    keeper.save(0, 2)
    assert keeper.steps() == [1, 2]
    keeper.begin_round(1, 5, restore=CommitId(0, 1))
    assert keeper.steps() == [1]
    assert [buffer.rank for buffer in keeper.vault.stored(CommitId(0, 1))] == [0], "by its rank of that round"
    keeper.begin(0, 3)
    assert "none of this node's workers" in keeper.refused()
    keeper.save(5, 1)
    assert [holding.commit for holding in keeper.held] == [CommitId(0, 1), CommitId(1, 1)]
    keeper.do(Judged(CommitId(1, 1), None))
    assert [holding.commit for holding in keeper.held] == [CommitId(1, 1)]


def test_a_round_that_restores_nothing_frees_what_is_not_kept() -> None:
    keeper = Keeper(0)
    keeper.save(0, 1)
    keeper.begin_round(1, 0)
    assert keeper.steps() == []
    keeper.save(0, 1)
    keeper.do(Judged(CommitId(1, 1), None))
    keeper.begin_round(2, 0)
    assert [holding.commit for holding in keeper.held] == [CommitId(1, 1)]


def test_who_waited_in_vain_in_an_earlier_round_is_patient_in_the_next_one() -> None:
    keeper = Keeper(0)
    keeper.save(0, 1)
    keeper.begin(0, 2)
    keeper.wait(PATIENCE)
    assert keeper.refused()
    keeper.begin_round(1, 0, 1)
    assert keeper.begin(0, 1, "a") == []
    assert keeper.vault.next_deadline() == keeper.now + PATIENCE


def test_an_older_commit_is_restored_although_this_node_kept_a_newer_one() -> None:
    keeper = Keeper(0)
    keeper.save(0, 1)
    keeper.judge(kept=1)
    keeper.begin_round(1, 0, restore=CommitId(0, 0))
    assert keeper.steps() == []


def test_nobody_writes_any_more_when_a_round_begins() -> None:
    keeper = Keeper(0, 1, makes=False)
    keeper.begin(0, 1)
    keeper.do(BufferMade(0))
    assert keeper.granted(0)
    keeper.begin(1, 1)
    keeper.begin_round(1, 0)
    assert keeper.vault.next_deadline() is None
    keeper.end(0, 1)
    assert keeper.steps() == []
    keeper.begin(0, 1)
    assert keeper.granted(0)


def test_a_void_commit_of_the_new_round_leaves_the_restored_one_alone() -> None:
    keeper = Keeper(0)
    keeper.save(0, 1)
    keeper.judge(kept=1)
    keeper.begin_round(1, 0, restore=CommitId(0, 1))
    keeper.do(Judged(None, CommitId(1, 7)))
    assert keeper.steps() == [1]


# -- memory


def test_who_gets_no_memory_is_refused() -> None:
    keeper = Keeper(0, makes=False)
    keeper.begin(0, 1)
    keeper.do(BufferRefused(0, "no room"))
    assert keeper.refused() == "no room"
    assert keeper.begin(0, 2) == [MakeBuffer(1, 10)], "the next time it is asked for again"


def test_memory_for_nobody_is_refused_without_a_word() -> None:
    keeper = Keeper(0, makes=False)
    keeper.begin(0, 1)
    keeper.do(WorkerGone(0))
    assert keeper.do(BufferRefused(0, "no room")) == []
    assert keeper.do(BufferRefused(0, "no room")) == [], "there is no such buffer"


def test_late_answers_change_nothing() -> None:
    keeper = Keeper(0, makes=False)
    keeper.begin(0, 1)
    keeper.do(BufferMade(0))
    assert (
        keeper.do(BufferMade(0)) == keeper.do(BufferRefused(0, "no room")) == keeper.do(BufferMade(9)) == []
    )
    keeper.end(0, 1)
    assert keeper.steps() == [1]


def test_one_buffer_is_made_for_each_rank_at_a_time() -> None:
    keeper = Keeper(0, makes=False)
    keeper.begin(0, 1)
    keeper.do(WorkerGone(0))
    assert keeper.begin(0, 2) == []
    assert keeper.do(Tick()) == []
    keeper.do(BufferMade(0))
    assert keeper.of(Grant) == [Grant(0, 2, 0)]


def test_free_buffers_that_are_too_small_make_room() -> None:
    keeper = Keeper(0, makes=False)
    keeper.begin(0, 1, whole=10)
    keeper.do(WorkerGone(0))
    keeper.do(BufferMade(0))
    keeper.begin(0, 2, whole=50)
    assert keeper.said == [DropBuffer(0), MakeBuffer(1, 50)]


def test_the_smallest_buffer_that_is_large_enough_is_taken() -> None:
    keeper = Keeper(0, 1, 2, makes=False)
    keeper.begin(0, 1, whole=30)
    keeper.begin(1, 1, whole=20)
    keeper.do(WorkerGone(0))
    keeper.do(WorkerGone(1))
    for ask in keeper.asked:
        keeper.do(BufferMade(ask.buffer))
    sizes = {ask.buffer: ask.size for ask in keeper.asked}
    keeper.begin(2, 1, whole=15)
    assert [sizes[grant.buffer] for grant in keeper.of(Grant)] == [20]


def test_each_rank_writes_into_the_buffers_that_it_has_mapped() -> None:
    keeper, written = Keeper(0, 1), dict[int, set[int]]()
    for step in range(1, 9):
        if step == 5:  # a restart forgets nothing of that
            keeper.begin_round(1, 0, 1, restore=CommitId(0, 4))
        for rank in (1, 0) if step == 1 else (0, 1):
            keeper.begin(rank, step)
            written.setdefault(rank, set()).update(grant.buffer for grant in keeper.of(Grant))
            keeper.end(rank, step)
        keeper.do(Judged(CommitId(step // 5, step), None))
    assert [len(written[rank]) for rank in (0, 1)] == [2, 2]
    assert not written[0] & written[1]


def test_a_rank_learns_of_its_buffers_before_it_writes_into_them() -> None:
    keeper = Keeper(0, 1, makes=False)

    def known(rank: int) -> list[int]:
        found: list[int] = []
        while (buffer := keeper.vault.shelf.next_of(rank, len(found))) is not None:
            found.append(buffer.number)
        return found

    keeper.begin(0, 1)
    assert known(0) == [], "it is being made"
    keeper.do(BufferMade(0))
    assert (known(0), known(1)) == ([0], [])
    keeper.end(0, 1)
    keeper.do(BufferMade(1))
    assert (known(0), known(1)) == ([1, 0], []), "the one that is free comes first"


def test_a_buffer_is_free_for_any_rank_once_it_is_made() -> None:
    keeper = Keeper(0, 1, makes=False)
    keeper.begin(0, 1)
    keeper.do(WorkerGone(0))
    keeper.do(BufferMade(0))
    keeper.begin(1, 1)
    assert [grant.buffer for grant in keeper.of(Grant)] == [0]


def test_buffers_that_are_far_too_large_are_not_kept() -> None:
    """Here rank 1 was late for the first save, so both stored what they share whole."""
    keeper = Keeper(0, 1)
    keeper.begin(0, 1, "a", whole=800, share=100)
    keeper.now = PATIENCE
    keeper.do(Tick())
    keeper.begin(1, 1, "a", whole=800, share=100)
    for step in range(1, 4):
        for rank in (0, 1):
            keeper.begin(rank, step, "a", whole=800, share=100)
            keeper.end(rank, step)
        keeper.do(Judged(CommitId(0, step), None))
    assert sorted(keeper.sizes()) == [100, 100, 100, 100]


def test_no_buffer_is_too_large_while_some_rank_may_need_it() -> None:
    keeper = Keeper(0, 1)
    for step in (1, 2, 3):
        keeper.begin(0, step, whole=800)
        keeper.end(0, step)
        keeper.begin(1, step, whole=10)
        keeper.end(1, step)
        keeper.do(Judged(CommitId(0, step), None))
    kept = keeper.sizes()
    keeper.begin_round(1, 0, 1, restore=CommitId(0, 3))
    keeper.begin(1, 4, whole=10)
    assert keeper.sizes() == kept


# -- what is written to the storage


def test_what_is_written_to_the_storage_stays_until_it_need_not() -> None:
    keeper = Keeper(0)
    keeper.save(0, 1)
    keeper.judge(kept=1)
    keeper.do(Pinned(CommitId(0, 1)))
    for step in (2, 3):
        keeper.save(0, step)
        keeper.judge(kept=step)
        assert keeper.steps() == [1, step]
    keeper.do(Pinned(CommitId(0, 3)))
    assert keeper.steps() == [3], "nobody needs the first one any more"
    keeper.do(Pinned(None))
    assert keeper.steps() == [3], "it is kept"


def test_what_is_written_to_the_storage_outlives_its_round() -> None:
    keeper = Keeper(0)
    for step in (1, 2):
        keeper.save(0, step)
        keeper.judge(kept=step)
        keeper.do(Pinned(CommitId(0, 1)))
    keeper.save(0, 3)
    keeper.judge(kept=2, void=3)
    keeper.begin_round(1, 0, restore=CommitId(0, 2))
    assert keeper.steps() == [1, 2]
    keeper.do(Pinned(CommitId(0, 2)))
    assert keeper.steps() == [2]
    keeper.begin_round(2, 0, restore=None)
    assert keeper.steps() == [2]
    assert [buffer.rank for buffer in keeper.vault.stored(CommitId(0, 2))] == [0]
