"""``ElasticDistributedSampler``: deals a dataset to the ranks, and goes on in a world of another size."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sized
from typing import Any, cast

from torch.utils.data import Dataset
from torch.utils.data.distributed import DistributedSampler

from elasticrun.core.data.course import Course
from elasticrun.core.data.order import Source
from elasticrun.core.data.position import Position, places_of, samples_left
from elasticrun.core.data.record import LEAST_SEED, is_number
from elasticrun.data.world import find_world
from elasticrun.errors import DataError


class ElasticDistributedSampler(DistributedSampler[int]):
    """Takes the place of torch's ``DistributedSampler``, with the same arguments.

    The order of an epoch is the same for any number of ranks, but not that of torch. The number of ranks and
    the own rank are taken from ``torch.distributed`` if it is initialized, else from the launcher's variables
    WORLD_SIZE and RANK, else this is a world of one.

    The state is the indices that were *yielded*: a loader that fetches ahead is ahead with them. So use
    ``ElasticDataLoader``, or ``StatefulDataLoader`` of torchdata, which both know what the loop has got. A
    state may be loaded in a world of another size: the ranks go on with exactly the rest.

    An iteration goes on where the last one stopped. After the end of an epoch it begins the next one: there
    is no need for ``set_epoch``, but it does no harm. In the epoch that is under way it changes nothing.

    ``len()`` is that of a whole epoch on this rank, as with ``DistributedSampler``: schedules are computed
    from it, and it must not depend on where a training was interrupted. ``left`` is what is left now.

    Raises:
        DataError: the dataset is empty, has no length, or is smaller than the world with ``drop_last``; or
            world, rank or seed are no such numbers.
    """

    def __init__(
        self,
        dataset: Dataset[Any],
        num_replicas: int | None = None,
        rank: int | None = None,
        shuffle: bool = True,
        seed: int = 0,
        drop_last: bool = False,
    ) -> None:
        world = find_world(num_replicas, rank)
        length = length_of(dataset)
        if drop_last and length < world.size:
            raise DataError(
                f"the dataset has {length} samples: with drop_last that is none for each of"
                f" {world.size} ranks"
            )
        if not is_number(seed, LEAST_SEED):
            raise DataError(f"a seed is a whole number, got {seed!r}")
        self.course = Course(Position(Source(length, seed, bool(shuffle))), *world)
        #: A loader says what was taken, instead of this sampler: it knows what the loop has got.
        self.is_followed = False
        super().__init__(dataset, world.size, world.rank, bool(shuffle), seed, drop_last)

    @property
    def epoch(self) -> int:
        """The epoch that is under way; after its end, the next one."""
        return self.course.epoch

    @epoch.setter
    def epoch(self, epoch: int) -> None:
        self.course.set_epoch(epoch)

    def set_epoch(self, epoch: int) -> None:
        """Begin an epoch; if it is under way, stay in it.

        Raises:
            DataError: this is no number of an epoch.
        """
        self.course.set_epoch(epoch)

    @property
    def left(self) -> int:
        """How many indices are still to come on this rank: of this epoch, or of the next if this is over."""
        position = self.course.position
        at = 0 if position.ended else position.at
        return samples_left(position.source.length, at, self.num_replicas, self.drop_last)

    def __iter__(self) -> Iterator[int]:
        """The next indices of this rank, until the end of the epoch."""
        if not self.is_followed:
            self.course.begin()
        course, count = self.course, self.left
        iteration, order = course.iteration, course.order
        for place in places_of(self.rank, course.position.at, count, self.num_replicas):
            course.check(iteration)
            if not self.is_followed:
                course.take_one()
            yield order.index(place)
        course.check(iteration)
        if not self.is_followed:
            course.end()

    def state_dict(self) -> dict[str, Any]:
        """The position, as plain values. It is the same on all ranks that have yielded equally much."""
        return self.course.state()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on after a position that was saved in a world of any size.

        Raises:
            DataError: it is damaged, or of a dataset of another length, another seed or ``shuffle``.
        """
        self.course.load(state)


def length_of(dataset: Dataset[Any]) -> int:
    """How many samples a dataset has.

    Raises:
        DataError: none, or nobody knows.
    """
    try:
        length = len(cast(Sized, dataset))
    except TypeError:
        raise DataError(f"a {type(dataset).__name__} has no length, so it cannot be dealt to ranks") from None
    if length < 1:
        raise DataError("the dataset has no samples")
    return length
