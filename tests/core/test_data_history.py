"""The history of a model in what its ranks recorded: what makes it up, and what is said if one lacks."""

from __future__ import annotations

import json
from typing import Any

import pytest

from elasticrun.core.data.history import (
    FORMAT,
    History,
    RankRecord,
    Saved,
    Start,
    read_saved,
    read_start,
    saved_line,
    start_line,
)
from elasticrun.core.data.order import Source
from elasticrun.core.data.position import Position
from elasticrun.core.data.record import is_state, to_state
from elasticrun.core.protocol.commits import CommitId
from elasticrun.errors import DataError

START = Position(Source(20, 1, True))
WRONG: list[Any] = [3, [0], [0, "1"], [0, -1], {}]  # commits that cannot be


def rank(
    number: int, round_: int, world: int, restored: CommitId | None, *saved: tuple[int, Any]
) -> RankRecord:
    listed = (Saved(step, {"loader": it} if isinstance(it, Position) else it) for step, it in saved)
    return RankRecord(Start(round_, number, world, restored), tuple(listed))


def ranks(round_: int, world: int, restored: CommitId | None, *saved: tuple[int, Any]) -> list[RankRecord]:
    return [rank(number, round_, world, restored, *saved) for number in range(world)]


HALF, WHOLE = START.advance(10, 2), START.advance(10, 2).resume().advance(10, 1).end()
FIRST = ranks(0, 2, None, (1, START.advance(4, 2)), (2, HALF), (3, START.advance(14, 2)))
SECOND = ranks(1, 1, CommitId(0, 2), (3, WHOLE))


def test_the_history_leads_through_what_was_restored() -> None:
    found = History([*SECOND, *FIRST]).verdict()
    assert (found.final, found.rounds) == (CommitId(1, 3), (0, 1))
    ((name, audit),) = found.audits
    assert (name, found.is_exact) == ("loader", True)
    assert [str(each) for each in audit.epochs] == ["epoch 0: each of 20 samples exactly once"]


def test_a_planted_duplicate_and_a_planted_gap_are_named() -> None:
    older, newer = START.advance(8, 2), START.advance(12, 2)
    for begun, missing, repeated in ((older, 0, 2), (newer, 2, 0)):
        end = begun.resume().advance(20 - begun.at, 1).end()
        found = History([*FIRST, *ranks(1, 1, CommitId(0, 2), (3, end))]).verdict()
        (epoch,) = found.audits[0][1].epochs
        assert (epoch.missing.count, epoch.repeated.count) == (missing, repeated)
        assert not found.is_exact


def test_the_newest_step_counts_that_all_ranks_have_recorded() -> None:
    late = [rank(0, 0, 2, None, (1, HALF), (2, HALF)), rank(1, 0, 2, None, (1, HALF))]
    assert History(late).verdict().final == CommitId(0, 1)
    nothing_new = [*FIRST, rank(0, 1, 2, CommitId(0, 2), (3, WHOLE))]
    assert History(nothing_new).verdict().final == CommitId(0, 2)


def test_a_step_can_be_asked_for() -> None:
    history = History([*FIRST, *SECOND])
    assert history.verdict(1).final == CommitId(0, 1)
    assert history.verdict(3).final == CommitId(1, 3), "that of the newest round"
    with pytest.raises(DataError, match="no round has a record of step 7 from all of its ranks"):
        history.verdict(7)


def test_a_round_that_began_anew_has_no_earlier_history() -> None:
    assert History([*FIRST, *ranks(1, 1, None, (1, HALF))]).verdict().rounds == (1,)


def test_a_record_that_lacks_is_named() -> None:
    lacking = [FIRST[0], *SECOND]
    with pytest.raises(DataError, match=r"leads to step 2 of round 0, of which .* left no record: 1$"):
        History(lacking).verdict()
    with pytest.raises(DataError, match="no rank of that round left a record"):
        History(SECOND).verdict()
    many = [rank(0, 0, 9, None, (2, HALF)), *SECOND]
    with pytest.raises(DataError, match=r"left no record: 1, 2, 3, 4, 5, \.\.\.$"):
        History(many).verdict()
    absurd = [rank(0, 0, 1 << 60, None, (2, HALF)), *SECOND]
    with pytest.raises(DataError, match="all but 1 of its 1152921504606846976 ranks left no record"):
        History(absurd).verdict()


def test_there_is_nothing_to_audit() -> None:
    with pytest.raises(DataError, match="no rank has recorded anything"):
        History([]).verdict()
    with pytest.raises(DataError, match="round 0 began with nothing, and no step of it"):
        History([rank(0, 0, 2, None, (1, HALF))]).verdict()
    with pytest.raises(DataError, match="no position in data was saved"):
        History(ranks(0, 2, None, (1, {}))).verdict()


def test_a_round_cannot_go_on_from_itself() -> None:
    with pytest.raises(DataError, match="round 1 cannot have gone on from step 1 of round 1"):
        History(ranks(1, 1, CommitId(1, 1), (1, HALF), (2, HALF))).verdict()


def stored(
    number: int, restored: CommitId, run: str, *saved: tuple[int, Position], world: int = 1
) -> list[RankRecord]:
    """A round that went on from what is in a storage."""
    starts = (Start(number, rank, world, restored, run) for rank in range(world))
    return [RankRecord(each, tuple(Saved(step, {"loader": it}) for step, it in saved)) for each in starts]


@pytest.mark.parametrize("run", ["run7", ""])
def test_what_another_job_left_in_the_storage_is_the_beginning(run: str) -> None:
    early = HALF.resume()
    first = stored(0, CommitId(0, 2), run, (3, early.advance(4, 2)), world=2)
    second = ranks(1, 1, CommitId(0, 3), (4, early.advance(4, 2).resume().advance(6, 1).end()))
    found = History([*first, *second]).verdict()
    assert (found.is_exact, found.rounds, found.begun) == (True, (0, 1), CommitId(0, 2))
    assert [str(each) for each in found.audits[0][1].epochs] == ["epoch 0: each of 10 samples exactly once"]
    assert History(FIRST).verdict().begun is None


def test_a_job_may_go_on_from_another_one_twice() -> None:
    """It lost all that it had in memory before it had anything in the storage."""
    first = stored(0, CommitId(0, 2), "run7", (3, HALF.resume().advance(4, 2)))
    second = stored(1, CommitId(0, 2), "run7", (3, HALF.resume().advance(10, 1).end()))
    found = History([*first, *second]).verdict()
    assert (found.is_exact, found.rounds, found.begun) == (True, (1,), CommitId(0, 2))


def test_what_the_job_itself_left_in_the_storage_is_checked() -> None:
    second = stored(1, CommitId(0, 2), "mine", (3, WHOLE))
    found = History([*FIRST, *second]).verdict()
    assert (found.is_exact, found.rounds, found.begun) == (True, (0, 1), None)
    with pytest.raises(DataError, match=r"leads to step 2 of round 0, and no rank of that round"):
        History(second).verdict()


def test_a_job_that_went_on_and_saved_nothing_has_no_model_to_audit() -> None:
    with pytest.raises(DataError, match="round 0 went on from step 2 of another job, and no step of it has"):
        History(stored(0, CommitId(0, 2), "run7")).verdict()


def test_ranks_of_a_round_have_to_agree() -> None:
    one = rank(0, 1, 2, CommitId(0, 2))
    for other in (rank(1, 1, 2, None), rank(1, 1, 3, CommitId(0, 2))):
        with pytest.raises(DataError, match="the ranks of round 1 disagree: rank 0 was one of 2"):
            History([one, other])


def test_each_name_is_audited_and_one_that_lacks_is_a_problem() -> None:
    both = {"train": HALF, "valid": START.advance(2, 2)}
    found = History(ranks(0, 2, None, (1, {"train": START}), (2, both))).verdict()
    assert [name for name, _ in found.audits] == ["train", "valid"]
    train, valid = (audit for _, audit in found.audits)
    assert train.is_exact
    assert valid.problems == ("step 1 of round 0 has no position of valid on rank 0",)
    torn = [rank(0, 0, 2, None, (1, both)), rank(1, 0, 2, None, (1, {"train": HALF}))]
    ((_, train), (_, valid)) = History(torn).verdict().audits
    assert train.is_exact
    assert (valid.epochs, valid.problems) == (
        (),
        ("step 1 of round 0 has no position of valid on rank 1",),
    )


def test_lines_come_back() -> None:
    for start in (
        Start(3, 1, 2),
        Start(3, 1, 2, CommitId(2, 9)),
        Start(3, 1, 2, CommitId(9, 9), "run7"),
        Start(3, 1, 2, CommitId(9, 9), ""),
    ):
        assert read_start(json.loads(json.dumps(start_line(start)))) == start
    line = json.loads(json.dumps(saved_line(7, {"loader": to_state(HALF)})))
    assert read_saved(line) == Saved(7, {"loader": HALF})


@pytest.mark.parametrize(
    "line",
    [
        [],
        {},
        {"format": FORMAT + 1, "round": 0, "rank": 0, "world": 1},
        {"format": FORMAT, "round": 0, "rank": 0},
        {"format": FORMAT, "round": 0, "rank": 2, "world": 2},
        {"format": FORMAT, "round": -1, "rank": 0, "world": 2},
        *({"format": FORMAT, "round": 1, "rank": 0, "world": 1, "restored": wrong} for wrong in WRONG),
    ],
)
def test_first_lines_that_are_none_are_refused(line: Any) -> None:
    with pytest.raises(DataError, match=r"no record of data positions|first line is damaged"):
        read_start(line)


@pytest.mark.parametrize(
    "line",
    [[], {}, {"step": 1}, {"step": "1", "data": {}}, {"step": -1, "data": {}}, {"step": 1, "data": {"a": 1}}],
)
def test_further_lines_that_are_none_are_refused(line: Any) -> None:
    with pytest.raises(DataError):
        read_saved(line)


def test_what_is_the_state_of_a_position() -> None:
    assert is_state(to_state(START))
    for other in ({}, {"format": 1}, {"sampler": "x", "course": to_state(START)}, 3, None):
        assert not is_state(other)
