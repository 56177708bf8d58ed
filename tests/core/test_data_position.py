"""What was taken of an epoch, and what each rank takes next."""

from __future__ import annotations

import pytest

from elasticrun.core.data.order import Source
from elasticrun.core.data.position import Epochs, Position, Span, places_of, samples_left

SOURCE = Source(10, 0, True)
START = Position(SOURCE)


@pytest.mark.parametrize(
    ("at", "world", "drop_last", "left"),
    [
        (0, 1, False, 10),
        (0, 3, False, 4),
        (0, 3, True, 3),
        (9, 3, False, 1),
        (9, 3, True, 0),
        (10, 3, False, 0),
        (12, 3, False, 0),
        (12, 3, True, 0),
        (0, 16, False, 1),
        (0, 16, True, 0),
    ],
)
def test_what_is_left_of_ten_samples(at: int, world: int, drop_last: bool, left: int) -> None:
    assert samples_left(10, at, world, drop_last) == left


def test_ranks_take_turns() -> None:
    assert [list(places_of(rank, 4, 2, 3)) for rank in range(3)] == [[4, 7], [5, 8], [6, 9]]


def test_shares_of_a_span_that_goes_round() -> None:
    span = Span(4, 12, 2, 4)
    assert [list(span.share(rank)) for rank in range(2)] == [[range(4, 12, 2)], [range(5, 12, 2)]]


def test_each_block_that_does_not_go_round_begins_with_rank_0() -> None:
    span = Span(0, 8, 2, 3)  # the last block has two places
    assert [[*map(list, span.share(rank))] for rank in range(2)] == [[[0, 2], [3, 5], [6]], [[1], [4], [7]]]


def test_spans_of_one_world_are_one() -> None:
    position = START.advance(2, 2).advance(0, 2).advance(4, 2)
    assert position.spans == (Span(0, 6, 2, 2),)
    assert position.advance(3, 3).spans == (Span(0, 6, 2, 2), Span(6, 9, 3, 3))
    assert position.advance(4, 2, 4).spans == (Span(0, 6, 2, 2), Span(6, 10, 2, 4))


def test_a_span_that_ends_within_a_block_does_not_go_on() -> None:
    position = START.advance(3, 2, 4).advance(4, 2, 4)
    assert position.spans == (Span(0, 3, 2, 4), Span(3, 7, 2, 4))


def test_epochs_of_which_the_same_was_taken_are_one_entry() -> None:
    position = START
    for epoch in range(4):
        position = position.turn(epoch).advance(10 if epoch != 2 else 8, 2).end()
    whole, less = (Span(0, 10, 2, 2),), (Span(0, 8, 2, 2),)
    assert position.past == (Epochs(0, 1, whole, True), Epochs(2, 2, less, True))
    assert (position.epoch, position.at, position.places) == (3, 10, 38)
    again = position.turn(3)
    assert again.past[-1] == Epochs(3, 3, whole, True)
    assert again.advance(10, 2).end().turn(9).past[-1] == Epochs(3, 3, whole, True)  # twice: not one entry
    assert len(again.advance(10, 2).end().turn(9).past) == 4


def test_an_epoch_that_was_left_early_is_not_one_that_has_ended() -> None:
    position = START.advance(4, 2).turn(1).advance(4, 2).end().turn(2)
    assert [each.ended for each in position.past] == [False, True]


def test_an_epoch_of_which_nothing_was_taken_leaves_no_trace_unless_it_has_ended() -> None:
    assert START.turn(5).past == ()
    assert START.end().turn(1).past == (Epochs(0, 0, (), True),)
    assert START.end().turn(1).places == 0


def test_who_goes_on_claims_only_what_comes() -> None:
    position = START.advance(10, 2).end().turn(1).advance(4, 2).resume()
    assert (position.resumed, position.spans) == (14, (Span(0, 4, 2, 2),))
    assert position.advance(2, 2).end().turn(2).resumed == 14


def test_taking_more_after_the_end_is_no_end() -> None:
    assert not START.end().advance(2, 2).ended
