"""Reads all bytes of a commit and compares them with their digests."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from typing import BinaryIO, NamedTuple

from elasticrun.storage.errors import DamagedError, explaining
from elasticrun.storage.records import (
    METADATA,
    CommitName,
    Marker,
    PartIndex,
    StoredItem,
    data_file,
    digest,
    index_file,
)
from elasticrun.storage.store import Store

#: Bytes that are read at a time.
BLOCK = 4 << 20


class Damage(NamedTuple):
    """Something that is not as it was written."""

    key: str  # of the state, or the name of a file
    reason: str


def read_index(store: Store, name: CommitName, group_rank: int, check: str | None = None) -> PartIndex | None:
    """What a node wrote of a commit; None if there is no index. StorageError if it is damaged.

    ``check``: the digest that the marker has for it.
    """
    path = f"{name.folder}/{index_file(group_rank)}"
    data = store.read(path)
    if data is None:
        return None
    index = PartIndex.decode(data, f"{path} in {store.url}")
    is_other = (index.name, index.group_rank) != (name, group_rank)
    if is_other or (check is not None and digest(data) != check):
        raise DamagedError(f"{path} in {store.url} is of another commit, or was written again")
    return index


def damages(store: Store, marker: Marker, told: Callable[[int], None] = lambda _: None) -> Iterator[Damage]:
    """Read a finished commit. ``told`` hears how many bytes were read. StorageError if the storage fails."""
    folder = marker.name.folder
    metadata = store.read(f"{folder}/{METADATA}")
    if metadata is None or digest(metadata) != marker.checks[METADATA]:
        reason = "is missing" if metadata is None else "has changed"
        yield Damage(METADATA, f"{folder}/{METADATA} {reason}")
    for group_rank in range(marker.nodes):
        file = index_file(group_rank)
        try:
            index = read_index(store, marker.name, group_rank, marker.checks[file])
        except DamagedError as error:
            yield Damage(file, str(error))
            continue
        if index is None:
            yield Damage(file, f"{folder}/{file} is missing")
        else:
            yield from _damages_of(store, index, told)


def _damages_of(store: Store, index: PartIndex, told: Callable[[int], None]) -> Iterator[Damage]:
    path = f"{index.name.folder}/{data_file(index.group_rank)}"
    sizes = {entry.name: entry.size for entry in store.entries(index.name.folder)}
    length = sizes.get(data_file(index.group_rank))
    if length is None:
        yield Damage(data_file(index.group_rank), f"{path} is missing")
        return
    if length != index.length:
        yield Damage(data_file(index.group_rank), f"{path} has {length} bytes and must have {index.length}")
    with store.open(path) as file, explaining(f"read {path}", store.url, Exception):
        for item in index.items:
            if check_of(file, item, told) != item.check:
                yield Damage(item.name, f"the bytes of rank {item.rank} in {path} have changed")


def check_of(file: BinaryIO, item: StoredItem, told: Callable[[int], None] = lambda _: None) -> str:
    """The digest that the bytes of an item have now."""
    file.seek(item.at)
    check, left = 0, item.length
    while left:
        block = file.read(min(BLOCK, left))
        if not block:
            return "too short"
        check = zlib.crc32(block, check)
        left -= len(block)
        told(len(block))
    return f"{check:08x}"
