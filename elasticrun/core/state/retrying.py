"""What to do when the storage fails: try again, later each time, or give this commit up.

Training never waits for the storage. A commit that is given up is lost for the storage only: it stays in
memory, and the next one is written anew.
"""

from __future__ import annotations

from enum import Enum

from elasticrun.dataclass import dataclass

#: Seconds without a written byte after which a writer is stuck: it has to be killed and started again.
PATIENCE = 120.0
#: Seconds before the second try; each further pause is twice as long.
FIRST_PAUSE = 1.0
LONGEST_PAUSE = 60.0


class Trouble(Enum):
    """Why something in the storage failed, and how many tries it is worth."""

    FULL = "full"
    DENIED = "denied"  # read-only, or no permission
    GONE = "gone"  # not mounted, or removed
    STUCK = "stuck"  # it does not answer
    DAMAGED = "damaged"  # what was read is not what was written
    OTHER = "other"

    @property
    def tries(self) -> int:
        """How often the same commit is written, the first time included."""
        return _TRIES.get(self, 6)


_TRIES = {Trouble.DENIED: 1, Trouble.DAMAGED: 1, Trouble.FULL: 3}


@dataclass(frozen=True, slots=True)
class NextTry:
    """When to try again."""

    pause: float | None  # seconds; None: give this commit up
    reason: str


def next_try(trouble: Trouble, failures: int) -> NextTry:
    """What to do after so many failures in a row, of which this was the last one."""
    if failures >= trouble.tries:
        times = "once" if failures == 1 else f"{failures} times"
        return NextTry(None, f"failed {times} ({trouble.value}): the storage does without this commit")
    pause = min(LONGEST_PAUSE, FIRST_PAUSE * 2.0 ** (failures - 1))
    return NextTry(
        pause, f"failed {failures} of {trouble.tries} times ({trouble.value}): again in {pause:g} s"
    )
