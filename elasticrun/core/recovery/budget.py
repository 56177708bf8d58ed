"""What a stopped round costs, and whether another one follows.

Only workers that failed or hang spend the budget, whatever the reason, and only once for a round. Events of
whole nodes are free (one came, left or was lost). So are, a few times in a row, failures of the workers'
store: its port was taken between choosing and binding it, or its process ended. A cause is fixed when the
round is told to stop, and can afterwards only be *excused*: a failure that turns out to be the echo of a lost
node, or of a lost store, becomes free. Failures that arrive after a free stop was decided are its echo (peers
see their connections break) and are never charged.
"""

from __future__ import annotations

from dataclasses import replace
from enum import Enum

from elasticrun.dataclass import dataclass


class StopCause(Enum):
    """Why a round was stopped."""

    WORKER_FAILED = "worker failed"
    PORT_TAKEN = "port taken"
    STORE_LOST = "store lost"
    HANG = "hang"
    MEMBER_LOST = "member lost"
    MEMBER_LEFT = "member left"
    NODE_JOINED = "node joined"
    RESIZED = "resized"
    ORDERED = "restart ordered"
    CHECK = "check ordered"
    ENDED = "stop ordered"
    SAVED = "state saved"  # by a worker of a TensorFlow job, which then wants to be started again


#: The causes that may replace a stopped round's cause on new facts; no other cause does.
EXCUSES: dict[StopCause, frozenset[StopCause]] = {
    StopCause.WORKER_FAILED: frozenset(
        {
            StopCause.MEMBER_LOST,
            StopCause.MEMBER_LEFT,
            StopCause.PORT_TAKEN,
            StopCause.STORE_LOST,
            StopCause.SAVED,
        }
    ),
    StopCause.HANG: frozenset({StopCause.MEMBER_LOST, StopCause.MEMBER_LEFT, StopCause.STORE_LOST}),
    StopCause.NODE_JOINED: frozenset(),
    StopCause.RESIZED: frozenset(),
    StopCause.ORDERED: frozenset(),
    StopCause.CHECK: frozenset(),
    StopCause.ENDED: frozenset(),
    StopCause.SAVED: frozenset(),
    StopCause.MEMBER_LOST: frozenset(),
    StopCause.MEMBER_LEFT: frozenset(),
    StopCause.PORT_TAKEN: frozenset({StopCause.MEMBER_LOST, StopCause.MEMBER_LEFT}),
    StopCause.STORE_LOST: frozenset({StopCause.MEMBER_LOST, StopCause.MEMBER_LEFT}),
}

#: After these the workers may save their state before they end.
GRACEFUL = frozenset({StopCause.MEMBER_LEFT, StopCause.CHECK, StopCause.ENDED})
#: The workers' store could not be reached.
OF_THE_STORE = frozenset({StopCause.PORT_TAKEN, StopCause.STORE_LOST})
#: Causes that spend the budget (those of the store after MAX_STORE_RETRIES); every other one is free.
CHARGED = frozenset({StopCause.WORKER_FAILED, StopCause.HANG, *OF_THE_STORE})

#: A store that fails more often than this in a row is no accident, and is charged like a worker's failure.
MAX_STORE_RETRIES = 10


def excused(cause: StopCause, fact: StopCause) -> StopCause:
    """The cause of a stopped round after ``fact`` came to light as well."""
    return fact if fact in EXCUSES[cause] else cause


@dataclass(frozen=True, slots=True)
class Budget:
    """How many restarts the job has used. Immutable; ``settle`` and ``refund`` give the next one."""

    max_restarts: int
    used: int = 0  # over the whole job: workers see it as the restart count, which never shrinks
    store_retries: int = 0  # in a row
    refunded: int = 0  # how many of those used no longer count, because the job trained long enough

    @property
    def spent(self) -> int:
        """How many of the restarts used count."""
        return self.used - self.refunded

    def refund(self, spent: int) -> Budget:
        """The budget if only so many of the restarts used count any more."""
        return replace(self, refunded=self.used - spent)

    def settle(self, cause: StopCause) -> tuple[Budget | None, str]:
        """The budget after a round that stopped for ``cause``, or None if it is spent; with the reason."""
        if cause in OF_THE_STORE and self.store_retries < MAX_STORE_RETRIES:
            retries = self.store_retries + 1
            return replace(self, store_retries=retries), f"free: {cause.value}, attempt {retries + 1}"
        settled = replace(self, store_retries=0)
        if cause not in CHARGED:
            return settled, f"free: {cause.value}"
        if self.spent >= self.max_restarts:
            return None, _spent(self.max_restarts)
        charged = replace(settled, used=self.used + 1)
        return charged, f"restart {charged.spent} of {self.max_restarts}"


def _spent(max_restarts: int) -> str:
    if max_restarts == 0:
        return "no restart allowed (--max-restarts 0)"
    return f"all {max_restarts} restarts are used"
