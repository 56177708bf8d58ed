"""A place for commits: a directory, or whatever fsspec can reach by a URL.

Theory. A store has folders, one for each commit, with files in them. What a file has under its name is
complete on a disk: it is written under another name, synced and renamed. Object stores know no rename, and
some file systems behind fsspec show a file that is still written; so nothing may rely on a file being whole
before the index that names it, which is written after it, and nothing on a commit before its marker, which is
written last. See ``storage/records.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from contextlib import AbstractContextManager
from typing import BinaryIO, NamedTuple, Protocol

#: Writes bytes at the end of a new file. Raises what the storage raises.
Sink = Callable[["bytes | memoryview"], None]


class Entry(NamedTuple):
    """One name in a folder."""

    name: str
    size: int  # bytes; of a folder 0
    is_folder: bool


class Store(Protocol):
    """Where commits are. All paths are relative; each method raises StorageError if the storage fails."""

    url: str  # path of a directory, or URL

    def entries(self, folder: str = "") -> list[Entry]:
        """What is in a folder; nothing if it does not exist, which the store itself has to.

        A link that leads from the store itself to a folder elsewhere is a folder; in a folder, it is a file.
        """

    def make(self, folder: str) -> None:
        """Make a folder, unless it is there."""

    def writing(self, path: str) -> AbstractContextManager[Sink]:
        """Write a file, which is durable when the block ends. If it fails, as little as possible is left."""

    def open(self, path: str) -> BinaryIO:
        """Read a file."""

    def read(self, path: str) -> bytes | None:
        """All that a small file has; None if there is none."""

    def remove(self, folder: str, names: Collection[str]) -> None:
        """Remove files, durably. It is no error if one is not there."""

    def unlink(self, folder: str) -> bool:
        """Remove a name that only leads to a folder elsewhere, durably; False if it is none."""

    def remove_folder(self, folder: str) -> None:
        """Remove a folder without files."""

    def changed(self, folder: str) -> float | None:
        """When anything in a folder changed last, in seconds since 1970; None if the storage does not say."""
