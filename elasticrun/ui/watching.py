"""Hears that a file has grown, or was renamed and made anew, from the kernel: inotify, without polling.

Theory. The directory is watched, not the file: a log that is full is renamed, and a new one takes its name.
Any event there that names the log wakes the reader, who then looks for itself. So an event more or less does
no harm, and nothing is lost if the kernel's queue overflows: that is an event too. Disks of other hosts tell
of no changes that these make.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import sys
from pathlib import Path

from elasticrun.errors import UsageError

_MODIFY, _MOVED_TO, _CREATE, _OVERFLOW = 0x2, 0x80, 0x100, 0x4000
_FLAGS = os.O_CLOEXEC | os.O_NONBLOCK
_HEAD = 16  # bytes of an event before its name: descriptor, mask, cookie, length


class LogNews:
    """Tells when a log may have changed. Made inside the running loop."""

    def __init__(self, path: Path) -> None:
        """UsageError: the kernel does not tell."""
        self._name = os.fsencode(path.name)
        self._news = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        libc = ctypes.CDLL(None, use_errno=True)
        self._fd = libc.inotify_init1(_FLAGS)
        wanted = os.fsencode(path.parent), _MODIFY | _MOVED_TO | _CREATE
        if self._fd < 0 or libc.inotify_add_watch(self._fd, *wanted) < 0:
            error = os.strerror(ctypes.get_errno())
            if self._fd >= 0:
                os.close(self._fd)
            raise UsageError(f"cannot follow {path}: the kernel does not watch its directory ({error})")
        self._loop.add_reader(self._fd, self._read)

    async def wait(self) -> None:
        """Until something changed since the last ``wait``."""
        await self._news.wait()
        self._news.clear()

    def close(self) -> None:
        """Watch no more."""
        self._loop.remove_reader(self._fd)
        os.close(self._fd)

    def _read(self) -> None:
        try:
            data = os.read(self._fd, 1 << 16)
        except BlockingIOError:
            return
        while len(data) >= _HEAD:
            mask = int.from_bytes(data[4:8], sys.byteorder)
            length = int.from_bytes(data[12:16], sys.byteorder)
            if mask & _OVERFLOW or data[_HEAD : _HEAD + length].rstrip(b"\0") == self._name:
                self._news.set()
            data = data[_HEAD + length :]
