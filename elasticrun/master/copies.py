"""Copies of the journal for the agents of other listed hosts, one of which may have to take over.

Each holder gets the lines in order: all so far, in pieces with a pause after each, then whatever is
committed, at once and before any of its effects leaves the process. After a burst there are pauses again, as
a session whose queue is full is ended, and the node would be lost. The master does not wait for a holder that
has not caught up yet. The journal's file is the only buffer: what a holder lacks is read from there.

When the journal is compacted every holder gets it anew, the snapshot first; it keeps what it had until it has
as many lines as the first message names.

A copy has no gap, so it ends at a line that no message can carry. A report fits a message, but a text full of
control characters, as a crash may leave on stderr, has six times its length in JSON.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from elasticrun.core.protocol.bounds import MAX_MESSAGE_BYTES
from elasticrun.core.protocol.messages import JournalCopy
from elasticrun.master.journal import Journal, founding_lines, snapshot_lines

if TYPE_CHECKING:
    from elasticrun.core.job.state import JobState
    from elasticrun.rpc.session import Session

logger = logging.getLogger(__name__)

#: Bytes of a piece, unless a single line is longer, and seconds between two pieces for a holder that has to
#: catch up.
PIECE = 60_000
PACE = 0.02
#: Bytes without a pause for one that has caught up: a few commits, and a part of what may wait in a session.
BURST = 1 << 20
#: Bytes of the longest line that is copied; the rest is for what is around it.
LONGEST_LINE = MAX_MESSAGE_BYTES - 1024


@dataclass
class _Holder:
    session: Session
    offset: int = 0  # of the first byte it does not have yet
    lines: int = 0  # how many it has
    room: int = BURST  # bytes that it may get before a pause
    timer: asyncio.TimerHandle | None = None  # until the next piece may be sent


class Copies:
    """The holders of copies of one journal, and how far each has come."""

    def __init__(self, journal: Journal, epoch: Callable[[], int]) -> None:
        self._journal = journal
        self._epoch = epoch
        self._holders: dict[int, _Holder] = {}

    def begin(self, session: Session) -> None:
        """Send an agent all lines, and from now on each new one."""
        holder = self._holders[session.id] = _Holder(session)
        self._catch_up(holder)

    def introduce(self, session: Session, state: JobState) -> None:
        """Send an agent only the founding lines, whose key proves that a master is this job's."""
        lines = founding_lines(state)
        session.send(JournalCopy(state.epoch, 0, lines, len(lines)))

    def end(self, number: int) -> None:
        """Forget the holder of a session that is over."""
        holder = self._holders.pop(number, None)
        if holder is not None and holder.timer is not None:
            holder.timer.cancel()

    def spread(self) -> None:
        """Send the lines that were committed."""
        for holder in tuple(self._holders.values()):
            if holder.timer is None:
                while self._send(holder) and holder.room > 0:
                    pass
                if holder.room <= 0:
                    self._pause(holder)

    def restart(self) -> None:
        """Send the journal from its beginning to all holders, as compaction made a new file."""
        for holder in tuple(self._holders.values()):
            if holder.timer is not None:
                holder.timer.cancel()
            holder.offset = holder.lines = 0
            self._catch_up(holder)

    def _pause(self, holder: _Holder) -> None:
        holder.timer = asyncio.get_running_loop().call_later(PACE, self._catch_up, holder)

    def _catch_up(self, holder: _Holder) -> None:
        holder.timer = None
        holder.room = BURST
        if self._send(holder):
            self._pause(holder)

    def _send(self, holder: _Holder) -> bool:
        """Send one piece; True if there is more."""
        piece, is_last = _read_lines(self._journal, holder.offset)
        if not piece:
            return False
        if len(piece) > LONGEST_LINE:
            self._give_up(holder, len(piece))
            return False
        lines = tuple(piece.decode().removesuffix("\n").split("\n"))
        whole = 0 if holder.lines else snapshot_lines(self._journal.path)
        holder.session.send(JournalCopy(self._epoch(), holder.lines, lines, whole))
        holder.offset += len(piece)
        holder.room -= len(piece)
        holder.lines += len(lines)
        return not is_last

    def _give_up(self, holder: _Holder, size: int) -> None:
        logger.warning(
            "line %d of the journal has %d bytes, too many for a message: the copy at %s ends before it, and"
            " a master that takes over there will not know how many restarts were used",
            holder.lines + 1,
            size,
            holder.session.peer,
        )
        self.end(holder.session.id)


def _read_lines(journal: Journal, offset: int) -> tuple[bytes, bool]:
    """Whole lines from an offset, a piece of them or one longer line; and whether they are the last."""
    try:
        with journal.path.open("rb") as file:
            file.seek(offset)
            piece = file.read(PIECE)
            if b"\n" not in piece:
                piece += file.readline()
    except OSError:  # removed with the state directory, or no descriptor left: nothing to copy now
        return b"", True
    return piece[: piece.rfind(b"\n") + 1], len(piece) < PIECE
