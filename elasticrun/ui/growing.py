"""An event log that grows while it is read: line by line, over all its files, however often it is renamed.

Theory. The reader knows its file by the number that the disk gives it, and how far it has read whole lines.
A line that is not whole is read again when there is more, as a master that starts again cuts it off. When the
name means another file, the rest of ours is read first, then what came after it, the oldest first. If ours
was dropped meanwhile, so were others, and what is left is read.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from elasticrun.errors import UsageError

_FLAGS = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK  # a FIFO would be waited for
_CHUNK = 1 << 20
#: No line of a log is longer; the beginning of one that is gets dropped.
_LONGEST = 1 << 22


class GrowingLog:
    """Reads from the oldest file on."""

    def __init__(self, path: Path, files_of: Callable[[Path], Sequence[Path]]) -> None:
        """``files_of``: the files of a log that are there, the oldest first. UsageError: there are none."""
        self._path = path
        self._files_of = files_of
        self._fd = -1
        self._read = 0  # bytes of whole lines
        if not self._next(None):
            raise UsageError(f"{path}: there is no event log; give a --state-dir, or its events.jsonl")

    def lines(self) -> Iterator[bytes]:
        """The whole lines that came since the last call."""
        while True:
            yield from self._rest()
            if not self._is_renamed():
                return
            yield from self._rest()  # written just before it was renamed
            if not self._next(os.fstat(self._fd).st_ino):
                return

    def close(self) -> None:
        """Close the file."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _rest(self) -> Iterator[bytes]:
        size = _CHUNK
        while data := os.pread(self._fd, size, self._read):
            whole = data.rfind(b"\n") + 1
            if not whole and len(data) < size:
                return  # its end is still to come
            if not whole and size < _LONGEST:
                size *= 2
                continue
            self._read += whole or len(data)
            size = _CHUNK
            yield from data[:whole].split(b"\n")[:-1]

    def _is_renamed(self) -> bool:
        try:
            return self._path.stat().st_ino != os.fstat(self._fd).st_ino
        except OSError:
            return False  # just now there is no file of that name

    def _next(self, before: int | None) -> bool:
        """Open the file after the one of this number; else the oldest. Whether there is one."""
        files = []
        for path in self._files_of(self._path):
            with contextlib.suppress(FileNotFoundError):  # renamed just now
                files.append((path, path.stat().st_ino))
        at = next((at for at, (_, number) in enumerate(files, 1) if number == before), 0)
        if at >= len(files):
            return False
        path, _ = files[at]
        try:
            fd = os.open(path, _FLAGS)
        except OSError as error:
            raise UsageError(f"cannot read the event log {path}: {error.strerror}") from error
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            os.close(fd)
            raise UsageError(f"cannot read the event log {path}: it is no regular file")
        self.close()
        self._fd, self._read = fd, 0
        return True
