"""What is dealt out in leases: shards of a dataset, of files, or of endless streams, in a seeded order.

A shard is a range of records of something with a name. In each epoch every shard comes once, at a place of
that epoch's order (``order.py``). Streams have one epoch without an end, and their shards come in turn.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any, Protocol

from elasticrun.core.data.order import Order, Source
from elasticrun.dataclass import dataclass
from elasticrun.errors import DataError

#: The end of what has no known end: a file whose records nobody has counted, or a stream.
ENDLESS = 1 << 62


@dataclass(frozen=True, slots=True)
class Shard:
    """Records ``start`` to ``stop`` of something."""

    name: str  # of a file or a partition; "": the dataset itself
    start: int
    stop: int  # ENDLESS: to the end, wherever that is


class Shards(Protocol):
    """What a ledger has to know of the shards."""

    count: int  # of an epoch

    @property
    def identity(self) -> list[object]:
        """What says that two are alike, as plain values."""

    def shard(self, epoch: int, place: int) -> Shard:
        """The shard at a place of an epoch's order."""


class Places:
    """Shards of which only the places are known. Records are counted from the first one of each shard."""

    def __init__(self, count: int, digest: str) -> None:
        """``digest``: of a plan."""
        self.count = count
        self._digest = digest

    @property
    def identity(self) -> list[object]:
        """As of ``Shards``."""
        return [self._digest]

    def shard(self, epoch: int, place: int) -> Shard:
        """All records of the shard at a place, which is its name, wherever they end."""
        return Shard(str(place), 0, ENDLESS)


class Plan:
    """All shards, and their order in each epoch."""

    def __init__(
        self, extents: Sequence[Shard], size: int, seed: int = 0, shuffle: bool = True, endless: bool = False
    ) -> None:
        """``extents`` are cut into shards of at most ``size`` records; ``endless``: they go on for ever.

        Raises:
            DataError: there is nothing to deal.
        """
        if size < 1:
            raise DataError(f"a shard has a number of records from 1 on, got {size}")
        self._extents = [each for each in extents if each.stop > each.start]
        if not self._extents:
            raise DataError("there are no records to deal out: each extent is empty")
        self._size, self._seed, self._shuffle = size, seed, shuffle
        self._is_endless = endless
        counts = [
            1 if each.stop >= ENDLESS else -(-(each.stop - each.start) // size) for each in self._extents
        ]
        self._ends = [*accumulate(counts)]
        self.count = ENDLESS if endless else self._ends[-1]  # shards of an epoch
        self._order: tuple[int, Order] | None = None  # and its epoch

    @classmethod
    def of_samples(cls, length: int, size: int, seed: int = 0, shuffle: bool = True) -> Plan:
        """A dataset of so many samples."""
        return cls([Shard("", 0, length)], size, seed, shuffle)

    @classmethod
    def of_files(
        cls, lengths: Mapping[str, int | None], size: int, seed: int = 0, shuffle: bool = True
    ) -> Plan:
        """Files by their number of records. One of which nobody knows it (None) is a single shard."""
        extents = [Shard(name, 0, ENDLESS if n is None else n) for name, n in lengths.items()]
        return cls(extents, size, seed, shuffle)

    @classmethod
    def of_streams(cls, offsets: Mapping[str, int], size: int) -> Plan:
        """Partitions of a stream, each from an offset on."""
        extents = [Shard(name, first, ENDLESS) for name, first in offsets.items()]
        return cls(extents, size, shuffle=False, endless=True)

    @classmethod
    def of_identity(cls, identity: Any) -> Plan:
        """The plan with this identity. DataError: it is none."""
        try:
            extents, size, seed, shuffle, endless = identity
            found = [Shard(str(name), int(start), int(stop)) for name, start, stop in extents]
            return cls(found, int(size), int(seed), bool(shuffle), bool(endless))
        except (TypeError, ValueError) as error:
            raise DataError(f"what the data were is damaged: {error!r}") from None

    @property
    def extents(self) -> tuple[Shard, ...]:
        """What is cut into shards."""
        return tuple(self._extents)

    @property
    def identity(self) -> list[object]:
        """What two plans have to have alike for one to go on where the other stopped, as plain values."""
        extents = [[each.name, each.start, each.stop] for each in self._extents]
        return [extents, self._size, self._seed, self._shuffle, self._is_endless]

    def shard(self, epoch: int, place: int) -> Shard:
        """The shard at a place of an epoch's order."""
        if self._is_endless:
            turn, number = divmod(place, len(self._extents))
            extent = self._extents[number]
            start = extent.start + turn * self._size
            return Shard(extent.name, start, start + self._size)
        if self._order is None or self._order[0] != epoch:
            self._order = epoch, Order(Source(self.count, self._seed, self._shuffle), epoch)
        index = self._order[1].index(place)
        number = bisect_right(self._ends, index)
        extent = self._extents[number]
        if extent.stop >= ENDLESS:
            return extent
        start = extent.start + (index - (self._ends[number - 1] if number else 0)) * self._size
        return Shard(extent.name, start, min(start + self._size, extent.stop))
