"""The batches of a single reader from a position on, over all epochs to come.

Whoever prepares batches goes through them ahead of the loop. So each batch has its epoch and its indices with
it, and the position is made of those that the loop has got: see ``Course.take_ahead``.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from elasticrun.core.data.order import Order
from elasticrun.core.data.position import Position


class Ahead(NamedTuple):
    """One batch."""

    epoch: int
    indices: tuple[int, ...]


def batches_ahead(position: Position, size: int, drop_last: bool) -> Iterator[Ahead]:
    """The batches after a position, without end. With ``drop_last`` none is smaller than ``size``, and an
    epoch must have one.
    """
    length = position.source.length
    epoch, at = (position.epoch + 1, 0) if position.ended else (position.epoch, position.at)
    while True:
        order = Order(position.source, epoch)
        for start in range(at, length, size):
            places = range(start, min(start + size, length))
            if len(places) == size or not drop_last:
                yield Ahead(epoch, tuple(order.indices(places)))
        epoch, at = epoch + 1, 0
