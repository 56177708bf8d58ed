"""The proof that each sample is in a model's history once: what it accepts, and how it names faults."""

from __future__ import annotations

import pytest

from elasticrun.core.data import audit as module
from elasticrun.core.data.audit import Audit, Commit, Wrong, audit, lineage
from elasticrun.core.data.order import Order, Source
from elasticrun.core.data.position import Position
from elasticrun.core.protocol.commits import CommitId

SOURCE = Source(20, 1, True)
START = Position(SOURCE)


def commit(round_: int, step: int, *positions: Position) -> Commit:
    return Commit(CommitId(round_, step), positions)


def same(round_: int, step: int, position: Position, world: int = 2) -> Commit:
    return commit(round_, step, *[position] * world)


def samples(epoch: int, *places: int) -> tuple[int, ...]:
    return tuple(Order(SOURCE, epoch).indices(places))


def said(found: Audit) -> list[str]:
    return [str(each) for each in found.epochs]


def test_an_undisturbed_training_is_exact() -> None:
    position, chain = START, []
    for step in range(1, 11):
        position = position.advance(4, 2)
        if position.at == 20:
            position = position.end().turn(position.epoch + 1)
        chain.append(same(0, step, position))
    found = audit(chain)
    assert found.is_exact
    assert said(found) == [f"epoch {epoch}: each of 20 samples exactly once" for epoch in (0, 1)]


def test_an_epoch_that_is_under_way_owes_only_what_lies_behind() -> None:
    found = audit([same(0, 1, START.advance(6, 2))])
    assert found.is_exact
    assert said(found) == ["epoch 0: each of 6 samples exactly once, 14 still to come"]


def test_a_training_that_has_taken_nothing_is_exact() -> None:
    assert audit([same(0, 0, START)]) == Audit((), ())


def test_going_on_from_a_commit_in_another_world_is_exact() -> None:
    first = START.advance(8, 2)
    second = first.resume().advance(9, 3)
    found = audit([same(0, 2, first), same(1, 3, first.resume(), 3), same(1, 5, second, 3)])
    assert found.is_exact
    last = second.resume().advance(4, 4).end()
    found = audit([same(0, 2, first), same(1, 5, second, 3), same(2, 6, last, 4)])
    assert found.is_exact
    assert said(found) == ["epoch 0: each of 20 samples exactly once, 1 as padding"]


def test_data_that_is_newer_than_the_model_is_named() -> None:
    ahead = START.advance(12, 2).resume().advance(2, 2)
    found = audit([same(0, 2, START.advance(8, 2)), same(1, 3, ahead)])
    (epoch,) = found.epochs
    assert not found.is_exact
    assert epoch.missing == Wrong(4, samples(0, 8, 9, 10, 11))
    assert epoch.repeated == Wrong()
    names = ", ".join(map(str, epoch.missing.first))
    assert str(epoch) == f"epoch 0: missing: 4 ({names}); more than once: 0, 6 still to come"


def test_data_that_is_older_than_the_model_is_named() -> None:
    behind = START.advance(2, 2).resume().advance(18, 2).end()
    found = audit([same(0, 2, START.advance(8, 2)), same(1, 9, behind)])
    (epoch,) = found.epochs
    assert epoch.repeated == Wrong(6, samples(0, 2, 3, 4, 5, 6))
    assert epoch.missing == Wrong()
    assert str(epoch).endswith(f"more than once: 6 ({', '.join(map(str, epoch.repeated.first))}, ...)")


def test_a_position_that_was_not_restored_at_all_repeats() -> None:
    found = audit([same(0, 2, START.advance(8, 2)), same(1, 3, START.advance(4, 2))])
    assert found.epochs[0].repeated == Wrong(4, samples(0, 0, 1, 2, 3))


def test_an_epoch_that_was_run_again_is_twice_in_the_history() -> None:
    again = START.advance(20, 2).end().turn(0).advance(20, 2).end()
    (epoch,) = audit([same(0, 1, again)]).epochs
    assert epoch.repeated.count == 20


def test_an_epoch_that_was_left_early_misses_its_rest() -> None:
    (left, _) = audit([same(0, 1, START.advance(18, 2).turn(1).advance(2, 2))]).epochs
    assert left.missing == Wrong(2, samples(0, 18, 19))


def test_what_drop_last_drops_is_told_apart() -> None:
    position = START.advance(18, 3).end().turn(1).advance(18, 3).end()
    found = audit([same(0, 12, position, 3)])
    assert found.is_exact
    assert said(found) == [
        f"epoch {epoch}: each of 18 samples exactly once, 2 dropped by drop_last" for epoch in (0, 1)
    ]


def test_an_epoch_of_which_all_was_dropped_is_listed() -> None:
    (epoch,) = audit([same(0, 0, START.end())]).epochs
    assert (epoch.samples, epoch.dropped) == (0, 20)


def test_epochs_between_two_commits_are_counted() -> None:
    position = START
    for epoch in range(5):
        position = position.turn(epoch).advance(20, 2).end()
    found = audit([same(0, 1, START.advance(4, 2)), same(0, 9, position)])
    assert found.is_exact
    assert len(found.epochs) == 5


def test_ranks_at_different_places_are_named_and_so_is_what_is_missing() -> None:
    near, far = START.advance(8, 2), START.advance(12, 2)
    found = audit([commit(0, 3, far, near)])
    assert found.problems == (
        "the ranks of step 3 of round 0 are at different places:"
        " rank 1 at 8 of epoch 0, rank 0 at 12 of epoch 0",
    )
    assert found.epochs[0].missing == Wrong(2, samples(0, 9, 11))
    assert not found.is_exact


def test_ranks_that_meet_again_have_taken_everything() -> None:
    near, far = START.advance(8, 2), START.advance(12, 2)
    found = audit([commit(0, 3, far, near), same(0, 5, START.advance(20, 2).end())])
    assert found.problems
    assert said(found) == ["epoch 0: each of 20 samples exactly once"]


def test_ranks_with_different_histories_are_named() -> None:
    one, other = START.advance(4, 2), START.advance(4, 2).resume()
    found = audit([commit(0, 3, one, other)])
    assert found.problems == ("the ranks of step 3 of round 0 came to one place by different ways",)
    assert found.epochs[0].missing.count == 2


def test_another_dataset_is_named() -> None:
    other = Position(Source(21, 1, True)).advance(4, 2)
    found = audit([same(0, 1, other), same(1, 2, START.advance(4, 2))])
    (problem,) = found.problems
    assert problem.startswith("step 1 of round 0 has a position in other data than the last one")
    assert not found.is_exact


def test_a_position_that_went_back_within_a_round_claims_all_of_its_own() -> None:
    found = audit([same(0, 1, START.advance(8, 2)), same(0, 2, START.advance(6, 2))])
    assert found.epochs[0].repeated.count == 6


def test_steps_of_blocks_that_do_not_go_round_are_exact() -> None:
    first = START.advance(14, 3, 7)
    ranks = [first.advance(6, 3, 7), first, first]
    assert audit([same(0, 2, first, 3), same(0, 3, first.advance(6, 3, 7), 3)]).is_exact
    assert audit([commit(0, 3, *ranks)]).epochs[0].missing == Wrong(4, samples(0, 15, 16, 18, 19))


def test_windows_make_no_difference(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "NAMED", 20)
    near, far = START.advance(6, 3), START.advance(15, 3).resume().advance(3, 3)
    chain = [commit(0, 2, near, far, near), same(1, 3, START.advance(20, 2).end())]
    whole = audit(chain)
    assert whole.epochs[0].repeated.count
    for window in (1, 2, 3, 7, 19, 20):
        monkeypatch.setattr(module, "WINDOW", window)
        assert audit(chain) == whole


def test_the_history_of_a_commit_leads_through_the_commits_that_were_restored() -> None:
    ids = [CommitId(0, 1), CommitId(0, 2), CommitId(0, 3), CommitId(1, 3), CommitId(1, 4), CommitId(2, 3)]
    restored = {0: None, 1: CommitId(0, 2), 2: CommitId(0, 2), 3: CommitId(1, 3)}
    first = [CommitId(0, 1), CommitId(0, 2)]
    assert lineage(ids, restored, CommitId(1, 4)) == (*first, CommitId(1, 3), CommitId(1, 4))
    assert lineage(reversed(ids), restored, CommitId(2, 3)) == (*first, CommitId(2, 3))
    with pytest.raises(ValueError, match="round 1 cannot go on from step 3 of round 1"):
        lineage(ids, {**restored, 1: CommitId(1, 3)}, CommitId(1, 4))
    with pytest.raises(KeyError, match="CommitId"):
        lineage(ids, restored, CommitId(2, 7))


# -- with the model of another job as its beginning


def going_on(first: Position, *rest: Position) -> list[Commit]:
    """The history of a job that went on from ``first``, which another one had."""
    return [same(0, 9 + step, each, 1) for step, each in enumerate(rest)] if rest else [same(0, 9, first, 1)]


def test_what_another_job_took_is_not_counted() -> None:
    early = START.advance(20, 2).end().turn(1).advance(8, 2).resume()
    last = early.advance(12, 1).end().turn(2).advance(6, 1)
    chain = going_on(early, early.advance(4, 1), last)
    assert not audit(chain).is_exact, "it did not take all of that"
    found = audit(chain, goes_on=True)
    assert found.is_exact
    assert said(found) == [
        "epoch 1: each of 12 samples exactly once",
        "epoch 2: each of 6 samples exactly once, 14 still to come",
    ]


def test_a_job_that_went_on_is_checked_in_the_epoch_that_was_under_way() -> None:
    early = START.advance(8, 2).resume()
    late = START.advance(10, 2).resume()  # the model is that of place 8
    wrong = audit([same(0, 9, early), same(1, 10, late.advance(10, 2).end())], goes_on=True)
    assert said(wrong)[0].startswith("epoch 0: missing: 2 (")
    again = audit([same(0, 9, early), same(1, 10, START.advance(6, 2).resume().advance(14, 2).end())], True)
    assert said(again)[0].startswith("epoch 0: missing: 0; more than once: 2 (")


def test_an_epoch_that_another_job_had_ended_is_not_named() -> None:
    early = START.advance(20, 1).end().resume()
    assert audit(going_on(early), goes_on=True) == Audit((), ())
    found = audit(going_on(early, early.turn(1).advance(3, 1)), goes_on=True)
    assert said(found) == ["epoch 1: each of 3 samples exactly once, 17 still to come"]
    dropped = Position(SOURCE).advance(18, 3).end().resume()
    found = audit(going_on(dropped, dropped.turn(1).advance(3, 3)), goes_on=True)
    assert said(found) == ["epoch 1: each of 3 samples exactly once, 17 still to come"]
    padded = Position(SOURCE).advance(21, 3).resume()
    found = audit(going_on(padded, padded.end().turn(1).advance(3, 3)), goes_on=True)
    assert said(found) == ["epoch 1: each of 3 samples exactly once, 17 still to come"]


def test_an_epoch_that_another_job_had_left_early_is_not_named_and_one_that_this_job_left_is() -> None:
    early = START.advance(5, 1).turn(1).advance(8, 1).resume()
    found = audit(going_on(early, early.advance(12, 1)), goes_on=True)
    assert said(found) == ["epoch 1: each of 12 samples exactly once"]
    found = audit(going_on(early, early.turn(0).advance(5, 1)), goes_on=True)
    assert [each.epoch for each in found.epochs] == [0, 1]
    assert found.epochs[0].repeated.count == 5, "it began epoch 0 anew"
    assert found.epochs[1].missing.count == 12
