"""Batches that are prepared ahead of the loop: in the order of the data, and each moves the position."""

from __future__ import annotations

from itertools import islice

from elasticrun.core.data.ahead import batches_ahead
from elasticrun.core.data.course import Course
from elasticrun.core.data.order import Order, Source
from elasticrun.core.data.position import Epochs, Position, Span

SOURCE = Source(10, 3, True)


def taken(course: Course, batches: int, size: int, drop_last: bool = False) -> list[list[int]]:
    """Go on with so many batches, of which more are prepared than are taken; the indices by epoch."""
    found: dict[int, list[int]] = {}
    ahead = list(islice(batches_ahead(course.position, size, drop_last), batches + 3))
    for batch in ahead[:batches]:
        course.take_ahead(batch)
        found.setdefault(batch.epoch, []).extend(batch.indices)
    return [found[epoch] for epoch in sorted(found)]


def whole(epoch: int) -> list[int]:
    return list(Order(SOURCE, epoch).indices(range(10)))


def test_epoch_follows_epoch_each_in_its_own_order() -> None:
    course = Course(Position(SOURCE), 1, 0)
    assert taken(course, 6, 4) == [whole(0), whole(1)]
    assert (course.position.epoch, course.position.at, course.position.ended) == (1, 10, False)
    assert course.position.past == (Epochs(0, 0, (Span(0, 10, 1, 1),), True),)


def test_the_position_is_what_was_taken_and_not_what_was_prepared() -> None:
    course = Course(Position(SOURCE), 1, 0)
    first = taken(course, 2, 4)
    assert course.position.at == 8
    again = Course(Position(SOURCE), 1, 0)
    again.load(course.state())
    rest = taken(again, 2, 4)
    assert [*first[0], *rest[0]] == whole(0)
    assert rest[1] == whole(1)[:4]
    assert again.position.places == 14


def test_the_last_batch_may_be_dropped() -> None:
    course = Course(Position(SOURCE), 1, 0)
    assert taken(course, 4, 4, drop_last=True) == [whole(0)[:8], whole(1)[:8]]
    assert course.position.past == (Epochs(0, 0, (Span(0, 8, 1, 1),), True),)


def test_after_the_end_of_an_epoch_the_next_one_follows() -> None:
    course = Course(Position(SOURCE).advance(10, 1).end(), 1, 0)
    assert taken(course, 1, 4) == [whole(1)[:4]]
    assert (course.position.epoch, course.position.at) == (1, 4)
