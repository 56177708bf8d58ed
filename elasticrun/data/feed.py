"""Where an ``ElasticDataLoader`` gets its indices from, and how it counts what it has handed out.

A feed has a course, which moves when a batch is handed to the loop, and an iterable of indices for torch's
``DataLoader``, which may run far ahead of it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any

from torch.utils.data import Sampler

from elasticrun.core.data.batches import Part, parts, parts_in_epoch, places_of_parts
from elasticrun.core.data.course import Course
from elasticrun.data.global_batch import GlobalBatch
from elasticrun.data.sampler import ElasticDistributedSampler
from elasticrun.errors import DataError


class Feed(ABC):
    """What a loader needs to know."""

    def __init__(self, course: Course, rank: int, arguments: dict[str, Any]) -> None:
        self.course = course
        self.rank = rank  # this process
        self.arguments = arguments  # for torch's DataLoader

    @property
    @abstractmethod
    def left(self) -> int:
        """How many batches are still to come: of this epoch, or of the next if this is over."""

    @abstractmethod
    def handed(self) -> Part:
        """The loop gets the next batch. Returns what it is."""

    def begin(self) -> None:
        """An iteration begins."""
        self.course.begin()

    def end(self) -> None:
        """The loop was told that the epoch is over."""
        self.course.end()

    def set_epoch(self, epoch: int) -> None:
        """Begin an epoch; if it is under way, stay in it."""
        self.course.set_epoch(epoch)

    def state(self) -> dict[str, Any]:
        """The position as plain values."""
        return self.course.state()

    def load(self, state: Any) -> None:
        """Go on from a position that was saved."""
        self.course.load(state)


class BatchFeed(Feed):
    """Batches of one size from our sampler."""

    def __init__(self, sampler: ElasticDistributedSampler, size: int | None, drop_last: bool) -> None:
        arguments = {"sampler": sampler, "batch_size": size, "drop_last": drop_last}
        super().__init__(sampler.course, sampler.rank, arguments)
        self._sampler = sampler
        self._size = size or 1  # None: samples, not batches
        self._drop_last = drop_last
        sampler.is_followed = True
        if drop_last and sampler.num_samples < self._size:
            raise DataError(
                f"the dataset has {self.course.position.source.length} samples: with drop_last that is no"
                f" batch of {self._size} for each of {sampler.num_replicas} ranks"
            )

    @property
    def left(self) -> int:
        samples = self._sampler.left
        return samples // self._size if self._drop_last else -(-samples // self._size)

    def handed(self) -> Part:
        size = min(self._size, self._sampler.left)
        self.course.take(size * self.course.world, self.course.world)
        return Part(size, 1.0, True)


class StepFeed(Feed):
    """Micro-batches of steps of a constant size from our sampler."""

    def __init__(self, sampler: ElasticDistributedSampler, batch: GlobalBatch, drop_last: bool) -> None:
        course, drop_last = sampler.course, drop_last or sampler.drop_last
        super().__init__(course, sampler.rank, {"batch_sampler": MicroBatches(course, batch, drop_last)})
        self._batch = batch
        self._drop_last = drop_last
        self._ahead: Iterator[tuple[Part, int]] = iter(())  # the parts to come, and what is taken with each
        sampler.is_followed = True
        length = course.position.source.length
        if (course.world, course.rank) != (batch.num_replicas, batch.rank):
            raise DataError(
                f"the GlobalBatch is for rank {batch.rank} of {batch.num_replicas}, and the sampler for rank"
                f" {course.rank} of {course.world}"
            )
        if drop_last and length < batch.size:
            raise DataError(
                f"the dataset has {length} samples: with drop_last that is no batch of {batch.size}"
            )

    @property
    def left(self) -> int:
        position = self.course.position
        return _parts_left(self.course, 0 if position.ended else position.at, self._batch, self._drop_last)

    def begin(self) -> None:
        super().begin()
        self._ahead = (
            (part, samples if part.is_last else 0)
            for _, samples, found in _blocks(self.course, self._batch, self._drop_last)
            for part in found
        )

    def handed(self) -> Part:
        part, samples = next(self._ahead)
        self.course.take(samples, self._batch.size)
        return part


class MicroBatches(Sampler[list[int]]):
    """The indices of each micro-batch of this rank."""

    def __init__(self, course: Course, batch: GlobalBatch, drop_last: bool) -> None:
        self._course = course
        self._batch = batch
        self.batch_size = batch.parts[0].size  # the largest
        self.drop_last = drop_last

    def __iter__(self) -> Iterator[list[int]]:
        course, order = self._course, self._course.order
        for at, samples, found in _blocks(course, self._batch, self.drop_last):
            for places in places_of_parts(at, samples, course.world, course.rank, found):
                yield [*order.indices(places)]

    def __len__(self) -> int:
        """How many there are in a whole epoch."""
        return _parts_left(self._course, 0, self._batch, self.drop_last)


def _blocks(
    course: Course, batch: GlobalBatch, drop_last: bool
) -> Iterator[tuple[int, int, tuple[Part, ...]]]:
    """The blocks from the position on: first place, samples, and this rank's micro-batches."""
    length, whole = course.position.source.length, batch.parts
    for at in range(course.position.at, length, batch.size):
        samples = min(batch.size, length - at)
        if samples == batch.size:
            yield at, samples, whole
        elif not drop_last:
            yield at, samples, parts(samples, course.world, course.rank, batch.micro)


def _parts_left(course: Course, at: int, batch: GlobalBatch, drop_last: bool) -> int:
    length = course.position.source.length
    return parts_in_epoch(length, at, batch.size, course.world, batch.micro, drop_last)
