"""Whatever fsspec can reach as a store: object stores, and anything else that has a URL.

There is no rename and nothing to sync: an object is there once its upload has ended. Where a file that is
still written can be seen, the index and the marker that are written after it keep anybody from reading it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator
from datetime import datetime
from typing import Any, BinaryIO, cast

from fsspec.core import url_to_fs

from elasticrun.errors import UsageError
from elasticrun.storage.errors import explained, explaining
from elasticrun.storage.store import Entry, Sink


class RemoteStore:
    """The store at a URL."""

    def __init__(self, url: str) -> None:
        """Know a URL.

        Raises:
            UsageError: no file system is known for it, or its package is not installed.
            StorageError: its server does not answer.
        """
        self.url = url.rstrip("/")
        try:
            self._files, root = url_to_fs(self.url)
        except (ValueError, ImportError) as error:
            raise UsageError(f"{url}: there is no storage of that kind: {error}") from None
        except Exception as error:  # some kinds already ask their server
            raise explained(error, "open the storage", self.url) from error
        self._root = str(root).rstrip("/")

    def entries(self, folder: str = "") -> list[Entry]:
        """What is in a folder. An object store has no empty folders: it always exists."""
        return sorted(
            Entry(str(info["name"]).rstrip("/").rsplit("/", 1)[-1], _size(info), info["type"] == "directory")
            for info in self._listed(folder)
        )

    def make(self, folder: str) -> None:
        """Make a folder, where there are such things."""
        with self._explaining(f"make {folder}"):
            self._files.makedirs(self._path(folder), exist_ok=True)

    @contextlib.contextmanager
    def writing(self, path: str) -> Iterator[Sink]:
        """Write a file. If that fails, no part of it stays; but an older one does, if it was not replaced."""
        place, doing = self._path(path), f"write {path}"
        before = self._state_of(place)
        with self._explaining(doing):
            file = self._files.open(place, "wb")

        def write(data: bytes | memoryview) -> None:
            with self._explaining(doing):
                _write(file, data)

        try:
            yield write
            with self._explaining(doing):
                file.close()
        except BaseException:
            _give_up(file)
            with contextlib.suppress(Exception):
                if before is not None and self._state_of(place) != before:
                    self._files.rm_file(place)
            raise

    def open(self, path: str) -> BinaryIO:
        """Read a file."""
        with self._explaining(f"read {path}"):
            return cast(BinaryIO, self._files.open(self._path(path), "rb"))

    def read(self, path: str) -> bytes | None:
        """All that a small file has."""
        with self._explaining(f"read {path}"):
            try:
                return cast(bytes, self._files.cat_file(self._path(path)))
            except FileNotFoundError:
                return None

    def remove(self, folder: str, names: Collection[str]) -> None:
        """Remove files."""
        with self._explaining(f"remove files of {folder}"):
            for name in names:
                with contextlib.suppress(FileNotFoundError):
                    self._files.rm_file(self._path(f"{folder}/{name}"))

    def unlink(self, folder: str) -> bool:
        """There are no links."""
        return False

    def remove_folder(self, folder: str) -> None:
        """Remove a folder without files; in an object store it is gone with the last file."""
        with self._explaining(f"remove {folder}"), contextlib.suppress(FileNotFoundError):
            self._files.rmdir(self._path(folder))

    def changed(self, folder: str) -> float | None:
        """When a file in a folder changed last."""
        times = []
        for info in self._listed(folder):
            with self._explaining(f"look at {folder}"), contextlib.suppress(NotImplementedError):
                changed = self._files.modified(info["name"])
                times.append(changed.timestamp() if isinstance(changed, datetime) else float(changed))
        return max(times, default=None)

    def _listed(self, folder: str) -> list[dict[str, Any]]:
        with self._explaining(f"list {folder or 'commits'}"):
            self._files.invalidate_cache()
            try:
                found = self._files.ls(self._path(folder), detail=True)
            except FileNotFoundError:
                return []
        return [info for info in found if str(info["name"]).rstrip("/") != self._path(folder)]

    def _state_of(self, place: str) -> str | None:
        """What changes with each object that is written there. "": there is none; None: nobody knows."""
        self._files.invalidate_cache()
        try:
            return str(self._files.ukey(place))
        except FileNotFoundError:
            return ""
        except Exception:  # noqa: BLE001 whatever it is, writing will tell
            return None

    def _path(self, path: str) -> str:
        return f"{self._root}/{path}".rstrip("/")

    def _explaining(self, doing: str) -> contextlib.AbstractContextManager[None]:
        # Each kind of storage has exceptions of its own.
        return explaining(doing, self.url, Exception)


def _size(info: dict[str, Any]) -> int:
    return 0 if info["type"] == "directory" else int(info["size"] or 0)


def _give_up(file: Any) -> None:
    """Close a file, so that no part of it appears where the storage knows a way."""
    with contextlib.suppress(Exception):
        file.discard()
        file.closed = True  # else ``close``, which Python calls in the end, would upload what is there
    with contextlib.suppress(Exception):
        file.close()


def _write(file: Any, data: bytes | memoryview) -> None:
    rest = memoryview(data)
    while rest:
        written = file.write(rest)
        rest = rest[len(rest) if written is None else written :]
