"""What the kernel knows about a round on this host: OOM kills, and its log.

The counters only grow and carry no time, so they are read when a round starts and again at a failure, and
the difference is the fact. Every source may be missing: no cgroup, a container that hides it, a log that only
root may read. A source that cannot be read states no fact; that is never an error.

The limits show which memory ran out, the container's or the host's. The kernel counts a kill in the victim's
cgroup, whichever OOM killer acted; but the cgroup itself, or one above it, hits its limit only if its own
memory ran out. A kill without such a hit was the host's. Where the cgroup says nothing at all, the host's
count stands in for it, although it covers every process of the host.
"""

from __future__ import annotations

import errno
import os
import re
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from functools import cache

from elasticrun.dataclass import dataclass

#: Lines of the kernel's log that a failure carries at most: the newest.
MAX_LINES = 30
#: Characters of one such line at most.
MAX_LINE = 300
#: Records read at once at most. The kernel's ring holds fewer, unless it is flooded as we read.
MAX_RECORDS = 20_000

_RECORD_BYTES = 8192  # the kernel's limit for one record
_FILE_BYTES = 64 * 1024

_OF_INTEREST = (
    r"NVRM|\bSXid\b|NVLink|\bECC\b|\bEDAC\b|[Hh]ardware [Ee]rror|[Mm]achine [Cc]heck"
    r"|hardware memory corruption|PCIe Bus Error|fallen off the bus|[Oo]ut of memory|oom-kill"
)
_HOST_KILL = r"constraint=CONSTRAINT_(?!MEMCG)|(?<!cgroup o)(?<!cgroup O)ut of memory: Kill"
_CGROUP_KILL = r"constraint=CONSTRAINT_MEMCG|cgroup [Oo]ut of memory: Kill"


@dataclass(frozen=True, slots=True)
class Facts:
    """What happened since the round began. ``oom_kills`` and ``host_oom`` exclude each other."""

    oom_kills: int = 0  # kills in our cgroup at its limit, or at that of one above it
    host_oom: bool = False
    kernel_log: str = ""


@dataclass(frozen=True, slots=True)
class _Counts:
    """Counters of the kernel; None: not readable."""

    kills: int | None = None  # processes of our cgroup that any OOM killer killed
    limits: int | None = None  # how often our cgroup, or one above it, was at its limit
    host_kills: int | None = None  # processes of the host that any OOM killer killed


class FactCollector:
    """Reads the facts of one round after another. The paths are arguments for the sake of tests."""

    def __init__(
        self, proc: str = "/proc", cgroups: str = "/sys/fs/cgroup", kernel_log: str = "/dev/kmsg"
    ) -> None:
        self._proc = proc
        self._cgroups = cgroups
        self._log = _KernelLog(kernel_log)
        self._before = _Counts()

    def begin(self) -> None:
        """Start a round: earlier events do not count."""
        self._log.begin()
        self._before = self._count()

    def collect(self) -> Facts:
        """What happened since ``begin``; may be called again and again."""
        log = self._log.read()
        before, now = self._before, self._count()
        kills = _growth(before.kills, now.kills)
        host_kills = _growth(before.host_kills, now.host_kills)
        says_host, says_cgroup = _matches(_HOST_KILL, log), _matches(_CGROUP_KILL, log)
        if kills is None:
            return Facts(0, bool(host_kills) and (says_host or not says_cgroup), log)
        at_limit = not says_host and (says_cgroup or _growth(before.limits, now.limits) != 0)
        return Facts(kills if at_limit else 0, kills > 0 and not at_limit, log)

    def close(self) -> None:
        """Close the kernel's log."""
        self._log.close()

    def _count(self) -> _Counts:
        host_kills = _number(_read(f"{self._proc}/vmstat"), "oom_kill")
        version, folders = self._folders()
        if version == 1:
            kills = _number(_read(f"{folders[0]}/memory.oom_control"), "oom_kill")
            return _Counts(
                kills, _total(_bare(_read(f"{folder}/memory.failcnt")) for folder in folders), host_kills
            )
        if version == 2:
            kills = _number(_read(f"{folders[0]}/memory.events"), "oom_kill")
            return _Counts(kills, _total(_limits_hit(folders)), host_kills)
        return _Counts(host_kills=host_kills)

    def _folders(self) -> tuple[int, list[str]]:
        """The version of cgroups that governs memory, our cgroup's folder and those above it."""
        of_process = _read(f"{self._proc}/self/cgroup")
        entries = [line.split(":", 2) for line in of_process.splitlines() if line.count(":") >= 2]
        for _, controllers, path in entries:
            if "memory" in controllers.split(","):
                return 1, _and_above(f"{self._cgroups}/memory", path, "memory.oom_control")
        for number, _, path in entries:
            if number == "0":
                return 2, _and_above(self._cgroups, path, "memory.events")
        return 0, []


def _and_above(root: str, path: str, file: str) -> list[str]:
    """The folder ``path`` below ``root``, then each one above it, up to ``root``.

    A container may see its cgroup's path as the host has it, but its folder as the root.
    """
    parts = [part for part in path.split("/") if part]
    if ".." in parts or not os.path.exists("/".join([root, *parts, file])):
        parts = []
    return ["/".join([root, *parts[:depth]]) for depth in range(len(parts), -1, -1)]


def _limits_hit(folders: list[str]) -> Iterator[int | None]:
    """Limit hits of our cgroup and those below it, then of each one above it.

    For those above, the local file is read: the other one also counts hits in other programs' cgroups.
    """
    yield _number(_read(f"{folders[0]}/memory.events"), "oom")
    for folder in folders[1:]:
        yield _number(_read(f"{folder}/memory.events.local"), "oom")


class _KernelLog:
    """The lines of interest in the kernel's log since ``begin``."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._fd = -1
        self._lines: deque[str] = deque(maxlen=MAX_LINES)

    def begin(self) -> None:
        """Forget what was read, and skip what the log holds already."""
        self._lines.clear()
        with suppress(OSError):
            if self._fd < 0:
                self._fd = os.open(self._path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY)
        try:
            if self._fd >= 0:
                os.lseek(self._fd, 0, os.SEEK_END)
        except OSError:  # a terminal, as in some containers: no log of the kernel
            self.close()

    def read(self) -> str:
        """The newest lines since ``begin``, the oldest of them first."""
        for record in self._records():
            for line in record.splitlines():
                text = "" if line.startswith(" ") else line.partition(";")[2]  # indented: about a device
                if _matches(_OF_INTEREST, text):
                    self._lines.append(text[:MAX_LINE])
        return "\n".join(self._lines)

    def _records(self) -> Iterator[str]:
        for _ in range(MAX_RECORDS if self._fd >= 0 else 0):
            try:
                record = os.read(self._fd, _RECORD_BYTES)
            except OSError as error:
                if error.errno == errno.EPIPE:  # overwritten before we read it: go on with the next
                    continue
                return
            if not record:
                return
            yield record.decode(errors="replace")

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def _growth(before: int | None, now: int | None) -> int | None:
    return None if before is None or now is None else max(0, now - before)


def _total(numbers: Iterator[int | None]) -> int | None:
    known = [number for number in numbers if number is not None]
    return sum(known) if known else None


def _number(text: str, name: str) -> int | None:
    """The number on the line ``name NUMBER``."""
    for line in text.splitlines():
        key, _, value = line.partition(" ")
        if key == name:
            return _bare(value)
    return None


def _bare(text: str) -> int | None:
    text = text.strip()
    return int(text) if text.isascii() and text.isdecimal() else None


def _read(path: str) -> str:
    """The contents of a small kernel file, "" if it cannot be read."""
    try:
        with open(path, "rb") as file:
            return file.read(_FILE_BYTES).decode(errors="replace")
    except OSError:
        return ""


def _matches(pattern: str, text: str) -> bool:
    """Nearly every log is empty, and then the first failure of a job need not wait for the pattern."""
    return bool(text) and _compiled(pattern).search(text) is not None


@cache
def _compiled(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern)
