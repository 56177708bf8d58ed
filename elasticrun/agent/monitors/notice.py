"""The notice file of ``--preemption-file``: once it exists, this node leaves gracefully.

The notice is a level, not an edge, like everything agents are told: the file *exists*, or it does not. So a
file that exists when the agent starts counts as well. Only its modification time could tell a stale notice
from one that was written while this agent was (re)starting, and that time is by the writer's clock. Of the
two mistakes, a node that says "remove the file" and leaves is a smaller one than a node that trains on until
its machine is taken away.

The path is polled, once a second. Notices come minutes, or at least seconds, ahead, and a look at the path
finds a file however it came there: written by another host to a network disk, moved in, through a new link,
or with a mount. The kernel's events report only the second. A thread looks, since a look may hang with the
disk, and the agent must not.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Callable

INTERVAL = 1.0  # seconds between two looks
_MAX_REASON = 200  # characters


class PreemptionNotice:
    """Calls ``on_notice`` with a reason, once, when ``path`` exists. Made inside the running loop.

    ``on_notice`` is called by the loop, never by the constructor, and not after ``close``.
    """

    def __init__(self, path: str, on_notice: Callable[[str], None], interval: float = INTERVAL) -> None:
        import asyncio
        import threading

        self._path = os.path.abspath(path)
        self._on_notice = on_notice
        self._loop = asyncio.get_running_loop()
        self._closed = threading.Event()
        threading.Thread(target=self._look_out, args=(interval,), name="notice", daemon=True).start()

    def close(self) -> None:
        """Stop looking."""
        self._closed.set()

    def _look_out(self, interval: float) -> None:
        advice = ""
        if os.path.exists(self._path):
            advice = " (the file existed before the agent started; remove it so that this node can join)"
        else:
            while not os.path.exists(self._path):
                if self._closed.wait(interval):
                    return
            if not _first_line(self._path):
                self._closed.wait(interval)  # the file's writer may be about to write into it
        line = _first_line(self._path)
        reason = f"preemption notice {self._path}{line and ': '}{line}{advice}"
        with contextlib.suppress(RuntimeError):  # the loop is closed: the agent has ended
            self._loop.call_soon_threadsafe(self._give, reason)

    def _give(self, reason: str) -> None:
        if not self._closed.is_set():
            self._on_notice(reason)


def _first_line(path: str) -> str:
    """The beginning of the file, as far as it is one printable line; "" if there is none to be read."""
    try:
        if not stat.S_ISREG(os.stat(path).st_mode):  # opening a device may have effects
            return ""
        with open(path, "rb", buffering=0) as file:
            text = file.read(4 * _MAX_REASON)
    except OSError:
        return ""
    line = text.decode(errors="replace").split("\n", 1)[0][:_MAX_REASON]
    return "".join(letter if letter.isprintable() else " " for letter in line).strip()
