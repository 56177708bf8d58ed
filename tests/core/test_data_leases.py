"""The rules of leases one by one; that they hold together is tests/property/test_data_leases.py."""

from __future__ import annotations

import json
from typing import Any

import pytest

from elasticrun.core.data.leases import MAX_OPEN, Holder, Lease, Ledger, Progress
from elasticrun.core.data.shards import ENDLESS, Places, Plan, Shard
from elasticrun.core.protocol.commits import CommitId
from elasticrun.errors import DataError

A, B = Holder(0, "a"), Holder(0, "b")


def ledger(records: int = 8, size: int = 4, retries: int = 1) -> Ledger:
    made = Ledger(Plan.of_samples(records, size, shuffle=False), patience=10.0, retries=retries)
    made.restore(0, None)
    return made


def ranges(leases: tuple[Lease, ...]) -> list[tuple[int, int, int]]:
    return [(each.epoch, each.shard.start, each.shard.stop) for each in leases]


def refused(call: Any, *args: Any) -> str:
    with pytest.raises(DataError) as caught:
        call(*args)
    return str(caught.value)


# -- plans


def test_what_is_dealt() -> None:
    files = Plan.of_files({"a": 3, "b": 0, "c": None}, 2, shuffle=False)
    assert [files.shard(0, place) for place in range(files.count)] == [
        Shard("a", 0, 2),
        Shard("a", 2, 3),
        Shard("c", 0, ENDLESS),
    ]
    streams = Plan.of_streams({"p": 5, "q": 0}, 10)
    assert [streams.shard(0, place) for place in range(3)] == [
        Shard("p", 5, 15),
        Shard("q", 0, 10),
        Shard("p", 15, 25),
    ]
    assert streams.count == ENDLESS


def test_each_epoch_has_an_order_of_its_own() -> None:
    plan = Plan.of_samples(100, 1, seed=4)
    orders = [[plan.shard(epoch, place).start for place in range(100)] for epoch in (0, 1, 0)]
    assert orders[0] == orders[2] != orders[1]
    assert sorted(orders[0]) == sorted(orders[1]) == list(range(100))


def test_plans_of_nothing_are_refused() -> None:
    assert refused(Plan.of_samples, 0, 4).startswith("there are no records to deal out")
    assert refused(Plan.of_samples, 4, 0) == "a shard has a number of records from 1 on, got 0"


# -- leases


def test_shards_are_leased_in_order_until_the_epoch_is_dealt() -> None:
    it = ledger()
    assert ranges(it.take(A, 0, 0, 0.0)) == [(0, 0, 4)]
    assert ranges(it.take(B, 0, 0, 0.0, 5)) == [(0, 4, 8)]
    assert it.take(A, 1, 0, 0.0) == ()
    assert ranges(it.take(A, 2, 1, 0.0)) == [(1, 0, 4)]


def test_a_request_that_comes_twice_is_answered_alike_and_an_old_one_not_at_all() -> None:
    it = ledger()
    first = it.take(A, 0, 0, 0.0)
    assert it.take(A, 0, 0, 0.0) == first
    assert ranges(it.take(A, 1, 0, 0.0)) == [(0, 4, 8)]
    assert it.take(A, 0, 0, 0.0) == ()


def test_what_nobody_has_leased_is_counted_up_to_the_end_of_an_epoch() -> None:
    it = ledger(40, 4)
    leases = it.take(A, 0, 0, 0.0, 3)
    assert [it.waiting(epoch) for epoch in (0, 1)] == [7, 17]
    it.fail(A, leases[0].id, 0, "gone")
    it.take(B, 0, 1, 0.0, 9)
    assert [it.waiting(epoch) for epoch in (0, 1)] == [0, 9]
    it.lose("a")
    assert it.waiting(0) == 2


def test_nobody_leases_more_than_some() -> None:
    it = ledger(100, 1)
    assert len(it.take(A, 0, 0, 0.0, 90)) == 90, "what was read stays open until it is saved"
    assert refused(it.take, A, 1, 0, 0.0, MAX_OPEN).startswith("a has 90 leases that are in no saved state")
    assert len(it.take(A, 1, 0, 0.0, 90)) == 10
    assert it.take(A, 2, 0, 0.0, -3) == ()


def test_a_reader_may_know_an_end_that_the_ledger_does_not() -> None:
    it = Ledger(Places(2, "digest"))
    it.restore(0, None)
    first, second = it.take(A, 0, 0, 0.0, 2)
    assert [each.shard for each in (first, second)] == [Shard("0", 0, ENDLESS), Shard("1", 0, ENDLESS)]
    it.consume(A, 1, {first.id: Progress(3, True, 5), second.id: Progress(7, True, 7)}, 0.0)
    assert [(each.piece, each.reason) for each in it.failed] == [((0, 0, 3, 5), "it ended at record 3")]
    assert (it.left(), it.cursor) == ([], (1, 0))


def test_only_what_was_consumed_until_the_commit_stays_so() -> None:
    it = ledger()
    (lease,) = it.take(A, 0, 0, 0.0)
    it.consume(A, 1, {lease.id: Progress(1)}, 0.0)
    it.consume(A, 2, {lease.id: Progress(3)}, 0.0)
    it.consume(A, 2, {lease.id: Progress(4)}, 0.0)  # comes again: nothing changes
    it.restore(1, CommitId(0, 1))
    assert ranges(it.take(Holder(1, "a"), 0, 0, 0.0, 9)) == [(0, 1, 4), (0, 4, 8)]


def test_what_is_consumed_to_its_end_is_no_lease_any_more() -> None:
    it = ledger(4)
    (lease,) = it.take(A, 0, 0, 0.0)
    it.consume(A, 1, {lease.id: Progress(4)}, 0.0)
    assert it.next_deadline() is None
    assert "record 4 of lease 1, which it does not hold" in refused(
        it.consume, A, 2, {lease.id: Progress(4)}, 0.0
    )


@pytest.mark.parametrize("upto", [3, 9])
def test_records_beyond_a_lease_are_refused_and_nothing_is_noted(upto: int) -> None:
    it = ledger()
    first, second = it.take(A, 0, 0, 0.0, 2)
    refused(it.consume, A, 1, {first.id: Progress(2), second.id: Progress(upto)}, 0.0)
    it.restore(1, None)
    assert ranges(it.take(Holder(1, "a"), 0, 0, 0.0, 9)) == [(0, 0, 4), (0, 4, 8)]


def test_a_file_that_ends_is_over_and_one_that_ends_early_is_reported() -> None:
    it = Ledger(Plan.of_files({"known": 4, "unknown": None}, 4, shuffle=False))
    it.restore(0, None)
    known, unknown = it.take(A, 0, 0, 0.0, 2)
    it.consume(A, 1, {unknown.id: Progress(2, is_over=True), known.id: Progress(3, is_over=True)}, 0.0)
    (failed,) = it.failed
    assert (failed.shard, failed.reason) == (Shard("known", 3, 4), "it ended at record 3")
    assert it.next_deadline() is None
    it.restore(1, None)
    found = it.take(Holder(1, "a"), 0, 0, 0.0, 9)
    assert [each.shard for each in found] == [Shard("known", 0, 3), Shard("unknown", 0, 2)]


# -- holders


def test_a_lost_holders_leases_are_free_and_its_words_are_refused() -> None:
    it = ledger(12)
    one, two = it.take(A, 0, 0, 0.0, 2)
    it.consume(A, 1, {one.id: Progress(1)}, 0.0)
    it.lose("a")
    it.lose("a")
    assert "a of round 0 has no leases any more" in refused(it.consume, A, 2, {two.id: Progress(5)}, 0.0)
    assert refused(it.take, A, 1, 0, 0.0)
    assert ranges(it.take(B, 0, 0, 0.0, 9)) == [(0, 1, 4), (0, 4, 8), (0, 8, 12)]


def test_only_progress_moves_a_deadline() -> None:
    it = ledger(16)
    assert (it.next_deadline(), it.expire(99.0)) == (None, [])
    (lease,) = it.take(A, 0, 0, 0.0)
    it.take(B, 0, 0, 1.0)
    it.take(A, 1, 0, 5.0)
    it.consume(A, 1, {lease.id: Progress(0)}, 6.0)
    assert it.next_deadline() == 10.0
    it.consume(A, 2, {lease.id: Progress(1)}, 7.0)
    assert it.next_deadline() == 11.0
    assert it.expire(10.9) == []
    assert it.expire(12.0) == ["b"]
    assert it.next_deadline() == 17.0
    assert it.expire(17.0) == ["a"]


def test_what_fails_too_often_is_reported_and_the_rest_goes_on() -> None:
    it = ledger(8, retries=1)
    it.take(A, 0, 0, 0.0, 2)
    it.lose("a", "killed")
    assert it.failed == []
    assert ranges(it.take(B, 0, 0, 0.0, 2)) == [(0, 0, 4), (0, 4, 8)]
    it.expire(10.0)
    (failed,) = it.failed
    assert failed.shard == Shard("", 0, 4)
    assert failed.reason == "nothing of it was acknowledged for 10 s"
    assert ranges(it.take(Holder(0, "c"), 0, 0, 0.0, 2)) == [(0, 4, 8)]


def test_what_was_read_before_a_fault_still_counts() -> None:
    it = ledger(4, retries=0)
    (lease,) = it.take(A, 0, 0, 0.0)
    it.fail(A, lease.id, 3, "unreadable")
    it.fail(A, lease.id, 3, "unreadable")
    (failed,) = it.failed
    assert (failed.shard, failed.reason) == (Shard("", 3, 4), "unreadable")
    it.consume(A, 1, {lease.id: Progress(3)}, 0.0)
    (other,) = it.take(A, 1, 1, 0.0)
    it.fail(A, other.id, 0, "unreadable")
    assert it.failed[1].shard == Shard("", 0, 4)
    it.fail(A, other.id, 0, "unreadable")
    assert len(it.failed) == 2


# -- restores


def test_rounds_go_on_from_what_can_be_restored() -> None:
    it = ledger(8, 1)
    (lease,) = it.take(A, 0, 0, 0.0)
    it.consume(A, 5, {lease.id: Progress(1)}, 0.0)
    assert refused(it.restore, 0, None) == "round 0 is none that follows round 0"
    assert "the data was never there" in refused(it.restore, 1, CommitId(1, 5))
    it.restore(1, CommitId(0, 3))
    assert "went on from step 3 of round 0" in refused(it.restore, 2, CommitId(0, 5))
    it.restore(2, None)
    assert "the data was never there" in refused(it.restore, 3, CommitId(1, 3))
    it.restore(4, CommitId(2, 0))
    assert ranges(it.take(Holder(4, "a"), 0, 0, 0.0)) == [(0, 0, 1)]
    assert "of round 2 has no leases" in refused(it.take, Holder(2, "a"), 0, 0, 0.0)


def test_a_round_that_began_with_nothing_leads_to_no_earlier_one() -> None:
    it = ledger()
    it.restore(1, None)
    assert "the data was never there" in refused(it.restore, 2, CommitId(0, 1))


def test_what_is_settled_stays() -> None:
    it = ledger(8, 1)
    first, second, third = it.take(A, 0, 0, 0.0, 3)
    for step, lease in enumerate((first, second, third), 1):
        it.consume(A, step, {lease.id: Progress(lease.shard.stop)}, 0.0)
    it.settle(CommitId(0, 2))
    it.settle(CommitId(0, 1))
    for commit, name in ((CommitId(0, 1), "step 1 of round 0"), (None, "nothing")):
        said = refused(it.restore, 1, commit)
        assert said == f"{name} cannot be restored: the data went on to step 2 of round 0"
    it.restore(1, CommitId(0, 2))
    assert ranges(it.take(Holder(1, "a"), 0, 0, 0.0)) == [(0, 2, 3)]


# -- states


def test_a_ledger_goes_on_from_a_state() -> None:
    it = ledger(8, retries=0)
    one, two = it.take(A, 0, 0, 0.0, 2)
    it.consume(A, 1, {one.id: Progress(1)}, 0.0)
    it.fail(A, two.id, 6, "unreadable")
    state = json.loads(json.dumps(it.state()))
    again = Ledger.of_state(Plan.of_samples(8, 4, shuffle=False), state)
    again.restore(0, None)
    assert again.failed == it.failed
    assert ranges(again.take(A, 0, 0, 0.0, 9)) == [(0, 1, 4), (0, 4, 6)]
    assert ranges(again.take(B, 0, 1, 0.0)) == [(1, 0, 4)]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"format": 2}, "they have no format that this elasticrun reads"),
        ({"plan": []}, "of other files, lengths, sizes, seed or shuffle"),
        ({"cursor": [0]}, "damaged"),
        ({"cursor": [0, -1]}, "damaged"),
        ({"cursor": [0, True]}, "damaged"),
        ({"free": [[0, 0, 4, 4]]}, "damaged"),
        ({"free": [[0, 2, 0, 4]]}, "damaged"),
        ({"free": [[0]]}, "damaged"),
        ({"failed": [[0]]}, "damaged"),
    ],
)
def test_a_state_that_is_none_is_refused(change: dict[str, Any], said: str) -> None:
    it = ledger()
    it.take(A, 0, 0, 0.0)
    assert said in refused(Ledger.of_state, Plan.of_samples(8, 4, shuffle=False), {**it.state(), **change})
    assert "they have no format" in refused(Ledger.of_state, Plan.of_samples(8, 4, shuffle=False), 3)
