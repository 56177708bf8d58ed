"""Reads the error files of workers without waiting for them.

On a file server, reading even a plain file may take for ever. So each file is read by a thread of its own,
with a deadline. Past it, the failure is reported without its file. While such a thread still hangs, no other
is started: further files count as unreadable at once. The threads are daemons, so none of them keeps the
agent from ending.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from dataclasses import dataclass

from elasticrun.agent.workers.error_file import ErrorRecord, read_error_file

#: Seconds to wait for one file.
DEADLINE = 1.0

Then = Callable[[ErrorRecord | None], None]
#: Reads the error file at a path ("": there is none), then calls back.
ReadError = Callable[[str, Then], None]


def read_at_once(path: str, then: Then) -> None:
    """Read the file at once, in this thread."""
    then(read_error_file(path) if path else None)


@dataclass(slots=True, eq=False)
class _Read:
    path: str
    then: Then
    timer: asyncio.TimerHandle | None = None


class ErrorReader:
    """Made and used inside a running event loop; ``read`` is a ReadError."""

    def __init__(self, deadline: float = DEADLINE) -> None:
        self._loop = asyncio.get_running_loop()
        self._deadline = deadline
        self._reads: set[_Read] = set()  # within their deadline
        self._stuck: set[_Read] = set()
        self._on_idle: list[Callable[[], None]] = []

    def read(self, path: str, then: Then) -> None:
        """Call ``then`` once, in the loop's thread and within the deadline, with what the file says."""
        if not path or self._stuck:
            then(self._unread(path) if path else None)
            return
        read = _Read(path, then)
        try:
            threading.Thread(target=self._work, args=(read,), daemon=True, name="error file").start()
        except RuntimeError:  # too many threads
            then(self._unread(path))
            return
        self._reads.add(read)
        read.timer = self._loop.call_later(self._deadline, self._give_up, read)

    def when_idle(self, then: Callable[[], None]) -> None:
        """Call ``then`` once nothing is being read: at once if nothing is."""
        if self._reads:
            self._on_idle.append(then)
        else:
            then()

    def _work(self, read: _Read) -> None:
        record = read_error_file(read.path)
        with contextlib.suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(self._done, read, record)

    def _done(self, read: _Read, record: ErrorRecord | None) -> None:
        self._stuck.discard(read)
        if read in self._reads:
            assert read.timer is not None
            read.timer.cancel()
            self._end(read, record)

    def _give_up(self, read: _Read) -> None:
        self._stuck.add(read)
        self._end(read, self._unread(read.path))

    def _end(self, read: _Read, record: ErrorRecord | None) -> None:
        self._reads.discard(read)
        read.then(record)
        while self._on_idle and not self._reads:
            self._on_idle.pop(0)()

    def _unread(self, path: str) -> ErrorRecord:
        return ErrorRecord(problem=f"its error file {path} could not be read within {self._deadline:g} s")
