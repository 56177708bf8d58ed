"""Which processes outlive a job that ended well: what workers that ended well have left behind.

Theory. A script that starts a helper and does not wait for it (an upload, a daemon) means it to go on. With
torchrun it does, be it in a session of its own or not. So the last sweep after a good end spares it, and only
that sweep: a restart, a failure or a signal kills it like everything else. Helpers of a worker that failed
or had to be stopped are killed even then, unless they are in a session of their own. Much of what is left is
about to end by itself: the sweep waits a moment for that, and then reports what stays. It never reports the
resource tracker of multiprocessing, which on a busy host takes longer: it ends with those that it serves.

Invariants. Each worker leads a session whose number is its pid; that number is not reused while a process is
in the session. A warm parent, a replacement and the process between two forks are recognised by their name,
as the pids of some are not known yet. A process whose session cannot be read has ended.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable

#: What the kernel calls warm parents and their replacements.
WARM = b"elasticrun-warm"
#: What the command line of multiprocessing's resource tracker has in it.
TRACKER = b"from multiprocessing.resource_tracker import main"
MAX_COMMAND = 80  # characters
#: Seconds to wait for what ends by itself.
MOMENT = 0.25


class Detached:
    """Finds the processes that a sweep spares, if it spares any."""

    def __init__(self) -> None:
        self.sessions: set[int] = set()  # of all workers that were started and have not ended well
        self.are_spared = False
        self._until: float | None = None  # when the sweep stops waiting for them
        self._told: set[int] = set()
        self.found: dict[int, str] = {}  # command by pid

    def take(self) -> list[tuple[int, str]]:
        """Pid and command of those found that are still there, are to be reported, and were not yet."""
        untold = (pid for pid in self._staying() if pid not in self._told and not _is_tracker(pid))
        new = [(pid, self.found[pid]) for pid in untold]
        self._told.update(self.found)
        self._until = None
        return new

    def may_leave(self) -> bool:
        """Whether to wait for those that were found and not reported yet."""
        if self._told.issuperset(self._staying()):
            return False
        if self._until is None:
            self._until = time.monotonic() + MOMENT
        return time.monotonic() < self._until

    def time_left(self) -> float | None:
        """Seconds until that wait is over; None: there is none."""
        return None if self._until is None else max(self._until - time.monotonic(), 0.0)

    def _staying(self) -> list[int]:
        return [pid for pid in self.found if _is_there(pid)]

    def among(self, children: Iterable[int]) -> set[int]:
        """Those of the spawner's children that are spared."""
        if not self.are_spared:
            self.found.clear()
            return set()
        new = {pid for pid in children if pid not in self.found and self._is_detached(pid)}
        self.found.update((pid, command(pid)) for pid in new)
        return new | self.found.keys()

    def _is_detached(self, pid: int) -> bool:
        try:
            return os.getsid(pid) not in self.sessions and not _is_over(pid) and _name(pid) != WARM
        except OSError:
            return False


def _is_there(pid: int) -> bool:
    try:
        return not _is_over(pid)
    except OSError:
        return False


def _is_over(pid: int) -> bool:
    """Whether a process has ended and only has to be reaped."""
    stat = _read(pid, "stat")
    return stat[stat.rindex(b")") + 2 :][:1] in b"ZX"


def _is_tracker(pid: int) -> bool:
    try:
        return TRACKER in _read(pid, "cmdline")
    except OSError:
        return False


def _name(pid: int) -> bytes:
    return _read(pid, "comm").rstrip(b"\n")


def command(pid: int) -> str:
    """A process's command line on one line, or its name if it shows none."""
    try:
        words = _read(pid, "cmdline").replace(b"\0", b" ").strip() or b"[" + _name(pid) + b"]"
    except OSError:
        return "?"
    text = "".join(char if char.isprintable() else "?" for char in words.decode(errors="replace"))
    return text if len(text) <= MAX_COMMAND else f"{text[: MAX_COMMAND - 3]}..."


def _read(pid: int, name: str) -> bytes:
    with open(f"/proc/{pid}/{name}", "rb") as file:
        return file.read()
