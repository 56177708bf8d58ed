"""Samplers that are not ours: they go on in a world of the same size, if their order can be had again.

Theory. At the beginning and at the end of an epoch the state of the sampler is noted: that of its generator,
and its own if it has one. To go on, it is restored, the epoch is started, and what was taken of it is
skipped: only indices, no data. A sampler that has neither has to give the same order for the same
``set_epoch``, or always.

Epochs may have more or fewer batches than the first one, as with batches by like lengths. So what was handed
out is counted as it is, and the length of a sampler says only what is left.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any

import torch
from torch.utils.data import Sampler

from elasticrun.core.data.batches import Part
from elasticrun.core.data.course import Course
from elasticrun.core.data.order import Source
from elasticrun.core.data.position import Position
from elasticrun.data.feed import Feed
from elasticrun.data.world import find_world
from elasticrun.errors import DataError

_ENDLESS = 1 << 62  # samples of a sampler that does not know how many it has


class Skipping(Sampler[Any]):
    """Another sampler, or batch sampler, without what was taken of it. Its other names are that one's."""

    def __init__(self, sampler: Any) -> None:
        self.whole = sampler
        self.skipped = 0

    def __iter__(self) -> Iterator[Any]:
        return islice(iter(self.whole), self.skipped, None)

    def __len__(self) -> int:
        return len(self.whole)

    def __getattr__(self, name: str) -> Any:
        if name == "whole":  # not made yet, as in copies
            raise AttributeError(name)
        return getattr(self.whole, name)


class ForeignFeed(Feed):
    """Batches from a sampler of others. The unit of its course is what that sampler yields."""

    def __init__(self, sampler: Any, batch_sampler: Any, size: int | None, drop_last: bool) -> None:
        whole = batch_sampler if sampler is None else sampler
        self._name = type(whole).__name__
        self._skipping = Skipping(whole)
        self._source = _innermost(whole)
        self._size = (size or 1) if batch_sampler is None else 1
        self._drop_last = drop_last
        length = self._length
        if not length:
            raise DataError(f"the sampler {self._name} has no samples")
        self._generator: Any = getattr(self._source, "generator", None)
        draws = hasattr(self._source, "generator") and not hasattr(self._source, "state_dict")
        if draws and not isinstance(self._generator, torch.Generator):
            raise DataError(
                f"a {type(self._source).__name__} without a generator of torch cannot give the same order"
                " again: give it one, or give the loader shuffle=True and no sampler"
            )
        self._world = find_world(None, None)
        self._noted: dict[str, Any] = {}  # at the beginning of this epoch, or when it was over
        self._is_loaded = False  # what is noted is of an earlier process
        arguments = {"sampler": self._skipping, "batch_size": size, "drop_last": drop_last}
        if batch_sampler is not None:
            arguments = {"batch_sampler": self._skipping}
        course = Course(Position(Source(length, 0, False)), 1, 0)
        super().__init__(course, self._world.rank, arguments)

    @property
    def _length(self) -> int:
        """How many there are in this epoch, as far as the sampler knows."""
        return len(self._skipping) if hasattr(self._skipping.whole, "__len__") else _ENDLESS

    @property
    def left(self) -> int:
        position = self.course.position
        units = max(0, self._length - (0 if position.ended else position.at))
        return units // self._size if self._drop_last else -(-units // self._size)

    def begin(self) -> None:
        if "epoch" in self._noted and self._noted["epoch"] != self._source.epoch:
            self.course.set_epoch(self._source.epoch)  # the script has set another one
        super().begin()
        if self._is_loaded or self.course.position.at:
            self._restore()
        self._is_loaded = False
        if not self.course.position.at:
            self._noted = self._note()
        self._skipping.skipped = self.course.position.at

    def end(self) -> None:
        super().end()
        self._noted = self._note()

    def handed(self) -> Part:
        left = self._length - self.course.position.at
        self.course.take(self._size, 1)  # the last one may have fewer: nothing comes after it
        return Part(left if 0 < left < self._size else self._size, 1.0, True)

    def set_epoch(self, epoch: int) -> None:
        super().set_epoch(epoch)
        if hasattr(self._source, "set_epoch"):
            self._source.set_epoch(epoch)

    def state(self) -> dict[str, Any]:
        known = {"sampler": self._name, "world": self._world.size}
        return {**known, "course": self.course.state(), "noted": self._noted}

    def load(self, state: Any) -> None:
        """Go on in a world of the same size. DataError: it is another one, or this is of another sampler."""
        if not isinstance(state, Mapping) or state.get("sampler") != self._name:
            name = state.get("sampler", "ElasticDistributedSampler") if isinstance(state, Mapping) else "?"
            raise DataError(f"the position was saved with sampler {name}, and this loader has {self._name}")
        if state.get("world") != self._world.size:
            raise DataError(
                f"sampler {self._name} cannot go on in a world of {self._world.size}, the position was saved"
                f" in one of {state.get('world')}: use elasticrun.data.ElasticDistributedSampler"
            )
        noted = state.get("noted")
        if not isinstance(noted, Mapping):
            raise DataError("the saved position in the data is damaged: its sampler's state is missing")
        super().load(state.get("course"))
        self._noted, self._is_loaded = dict(noted), True
        if "epoch" in self._noted and hasattr(self._source, "set_epoch"):
            self._source.set_epoch(self._noted["epoch"])

    def _note(self) -> dict[str, Any]:
        source, noted = self._source, dict[str, Any]()
        if hasattr(source, "epoch") and not hasattr(source, "state_dict"):
            noted["epoch"] = source.epoch
        if isinstance(self._generator, torch.Generator):
            drawn = self._generator.get_state()
            noted["generator"] = ctypes.string_at(drawn.data_ptr(), drawn.numel())
        if hasattr(source, "state_dict"):
            noted["state"] = source.state_dict()
        return noted

    def _restore(self) -> None:
        if "generator" in self._noted:
            drawn = torch.frombuffer(bytearray(self._noted["generator"]), dtype=torch.uint8)
            self._generator.set_state(drawn)
        if "state" in self._noted:
            self._source.load_state_dict(self._noted["state"])


def _innermost(sampler: Any) -> Any:
    """The sampler within batch samplers, which has the order."""
    while hasattr(sampler, "sampler"):
        sampler = sampler.sampler
    return sampler
