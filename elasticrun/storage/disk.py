"""A directory as a store. Whatever is in it under its own name was written in full, and is on the disk.

Theory. A file gets a temporary name first. Its bytes are synced, it is renamed, and its folder is synced; so
after a crash at any moment the old file is there, or the new one, and never a part of it. While it is written
it is synced again and again, and what was synced leaves the page cache: so a writer in the background neither
fills memory with its bytes nor makes others wait for one long sync.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import BinaryIO

from elasticrun.storage.errors import StorageError, StorageGoneError, explaining
from elasticrun.storage.store import Entry, Sink

#: Bytes after which a file is synced while it is written.
SYNC_EVERY = 64 << 20
#: The end of temporary names. A writer that is killed leaves such a file; nothing reads it.
TEMPORARY = ".tmp"


class Disk:
    """What a store does to a disk, one method for each call whose effect a crash could cut off."""

    def make_folder(self, path: Path) -> None:
        """Make a folder in one that exists."""
        path.mkdir()

    def create(self, path: Path) -> int:
        """Create a file. Returns a descriptor."""
        return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)

    def write(self, fd: int, data: bytes | memoryview) -> int:
        """Write some of it. Returns how many bytes."""
        return os.write(fd, data)

    def sync(self, fd: int, first: int, length: int) -> None:
        """Wait until a file is on the disk, and drop this range of it from the page cache."""
        os.fsync(fd)
        os.posix_fadvise(fd, first, length, os.POSIX_FADV_DONTNEED)

    def rename(self, path: Path, target: Path) -> None:
        """Give a file another name, in place of the file that has it."""
        path.replace(target)

    def sync_folder(self, path: Path) -> None:
        """Wait until the names in a folder are on the disk."""
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def remove(self, path: Path) -> None:
        """Remove a file, if it is there."""
        path.unlink(missing_ok=True)

    def remove_folder(self, path: Path) -> None:
        """Remove an empty folder."""
        path.rmdir()


class DiskStore:
    """The store in a directory."""

    def __init__(self, path: str, disk: Disk | None = None, make: bool = False) -> None:
        """``disk`` is for tests. StorageError if the directory does not exist, or cannot be made."""
        self.url = path
        self._root = Path(path)
        self._disk = disk or Disk()
        with explaining("open the storage", path):
            if make:
                self._make_root()
            with os.scandir(self._root):  # it is a directory, and can be read
                self.device = self._root.stat().st_dev

    def _make_root(self) -> None:
        """Make the directory, so that a crash leaves the names that lead to it."""
        missing = [path for path in (self._root, *self._root.parents) if not path.exists()]
        self._root.mkdir(parents=True, exist_ok=True)
        for path in reversed(missing):
            self._disk.sync_folder(path.parent)

    def entries(self, folder: str = "") -> list[Entry]:
        """What is in a folder."""
        found: list[Entry] = []
        with explaining(f"list {folder or 'commits'}", self.url):
            try:
                with os.scandir(self._root / folder) as each:
                    for entry in each:
                        with contextlib.suppress(FileNotFoundError):  # it was removed meanwhile
                            is_folder = entry.is_dir(follow_symlinks=not folder)
                            found.append(Entry(entry.name, 0 if is_folder else _size(entry), is_folder))
            except FileNotFoundError:
                if not folder:
                    raise
        return sorted(found)

    def make(self, folder: str) -> None:
        """Make a folder. StorageGoneError if another file system is there now than at the start."""
        with explaining(f"make {folder}", self.url):
            if self._root.stat().st_dev != self.device:
                raise StorageGoneError(
                    f"cannot make {folder} in {self.url}: another file system is there than before;"
                    f" {StorageGoneError.advice}"
                )
            with contextlib.suppress(FileExistsError):
                self._disk.make_folder(self._root / folder)
            self._disk.sync_folder(self._root)

    @contextlib.contextmanager
    def writing(self, path: str) -> Iterator[Sink]:
        """Write a file. It is there when the block has ended, and nothing is left of it if that fails."""
        target = self._root / path
        temporary = target.with_name(f".{target.name}.{os.urandom(4).hex()}{TEMPORARY}")
        with explaining(f"write {path}", self.url):
            fd = self._disk.create(temporary)
            try:
                try:
                    file = _File(self._disk, fd)
                    yield file.write
                    file.sync()
                finally:
                    os.close(fd)
                self._disk.rename(temporary, target)
            except BaseException:
                with contextlib.suppress(OSError):
                    self._disk.remove(temporary)
                raise
            self._disk.sync_folder(target.parent)

    def open(self, path: str) -> BinaryIO:
        """Read a file."""
        with explaining(f"read {path}", self.url):
            return (self._root / path).open("rb", buffering=0)

    def read(self, path: str) -> bytes | None:
        """All that a small file has."""
        with explaining(f"read {path}", self.url):
            try:
                return (self._root / path).read_bytes()
            except (FileNotFoundError, NotADirectoryError):
                return None

    def remove(self, folder: str, names: Collection[str]) -> None:
        """Remove files."""
        with explaining(f"remove files of {folder}", self.url):
            for name in names:
                self._disk.remove(self._root / folder / name)
            if names:
                self._disk.sync_folder(self._root / folder)

    def unlink(self, folder: str) -> bool:
        """Remove a symbolic link; False if it is none."""
        with explaining(f"remove {folder}", self.url):
            is_link = (self._root / folder).is_symlink()
            if is_link:
                self._disk.remove(self._root / folder)
                self._disk.sync_folder(self._root)
        return is_link

    def remove_folder(self, folder: str) -> None:
        """Remove a folder without files."""
        with explaining(f"remove {folder}", self.url):
            with contextlib.suppress(FileNotFoundError):
                self._disk.remove_folder(self._root / folder)
            self._disk.sync_folder(self._root)

    def changed(self, folder: str) -> float | None:
        """When a file in a folder, or the folder, changed last."""
        place = self._root / folder
        with explaining(f"look at {folder}", self.url):
            times = [place.stat().st_mtime]
            for path in place.iterdir():
                with contextlib.suppress(FileNotFoundError):
                    times.append(path.stat().st_mtime)
        return max(times)


def _size(entry: os.DirEntry[str]) -> int:
    """Bytes of a file, or of the one that a link leads to."""
    try:
        return entry.stat().st_size
    except FileNotFoundError:
        if entry.is_symlink():  # it leads nowhere
            return 0
        raise


class _File:
    """A file that is written."""

    def __init__(self, disk: Disk, fd: int) -> None:
        self._disk = disk
        self._fd = fd
        self._length = 0
        self._synced = 0

    def write(self, data: bytes | memoryview) -> None:
        rest = memoryview(data)
        while rest:
            written = self._disk.write(self._fd, rest)
            if written <= 0:
                raise StorageError("the storage takes no more bytes, and does not say why")
            rest = rest[written:]
            self._length += written
        if self._length - self._synced >= SYNC_EVERY:
            self.sync()

    def sync(self) -> None:
        self._disk.sync(self._fd, self._synced, self._length - self._synced)
        self._synced = self._length
