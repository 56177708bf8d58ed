"""A disk that fails or loses power at a chosen moment, and what is on it afterwards."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from elasticrun.storage.disk import Disk


class PowerLossError(BaseException):
    """The process and its host are gone: nothing can handle it."""


class HastyDisk(Disk):
    """Waits for no disk: what a test reads afterwards is in the page cache."""

    def sync(self, fd: int, first: int, length: int) -> None:
        os.fstat(fd)

    def sync_folder(self, path: Path) -> None:
        os.stat(path)  # noqa: PTH116


class FailingDisk(HastyDisk):
    """Does what it is told until call number ``last``, which fails half-way.

    ``error``: the number of the OSError to raise; None: power is lost. ``recovers``: only that call fails.
    """

    def __init__(self, last: int | None = None, error: int | None = None, recovers: bool = True) -> None:
        self.calls = 0
        self.journal: list[tuple[Any, ...]] = []
        self._last, self._error, self._recovers = last, error, recovers and error is not None
        self._paths: dict[int, Path] = {}  # by descriptor

    def _call(self) -> None:
        self.calls += 1
        if self._last is not None and (
            self.calls == self._last or (self.calls > self._last and not self._recovers)
        ):
            if self._error is None:
                raise PowerLossError
            raise OSError(self._error, os.strerror(self._error))

    def make_folder(self, path: Path) -> None:
        self._call()
        super().make_folder(path)
        self.journal.append(("make", path))

    def create(self, path: Path) -> int:
        self._call()
        fd = super().create(path)
        self._paths[fd] = path
        self.journal.append(("create", path))
        return fd

    def write(self, fd: int, data: bytes | memoryview) -> int:
        try:
            self._call()
        except BaseException:
            data = data[: len(data) // 2]
            super().write(fd, data)
            self.journal.append(("write", self._paths[fd], bytes(data)))
            raise
        written = super().write(fd, data)
        self.journal.append(("write", self._paths[fd], bytes(data[:written])))
        return written

    def sync(self, fd: int, first: int, length: int) -> None:
        self._call()
        super().sync(fd, first, length)
        self.journal.append(("sync", self._paths[fd]))

    def rename(self, path: Path, target: Path) -> None:
        self._call()
        super().rename(path, target)
        self.journal.append(("rename", path, target))

    def sync_folder(self, path: Path) -> None:
        self._call()
        super().sync_folder(path)
        self.journal.append(("sync folder", path))

    def remove(self, path: Path) -> None:
        self._call()
        super().remove(path)
        self.journal.append(("remove", path))

    def remove_folder(self, path: Path) -> None:
        self._call()
        super().remove_folder(path)
        self.journal.append(("remove folder", path))


FULL, BROKEN, READ_ONLY, TIMED_OUT = errno.ENOSPC, errno.EIO, errno.EROFS, errno.ETIMEDOUT


class _File:
    def __init__(self, data: bytes = b"") -> None:
        self.data = self.durable = data


Names = dict[Path, "_File | None"]  # what has a name; None: a folder


def states_after(before: dict[Path, bytes | None], journal: list[tuple[Any, ...]]) -> Iterator[Names]:
    """What a disk may have after a loss of power, as files and folders by their names.

    Of what was done to the names in a folder since it was synced, all may be there, nothing, or only what was
    done last; a file may have lost the bytes since it was synced, or not.
    """
    names: Names = {path: None if data is None else _File(data) for path, data in before.items()}
    durable, last = dict(names), dict(names)
    for what, path, *more in journal:
        if what == "write":
            names[path].data += more[0]  # type: ignore[union-attr]
        elif what == "sync":
            names[path].durable = names[path].data  # type: ignore[union-attr]
        elif what == "sync folder":
            durable = {each: it for each, it in durable.items() if each.parent != path}
            durable |= {each: it for each, it in names.items() if each.parent == path}
            last = dict(durable)
        else:
            made = names.get(path) if what == "rename" else _File() if what == "create" else None
            last = dict(durable)
            for kept in (names, last):
                kept.pop(path, None)
                if not what.startswith("remove"):
                    kept[more[0] if what == "rename" else path] = made
    for kept in (names, durable, last):
        for keeps_bytes in (True, False):
            found = {
                each: None if it is None else _File(it.data if keeps_bytes else it.durable)
                for each, it in kept.items()
            }
            yield {each: it for each, it in found.items() if all(_is_there(up, found) for up in each.parents)}


def _is_there(folder: Path, names: Names) -> bool:
    return folder in names or not any(each == folder for each in names if names[each] is None)


def contents(root: Path) -> dict[Path, bytes | None]:
    """All files and folders below a folder, and their bytes."""
    return {path: None if path.is_dir() else path.read_bytes() for path in root.rglob("*")}


def lay_out(names: Names, root: Path, target: Path) -> None:
    """Make these files, with ``target`` in place of ``root``."""
    target.mkdir()
    for path in sorted(names, key=lambda each: len(each.parts)):
        place, file = target / path.relative_to(root), names[path]
        if file is None:
            place.mkdir()
        elif place.parent.is_dir():  # else its folder was lost
            place.write_bytes(file.data)
