"""What a worker tells of its way to the first step, and of what its steps are worth: behind its slot.

Theory. A milestone is an instant of the host's monotonic clock, written once. The agent reads all of it with
one look; a byte in its pipe, the *bell*, says that a look is worth it. Who cannot ring is heard with the
agent's next heartbeat.

*Steps done* are comparable over rounds only if they begin at what was restored, and count what the script
calls a step. So each save of a ``Checkpointer``, which names the number of steps done, is an *anchor*: since
then the agent adds the steps that were counted, ``per`` optimizer steps being one step of the script. That is
learnt from one anchor to the next, as a script may have two optimizers. Of steps that the script numbers
itself, ``per`` is 0, and the anchor is what the number differs by.

Invariants. It only grows within a round, but for the anchor. Nothing here is called by a step but the first.
It needs the standard library only, as ``reporter.py``, and is loaded by its path before it.
"""

from __future__ import annotations

import os
import stat
import struct
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import mmap

#: The agent's module has the same numbers; a test compares them.
#: owner, imported, connected, restored, first step, stalled, anchor, counted at the anchor, per, checksum
MARKS = struct.Struct("=QQQQQQqQQQ")
IMPORTED, CONNECTED, RESTORED, FIRST_STEP = range(4)
MASK = 2**64 - 1


def checksum(fields: tuple[int, ...]) -> int:
    """Over all fields but the last; weighted, so that no plausible mix of two states has that of one."""
    return (sum(field * (2 * index + 3) for index, field in enumerate(fields)) ^ MASK) & MASK


class Marks:
    """The part of the page that has them. Who calls this sees to it that this process owns the slot."""

    def __init__(self, page: mmap.mmap, offset: int, bell: str, inode: int) -> None:
        """``bell``: the pipe's path, and its number to know it by."""
        self._page = page
        self._offset = offset
        self._bell = bell
        self._inode = inode
        self._pid = os.getpid()
        self._reached = [0, 0, 0, 0]  # when
        self._stalled = 0  # nanoseconds
        self._anchor = self._at = 0
        self._per = 1

    def has(self, milestone: int) -> bool:
        """Whether it was reached."""
        return self._reached[milestone] != 0

    def reach(self, milestone: int) -> None:
        """This worker is so far, for the first time."""
        self._reached[milestone] = time.monotonic_ns()
        self.write()
        self._ring()

    def stall(self, nanoseconds: int) -> None:
        """Training has waited for a save."""
        self._stalled += nanoseconds
        self.write()

    def restored(self, step: int, counted: int) -> None:
        """Steps go on from this number of steps done; so many were counted here before."""
        self._anchor, self._at = step, counted

    def numbered(self, number: int) -> None:
        """The script numbers its steps itself, from this one on. If not from where it restored, or from 0,
        they are counted from there all the same.
        """
        self._anchor = self._anchor + 1 - number if number <= self._anchor else 0
        self._per = 0
        self.write()

    def saved(self, step: int, counted: int, number: int) -> None:
        """A save names the steps done. ``counted`` here so far, of which the last has this ``number``."""
        if self._per == 0:
            if abs(number + self._anchor - step) > 1:  # a report may come before the save, or after it
                self._anchor = step - number
        elif step > self._anchor:
            self._per = max(1, round((counted - self._at) / (step - self._anchor)))
            self._anchor, self._at = step, counted
        self.write()

    def write(self) -> None:
        """Show the agent all of it."""
        fields = (self._pid, *self._reached, self._stalled, self._anchor, self._at, self._per)
        MARKS.pack_into(self._page, self._offset, *fields, checksum(fields))

    def _ring(self) -> None:
        """Have the agent look now. Its pipe may be gone, and its number be that of another file."""
        try:
            fd = os.open(self._bell, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError:
            return
        try:
            found = os.fstat(fd)
            if stat.S_ISFIFO(found.st_mode) and found.st_ino == self._inode:
                os.write(fd, b".")
        except OSError:
            pass  # it is full: the agent looks in any case
        finally:
            os.close(fd)
