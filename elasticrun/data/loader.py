"""``ElasticDataLoader``: torch's ``DataLoader`` with a position, which is what the loop has got."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, TypeVar

import torch
from torch.utils.data import BatchSampler, DataLoader, Dataset, IterableDataset

from elasticrun.core.data.batches import Part
from elasticrun.core.data.order import mix
from elasticrun.core.data.record import is_number
from elasticrun.data.feed import BatchFeed, Feed, StepFeed
from elasticrun.data.foreign import ForeignFeed
from elasticrun.data.global_batch import GlobalBatch
from elasticrun.data.sampler import ElasticDistributedSampler
from elasticrun.errors import DataError

T_co = TypeVar("T_co", covariant=True)


class ElasticDataLoader(DataLoader[T_co]):
    """torch's ``DataLoader`` for datasets with an index, whose state is the batches that the loop has got.

    What workers have fetched ahead does not count, whatever ``num_workers``, ``prefetch_factor`` and
    ``persistent_workers``. After ``load_state_dict`` the next iteration goes on after the last batch that was
    handed out; after the end of an epoch it begins the next one. ``set_epoch`` of the epoch that is under way
    changes nothing. The iteration of a loop that was left early goes on as well.

    Unless a sampler is given, the loader deals the dataset to all ranks with an
    ``ElasticDistributedSampler``, shuffled by ``seed`` if ``shuffle``. Its state may be loaded in a world of
    any size.

    Other samplers, and batch samplers, go on in a world of the same size. Their order must come again: a
    sampler of torch with a ``generator``, one with ``state_dict``, or one that does not draw at all. A
    ``RandomSampler`` without a generator is refused.

    ``batch_size`` may be a ``GlobalBatch``. All other options are those of ``DataLoader``, by name. As the
    loader seeds its workers by the position, it draws no number from torch's generator, unless one is given.

    ``len()`` is that of a whole epoch, ``left`` what is left of this one, as for
    ``tqdm(loader, total=loader.left)``.

    Raises:
        DataError: the dataset, the sampler or the batch cannot be dealt so; the text says why.
    """

    sampler: Any  # else a type checker knows nothing of its set_epoch

    def __init__(
        self,
        dataset: Dataset[T_co],
        batch_size: int | GlobalBatch | None = 1,
        shuffle: bool | None = None,
        sampler: Any = None,
        batch_sampler: Any = None,
        num_workers: int = 0,
        *,
        drop_last: bool = False,
        seed: int = 0,
        **options: Any,
    ) -> None:
        if isinstance(dataset, IterableDataset):
            raise DataError("an IterableDataset has no index, so ElasticDataLoader knows no position in it")
        if not options.get("in_order", True):
            raise DataError("with in_order=False nobody knows which batches were handed out: leave it out")
        if shuffle and (sampler is not None or batch_sampler is not None):
            raise DataError("shuffle is for a loader without a sampler: a sampler has its own order")
        if type(batch_sampler) is BatchSampler and sampler is None:
            sampler, batch_size = batch_sampler.sampler, batch_sampler.batch_size
            drop_last, batch_sampler = batch_sampler.drop_last, None
        if sampler is None and batch_sampler is None:
            sampler = _our_sampler(dataset, batch_size, bool(shuffle), seed, drop_last)
        #: What the batch is that the loop has got last.
        self.part = Part(0, 1.0, True)
        self._feed = feed = _feed_of(sampler, batch_sampler, batch_size, drop_last)
        self._seeds = torch.Generator()
        options.setdefault("generator", self._seeds)
        super().__init__(dataset, num_workers=num_workers, **feed.arguments, **options)
        if "batch_sampler" in feed.arguments and sampler is not None:
            # Torch puts a SequentialSampler there, but scripts call loader.sampler.set_epoch.
            self.__dict__["sampler"] = sampler

    @property
    def epoch(self) -> int:
        """The epoch that is under way; after its end, the next one."""
        return self._feed.course.epoch

    @property
    def left(self) -> int:
        """How many batches are still to come: of this epoch, or of the next if this is over."""
        return self._feed.left

    def set_epoch(self, epoch: int) -> None:
        """Begin an epoch; if it is under way, stay in it.

        Raises:
            DataError: this is no number of an epoch.
        """
        self._feed.set_epoch(epoch)

    def state_dict(self) -> dict[str, Any]:
        """The position after the last batch that the loop has got, as plain values."""
        return self._feed.state()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Let the next iteration go on where the state was saved.

        Raises:
            DataError: it is damaged, or of other data: of another length, seed, ``shuffle`` or sampler.
        """
        self._feed.load(state)

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]  # torch promises its own class of iterators
        self._feed.begin()
        course = self._feed.course
        position = course.position
        words = (torch.initial_seed(), position.epoch, position.at, self._feed.rank)
        self._seeds.manual_seed(mix(*words) >> 1)
        return self._hand_out(super().__iter__(), course.iteration)

    def _hand_out(self, batches: Iterator[Any], iteration: int) -> Iterator[Any]:
        for batch in batches:
            self._feed.course.check(iteration)
            self.part = self._feed.handed()
            yield batch
        self._feed.course.check(iteration)
        self._feed.end()


def _our_sampler(
    dataset: Dataset[Any], batch: int | GlobalBatch | None, shuffle: bool, seed: int, drop_last: bool
) -> ElasticDistributedSampler:
    if isinstance(batch, GlobalBatch):
        return ElasticDistributedSampler(dataset, batch.num_replicas, batch.rank, shuffle, seed)
    return ElasticDistributedSampler(dataset, shuffle=shuffle, seed=seed, drop_last=drop_last)


def _feed_of(sampler: Any, batch_sampler: Any, batch: int | GlobalBatch | None, drop_last: bool) -> Feed:
    if isinstance(batch, GlobalBatch):
        if not isinstance(sampler, ElasticDistributedSampler):
            raise DataError("a GlobalBatch needs an ElasticDistributedSampler, or none given")
        return StepFeed(sampler, batch, drop_last)
    if batch is not None and not is_number(batch, 1):
        raise DataError(f"batch_size is a number of samples from 1 on, a GlobalBatch or None, got {batch!r}")
    if isinstance(sampler, ElasticDistributedSampler):
        return BatchFeed(sampler, batch, drop_last)
    return ForeignFeed(sampler, batch_sampler, batch, drop_last)
