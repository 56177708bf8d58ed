"""Where the iteration of a dataset is on one rank: the one thing here that changes.

Rules. An iteration goes on where the last one stopped. Once it was told that an epoch is over, the next
iteration begins the next epoch. Where the last batch was taken, but not yet the end noticed, the next
iteration has nothing to give but that end: so a script that is restarted there sees what it would have seen.
There is one iteration at a time: when another begins, or the position is set, an older one cannot go on.
"""

from __future__ import annotations

from typing import Any

from elasticrun.core.data.ahead import Ahead
from elasticrun.core.data.order import Order
from elasticrun.core.data.position import Position
from elasticrun.core.data.record import check_source, from_state, is_number, to_state
from elasticrun.errors import DataError


class Course:
    """The position of an iteration."""

    def __init__(self, position: Position, world: int, rank: int) -> None:
        self.world = world
        self.rank = rank
        self.iteration = 0  # its number
        self._position = position
        self._singles = 0  # samples that each rank has taken since, one by one
        self._order: tuple[int, Order] | None = None  # and its epoch

    @property
    def position(self) -> Position:
        """What was taken until now."""
        if self._singles:
            self._position = self._position.advance(self._singles * self.world, self.world)
            self._singles = 0
        return self._position

    @property
    def epoch(self) -> int:
        """The epoch of the next sample: after the end of one, the next one."""
        return self._position.epoch + self._position.ended

    @property
    def order(self) -> Order:
        """The order of this epoch."""
        epoch = self._position.epoch
        if self._order is None or self._order[0] != epoch:
            self._order = epoch, Order(self._position.source, epoch)
        return self._order[1]

    def begin(self) -> None:
        """Begin an iteration."""
        position = self.position
        self._set(position.turn(position.epoch + 1) if position.ended else position)

    def take_one(self) -> None:
        """Each rank has taken one more sample."""
        self._singles += 1

    def take(self, count: int, block: int) -> None:
        """All ranks together have taken ``count`` more places, in blocks of so many."""
        self._position = self.position.advance(count, self.world, block)

    def take_ahead(self, batch: Ahead) -> None:
        """The loop has got the next one of the batches that were prepared for a single rank."""
        if batch.epoch != self._position.epoch:
            self.end()
            self.begin()
        self.take(len(batch.indices), 1)

    def end(self) -> None:
        """The loop was told that the epoch is over."""
        self._position = self.position.end()

    def set_epoch(self, epoch: int) -> None:
        """Go to the beginning of an epoch; stay where it is if that epoch is under way.

        Raises:
            DataError: this is no number of an epoch.
        """
        if not is_number(epoch, 0):
            raise DataError(f"an epoch is a number from 0 on, got {epoch!r}")
        position = self.position
        if epoch != position.epoch or position.ended:
            self._set(position.turn(epoch))

    def check(self, iteration: int) -> None:
        """Refuse to go on with an iteration that is not the newest.

        Raises:
            DataError: another one was begun since, or the position was set.
        """
        if iteration != self.iteration:
            raise DataError(
                "this iteration is over: another one has begun since, or the position was set;"
                " a position cannot follow two loops"
            )

    def state(self) -> dict[str, Any]:
        """The position as plain values."""
        return to_state(self.position)

    def load(self, state: Any) -> None:
        """Go on from a position that was saved, in a world of any size.

        Raises:
            DataError: it is none, is damaged, or is one in other data.
        """
        saved = from_state(state)
        check_source(saved.source, self._position.source)
        self._singles = 0
        self._set(saved.resume())

    def _set(self, position: Position) -> None:
        self._position = position
        self.iteration += 1
