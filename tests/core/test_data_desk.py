"""The rules of shared data one by one; that they hold together is tests/property/test_data_desk.py."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from elasticrun.core.data import desk as module
from elasticrun.core.data import leases
from elasticrun.core.data.desk import MAX_DESKS, Desks, Told
from elasticrun.core.protocol.data import (
    MAX_FAILED,
    AskData,
    DataAnswer,
    DataLeft,
    DataReader,
    FailedPiece,
    OpenData,
    ShardFault,
    ShardLease,
    ShardPiece,
    ShardProgress,
)


class Rank:
    """One rank, which numbers its asks."""

    def __init__(self, desks: Desks, rank: int, name: str = "data", load: int = 0, life: str = "") -> None:
        self.desks, self.rank = desks, rank
        self.reader = DataReader(0, rank, name, f"{rank}{life}", load)
        self.call = 0

    def opens(self, **changes: Any) -> list[Told]:
        self.call += 1
        opened = OpenData("i", self.reader, self.call, "plan", 4, 2, 50.0)
        return self.desks.open(self.rank, replace(opened, **changes))

    def asks(self, now: float = 0.0, again: int = 0, **what: Any) -> list[Told]:
        self.call += 1 - again
        return self.desks.ask(self.rank, replace(AskData("i", self.reader, self.call), **what), now)

    def takes(self, count: int = 1, epoch: int = 0) -> tuple[ShardLease, ...]:
        """So many leases, one by one as it gets fewer at once; fewer only if there are no more."""
        found = list[ShardLease]()
        for _ in range(count):
            [(rank, answer)] = self.asks(epoch=epoch, wanted=1)
            assert (rank, answer.refused) == (self.rank, "")
            found += answer.leases
        return tuple(found)

    def saves(self, *progress: ShardProgress, now: float = 0.0) -> list[Told]:
        return self.asks(now, progress=progress, saves=True)


def pair(**changes: Any) -> tuple[Rank, Rank]:
    desks = Desks()
    one, other = Rank(desks, 0), Rank(desks, 1)
    for each in (one, other):
        [(_, answer)] = each.opens(**changes)
        assert not answer.refused
    return one, other


def done(*leases: ShardLease, at: int = 5) -> list[ShardProgress]:
    return [ShardProgress(each.id, at, True) for each in leases]


def refusals(told: list[Told]) -> dict[int, str]:
    return {rank: answer.refused for rank, answer in told}


def left(told: list[Told]) -> DataLeft:
    found = {rank: answer.left for rank, answer in told}
    assert found[0] is not None
    assert found[0] == found[1]
    return found[0]


def whole(place: int, epoch: int = 0) -> ShardPiece:
    return ShardPiece(epoch, place, 0, 0)


def test_what_is_left_is_told_once_all_have_saved() -> None:
    a, b = pair()
    (first, second), (third,) = a.takes(2), b.takes()
    assert [each.piece for each in (first, second, third)] == [whole(0), whole(1), whole(2)]
    assert a.saves(*done(first), ShardProgress(second.id, 2)) == []
    found = left(b.saves(*done(third)))
    assert found == DataLeft(0, 3, (ShardPiece(0, 1, 2, 0),))
    assert left([*a.saves(), *b.saves()]) == found, "nothing was trained on since"
    assert b.takes(5)[0].piece == whole(3)
    assert b.takes() == ()


def test_nobody_gets_more_than_half_of_its_share_of_what_is_left() -> None:
    a, b = pair(shards=40)
    got = [len(each.asks(wanted=30)[0][1].leases) for each in (a, b, a, b)]
    assert got == [10, 7, 5, 4]
    assert len(a.asks(wanted=30, epoch=1)[0][1].leases) == (40 - sum(got) + 40) // 4


def test_what_is_free_again_is_left_as_well() -> None:
    a, b = Rank(desks := Desks(), 0), Rank(desks, 1)
    state = DataLeft(1, 0, tuple(whole(place) for place in range(40)))
    for each in (a, b):
        each.opens(shards=40, state="s", left=state)
    assert len(a.asks(wanted=30)[0][1].leases) == 10


def test_progress_may_come_in_parts() -> None:
    a, b = pair()
    first, second = a.takes(2)
    assert refusals(a.asks(progress=done(first))) == {0: ""}
    a.saves(*done(second))
    assert left(b.saves()) == DataLeft(0, 2)


def test_who_goes_on_from_a_state_says_what_is_left_if_asked() -> None:
    desks = Desks()
    a, b = Rank(desks, 0, load=1), Rank(desks, 1, load=1)
    state = DataLeft(1, 2, (ShardPiece(1, 0, 3, 5),), (FailedPiece(whole(0), "gone"),))
    for each in (a, b):
        [(_, answer)] = each.opens(state="s")
        if answer.needs_left:
            [(_, answer)] = each.opens(state="s", left=state)
        assert answer == DataAnswer(0, 0, f"{each.rank}", each.call)
    assert [each.piece for each in a.takes(4, epoch=1)] == [state.free[0], whole(2, 1), whole(3, 1)]
    assert left([*a.saves(), *b.saves()]) == DataLeft(
        2, 0, (*state.free, whole(2, 1), whole(3, 1)), state.failed
    )
    assert desks.news("data") == [], "it was told when it failed"


def test_an_ask_that_comes_twice_is_answered_alike_and_changes_nothing() -> None:
    a, b = pair()
    a.call -= 1
    [(_, opened)] = a.opens()
    assert opened == DataAnswer(0, 0, "0", 1)
    [(_, once)] = a.asks(wanted=1)
    a.call -= 2
    assert a.opens() == [], "too old"
    a.call += 1
    assert a.asks(again=1, wanted=1) == [(0, once)]
    a.saves(*done(*once.leases))
    assert a.asks(again=1, saves=True) == [], "it waits still"
    told = dict(b.saves())
    assert dict(a.asks(again=1, saves=True)) == {0: told[0]}
    a.call -= 3
    assert a.asks(wanted=1) == [], "too old"


def test_what_cannot_be_read_goes_to_others_and_is_left_out_in_the_end() -> None:
    a, b = pair()
    [lease] = a.takes()
    for number, each in enumerate((a, b, a, b)):
        assert refusals(each.asks(faults=(ShardFault(lease.id, 2, "f: gone"),))) == {each.rank: ""}
        if number == 0:
            a.saves(ShardProgress(lease.id, 2))
            b.saves()
        if number < 3:
            assert a.desks.news("data") == []
            [lease] = (b, a, b)[number].takes()
            assert lease.piece == ShardPiece(0, 0, 2, 0)
    assert a.desks.news("data") == ["data: a shard of epoch 0 is left out: f: gone"]
    assert a.desks.news("data") == a.desks.news("other") == []
    assert left([*a.saves(), *b.saves()]).failed == (FailedPiece(ShardPiece(0, 0, 2, 0), "f: gone"),)


def test_too_much_that_cannot_be_read_ends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "RETRIES", 0)
    a, _ = pair(shards=MAX_FAILED + 2)
    told = dict[int, str]()
    for _ in range(MAX_FAILED + 1):
        [lease] = a.takes()
        told = refusals(a.asks(faults=(ShardFault(lease.id, 0, "gone"),)))
    assert told == {0: f"more than {MAX_FAILED} shards of epoch 0 cannot be read: are the data there?"}


def leave_out(rank: Rank, count: int, epoch: int) -> None:
    for lease in rank.takes(count, epoch):
        fault = ShardFault(lease.id, 0, f"gone in {lease.piece.epoch}")
        assert refusals(rank.asks(faults=(fault,))) == {rank.rank: ""}


def test_a_few_shards_of_each_epoch_that_cannot_be_read_never_end_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "RETRIES", 0)
    a, b = pair(shards=100)
    told = Counter[int]()
    for epoch in range(6):
        leave_out(a, 100, epoch)
        assert len(a.desks.news("data")) == 100
        a.saves()
        found = left(b.saves())
        assert found.free == ()
        told.update(each.piece.epoch for each in found.failed[-100:])
        assert len(found.failed) == min(100 * (epoch + 1), MAX_FAILED + 100)
    assert told == dict.fromkeys(range(6), 100), "a state has all that were left out since the one before"
    a.saves()
    assert len(left(b.saves()).failed) == MAX_FAILED
    assert a.desks.news("data") == []


def test_without_a_save_the_oldest_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "RETRIES", 0)
    monkeypatch.setattr(module, "MAX_TOLD", 7)
    a, b = pair(shards=3)
    for epoch in range(4):
        leave_out(a, 3, epoch)
    a.saves()
    assert [each.piece.epoch for each in left(b.saves()).failed] == [1, 2, 2, 2, 3, 3, 3]
    assert len(a.desks.news("data")) == 12


def test_files_that_are_too_short_count_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_FAILED", 3)
    a, _ = pair(shards=9)
    progress = [ShardProgress(each.id, 2, True, 5) for each in a.takes(4)]
    assert "more than 3 shards of epoch 0" in refusals(a.saves(*progress))[0]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"plan": "another"}, "the ranks have different data under the name data"),
        ({"shards": 5}, "the ranks have different data under the name data"),
        ({"state": "s"}, "the ranks have gone on from different states of data"),
        ({"readers": 3}, "the ranks do not agree on how many of them read data"),
    ],
)
def test_ranks_that_differ_end_it_for_all(changes: dict[str, Any], said: str) -> None:
    desks = Desks()
    a, b = Rank(desks, 0), Rank(desks, 1)
    a.opens()
    a.saves()
    told = b.opens(**changes)
    assert refusals(told).keys() == {0, 1}
    assert all(each.startswith(said) for each in refusals(told).values())
    assert refusals(a.asks(wanted=1))[0].startswith(said)
    assert refusals(Rank(desks, 1).opens())[1].startswith(said)


def test_more_readers_than_were_named_end_it() -> None:
    a, _ = pair()
    assert refusals(Rank(a.desks, 2).opens())[2].endswith("or there are more")


def test_a_name_is_for_one_reader_of_a_rank() -> None:
    a, _ = pair()
    assert refusals(Rank(a.desks, 0, life="again").opens())[0].startswith("rank 0 reads data twice")
    assert a.takes(), "the first one goes on"


def test_a_state_that_is_loaded_in_the_round_begins_anew() -> None:
    a, b = pair()
    a.takes(3)
    b.saves()
    again = Rank(a.desks, 0, load=1)
    told = again.opens(state="s", left=DataLeft(0, 1))
    assert refusals(told) == {1: "another rank has loaded a state of data since", 0: ""}
    assert [each.piece for each in again.takes()] == [whole(1)]
    assert "other ranks have loaded a state" in refusals(b.asks())[1]
    assert "other ranks have loaded a state" in refusals(b.opens())[1]


def test_a_state_that_cannot_be_is_refused() -> None:
    desks = Desks()
    wrong = DataLeft(0, 1, (ShardPiece(0, 3, 0, 0),))
    told = refusals(Rank(desks, 0).opens(state="s", left=wrong))
    assert told[0].startswith("the saved leases are damaged")


@pytest.mark.parametrize("lost", ["one answer", "its own save", "the reader", "all"])
def test_a_master_that_has_lost_what_it_told_ends_it(lost: str) -> None:
    a, _ = pair()
    [lease] = a.takes()
    if lost == "one answer":
        a.call += 1
    elif lost == "its own save":  # a save that was complete, of which the other half was lost
        a.saves()
    elif lost == "the reader":
        a.reader = replace(a.reader, instance="unknown")
    else:
        a.desks = Desks()
    told = refusals(a.saves(*done(lease)))
    assert told[0] in (
        "this master does not know all that rank 0 was told",
        "this master does not know that rank 0 reads here",
        "data is not open here, or other ranks have loaded a state since",
    )


@pytest.mark.parametrize(
    "progress", [ShardProgress(99, 3), ShardProgress(1, 0), ShardProgress(1, 2**62)], ids=str
)
def test_progress_of_what_it_does_not_hold_ends_it(progress: ShardProgress) -> None:
    a, b = pair()
    a.takes()
    a.saves(ShardProgress(1, 4))
    b.saves()
    told = refusals(a.saves(progress)) if progress.lease == 99 else refusals(b.saves(progress))
    assert "which it does not hold" in next(iter(told.values()))


def test_data_that_are_in_no_state_may_be_read_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    """A reader tells what is over with its asks, and never saves."""
    monkeypatch.setattr(leases, "MAX_OPEN", 5)
    a, b = pair(shards=9)
    for epoch in range(20):
        told = {each: list[ShardProgress]() for each in (a, b)}
        while True:
            for each in (a, b):
                [(_, answer)] = each.asks(epoch=epoch, wanted=2, progress=tuple(told[each]))
                assert not answer.refused
                told[each] = done(*answer.leases)
            if not any(told.values()):
                break
    ledger = a.desks._desks["data"]._ledger
    assert (ledger.left(), ledger._consumed, ledger.cursor) == ([], {}, (20, 0))


def test_who_forgets_to_save_hears_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leases, "MAX_OPEN", 5)
    a, _ = pair(shards=9)
    a.takes(5)
    assert refusals(a.asks(wanted=1))[0].startswith(
        "rank 0 has 5 leases that are in no saved state. Give the dataset to the Checkpointer"
    )


def test_too_many_open_leases_end_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_PIECES", 2)
    a, b = pair()
    a.takes(3)
    a.saves()
    assert all(each.startswith("more than 2 leases are open") for each in refusals(b.saves()).values())


def test_who_saves_does_not_wait_for_ever() -> None:
    a, b = pair()
    assert a.desks.next_deadline() is None
    a.saves(now=7.0)
    assert a.desks.next_deadline() == 57.0
    assert a.desks.expire(56.0) == []
    assert refusals(a.desks.expire(57.0)) == {
        0: "rank 1 has not saved within 50 s what rank 0 saves: all readers save the same steps"
    }
    assert refusals(b.saves())[1].startswith("rank 1 has not saved")
    assert a.desks.next_deadline() is None


def test_many_that_have_not_saved_are_not_all_named() -> None:
    a = Rank(Desks(), 0)
    a.opens(readers=100)
    a.saves()
    assert refusals(a.desks.expire(60.0))[0].startswith("rank 1, 2, 3, 4, 5, ... has not saved")


def test_a_round_that_stops_lets_nobody_wait() -> None:
    a, b = pair()
    a.saves()
    assert refusals(a.desks.stop("rank 1 was killed")) == {0: "rank 1 was killed"}
    assert refusals(b.saves()) == {1: "rank 1 was killed"}
    assert refusals(Rank(a.desks, 0, "other").opens()) == {0: "rank 1 was killed"}


def test_a_round_has_so_many_datasets() -> None:
    desks = Desks()
    for number in range(MAX_DESKS):
        assert refusals(Rank(desks, 0, f"d{number}").opens()) == {0: ""}
    assert refusals(Rank(desks, 0, "more").opens()) == {0: f"a round has at most {MAX_DESKS} shared datasets"}
