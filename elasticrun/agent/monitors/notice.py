"""The notice file of ``--preemption-file``: when it exists, this node is to leave with grace.

The notice is a level, not an edge, like all that agents are told: the file *exists*, or it does not. So
one that is there already when the agent starts counts as well. Telling a stale notice from one that was
written while this agent was being (re)started would need its time of modification, which is the clock of
whoever wrote it; and of the two mistakes, a node that says "remove the file" and leaves is a smaller one
than a node that trains on until its machine is taken from under it.

Nothing is polled. The invariant: whatever could make the path begin to exist is an event that we are
told. Two kinds of thing could:

* In a directory on the way, the name by which the way goes on appears, be it again. The way leads
  through links as well (Kubernetes exchanges the content of a volume by moving a new link ``..data``
  over the old one), up to the last directory that exists. inotify watches each of them.
* Something is mounted over the way: the kernel marks ``/proc/self/mountinfo``.

After such an event the way is looked up anew, so a queue that ran over, or a directory that is gone,
cannot lead astray. inotify sees what happens on this host: a file that another host writes to a network
disk comes unseen.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import select
import stat
import struct
from collections import deque
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from elasticrun.dataclass import dataclass

if TYPE_CHECKING:
    import asyncio

_log = logging.getLogger(__name__)

# From <sys/inotify.h>; the numbers are the same on every architecture.
_IN_CLOSE_WRITE, _IN_MOVED_TO, _IN_CREATE = 0x8, 0x80, 0x100
_IN_DELETE_SELF, _IN_MOVE_SELF = 0x400, 0x800
_IN_UNMOUNT, _IN_Q_OVERFLOW, _IN_IGNORED = 0x2000, 0x4000, 0x8000
_IN_ONLYDIR = 0x1000000
_ABOUT_A_NAME = _IN_CLOSE_WRITE | _IN_MOVED_TO | _IN_CREATE
_ABOUT_ITSELF = _IN_DELETE_SELF | _IN_MOVE_SELF
_ALWAYS_TOLD = _IN_UNMOUNT | _IN_Q_OVERFLOW | _IN_IGNORED
_EVENT = struct.Struct("iIII")  # watch, what, cookie, length of the name that follows

_MAX_LINKS = 40  # the kernel's own limit
_ATTEMPTS = 100  # at catching the way while it changes
_READ_BYTES = 65536
_MAX_REASON = 200  # characters
#: What to do about a refusal.
_LIMITS = {
    errno.ENOSPC: " (the limit is fs.inotify.max_user_watches)",
    errno.EMFILE: " (the limits are fs.inotify.max_user_instances and ulimit -n)",
}
#: Seconds that whoever makes the file has to write its first line, before an empty file counts.
_WRITING_TIME = 0.1


class PreemptionNotice:
    """Calls ``on_notice`` with a reason, once, when ``path`` exists. Made inside the running loop.

    ``on_notice`` is called by the loop, never by the constructor. Where the kernel refuses to watch, a
    warning says so, and a file that is not there yet will not be seen.
    """

    def __init__(self, path: str, on_notice: Callable[[str], None]) -> None:
        import asyncio

        self._path = os.path.abspath(path)
        self._on_notice = on_notice
        self._loop = asyncio.get_running_loop()
        self._alarm: asyncio.Handle | None = None
        self._inotify: _Inotify | None = None
        self._mounts: _Mounts | None = None
        if os.path.exists(self._path):
            self._alarm = self._loop.call_soon(self._give, True)
        else:
            self._start_watching()

    def close(self) -> None:
        """Stop watching; ``on_notice`` is not called any more."""
        self._stop_watching()
        if self._alarm is not None:
            self._alarm.cancel()

    def _start_watching(self) -> None:
        try:
            self._inotify = _Inotify()
        except OSError as error:
            self._warn(error)
            return
        self._loop.add_reader(self._inotify.fd, self._on_change)
        self._mounts = _Mounts.open()
        if self._mounts is not None:
            self._loop.add_reader(self._mounts.fd, self._on_mount)
        self._look()

    def _stop_watching(self) -> None:
        for source in (self._inotify, self._mounts):
            if source is not None:
                self._loop.remove_reader(source.fd)
                source.close()
        self._inotify = self._mounts = None

    def _on_change(self) -> None:
        if self._inotify is not None and self._inotify.take():
            self._look()

    def _on_mount(self) -> None:
        if self._mounts is not None:
            self._mounts.take()
            self._look()

    def _look(self) -> None:
        """Watch first, then look, so that nothing falls in between."""
        try:
            if self._inotify is not None:
                self._inotify.watch(self._path)
        except OSError as error:
            self._warn(error)
            self._stop_watching()
        if self._alarm is None and os.path.exists(self._path):
            self._alarm = self._loop.call_later(_WRITING_TIME, self._give, False)
        if self._alarm is not None and _first_line(self._path):
            self._alarm.cancel()
            self._alarm = self._loop.call_soon(self._give, False)

    def _warn(self, error: OSError) -> None:
        _log.warning(
            "cannot watch for the preemption notice %s: %s%s; a file that comes later will not be seen",
            self._path,
            error.strerror,
            _LIMITS.get(error.errno or 0, ""),
        )

    def _give(self, was_there: bool) -> None:
        self._stop_watching()
        line = _first_line(self._path)
        reason = f"preemption notice {self._path}" + (f": {line}" if line else "")
        if was_there:
            reason += " (it was there at the start; remove the file to let this node work)"
        self._on_notice(reason)


class _Inotify:
    """The kernel's queue of events about the way to one file. OSError if it refuses."""

    def __init__(self) -> None:
        import ctypes

        libc = ctypes.CDLL(None, use_errno=True)
        try:
            start, self._add, self._remove = (
                libc.inotify_init1,
                libc.inotify_add_watch,
                libc.inotify_rm_watch,
            )
        except AttributeError:
            raise OSError(errno.ENOSYS, "the C library has no inotify") from None
        self._errno = ctypes.get_errno
        self._names: dict[int, frozenset[bytes]] = {}  # by watch: the names that matter
        self.fd: int = start(os.O_NONBLOCK | os.O_CLOEXEC)
        if self.fd < 0:
            raise self._error()

    def close(self) -> None:
        os.close(self.fd)

    def take(self) -> bool:
        """Take the events that are there away; whether any of them may have changed the way."""
        matters = False
        with contextlib.suppress(BlockingIOError):
            while data := os.read(self.fd, _READ_BYTES):
                matters |= any(
                    what & (_ABOUT_ITSELF | _ALWAYS_TOLD) or name in self._names.get(watch, ())
                    for watch, what, name in _events(data)
                )
        return matters

    def watch(self, path: str) -> None:
        """Watch the way to ``path`` as it is now, and nothing else."""
        before = set(self._names)
        for _ in range(_ATTEMPTS):
            way = find_way(path)
            names = self._watch_all(way)
            before |= set(names)
            if way == find_way(path):  # else it changed between looking and watching
                break
        for watch in before - set(names):
            self._remove(self.fd, watch)  # fails for a directory that is gone, whose watch is gone as well
        self._names = names

    def _watch_all(self, way: Way) -> dict[int, frozenset[bytes]]:
        watches = {}
        for directory, names in way.names.items():
            mask = _ABOUT_A_NAME | _ABOUT_ITSELF | _IN_ONLYDIR
            watch = self._add(self.fd, os.fsencode(directory), mask)
            if watch >= 0:
                watches[watch] = names
                continue
            error = self._error()
            gone = error.errno in (errno.ENOENT, errno.ENOTDIR)
            # One on the way may be closed to us; its owner will hardly exchange it.
            if not gone and (directory == way.end or error.errno != errno.EACCES):
                raise error
        return watches

    def _error(self) -> OSError:
        number = self._errno()
        return OSError(number, os.strerror(number))


def _events(data: bytes) -> Iterator[tuple[int, int, bytes]]:
    """(watch, what, name) of each event."""
    place = 0
    while place < len(data):
        watch, what, _, length = _EVENT.unpack_from(data, place)
        place += _EVENT.size + length
        yield watch, what, data[place - length : place].rstrip(b"\0")


class _Mounts:
    """Readable once after each change of what is mounted where.

    The kernel says so by an exceptional condition of a file that is always readable, which asyncio
    cannot wait for; an epoll of our own, which it can, waits for that condition alone.
    """

    def __init__(self) -> None:
        self._epoll = select.epoll()  # first, as it closes itself if the table cannot be opened
        self._table = os.open("/proc/self/mountinfo", os.O_RDONLY | os.O_CLOEXEC)
        self._epoll.register(self._table, select.EPOLLPRI)
        self.fd = self._epoll.fileno()

    @classmethod
    def open(cls) -> _Mounts | None:
        """None where there is no /proc, or no descriptor is left."""
        try:
            return cls()
        except OSError:
            return None

    def take(self) -> None:
        self._epoll.poll(0)

    def close(self) -> None:
        self._epoll.close()
        os.close(self._table)


@dataclass(frozen=True, slots=True)
class Way:
    """The way to a path as far as it exists: its directories, each with the names by which it goes on."""

    names: dict[str, frozenset[bytes]]
    end: str  # the last one


def find_way(path: str) -> Way:
    """The way to an absolute path. None of its directories is a link; all existed a moment ago."""
    names: dict[str, frozenset[bytes]] = {}
    here, links = "/", 0
    ahead = deque(_parts(path))
    while ahead:
        name = ahead.popleft()
        if name == "..":
            here = os.path.dirname(here)
            continue
        names[here] = names.get(here, frozenset()) | {os.fsencode(name)}
        there = os.path.join(here, name)
        target = _link_target(there) if links < _MAX_LINKS else None
        if target is not None:
            links += 1
            ahead.extendleft(reversed(_parts(target)))
            here = "/" if target.startswith("/") else here
        elif ahead and os.path.isdir(there):
            here = there
        else:
            break
    return Way(names, here)


def _parts(path: str) -> list[str]:
    return [part for part in path.split("/") if part not in ("", ".")]


def _link_target(path: str) -> str | None:
    try:
        return os.readlink(path)
    except OSError:
        return None


def _first_line(path: str) -> str:
    """The beginning of the file, as far as it is one printable line; "" if there is none to be read."""
    try:
        if not stat.S_ISREG(os.stat(path).st_mode):  # to open a device may do things
            return ""
        with open(path, "rb", buffering=0) as file:
            text = file.read(4 * _MAX_REASON)
    except OSError:
        return ""
    line = text.decode(errors="replace").split("\n", 1)[0][:_MAX_REASON]
    return "".join(letter if letter.isprintable() else " " for letter in line).strip()
