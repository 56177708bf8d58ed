"""Failures that are kept back for a moment, because another rank may soon name their cause.

A rank that raises an exception may take a while to end: it closes a process group, or a ``finally`` clause
does its work. Its peers lose their connection to it, and end first. If the launcher stopped the group then,
it would end a rank that has not said yet what was wrong.

So a failure that is an *echo* (``core/recovery/cause.py``) ends no round while another rank may fail by
itself. It is kept back until one does, on this node or, as the master says, on another one; until no other
rank is left; or for ``PATIENCE``. Nothing else that ends the round waits for it. A killed rank is no echo, so
its restart is as quick as ever; a restart after a broken network comes later by that time.
"""

from __future__ import annotations

from elasticrun.core.agent.events import WorkerFailed
from elasticrun.core.protocol.failure import FailureKind
from elasticrun.core.protocol.messages import Failure
from elasticrun.core.recovery.own_failures import sounds_like_echo
from elasticrun.core.timers import Deadlines

ECHO = "echo"
#: Seconds from the first echo of a round.
PATIENCE = 1.0
_ABORTED = -6  # as NCCL's watchdog ends a process


class Echoes:
    """The echoes of the round that runs here. ``now`` is the agent's monotonic clock in seconds."""

    def __init__(self, timers: Deadlines[str]) -> None:
        self._timers = timers
        self._kept: list[WorkerFailed] = []

    def __len__(self) -> int:
        return len(self._kept)

    def keep(self, event: WorkerFailed, now: float) -> bool:
        """Keep this failure back if it is an echo. Returns whether it is."""
        if not _is_echo(event.failure):
            return False
        self._kept.append(event)
        self._timers.set_default(ECHO, now + PATIENCE)
        return True

    def take(self) -> list[WorkerFailed]:
        """Release the failures, in the order in which they came."""
        self._timers.cancel(ECHO)
        kept, self._kept = self._kept, []
        return kept


def _is_echo(failure: Failure) -> bool:
    """A restart waits for this: try a cheap test first."""
    speaks = failure.kind is FailureKind.EXIT or failure.exit_code == _ABORTED
    if not speaks or not sounds_like_echo(failure):
        return False
    from elasticrun.core.recovery.diagnosis import diagnose  # most failures need none of its tables here

    return diagnose(failure).echo
