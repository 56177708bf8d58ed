"""News of files that another process writes, by the kernel's inotify: nobody looks at a file in vain.

A file on another host's disk tells nothing; neither does one for which the kernel has no watch left. Whoever
waits then waits in vain, and has to bound its wait.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections import Counter
from collections.abc import Callable
from typing import Any

_IN_MODIFY = 0x2
_IN_NONBLOCK_CLOEXEC = os.O_NONBLOCK | os.O_CLOEXEC
_READ_BYTES = 64 << 10


class FileNews:
    """Calls ``hear`` when one of the watched files was written to. Made inside the running loop."""

    def __init__(self, hear: Callable[[], None]) -> None:
        self._hear = hear
        self._loop = asyncio.get_running_loop()
        self._fd = -1
        self._numbers: dict[str, int] = {}  # of the watches, by path
        self._wanted: Counter[str] = Counter()

    def watch(self, path: str) -> bool:
        """Watch a file until ``unwatch``; False if that cannot be done."""
        if not self._wanted[path] and not self._add(path):
            del self._wanted[path]
            return False
        self._wanted[path] += 1
        return True

    def unwatch(self, path: str) -> None:
        """One watcher less."""
        self._wanted[path] -= 1
        if self._wanted[path] <= 0:
            del self._wanted[path]
            _libc().inotify_rm_watch(self._fd, self._numbers.pop(path))

    def close(self) -> None:
        """Watch nothing any more."""
        if self._fd >= 0:
            self._loop.remove_reader(self._fd)
            os.close(self._fd)
            self._fd = -1

    def _add(self, path: str) -> bool:
        if self._fd < 0:
            self._fd = _libc().inotify_init1(_IN_NONBLOCK_CLOEXEC)
            if self._fd < 0:
                return False
            self._loop.add_reader(self._fd, self._on_readable)
        number: int = _libc().inotify_add_watch(self._fd, os.fsencode(path), _IN_MODIFY)
        if number >= 0:
            self._numbers[path] = number
        return number >= 0

    def _on_readable(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.read(self._fd, _READ_BYTES)  # which file it was does not matter
        self._hear()


def _libc() -> Any:  # functions of a library have no types
    import ctypes  # most agents are never asked

    return ctypes.CDLL(None, use_errno=True)
