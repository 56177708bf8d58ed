"""Reads commits from a storage.

Torch reads a commit by itself. The reader here is torch's, with two things added: a rank gets its own values
back, as ``Checkpointer`` saved them; and the digest of what it reads is compared first, so that a damaged
commit is refused by the name of the key. For that each item is read twice; from a disk the second time costs
little.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
import warnings
from pathlib import Path
from typing import Any

from torch.distributed.checkpoint._fsspec_filesystem import FsspecReader
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save
from torch.distributed.checkpoint.metadata import Metadata
from torch.distributed.checkpoint.planner import LoadPlan, LoadPlanner
from torch.futures import Future

from elasticrun.checkpoint.distcp import merged
from elasticrun.errors import UsageError
from elasticrun.storage.catalog import is_removed
from elasticrun.storage.errors import DamagedError, IncompleteError, explaining
from elasticrun.storage.records import Marker, PartIndex, data_file, index_file
from elasticrun.storage.store import Store
from elasticrun.storage.verifying import BLOCK, check_of, damages, read_index


class _Reading:
    """What our readers add to torch's."""

    storage_data: dict[Any, Any]  # torch's own

    def prepare(self, store: Store, marker: Marker, rank: int | None, checks: bool) -> None:
        """Take up what the indexes say. StorageError if one is missing or damaged."""
        self._store, self._marker, self._checks = store, marker, checks
        self.faults: list[str] = []  # a storage has one copy of each item, so what is damaged is an error
        indexes = [_index(store, marker, group_rank) for group_rank in range(marker.nodes)]
        self._metadata = merged(indexes, rank, in_torchs_form=False)
        self._items = {
            (data_file(index.group_rank), item.at): item for index in indexes for item in index.items
        }

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        """What the commit has."""
        self.storage_data = self._metadata.storage_data
        return self._metadata

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        """Read what the plan asks for. DamagedError if some of it has changed; the text names the key."""
        with explaining(f"read {self._marker.name}", self._store.url):
            if self._checks:
                self._check(plan)
            return super().read_data(plan, planner)  # type: ignore[misc,no-any-return]

    def _check(self, plan: LoadPlan) -> None:
        wanted: dict[str, set[int]] = {}
        for request in plan.items:
            place = self.storage_data[request.storage_index]
            wanted.setdefault(place.relative_path, set()).add(place.offset)
        for file, offsets in wanted.items():
            path = f"{self._marker.name.folder}/{file}"
            with self._store.open(path) as stream:
                for at in sorted(offsets):
                    item = self._items[file, at]
                    if check_of(stream, item) != item.check:
                        raise DamagedError(f"{item.name!r} is damaged: its bytes in {path} have changed")


class StoredReader(_Reading, FileSystemReader):
    """Reads a commit from a directory."""


class StoredUrlReader(_Reading, FsspecReader):
    """Reads a commit from a URL."""


def reader_of(
    store: Store, marker: Marker, rank: int | None = None, checks: bool = True
) -> StoredReader | StoredUrlReader:
    """A reader of a finished commit that gives back what was saved: what ``Checkpointer`` can restore.

    ``rank``: whose own values are preferred; None: those of the lowest rank, which torch itself reads.
    ``checks``: whether digests are compared.

    Raises:
        StorageError: the storage fails, or the commit is damaged.
    """
    path = f"{store.url}/{marker.name.folder}"
    reader = StoredUrlReader(path) if "://" in store.url else StoredReader(path)
    reader.prepare(store, marker, rank, checks)
    return reader


def _index(store: Store, marker: Marker, group_rank: int) -> PartIndex:
    index = read_index(store, marker.name, group_rank, marker.checks[index_file(group_rank)])
    if index is None:
        raise IncompleteError(
            f"{marker.name} cannot be read from {store.url}: {index_file(group_rank)} is missing"
        )
    return index


def export(store: Store, marker: Marker, out: Path) -> None:
    """Write a commit as one file of ``torch.save``: a dict with whole tensors. It has to fit in memory.

    Raises:
        DamagedError: the commit is damaged; nothing was written.
        StorageError: the storage fails, or ``out`` cannot be written.
    """
    for damage in damages(store, marker):
        if is_removed(store, marker.name):
            raise IncompleteError(f"{marker.name} was removed from {store.url} meanwhile")
        raise DamagedError(f"{damage.key!r} is damaged in {store.url}: {damage.reason}")
    with explaining("write", str(out)), contextlib.ExitStack() as stack:
        if out.exists() and not out.is_file():  # a device such as /dev/null would be replaced by a file
            raise UsageError(f"{out} is no regular file: name a file to write")
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=out.parent, prefix=".export-")))
        source = Path(store.url) / marker.name.folder
        if "://" in store.url:
            source = folder / "commit"
            _fetch(store, marker, source)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that there is no process group
            dcp_to_torch_save(source, folder / "state")
        with (folder / "state").open("rb") as written:
            os.fsync(written.fileno())
        (folder / "state").replace(out)


def _fetch(store: Store, marker: Marker, folder: Path) -> None:
    folder.mkdir()
    for entry in store.entries(marker.name.folder):
        with (
            store.open(f"{marker.name.folder}/{entry.name}") as source,
            (folder / entry.name).open("wb") as to,
        ):
            shutil.copyfileobj(source, to, BLOCK)
