"""The lines that a job's launchers and ranks print, kept for whoever reads them.

Lines are kept until they are taken, up to a bound; then the oldest are dropped and counted. So no rank ever
waits for a slow reader.
"""

from __future__ import annotations

import contextlib
import os
import re
import threading
from collections import deque

from elasticrun.dataclass import dataclass

#: Characters that are kept for a reader who is late.
KEPT = 16 << 20
#: What a line costs beside its characters.
COST = 100
#: Characters after which a line whose end has not come is handed on as if it had.
LONGEST = 1 << 20
#: How launchers mark the lines of a rank.
_MARK = re.compile(r"\[rank(\d{1,9})\] ?")


@dataclass(frozen=True, slots=True)
class Line:
    """A line that a rank has printed: its ``text`` without its end. ``rank``: None for one of a launcher."""

    rank: int | None
    text: str
    is_error: bool = False  # it came by stderr


class Lines:
    """Takes text from several threads, and has it taken as lines by one. To be closed."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: deque[Line] = deque()
        self._size = 0
        self._dropped = 0
        #: Can be read once there are lines.
        self.bell = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self.out, self.err = Writer(self, is_error=False), Writer(self, is_error=True)

    def add(self, line: Line) -> None:
        """Keep a line, and drop the oldest if there are too many."""
        with self._lock:
            self._kept.append(line)
            self._size += len(line.text) + COST
            while self._size > KEPT and len(self._kept) > 1:
                self._size -= len(self._kept.popleft().text) + COST
                self._dropped += 1
            if self.bell >= 0:
                os.eventfd_write(self.bell, 1)

    def take(self) -> list[Line]:
        """Those that came since then, in order; one of a launcher's says how many were dropped."""
        with self._lock:
            with contextlib.suppress(OSError, ValueError):  # nobody has rung, or it is closed
                os.eventfd_read(self.bell)
            found, dropped = [*self._kept], self._dropped
            self._kept.clear()
            self._size = self._dropped = 0
        lost = Line(None, f"{dropped} lines were dropped: nobody had read them", is_error=True)
        return [lost, *found] if dropped else found

    def finish(self) -> None:
        """No more comes: what has no end is a line as well."""
        for writer in (self.out, self.err):
            writer.finish()

    def close(self) -> None:
        """Let go of the bell; lines may still be taken."""
        with self._lock:
            if self.bell >= 0:
                os.close(self.bell)
                self.bell = -1


class Writer:
    """A text stream, as far as whoever copies a launcher's output needs one."""

    def __init__(self, lines: Lines, is_error: bool) -> None:
        self._lines = lines
        self._is_error = is_error
        self._held = ""

    def write(self, text: str) -> None:
        """Take text; the last line is held until it ends or has more than ``LONGEST`` characters."""
        *whole, self._held = (self._held + text).split("\n")
        if len(self._held) > LONGEST:
            whole, self._held = [*whole, self._held], ""
        for line in whole:
            mark = _MARK.match(line)
            rank, said = (None, line) if mark is None else (int(mark[1]), line[mark.end() :])
            self._lines.add(Line(rank, said, self._is_error))

    def flush(self) -> None:
        """All is handed on at once."""

    def finish(self) -> None:
        """Hand on what has no end."""
        if self._held:
            self.write("\n")
