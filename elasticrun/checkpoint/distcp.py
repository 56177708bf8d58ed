"""Writes commits to a storage, in the layout that ``torch.distributed.checkpoint`` reads by itself.

Theory. Each node writes its own parts (``write_part``), and one node finishes the commit (``finish``) once
all have. The nodes need not talk to each other: the index of each says what it wrote, and what it left to
others of what all ranks have alike. A commit is finished only if nothing is missing, so a wrong division
costs the commit and never its truth.

An item is the bytes of ``torch.save``, as torch's own writer makes them. They go from the part's memory to
the storage in blocks; no item is copied. The digest of an item in memory is compared after it was written: so
what was damaged before, or overwritten meanwhile, is found. For a part without digests they are computed
first, so there it is only what was overwritten.

Values that are no tensors are each rank's own, and torch knows one value by each name. All of them are in the
files, and torch's metadata names that of the lowest rank, in torch's form (``checkpoint/plain_values.py``);
``checkpoint/stored.py`` gives a rank its own back.
"""

from __future__ import annotations

import ctypes
import math
import pickle
import time
from collections.abc import Sequence
from typing import IO, Any, NamedTuple, cast

import torch
from torch.distributed.checkpoint import filesystem
from torch.distributed.checkpoint.metadata import (
    BytesStorageMetadata,
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    StorageMeta,
    TensorProperties,
    TensorStorageMetadata,
)

from elasticrun.checkpoint.parts import Item, Part, checksum, dtype_of, is_unsealed, total_of
from elasticrun.checkpoint.plain_values import View, views_of
from elasticrun.checkpoint.stream import Stream, Told
from elasticrun.errors import CheckpointError
from elasticrun.storage.catalog import commits, read_marker
from elasticrun.storage.errors import DamagedError, IncompleteError
from elasticrun.storage.records import (
    MARKER,
    METADATA,
    CommitName,
    Marker,
    PartIndex,
    StoredItem,
    data_file,
    digest,
    index_file,
    shares,
)
from elasticrun.storage.store import Store
from elasticrun.storage.verifying import read_index

#: The end of the names of files that a writer which was killed has left.
_LEFTOVER = ".tmp"

Key = tuple[str, tuple[int, ...]]  # name and offset of a tensor
Path = tuple[str | int, ...]  # of a value in the state


class Share(NamedTuple):
    """Which nodes divide among them what all ranks have alike, and our place among these."""

    which: int = 0
    of: int = 1


ALL = Share()


def write_part(
    store: Store,
    name: CommitName,
    group_rank: int,
    parts: Sequence[Part],
    share: Share = ALL,
    told: Told = lambda _: None,
) -> PartIndex:
    """Write what this node's ranks have saved of a commit. It can be called again after it has failed.

    ``share``: nodes that have saved the same shared contents may write an equal share of them each.
    ``told`` hears how many bytes were written, again and again; a writer that tells nothing is stuck.

    Raises:
        CheckpointError: the parts are damaged in memory; the text names the key. Nothing was written.
        StorageError: the storage fails; its ``trouble`` says whether to try again.
    """
    parts = sorted(parts, key=lambda part: part.rank)
    ranks = {part.rank: part.digest for part in parts}
    if _finished(store, name) is not None:
        return _written_before(store, name, group_rank, ranks)
    chosen, left = _divided(parts, share)
    if (index := _written_already(store, name, group_rank, ranks, tuple(left))) is not None:
        return index
    store.make(name.folder)
    with store.writing(f"{name.folder}/{data_file(group_rank)}") as sink:
        stream = Stream(sink, told)
        items = [_write(stream, part, item) for part, item in chosen]
        mappings: dict[str, Path] = {}
        for part in reversed(parts):
            mappings |= {item: tuple(path) for item, path in part.facts["mappings"].items()}
        seen: set[str] = set()
        for part, item in chosen:
            if not item.dtype and item.name in part.facts["mappings"] and item.name not in seen:
                seen.add(item.name)
                for view in views_of(mappings[item.name], part.value(item)):
                    mappings[view.name] = view.path
                    items.append(_write_view(stream, part.rank, item.name, view))
        stream.drain()
    index = PartIndex(name, group_rank, stream.at, ranks, mappings, tuple(items), tuple(left))
    with store.writing(f"{name.folder}/{index_file(group_rank)}") as sink:
        sink(index.encode())
    return index


def _finished(store: Store, name: CommitName) -> Marker | None:
    """The marker of a commit. One that cannot be read is none, and is written again."""
    try:
        return read_marker(store, name)
    except DamagedError:
        return None


def _written_already(
    store: Store, name: CommitName, group_rank: int, ranks: dict[int, str], left: tuple[Key, ...]
) -> PartIndex | None:
    """What another node, or an earlier try, has written of the same parts and share; all else is removed.

    So an index that is there never names bytes that are being replaced by others.
    """
    try:
        found = read_index(store, name, group_rank)
    except DamagedError:
        found = None
    else:
        if found is None:
            return None
    if found is not None and (found.ranks, found.left) == (ranks, left):
        return found
    store.remove(name.folder, [index_file(group_rank)])
    return None


def _written_before(store: Store, name: CommitName, group_rank: int, ranks: dict[int, str]) -> PartIndex:
    found = read_index(store, name, group_rank)
    if found is None or found.ranks != ranks:
        raise DamagedError(
            f"{name} is finished in {store.url}, with another part {group_rank}: give each run of the job"
            " a name of its own, or another directory"
        )
    return found


def _divided(parts: Sequence[Part], share: Share) -> tuple[list[tuple[Part, Item]], list[Key]]:
    """What this node writes, and what it leaves to others. What several ranks have is written once, from a
    part with digests if there is one.
    """
    values = [(part, item) for part in parts for item in part.items if not item.dtype]
    shards: dict[Key, tuple[Part, Item]] = {}
    shared: dict[Key, tuple[Part, Item]] = {}
    for part in sorted(parts, key=lambda part: is_unsealed(part.facts)):
        for item in part.items:
            if item.dtype:
                (shards if item.is_shard else shared).setdefault((item.name, item.offset), (part, item))
    keys = sorted(shared.keys() - shards.keys())
    writers = shares([shared[key][1].length for key in keys], share.of)
    mine = [key for key, writer in zip(keys, writers, strict=True) if writer == share.which]
    left = [key for key, writer in zip(keys, writers, strict=True) if writer != share.which]
    return [*values, *shards.values(), *(shared[key] for key in mine)], left


def _write(stream: Stream, part: Part, item: Item) -> StoredItem:
    at = stream.at
    if not item.sum:  # so that what is overwritten from now on is found
        item.sum = total_of(checksum(part.data(item)))
    if not item.dtype:
        stream.write(part.value(item).getbuffer())
    else:
        tensor = _alone(part.data(item)).view(dtype_of(item.dtype)).view(item.shape)
        try:
            torch.save(tensor, cast("IO[bytes]", stream))
        except RuntimeError:
            if stream.failure is not None:  # torch cannot end its file, and says only that
                raise stream.failure from None
            raise
        part.tensor(item)  # raises if these bytes are not what was saved
    place = (at, stream.at - at, stream.take_check())
    return StoredItem(item.name, part.rank, *place, item.dtype, item.size, item.offset, item.shape)


def _write_view(stream: Stream, rank: int, shows: str, view: View) -> StoredItem:
    at = stream.at
    stream.write(view.data)
    return StoredItem(view.name, rank, at, stream.at - at, stream.take_check(), shows=shows)


def _alone(data: torch.Tensor) -> torch.Tensor:
    """The same bytes as memory of their own, else ``torch.save`` would write the whole part."""
    if not data.numel():
        return torch.empty(0, dtype=torch.uint8)
    return torch.frombuffer((ctypes.c_char * data.numel()).from_address(data.data_ptr()), dtype=torch.uint8)


# Finishing


def finish(
    store: Store, name: CommitName, size: int, now: float | None = None, partial: bool = False
) -> Marker:
    """Make a commit exist of which ``size`` nodes have written their parts. It can be called again.

    ``now``: seconds since 1970; by default those of this host's clock. ``partial``: some ranks are missing,
    that had no tensors of their own.

    Raises:
        IncompleteError: something is missing; the text names it.
        CheckpointError: the parts contradict each other; the text names the key.
        StorageError: the storage fails, or an index is damaged.
    """
    if (marker := _finished(store, name)) is not None:
        return marker
    indexes = _indexes(store, name, size)
    _check_ranks(name, indexes, partial)
    metadata = merged(indexes)
    encoded = pickle.dumps(metadata)
    with store.writing(f"{name.folder}/{METADATA}") as sink:
        sink(encoded)
    checks = {METADATA: digest(encoded)} | {
        index_file(index.group_rank): digest(index.encode()) for index in indexes
    }
    numbers = [each.marker.number for each in commits(store) if each.marker is not None]
    marker = Marker(
        name,
        max(numbers, default=0) + 1,
        size,
        sum(len(index.ranks) for index in indexes),
        sum(index.length for index in indexes),
        time.time() if now is None else now,
        checks,
    )
    leftovers = [entry.name for entry in store.entries(name.folder) if entry.name.endswith(_LEFTOVER)]
    store.remove(name.folder, leftovers)
    with store.writing(f"{name.folder}/{MARKER}") as sink:
        sink(marker.encode())
    return marker


def _indexes(store: Store, name: CommitName, size: int) -> list[PartIndex]:
    sizes = {entry.name: entry.size for entry in store.entries(name.folder)}
    found = []
    for group_rank in range(size):
        index = read_index(store, name, group_rank)
        if index is None:
            raise IncompleteError(
                f"{name} cannot be finished in {store.url}: part {group_rank} of {size} is not there"
            )
        length = sizes.get(data_file(group_rank))
        if length != index.length:
            raise IncompleteError(
                f"{name} cannot be finished in {store.url}: {data_file(group_rank)} must have"
                f" {index.length} bytes, and has {length or 0}"
            )
        found.append(index)
    return found


def _check_ranks(name: CommitName, indexes: Sequence[PartIndex], partial: bool) -> None:
    ranks = sorted(rank for index in indexes for rank in index.ranks)
    expected = set(ranks) if partial else range(len(ranks))
    if ranks != sorted(expected):
        raise IncompleteError(f"{name} cannot be finished: it has parts of ranks {ranks}")


def merged(indexes: Sequence[PartIndex], rank: int | None = None, in_torchs_form: bool = True) -> Metadata:
    """Torch's metadata of these parts together. ``rank``: whose values are preferred; else the lowest rank's.

    Raises:
        IncompleteError: a part of a tensor is missing.
        CheckpointError: ranks have saved different tensors by one name.
    """
    kinds: dict[str, Any] = {}
    places: dict[MetadataIndex, Any] = {}
    mappings: dict[str, Path] = {}
    for index in reversed(indexes):
        mappings |= index.mappings
    found = [(index, item) for index in indexes for item in _shown(index, in_torchs_form)]
    found.sort(key=lambda each: (each[1].rank != rank, each[1].rank))
    owners: dict[str, int] = {}  # whose value is taken, by its name
    for index, item in found:
        is_ours = item.dtype or owners.setdefault(item.shows or item.name, item.rank) == item.rank
        if is_ours and (key := key_of(item)) not in places:
            places[key] = place_of(index, item)
            _add(kinds, item)
    _check_whole(kinds, indexes)
    order = {name: number for number, name in enumerate(mappings)}  # as saved, on all ranks
    kinds = {name: kinds[name] for name in sorted(kinds, key=lambda name: order.get(name, len(order)))}
    # Without a path, torch's tools would take a name for missing.
    planner_data = {name: mappings.get(name, (name,)) for name in kinds}
    metadata = Metadata(kinds, planner_data, places, StorageMeta())
    if hasattr(metadata, "version"):
        metadata.version = getattr(filesystem, "CURRENT_DCP_VERSION", None)
    return metadata


def _shown(index: PartIndex, in_torchs_form: bool) -> list[StoredItem]:
    """The items of a part in the form that is asked for."""
    replaced = {(item.shows, item.rank) for item in index.items if item.shows}
    if in_torchs_form:
        return [item for item in index.items if item.shows or (item.name, item.rank) not in replaced]
    return [item for item in index.items if not item.shows]


def key_of(item: StoredItem) -> MetadataIndex:
    """The name of an item in torch's metadata."""
    return MetadataIndex(item.name, torch.Size(item.offset) if item.dtype else None)


def place_of(index: PartIndex, item: StoredItem) -> Any:
    """Where an item lies, as torch's reader wants to know it."""
    return filesystem._StorageInfo(data_file(index.group_rank), item.at, item.length)


def _add(kinds: dict[str, Any], item: StoredItem) -> None:
    if not item.dtype:
        new: Any = BytesStorageMetadata()
    else:
        new = TensorStorageMetadata(TensorProperties(dtype_of(item.dtype)), torch.Size(item.size), [])
    known = kinds.setdefault(item.name, new)
    if type(known) is not type(new) or (
        item.dtype and (known.size, known.properties.dtype) != (new.size, new.properties.dtype)
    ):
        raise CheckpointError(f"ranks have saved different values as {item.name}: of other types or sizes")
    if item.dtype:
        known.chunks.append(ChunkStorageMetadata(torch.Size(item.offset), torch.Size(item.shape)))


def _check_whole(kinds: dict[str, Any], indexes: Sequence[PartIndex]) -> None:
    for index in indexes:
        for name, _ in index.left:
            if name not in kinds:
                raise IncompleteError(f"{index.name} cannot be finished: no node has written {name}")
    for name, kind in kinds.items():
        if isinstance(kind, TensorStorageMetadata):
            present = sum(math.prod(chunk.sizes) for chunk in kind.chunks)
            if present < math.prod(kind.size):
                raise IncompleteError(
                    f"{indexes[0].name} cannot be finished: of {name}, {present} of"
                    f" {math.prod(kind.size)} numbers were saved"
                )
