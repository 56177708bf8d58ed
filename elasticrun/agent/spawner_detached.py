"""Which processes outlive a job that ended well: those that workers have put into sessions of their own.

Theory. A script that starts a helper in a session of its own (an upload, a daemon) says that the helper shall
not end with it. With torchrun it does not. So the last sweep after a good end spares it, and only that sweep:
a restart, a failure or a signal kill it as everything else. What stays in a worker's own session was started
to end with it.

Invariants. Each worker leads a session whose number is its pid, and so does nobody else as long as somebody
is in that session. A warm parent, an heir and the process between two forks are told by their name, as some
of them have no number yet that we know of. A process whose session cannot be read has ended.
"""

from __future__ import annotations

import os
from collections.abc import Iterable

#: What the kernel calls warm parents and their heirs.
WARM = b"elasticrun-warm"
MAX_COMMAND = 80  # characters


class Detached:
    """What is spared, once that is wanted."""

    def __init__(self) -> None:
        self.sessions: set[int] = set()  # of all workers that were started
        self.are_spared = False
        self._told: set[int] = set()
        self.found: dict[int, str] = {}  # command by pid

    def take(self) -> list[tuple[int, str]]:
        """Those that were found and not told of yet."""
        new = [(pid, command) for pid, command in self.found.items() if pid not in self._told]
        self._told.update(self.found)
        return new

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


def _is_over(pid: int) -> bool:
    """Whether it has ended, and only has to be reaped."""
    stat = _read(pid, "stat")
    return stat[stat.rindex(b")") + 2 :][:1] in b"ZX"


def _name(pid: int) -> bytes:
    return _read(pid, "comm").rstrip(b"\n")


def command(pid: int) -> str:
    """Its command line on one line, or its name if it shows none."""
    try:
        words = _read(pid, "cmdline").replace(b"\0", b" ").strip() or b"[" + _name(pid) + b"]"
    except OSError:
        return "?"
    text = "".join(char if char.isprintable() else "?" for char in words.decode(errors="replace"))
    return text if len(text) <= MAX_COMMAND else f"{text[: MAX_COMMAND - 3]}..."


def _read(pid: int, name: str) -> bytes:
    with open(f"/proc/{pid}/{name}", "rb") as file:
        return file.read()
