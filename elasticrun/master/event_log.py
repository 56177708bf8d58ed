"""The event log: what happened in a job, one JSON object in a line, for people and programs.

    {"v": 1, "event": 12, "at": 3.25, "time": 1790000000.5, "kind": "round_started", "round": 0, ...}

``event`` is the number of the journal's event that caused it, as in the master's log and in ``elastic-ctl
replay``; ``at`` the job's clock in seconds, which is monotonic over all masters of a journal; ``time`` the
wall clock of the master's host. The other fields are those of ``core/protocol/chronicle.py``.

Theory. Entries follow from the journal (``core/job/chronicler.py``), and are written after it. So a master
that is killed in between has written fewer than its journal tells; the next one replays the journal, and
writes those that are missing. The log is bounded: a file that is full is renamed, and the oldest is dropped.
A log that cannot be written costs the job nothing: entries are counted, and the count is written once there
is room.
"""

from __future__ import annotations

import contextlib
import errno
import json
import logging
import os
import re
import stat
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from elasticrun.core.job.chronicler import Chronicler
from elasticrun.core.job.events import Beat
from elasticrun.core.protocol.chronicle import EntriesLost, Happening, LogEntry
from elasticrun.core.protocol.orders import MAX_LINE
from elasticrun.errors import UsageError
from elasticrun.master.event_reader import KEPT, LONGEST, NAME, files_of, older, open_file, read_events
from elasticrun.master.feed import Feed
from elasticrun.rpc.event_lines import is_entry, to_line

if TYPE_CHECKING:
    from elasticrun.core.job.events import JobEffect, JobEvent
    from elasticrun.core.job.state import JobState
    from elasticrun.core.protocol.status import JobStatus
    from elasticrun.master.accounts import Accounts

logger = logging.getLogger(__name__)

__all__ = ["KEPT", "NAME", "Chronicle", "EventLog", "files_of", "read_events", "set_aside"]

#: Bytes of one file.
FILE_BYTES = 16 << 20
#: How many logs of earlier jobs are kept in the same directory.
JOBS_KEPT = 3
#: Entries that may wait to be accounted for, until somebody asks.
UNACCOUNTED = 64
#: A log is a file of its own: neither a link to another one, nor anything that blocks who opens it.
_FLAGS = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
_EARLIER = re.compile(r"earlier-(\d{1,9})-")


class EventLog:
    """The files, as far as they can be written."""

    def __init__(
        self, path: Path, wall_clock: Callable[[], float] = time.time, feed: Feed | None = None
    ) -> None:
        """Go on with the log at ``path``, or begin one. ``feed``: hears each line."""
        self._feed = feed
        self.last = 0  # the event of the newest entry that is there, or waits to be written
        self._path = path
        self._wall_clock = wall_clock
        self._lines: list[bytes] = []
        self._lost = 0  # entries that could not be written
        self._written: tuple[float, float] | None = None  # ``at`` and ``time`` of the newest entry of before
        self._fd: int | None = None
        self._size = 0
        try:
            self._open()
        except OSError as error:
            logger.warning("there will be no event log %s: %s", path, error.strerror)

    @property
    def files(self) -> list[Path]:
        """Those that are there, the oldest first."""
        return files_of(self._path)

    def add(self, event: int, at: float, told: Iterable[Happening], is_late: bool = False) -> None:
        """Collect the entries of an event. ``is_late``: it happened under an earlier master."""
        self.last = max(self.last, event)
        if self._fd is not None or self._feed is not None:
            now = self._time(at, is_late)
            self._lines += [_line(event, at, now, each) for each in told]

    def commit(self) -> None:
        """Write what was collected. Never raises."""
        if not self._lines:
            return
        lines, self._lines = self._lines, []
        if self._feed is not None:
            _tell(self._feed, (line[:-1] for line in lines))
            self._feed.wake()
        if self._fd is None:
            return
        data = b"".join([*self._gap(lines[0]), *lines])
        try:
            self._write(lines, data)
        except OSError as error:
            self._lose(len(lines), error.strerror or str(error))

    def _write(self, lines: list[bytes], data: bytes) -> None:
        self._make_room(len(data))
        assert self._fd is not None
        written = os.write(self._fd, data)
        whole = data.rfind(b"\n", 0, written) + 1
        self._size += written
        if whole:
            self._lost = 0  # the gap was told
        if whole < len(data):
            self._lose(min(len(lines), data.count(b"\n", whole)), "the disk is full")
            self._cut(whole - written)

    def _gap(self, first: bytes) -> Iterator[bytes]:
        """What says, before the first of some lines, that entries are missing."""
        if self._lost:
            entry = json.loads(first)
            yield _line(entry["event"], entry["at"], entry["time"], EntriesLost(self._lost))

    def close(self) -> None:
        """Write what is left; the files stay."""
        self.commit()
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    def _time(self, at: float, is_late: bool) -> float:
        """The wall clock of an entry; an estimate for one that an earlier master should have written."""
        now = self._wall_clock()
        if not is_late or self._written is None:
            return now
        before, then = self._written
        return min(now, then + max(0.0, at - before))

    def _open(self) -> None:
        self._fd = _opened(self._path)
        self._size = os.fstat(self._fd).st_size
        tail = _tail(self._path)
        self._cut(tail.rfind(b"\n") + 1 - len(tail))
        with contextlib.suppress(ValueError, RecursionError):
            entry = json.loads(_newest(tail) or _newest(_tail(older(self._path, 1))))
            if is_entry(entry):
                self.last = entry["event"]
                self._written = entry["at"], entry["time"]
        if self._feed is not None:  # its watchers go on where an earlier master was
            whole = tail[: tail.rfind(b"\n") + 1].splitlines()
            _tell(self._feed, whole[1:] if len(tail) == LONGEST else whole)  # the first one may be cut

    def _cut(self, change: int) -> None:
        """Make the file shorter by what is no whole line; ``change`` is negative, or 0."""
        if change and self._fd is not None:
            self._size += change
            os.ftruncate(self._fd, self._size)

    def _make_room(self, size: int) -> None:
        if self._size == 0 or self._size + size <= FILE_BYTES or self._fd is None:
            return
        for number in range(KEPT, 0, -1):
            with contextlib.suppress(FileNotFoundError):
                older(self._path, number - 1).replace(older(self._path, number))
        fd = _opened(self._path)  # if that fails, the renamed file takes the entries
        os.close(self._fd)
        self._fd, self._size = fd, 0

    def _lose(self, count: int, why: str) -> None:
        if not self._lost:
            logger.warning("the event log %s has a gap (%s); it goes on once there is room", self._path, why)
        self._lost += count


class Chronicle:
    """The event log of a job whose machine is replayed, or runs. No fault of it is one of the job."""

    def __init__(self, log: EventLog, state: JobState) -> None:
        self._log = log
        self._event = 0  # the newest
        self._chronicler = Chronicler(state)
        self._is_late = True
        self._is_broken = False
        self._accounts: Accounts | None = None  # made when there is something to sum up
        self._unaccounted: list[LogEntry] = []

    def restored(self, state: JobState, at: float) -> None:
        """Hear that a replay goes on from this state, as older events are gone."""
        with self._harmless():
            if 0 < self._log.last < state.events:
                self._log.add(state.events, at, [EntriesLost(0)], is_late=True)
            self._log.last = max(self._log.last, state.events)
            self._chronicler = Chronicler(state)

    def heard(self, event: JobEvent, state: JobState, effects: Sequence[JobEffect], at: float) -> None:
        """Hear that the machine of ``state`` has handled an event."""
        if isinstance(event, Beat) or self._is_broken:  # a beat is no event of the journal
            return
        with self._harmless():
            told = self._chronicler.after(event, state, effects)
            self._event = state.events
            if told and not (self._is_late and state.events <= self._log.last):
                self._add(at, told)

    def note(self, at: float, told: Sequence[Happening]) -> None:
        """Hear what no event of the journal has caused; ``at``: when it happened, perhaps a moment ago."""
        if told and not self._is_broken:
            with self._harmless():
                self._add(at, told)

    def note_all(self, notes: Iterable[tuple[float, Happening]]) -> None:
        """The same of several, each with its time."""
        for at, told in notes:
            self.note(at, (told,))

    def _add(self, at: float, told: Sequence[Happening]) -> None:
        self._log.add(self._event, at, told, self._is_late)
        self._unaccounted += [LogEntry(self._event, at, 0.0, each) for each in told]
        if len(self._unaccounted) > UNACCOUNTED:
            self._account()

    def _account(self) -> Accounts:
        """The accounts, with all that was added."""
        if self._accounts is None:
            from elasticrun.master.accounts import Accounts  # the start of a job does not wait for it

            self._accounts = Accounts()
        for entry in self._unaccounted:
            self._accounts.take(entry)
        self._unaccounted.clear()
        return self._accounts

    def accounted(self, status: JobStatus, now: float) -> JobStatus:
        """The status with what is known of where the job's time went until now."""
        known = [status]
        with self._harmless():
            self._log.commit()
            accounts = self._account()
            accounts.read(self._log.files)
            known.append(accounts.add_to(status, now))
        return known[-1]

    def begin(self, state: JobState, at: float) -> None:
        """Hear that what comes now happens now."""
        with self._harmless():
            self._event = state.events
            if state.events:
                self._account().interrupted()
            if self._log.last > state.events:  # the journal has lost events that the log has
                self._log.add(state.events, at, [EntriesLost(0)])
            self._log.commit()
        self._is_late = False

    def commit(self) -> None:
        """Write what was heard."""
        with self._harmless():
            self._log.commit()

    def close(self) -> None:
        """Write what is left."""
        with self._harmless():
            self._log.close()

    @contextlib.contextmanager
    def _harmless(self) -> Iterator[None]:
        try:
            yield
        except Exception:
            if not self._is_broken:
                logger.exception("there is no event log from now on; please report this traceback")
            self._is_broken = True


def _line(event: int, at: float, now: float, happening: Happening) -> bytes:
    return to_line(LogEntry(event, at, now, happening)).encode() + b"\n"


def _tell(feed: Feed, lines: Iterable[bytes]) -> None:
    """Tell watchers; of a line that no answer has room for, that it is missing."""
    for line in lines:
        if len(line) <= MAX_LINE and line.isascii():
            feed.add(line.decode())
            continue
        with contextlib.suppress(ValueError, RecursionError):
            entry = json.loads(line)
            if is_entry(entry):
                missing = _line(entry["event"], entry["at"], entry["time"], EntriesLost(1))
                feed.add(missing[:-1].decode())


def set_aside(path: Path) -> None:
    """Rename the files of an earlier job's log, and drop those of the oldest. Never raises: they may stay."""
    found = files_of(path)
    if not found:
        return
    matches = (_EARLIER.match(each.name) for each in path.parent.glob(f"earlier-*-{path.stem}*"))
    numbers = {int(match[1]) for match in matches if match is not None}
    number = max(numbers, default=0) + 1
    try:
        for file in found:
            file.replace(path.with_name(f"earlier-{number}-{file.name}"))
        for old in numbers:
            if old <= number - JOBS_KEPT:
                for file in files_of(path.with_name(f"earlier-{old}-{path.name}")):
                    file.unlink()
    except OSError as error:
        logger.warning("the event log %s of an earlier job cannot be renamed: %s", path, error.strerror)


def _opened(path: Path) -> int:
    """The file for writing, made if it is missing. OSError: it cannot be, or is no file."""
    fd = os.open(path, _FLAGS, 0o600)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise OSError(errno.EINVAL, "it is no regular file")
    return fd


def _tail(path: Path) -> bytes:
    """The end of a file, with at least one whole line if it has one; b"" if there is no file."""
    try:
        with open_file(path) as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - LONGEST))
            return file.read()
    except (OSError, UsageError):
        return b""


def _newest(tail: bytes) -> bytes:
    """The last whole line."""
    return b"".join(tail[: tail.rfind(b"\n") + 1].splitlines()[-1:])
