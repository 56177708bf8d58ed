"""The ranks that share a stream, and where each of them begins."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch.distributed as dist

from elasticrun.core.data.streams import Standing, Told, common, share
from elasticrun.data.streams.source import Source, Start
from elasticrun.data.world import find_world
from elasticrun.errors import DataError, StreamError

Persist = Callable[[Callable[[], Any]], Any]  # does something with the broker, which may be away


class Ranks:
    """The ranks of a process group, as one of them sees them."""

    def __init__(self, group: Any = None) -> None:
        """DataError: there are several, and they are not connected."""
        self._group = group
        if dist.is_available() and dist.is_initialized():
            self.size, self.rank = dist.get_world_size(group), dist.get_rank(group)
            return
        self.size, self.rank = find_world(None, None)
        if self.size > 1:
            raise DataError(
                f"the {self.size} ranks of a StreamDataset have to be connected, as they tell each other"
                " their positions: call torch.distributed.init_process_group first"
            )

    def tell(self, mine: Told) -> list[Told]:
        """What each rank tells, by rank. Every rank has to call it."""
        if self.size == 1:
            return [mine]
        told: list[Any] = [None] * self.size
        dist.all_gather_object(told, mine, self._group)
        return told


class Beginning(NamedTuple):
    """How a stream is begun."""

    start: Start  # of partitions that are in no state
    may_be_empty: bool  # a rank may have none


def first_positions(
    source: Source, ranks: Ranks, before: Standing, how: Beginning, persist: Persist
) -> dict[str, int]:
    """What this rank reads, and from where. Every rank has to call it.

    Raises:
        StreamError: a partition of the saved state is gone, or there are none.
        DataError: some ranks would have none.
    """
    known, there = before.positions, persist(lambda: tuple(source.partitions()))
    partitions = common([each.seen for each in ranks.tell(Told({}, there))])
    if lost := sorted(known.keys() - set(partitions)):
        raise StreamError(
            f"{source.name} has no {lost[0]}, in which the saved state has a position: it was removed, or"
            " this is another stream"
        )
    if not partitions:
        raise StreamError(f"{source.name} has no partitions: make them first")
    if len(partitions) < ranks.size and not how.may_be_empty:
        raise DataError(
            f"{source.name} has {len(partitions)} partitions for {ranks.size} ranks, so some would have"
            " nothing to read: add partitions, use fewer ranks, or let batches be empty with"
            " may_be_empty=True"
        )
    mine = share(partitions, ranks.rank, ranks.size)
    new = find(source, [name for name in mine if name not in known], how.start, persist)
    return {name: known[name] if name in known else new[name] for name in mine}


def find(source: Source, partitions: Sequence[str], start: Start, persist: Persist) -> dict[str, int]:
    """Where partitions begin that are in no state."""
    found = dict(persist(lambda: source.find(partitions, start))) if partitions else {}
    if rest := [name for name in partitions if name not in found]:
        found |= persist(lambda: source.find(rest, Start.OLDEST))
    return found
