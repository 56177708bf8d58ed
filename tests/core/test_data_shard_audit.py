"""The audit of shards: exact where it is, and what is wrong is named."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elasticrun.core.data.history import (
    History,
    RankRecord,
    Saved,
    Start,
    read_saved,
    saved_line,
)
from elasticrun.core.data.leases import Holder, Ledger, Progress
from elasticrun.core.data.shard_audit import (
    Trail,
    _overlaps,
    _without,
    audit_shards,
    from_line,
    is_shards,
    joined,
    to_line,
)
from elasticrun.core.data.shards import Plan
from elasticrun.core.protocol.commits import CommitId
from elasticrun.errors import DataError

PLAN = Plan.of_files({"a": 10, "b": 5}, 4, shuffle=False)
ME = Holder(0, "me")


def left(plan: Plan, taken: int) -> dict[str, Any]:
    """What is left after so many whole shards."""
    ledger = Ledger(plan)
    ledger.restore(0, None)
    for number, lease in enumerate(ledger.take(ME, 0, 9, 0.0, taken)):
        ledger.consume(ME, number, {lease.id: Progress(lease.shard.stop)}, 0.0)
    return ledger.state()


def trail(*trained: tuple[int, str, int, int], taken: int = 5, plan: Plan = PLAN, **changes: Any) -> Trail:
    return replace(Trail(trained, False, left(plan, taken)), **changes)


WHOLE = ((0, "a", 0, 10), (0, "b", 0, 5))


def test_an_epoch_of_which_each_record_was_taken_once() -> None:
    one, other = trail((0, "a", 0, 6), (0, "b", 2, 5)), trail((0, "a", 6, 10), (0, "b", 0, 2))
    found = audit_shards([one, other], [one, other])
    assert found.is_exact
    assert [str(each) for each in found.epochs] == ["epoch 0: each of 15 samples exactly once"]


def test_an_epoch_that_is_under_way() -> None:
    last = trail((0, "a", 0, 8), taken=2)
    found = audit_shards([last], [last])
    assert (found.is_exact, found.epochs[0].samples) == (True, 8)


def test_what_is_wrong_is_named() -> None:
    wrong = trail((0, "a", 0, 9), (0, "a", 3, 5), (0, "b", 0, 4))
    [epoch] = audit_shards([wrong], [wrong]).epochs
    assert str(epoch) == "epoch 0: missing: 2 (9 of a, 4 of b); more than once: 2 (3 to 4 of a)"


def test_what_was_taken_and_is_left_still_is_wrong() -> None:
    wrong = trail(*WHOLE, taken=4)
    found = audit_shards([wrong], [wrong])
    assert str(found.epochs[0]).endswith("more than once: 1 (4 of b), 1 still to come")


def test_samples_of_a_dataset_have_no_name() -> None:
    plan = Plan.of_samples(9, 3, shuffle=False)
    wrong = trail((0, "", 0, 5), (0, "", 4, 8), (1, "", 0, 3), plan=plan, taken=4)
    found = audit_shards([wrong], [wrong]).epochs
    assert str(found[0]) == "epoch 0: missing: 1 (8); more than once: 1 (4)"
    assert str(found[1]) == "epoch 1: each of 3 samples exactly once, 6 still to come"


def test_a_file_whose_records_nobody_has_counted_ends_where_its_reader_stopped() -> None:
    plan = Plan.of_files({"a": None}, 4)
    gap = trail((0, "a", 0, 3), (0, "a", 5, 7), plan=plan, taken=1)
    assert str(audit_shards([gap], [gap]).epochs[0]).endswith("missing: 2 (3 to 4 of a); more than once: 0")
    unread = trail(plan=plan, taken=1)
    assert audit_shards([unread], [unread]).epochs[0].samples == 0


def test_what_is_still_to_come_was_dealt_and_is_left_or_was_not_dealt() -> None:
    state = {**left(PLAN, 7), "free": [[0, 4, 4, 5], [1, 0, 2, 4]]}
    last = trail(left=state)
    found = audit_shards([last], [last])
    assert [each.left for each in found.epochs] == [1, 2 + 15 - 8]
    assert str(found.epochs[1]).endswith(", 9 still to come")
    over = trail(taken=10)
    assert [each.left for each in audit_shards([over], [over]).epochs] == [0, 0], "epoch 2 has not begun"


def test_nobody_knows_how_much_of_an_uncounted_file_is_still_to_come() -> None:
    plan = Plan.of_files({"a": None, "b": 9}, 4, shuffle=False)
    free = [[0, 0, 3, 1 << 62]]
    under_way = trail(left={**left(plan, 0), "cursor": [0, 2], "free": free})
    [epoch] = audit_shards([under_way], [under_way]).epochs
    assert epoch.left is None
    assert str(epoch).endswith(", an unknown number still to come")
    counted = trail(left={**left(plan, 0), "cursor": [0, 2]})
    assert audit_shards([counted], [counted]).epochs[0].left == 5
    stream = trail(plan=Plan.of_streams({"p": 0}, 4), taken=3)
    assert audit_shards([stream], [stream]).epochs[0].left is None


def test_an_epoch_of_which_all_is_still_to_come_is_named() -> None:
    state = {**left(PLAN, 5), "cursor": [1, 1], "free": [[1, 0, 0, 4]]}
    last = trail(*WHOLE, left=state)
    assert [str(each) for each in audit_shards([last], [last]).epochs] == [
        "epoch 0: each of 15 samples exactly once",
        "epoch 1: each of 0 samples exactly once, 15 still to come",
    ]
    later = replace(last, trained=())
    [epoch] = audit_shards([later], [later], left(PLAN, 5)).epochs
    assert (epoch.epoch, epoch.left) == (1, 15), "also if this job has trained on nothing of it"


def test_streams() -> None:
    plan = Plan.of_streams({"p": 5, "q": 0}, 10)
    it = trail((0, "p", 5, 25), (0, "q", 0, 10), plan=plan, taken=3)
    found = audit_shards([it], [it])
    assert (found.is_exact, found.epochs[0].samples) == (True, 30)


def test_what_was_left_out_is_no_part_of_what_is_due_and_is_named() -> None:
    ledger = Ledger(Plan.of_files({"a": 4, "b": None}, 4, shuffle=False), retries=0)
    ledger.restore(0, None)
    first, second = ledger.take(ME, 0, 0, 0.0, 2)
    ledger.fail(ME, first.id, 3, "gone")
    ledger.fail(ME, second.id, 7, "gone")
    ledger.consume(ME, 1, {first.id: Progress(3), second.id: Progress(7)}, 0.0)
    last = Trail(((0, "a", 0, 3), (0, "b", 0, 7)), False, ledger.state())
    found = audit_shards([last], [last])
    assert found.problems == (
        "left out: 3 of a of epoch 0 (gone)",
        "left out: 7 to the end of b of epoch 0 (gone)",
    )
    assert not found.is_exact
    assert str(found.epochs[0]) == "epoch 0: each of 10 samples exactly once"


def test_what_was_left_out_of_past_epochs_is_known_from_the_trails_alone() -> None:
    """A long training's state has only the newest of it."""
    out = ((0, "a", 3, 4, "gone"), (0, "b", 0, 5, "gone"))
    first = trail((0, "a", 0, 3), (0, "a", 4, 10), left_out=out)
    last = trail(*((1, *each[1:]) for each in WHOLE), taken=10)
    found = audit_shards([first, replace(first, trained=()), last], [last])
    assert found.problems == ("left out: 3 of a of epoch 0 (gone)", "left out: 0 to 4 of b of epoch 0 (gone)")
    assert [str(each) for each in found.epochs] == [
        "epoch 0: each of 9 samples exactly once",
        "epoch 1: each of 15 samples exactly once",
    ]


def test_of_much_that_was_left_out_a_few_are_named() -> None:
    out = tuple((0, "a", n, n + 1, "gone") for n in range(7))
    last = trail((0, "a", 7, 10), (0, "b", 0, 5), left_out=out)
    found = audit_shards([last], [last])
    assert (len(found.problems), found.problems[-1]) == (6, "left out: 2 more pieces of epoch 0")


def test_what_was_left_out_is_written_down() -> None:
    out = [[0, "a", 3, 4, "gone"]]
    told = {"trained": [], "lost": False, "left_out": out}
    once = from_line(to_line({"leases": left(PLAN, 5)}, told, None))
    assert once.left_out == ((0, "a", 3, 4, "gone"),)
    assert joined(once, once).left_out == 2 * once.left_out


def test_what_another_job_had_trained_on_is_not_counted() -> None:
    ledger = Ledger(PLAN, retries=0)
    ledger.restore(0, None)
    first, second = ledger.take(ME, 0, 0, 0.0, 2)
    ledger.fail(ME, second.id, 6, "gone")
    ledger.consume(ME, 1, {first.id: Progress(3), second.id: Progress(6)}, 0.0)
    begun = ledger.state()
    rest = [each for n in (1, 2, 3, 4) for each in ledger.take(ME, n, 0, 0.0)]
    ledger.restore(1, None)
    state = {**begun, "cursor": [1, 0], "free": []}
    mine = Trail(((0, "a", 3, 4), (0, "a", 8, 10), (0, "b", 0, 5)), False, state, begun=begun)
    assert rest
    found = audit_shards([mine], [mine], begun)
    assert found.problems == (), "the other job could not read that"
    assert [str(each) for each in found.epochs] == ["epoch 0: each of 8 samples exactly once"]
    wrong = replace(mine, trained=((0, "a", 2, 4), (0, "b", 0, 5)))
    assert str(audit_shards([wrong], [wrong], begun).epochs[0]) == (
        "epoch 0: missing: 2 (8 to 9 of a); more than once: 1 (2 of a)"
    )
    later = trail(*((1, *each[1:]) for each in WHOLE), taken=10)
    found = audit_shards([later], [later], left(PLAN, 5))
    assert [str(each) for each in found.epochs] == ["epoch 1: each of 15 samples exactly once"]


def test_a_file_of_unknown_length_that_another_job_had_read_to_its_end() -> None:
    plan = Plan.of_files({"a": None}, 4)
    begun = {**left(plan, 1), "free": [[0, 0, 5, 1 << 62]]}
    last = trail(plan=plan, taken=1)
    found = audit_shards([last], [last], begun)
    assert [str(each) for each in found.epochs] == ["epoch 0: each of 0 samples exactly once"]


@pytest.mark.parametrize(
    ("trails", "said"),
    [
        ([trail(*WHOLE, left={"cursor": [1, 0]})], "nobody wrote down what the data were"),
        ([trail(*WHOLE), trail(plan=Plan.of_samples(3, 1))], "the data were not the same in all rounds"),
        ([trail(*WHOLE), trail(taken=4)], "the ranks of the last step do not agree on what is left"),
        ([trail(*WHOLE, is_lost=True)], "something that was trained on was not written down"),
        ([trail(left={**left(PLAN, 5), "cursor": 3})], "the saved leases are damaged"),
        ([trail(left={**left(PLAN, 5), "plan": [1]})], "what the data were is damaged"),
        ([trail(left={**left(PLAN, 5), "plan": [[], 1, 1, 1, 1]})], "there are no records to deal out"),
    ],
)
def test_what_speaks_against_the_record(trails: list[Trail], said: str) -> None:
    found = audit_shards(trails, trails)
    assert not found.is_exact
    assert any(each.startswith(said) for each in found.problems), found


def test_a_plan_is_written_once() -> None:
    state = {"format": 1, "epoch": 0, "leases": left(PLAN, 5)}
    assert is_shards(state)
    assert not is_shards({"leases": 3})
    assert not is_shards(3)
    told = {"trained": [list(each) for each in WHOLE], "lost": False}
    first, second = to_line(state, told, None), to_line(state, told, PLAN.identity)
    assert "plan" in first["left"]
    assert "plan" not in second["left"]
    both = joined(from_line(first), from_line(second))
    assert (both.trained, both.left["plan"]) == ((*WHOLE, *WHOLE), PLAN.identity)
    assert "plan" not in joined(from_line(second), from_line(second)).left


@pytest.mark.parametrize(
    "line",
    [
        {},
        {"left": {}, "trained": [[0, "a", 3]], "lost": False},
        {"left": {}, "trained": [[0, "a", 3, 3]], "lost": False},
        {"left": 3, "trained": [], "lost": False},
        {"left": {}, "trained": 3, "lost": False},
        {"left": {}, "trained": [], "lost": False, "begun": 3},
        {"left": {}, "trained": [], "lost": False, "left_out": 3},
        {"left": {}, "trained": [], "lost": False, "left_out": [[0, "a", 3, 3, "gone"]]},
        {"left": {}, "trained": [], "lost": False, "left_out": [[0, "a", 3, 4]]},
    ],
)
def test_damaged_lines(line: Any) -> None:
    with pytest.raises(DataError, match="what was trained on is damaged"):
        from_line(line)
    with pytest.raises(DataError, match="what was trained on is damaged"):
        read_saved({"step": 1, "data": {}, "shards": {"data": line}})
    with pytest.raises(DataError, match="it has no shards"):
        read_saved({"step": 1, "data": {}, "shards": 3})


# -- in the history of a model


def saved(step: int, *trained: tuple[int, str, int, int], taken: int, **changes: Any) -> Saved:
    line = to_line({"leases": left(PLAN, taken)}, {"trained": trained, "lost": False}, None)
    return read_saved(saved_line(step, {}, {"data": line}, **changes))


def test_steps_that_were_not_restored_do_not_count_and_what_was_not_kept_does() -> None:
    records = [
        RankRecord(
            Start(0, 0, 1),
            (
                saved(1, (0, "a", 0, 4), taken=1),
                saved(2, (0, "a", 4, 8), taken=2, was_kept=False),
                saved(3, taken=2),
                saved(4, (0, "a", 8, 10), taken=3),
            ),
        ),
        RankRecord(
            Start(1, 0, 1, CommitId(0, 3)),
            (saved(4, (0, "a", 8, 10), taken=3), saved(5, (0, "b", 0, 5), taken=5)),
        ),
    ]
    verdict = History(records).verdict()
    assert (verdict.is_exact, verdict.rounds, verdict.audits[0][0]) == (True, (0, 1), "data")
    with pytest.raises(DataError, match="no round has a record of step 2 from all"):
        History(records).verdict(2)


def test_a_step_that_is_saved_twice_has_all_that_was_trained_on() -> None:
    first, again = saved(1, (0, "a", 0, 4), taken=1, was_kept=False), saved(1, (0, "a", 4, 8), taken=2)
    both = again.after(first)
    assert (both.shards["data"].trained, both.was_kept) == (((0, "a", 0, 4), (0, "a", 4, 8)), True)
    assert replace(again, shards={}).after(first).shards == first.shards
    assert again.after(replace(first, shards={})).shards == again.shards


def test_a_history_that_went_on_from_another_job_begins_with_what_was_left_there() -> None:
    def line(step: int, *trained: Any, taken: int, **begun: Any) -> Saved:
        told = {"trained": trained, "lost": False, **begun}
        return read_saved(saved_line(step, {}, {"data": to_line({"leases": left(PLAN, taken)}, told, None)}))

    begun = {"begun": {key: it for key, it in left(PLAN, 3).items() if key != "plan"}}
    start = Start(0, 0, 2, CommitId(0, 8), "run7")
    first = line(9, (0, "b", 0, 4), taken=4, **begun)
    other = RankRecord(replace(start, rank=1), (line(9, taken=4),))
    verdict = History([RankRecord(start, (first,)), other]).verdict()
    assert (verdict.is_exact, verdict.begun) == (True, CommitId(0, 8))
    assert [str(each) for each in verdict.audits[0][1].epochs] == [
        "epoch 0: each of 4 samples exactly once, 1 still to come"
    ]
    untold = History([RankRecord(start, other.saved), other]).verdict()
    assert untold.audits[0][1].problems == (
        "nobody has written down what was left of data when this job went on",
    )
    assert joined(first.shards["data"], other.saved[0].shards["data"]).begun == begun["begun"]
    assert joined(other.saved[0].shards["data"], first.shards["data"]).begun == begun["begun"]


def test_a_rank_without_the_shards_is_named() -> None:
    one, other = saved(1, *WHOLE, taken=5), Saved(1, {})
    history = History([RankRecord(Start(0, 0, 2), (one,)), RankRecord(Start(0, 1, 2), (other,))])
    assert history.verdict().audits[0][1].problems == (
        "not all ranks of step 1 of round 0 have written down what is left of data",
    )


# -- ranges

ranges = st.lists(st.tuples(st.integers(0, 20), st.integers(1, 6)).map(lambda it: (it[0], sum(it))))


def numbers(found: list[tuple[int, int]]) -> list[int]:
    return [n for start, stop in found for n in range(start, stop)]


@given(ranges, ranges)
def test_ranges(some: list[tuple[int, int]], others: list[tuple[int, int]]) -> None:
    some, others = sorted(some), sorted(others)
    once, twice = _overlaps(some)
    counted = Counter(numbers(some))
    assert numbers(once) == sorted(counted)
    assert set(numbers(twice)) == {n for n, count in counted.items() if count > 1}
    assert numbers(_without(some, others)) == sorted(set(numbers(some)) - set(numbers(others)))
