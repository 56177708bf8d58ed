"""A log file that tolerates a full disk.

An existing file is continued; its earlier content is somebody else's and is never read.

``write`` gives back what the file did not take, so that the caller can show it elsewhere. The trouble is
reported once; every later write tries again, because disks are also freed.
"""

from __future__ import annotations

import os
from collections.abc import Callable

_FLAGS = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC


class LogFile:
    """An append-only file; the bytes before ``size`` were written by us, or before we opened it."""

    def __init__(self, path: str, report: Callable[[str], None]) -> None:
        """OSError if the file cannot be opened."""
        self.path = path
        self.fd = os.open(path, _FLAGS, 0o666)
        self.size = self._start = os.fstat(self.fd).st_size
        self._report = report
        self._complained = False

    def write(self, data: bytes) -> bytes:
        """Append ``data``; return the rest that could not be written, normally nothing."""
        view = memoryview(data)
        try:
            while view:
                written = os.write(self.fd, view)
                self.size += written
                view = view[written:]
        except OSError as error:
            self._complain(error)
            return bytes(view)
        return b""

    def read(self, offset: int, limit: int) -> bytes:
        """Up to ``limit`` of the bytes at ``offset``."""
        return os.pread(self.fd, min(limit, self.size - offset), offset)

    def tail(self, limit: int) -> bytes:
        """The last ``limit`` bytes that anybody wrote since it was opened."""
        return os.pread(self.fd, limit, max(self._start, os.fstat(self.fd).st_size - limit))

    def close(self) -> None:
        os.close(self.fd)

    def _complain(self, error: OSError) -> None:
        if not self._complained:
            self._complained = True
            self._report(f"{self.path} cannot be written ({error.strerror}); that output goes to the console")


def open_log(path: str, report: Callable[[str], None]) -> LogFile | None:
    """Open a log file. None without a path, or if opening fails, which is reported."""
    if not path:
        return None
    try:
        return LogFile(path, report)
    except OSError as error:
        report(f"{path} cannot be opened ({error.strerror}); that output goes to the console")
        return None
