"""What this node can still show of its workers' output, and how far somebody has read it.

Theory. Each attempt of a worker has its own output for each stream: a log file if there is one, else the last
bytes, in memory, if the stream goes through the agent, else nothing. A *place* names the attempt and an
offset in its output, so whoever reads goes on exactly where it was, also when the worker has started again.

Bounds: KEPT_ATTEMPTS of each stream are remembered, and TAIL_BYTES of one that has no file. A file is opened
by its path for each look, and counts only if it is the one that was opened for the worker: nobody is shown
another file because a name leads there by now.
"""

from __future__ import annotations

import os
import stat
from collections import deque
from collections.abc import Callable
from typing import NamedTuple, Protocol

from elasticrun.core.protocol.questions import MAX_PIECE, LogPiece, LogStream

KEPT_ATTEMPTS = 3
TAIL_BYTES = 64 << 10
#: How far back the beginning of the newest lines is looked for.
SCAN_BYTES = 1 << 20
_FLAGS = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK


class Output(Protocol):
    """What is kept of one attempt's output in one stream."""

    @property
    def note(self) -> str:
        """Why nothing is kept; "" if something is."""

    @property
    def path(self) -> str:
        """The file that the worker writes by itself; "": whoever writes tells."""

    def span(self) -> tuple[int, int]:
        """The offsets of the first byte that is kept, and behind the last one."""

    def read(self, offset: int, limit: int) -> bytes:
        """Up to so many bytes; the offset is in the span."""

    def finish(self) -> None:
        """The attempt is over: what comes now is not its output."""


class Nothing:
    """Output that goes past the agent."""

    path = ""

    def __init__(self, note: str) -> None:
        self.note = note

    def span(self) -> tuple[int, int]:
        return 0, 0

    def read(self, offset: int, limit: int) -> bytes:
        return b""

    def finish(self) -> None:
        """There is nothing to end."""


class MemoryTail:
    """The last bytes of a stream that goes through the agent."""

    note = ""
    path = ""

    def __init__(self, limit: int = TAIL_BYTES) -> None:
        self._kept = bytearray()
        self._end = 0
        self._limit = limit

    def add(self, data: bytes) -> None:
        self._end += len(data)
        self._kept += data[-self._limit :]
        if len(self._kept) > 2 * self._limit:  # trimmed now and then, not at each short write
            del self._kept[: -self._limit]

    def span(self) -> tuple[int, int]:
        return self._end - min(len(self._kept), self._limit), self._end

    def read(self, offset: int, limit: int) -> bytes:
        start = len(self._kept) - (self._end - offset)
        return bytes(self._kept[start : start + limit])

    def finish(self) -> None:
        """Nobody adds to it."""


class FileOutput:
    """A log file, from where it was when the attempt began."""

    note = ""

    def __init__(self, path: str, fd: int, is_told: bool) -> None:
        """``fd``: the open file. ``is_told``: whoever writes it tells of news."""
        found = os.fstat(fd)
        self.path = "" if is_told else path
        self._name = path
        self._is = found.st_dev, found.st_ino
        self._begin = found.st_size
        self._end: int | None = None  # where the next attempt goes on in the same file

    def span(self) -> tuple[int, int]:
        fd, size = self._open()
        if fd >= 0:
            os.close(fd)
        end = size if self._end is None else min(size, self._end)
        return min(self._begin, end), end

    def finish(self) -> None:
        self._end = self.span()[1]

    def read(self, offset: int, limit: int) -> bytes:
        fd, _ = self._open()
        if fd < 0:
            return b""
        try:
            most = limit if self._end is None else min(limit, self._end - offset)
            return os.pread(fd, most, offset)
        except OSError:
            return b""
        finally:
            os.close(fd)

    def _open(self) -> tuple[int, int]:
        """The open file and its size; -1 and 0 if it has gone."""
        try:
            fd = os.open(self._name, _FLAGS)
        except OSError:
            return -1, 0
        found = os.fstat(fd)
        if (found.st_dev, found.st_ino) == self._is and stat.S_ISREG(found.st_mode):
            return fd, found.st_size
        os.close(fd)
        return -1, 0


class _Attempt(NamedTuple):
    round: int
    attempt: int
    output: Output


class _Place(NamedTuple):
    number: int  # in the shelf
    offset: int


class KeptOutput:
    """The output of all workers of this node, by local rank and stream."""

    def __init__(self) -> None:
        self._name = os.urandom(4).hex()  # places of another agent are not ours
        self._shelves: dict[tuple[int, LogStream], deque[_Attempt]] = {}
        self._hearers: set[Callable[[], None]] = set()

    def open(self, local_rank: int, stream: LogStream, started: tuple[int, int], output: Output) -> None:
        """A worker starts, in a round and an attempt; its earlier output is complete."""
        shelf = self._shelves.setdefault((local_rank, stream), deque(maxlen=KEPT_ATTEMPTS))
        if shelf:
            shelf[-1].output.finish()
        shelf.append(_Attempt(*started, output))
        self.tell()

    def tell(self) -> None:
        """There is new output."""
        for hear in tuple(self._hearers):
            hear()

    def listen(self, hear: Callable[[], None]) -> None:
        """Call ``hear`` at each news, until ``unlisten``; it must not raise."""
        self._hearers.add(hear)

    def unlisten(self, hear: Callable[[], None]) -> None:
        self._hearers.discard(hear)

    @property
    def local_ranks(self) -> frozenset[int]:
        """Of the workers that there are or were."""
        return frozenset(local_rank for local_rank, _ in self._shelves)

    def path_to_watch(self, local_rank: int, stream: LogStream) -> str:
        """The file whose writer does not tell of news; "" if there is none."""
        shelf = self._shelves.get((local_rank, stream))
        return shelf[-1].output.path if shelf else ""

    def read(self, local_rank: int, stream: LogStream, after: str, lines: int) -> LogPiece:
        """What comes after a place; with "" the newest lines."""
        shelf = self._shelves.get((local_rank, stream))
        if not shelf:
            return LogPiece(stream, "", note="it has not started yet")
        place = self._found(shelf, after)
        begins, missed = place is None, place is None and after != ""
        if place is None:
            place = _newest(shelf, lines)
        index, offset = place
        while index + 1 < len(shelf) and offset >= shelf[index].output.span()[1]:
            index, offset, begins = index + 1, 0, True
        given = shelf[index]
        begin, end = given.output.span()
        if begins and offset == 0:
            offset = begin
        missed, offset = missed or offset < begin, max(begin, offset)
        data = given.output.read(offset, MAX_PIECE)
        upto = offset + len(data)
        return LogPiece(
            stream,
            f"{self._name}:{given.round}.{given.attempt}:{upto}",
            data,
            given.round,
            given.attempt,
            begins,
            missed,
            more=bool(data) and (upto < end or index + 1 < len(shelf)),
            note=given.output.note,
        )

    def _found(self, shelf: deque[_Attempt], after: str) -> _Place | None:
        name, _, rest = after.partition(":")
        named, _, offset = rest.partition(":")
        if name != self._name or not (offset.isascii() and offset.isdigit()):
            return None
        for index, given in enumerate(shelf):
            if named == f"{given.round}.{given.attempt}":
                return _Place(index, min(int(offset[:18]), given.output.span()[1]))
        return None


def _newest(shelf: deque[_Attempt], lines: int) -> _Place:
    """Where the newest lines begin, of the newest attempt that has printed anything."""
    index = len(shelf) - 1
    for number in reversed(range(len(shelf))):
        begin, end = shelf[number].output.span()
        if end > begin:
            index = number
            break
    output = shelf[index].output
    begin, end = output.span()
    start = max(begin, end - SCAN_BYTES)
    return _Place(index, start + _lines_from(output.read(start, end - start), lines))


def _lines_from(data: bytes, lines: int) -> int:
    """Where the last so many lines begin; an unfinished one counts."""
    at = len(data) - 1 if data.endswith(b"\n") else len(data)
    if not lines:
        return len(data)
    for _ in range(lines):
        at = data.rfind(b"\n", 0, max(at, 0))
        if at < 0:
            return 0
    return at + 1
