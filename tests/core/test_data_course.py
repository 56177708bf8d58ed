"""The iteration of a dataset on one rank: it goes on, turns to the next epoch, and is saved and restored."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

from elasticrun.core.data.course import Course
from elasticrun.core.data.order import Order, Source
from elasticrun.core.data.position import Position, Span
from elasticrun.core.data.record import from_state, to_state
from elasticrun.errors import DataError

SOURCE = Source(10, 3, True)


def course(source: Source = SOURCE, world: int = 2) -> Course:
    return Course(Position(source), world, 0)


def test_an_iteration_goes_on_and_after_the_end_the_next_epoch_begins() -> None:
    it = course()
    it.begin()
    it.take(4, 2)
    it.begin()
    assert (it.position.epoch, it.position.at) == (0, 4)
    it.take(6, 2)
    it.begin()
    assert (it.position.epoch, it.position.at) == (0, 10)  # nothing is left but the end
    assert it.epoch == 0
    it.end()
    assert it.epoch == 1
    it.begin()
    assert (it.position.epoch, it.position.at, it.epoch) == (1, 0, 1)


def test_single_samples_of_all_ranks_add_up() -> None:
    it = course(world=3)
    it.take_one()
    it.take_one()
    assert it.position.spans == (Span(0, 6, 3, 3),)
    assert it.position.at == 6
    it.take_one()
    it.load(course().state())
    assert it.position.at == 0


def test_the_order_is_that_of_the_epoch() -> None:
    it = course()
    first = it.order
    assert it.order is first
    it.set_epoch(4)
    assert [*it.order.indices(range(10))] == [*Order(SOURCE, 4).indices(range(10))]


def test_setting_the_epoch_that_is_under_way_changes_nothing() -> None:
    it = course()
    it.take(4, 2)
    iteration = it.iteration
    it.set_epoch(0)
    assert (it.position.at, it.iteration) == (4, iteration)
    it.end()
    it.set_epoch(0)
    assert (it.position.epoch, it.position.at) == (0, 0)
    it.set_epoch(7)
    assert it.position.epoch == 7


@pytest.mark.parametrize("epoch", [-1, True, 1.0, "1", None])
def test_what_is_no_epoch_is_refused(epoch: Any) -> None:
    with pytest.raises(DataError, match="an epoch is a number from 0 on, got"):
        course().set_epoch(epoch)


@pytest.mark.parametrize("what", ["begin", "load", "set_epoch"])
def test_an_older_iteration_cannot_go_on(what: str) -> None:
    it = course()
    it.begin()
    iteration = it.iteration
    it.check(iteration)
    arguments: dict[str, tuple[Any, ...]] = {"begin": (), "load": (it.state(),), "set_epoch": (3,)}
    getattr(it, what)(*arguments[what])
    with pytest.raises(DataError, match="this iteration is over"):
        it.check(iteration)


def test_a_position_is_restored_as_it_was_saved() -> None:
    position = Position(SOURCE).advance(10, 2, 5).end().turn(1).advance(2, 2).advance(3, 3).resume()
    assert from_state(pickle.loads(pickle.dumps(to_state(position)))) == position


def test_a_position_is_restored_in_another_world() -> None:
    before, after = course(world=2), course(world=3)
    before.take(4, 2)
    after.load(before.state())
    after.take(3, 3)
    assert after.position.spans == (Span(0, 4, 2, 2), Span(4, 7, 3, 3))
    assert after.position.resumed == 4


def test_another_length_is_refused_with_both() -> None:
    it = course(Source(11, 3, True))
    with pytest.raises(DataError, match="has 11 samples, and had 10 when"):
        it.load(course().state())


@pytest.mark.parametrize("other", [Source(10, 4, True), Source(10, 3, False)])
def test_another_order_is_refused(other: Source) -> None:
    shuffle = other.shuffle
    words = f"has seed={other.seed}, shuffle={shuffle}, and had seed=3, shuffle=True when"
    with pytest.raises(DataError, match=words):
        course(other).load(course().state())


@pytest.mark.parametrize("state", [None, [], {}, {"epoch": 1}])
def test_what_is_no_position_is_refused(state: Any) -> None:
    with pytest.raises(DataError, match="has no format"):
        from_state(state)


def test_the_position_of_a_sampler_of_others_is_refused() -> None:
    with pytest.raises(DataError, match="saved with sampler Theirs: load it with that sampler"):
        course().load({"sampler": "Theirs", "course": {}})


def test_another_format_is_refused() -> None:
    with pytest.raises(DataError, match=r"has format 2, this elasticrun reads 1"):
        from_state({**course().state(), "format": 2})


SPAN = [0, 4, 2, 2]


@pytest.mark.parametrize(
    "change",
    [
        {"length": 0},
        {"length": "10"},
        {"seed": 1.5},
        {"shuffle": 1},
        {"epoch": -1},
        {"ended": None},
        {"resumed": 5},
        {"resumed": True},
        {"spans": 3},
        {"spans": [[0, 4, 2]]},
        {"spans": [[1, 4, 2, 2]]},
        {"spans": [SPAN, [5, 6, 2, 2]]},
        {"spans": [[0, 0, 2, 2]]},
        {"spans": [[0, 4, 0, 2]]},
        {"spans": [[0, 4, 2, 1]]},
        {"past": [[1, 0, True, [SPAN]]]},
        {"past": [[0, 0, 1, [SPAN]]]},
        {"past": [[0, 0, True]]},
        {"past": None},
    ],
)
def test_a_damaged_position_is_refused(change: dict[str, Any]) -> None:
    it = course()
    it.take(4, 2)
    state = it.state()
    from_state(state)
    with pytest.raises(DataError, match="the saved position in the data is damaged: "):
        from_state({**state, **change})


def test_a_position_without_one_of_its_values_is_refused() -> None:
    for name in course().state().keys() - {"format"}:
        with pytest.raises(DataError, match=f"is damaged: KeyError.*{name}"):
            from_state({key: value for key, value in course().state().items() if key != name})
