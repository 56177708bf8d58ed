"""The phases of a recovery: what the time went on between the end of one round and the work of the next one.

Theory. A recovery passes through moments, in order: the order to stop, the last worker's end, and what the
workers of the next round reach. Each moment ends the phase that is named after it. Where a moment is not
known, as a script without torch imports nothing that could be seen, its phase is left out, and its time is in
the phase that ends next. A moment is when the last node got there.

Invariant. Phases follow each other without gaps and do not overlap: together they are the whole recovery.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from enum import Enum

from elasticrun.core.history.views import Recovery, RoundView
from elasticrun.core.protocol.round_progress import Milestone
from elasticrun.dataclass import dataclass


class Phase(Enum):
    """In order."""

    DETECT = "detect"  # from the first sign of a failure until the order to stop the round
    STOP = "stop"  # until no worker of it is alive
    START = "start"  # until the next round's processes exist; nodes are waited for and checked here
    IMPORT = "import"  # until the script's imports are done
    RENDEZVOUS = "rendezvous"  # until the workers are in a process group
    RESTORE = "restore"  # until the saved state is loaded
    FIRST_STEP = "first_step"  # until the first step is done


#: What ends the phases after ``START``; without milestones, that workers run.
_MILESTONES = (
    (Phase.IMPORT, Milestone.IMPORTED),
    (Phase.RENDEZVOUS, Milestone.CONNECTED),
    (Phase.RESTORE, Milestone.RESTORED),
)


@dataclass(frozen=True, slots=True)
class PhaseSpan:
    """A phase of one recovery; instants are seconds of the job's clock."""

    phase: Phase
    began: float
    ended: float

    @property
    def seconds(self) -> float:
        """How long it took."""
        return self.ended - self.began


def phases(recovery: Recovery, before: RoundView | None, after: RoundView) -> tuple[PhaseSpan, ...]:
    """The phases of a recovery between two rounds; none while it is not over.

    If no first step was seen it ends when the workers run. ``before``: None if nobody knows that round.
    """
    is_stepped = after.first_step is not None
    end = recovery.over if is_stepped else recovery.running
    if end is None:
        return ()
    moments = [*_before(before), *(_after(recovery, after.milestones) if is_stepped else ())]
    found: list[PhaseSpan] = []
    began = recovery.began
    for phase, moment in (*moments, (Phase.FIRST_STEP if is_stepped else Phase.START, end)):
        if moment is not None:
            ended = min(max(began, moment), max(began, end))
            found.append(PhaseSpan(phase, began, ended))
            began = ended
    return tuple(found)


def _before(view: RoundView | None) -> Iterator[tuple[Phase, float | None]]:
    """When the phases of the round before ended."""
    if view is not None:
        yield Phase.DETECT, view.stopping
        yield Phase.STOP, view.stopped


def _after(recovery: Recovery, reached: Mapping[str, float]) -> Iterator[tuple[Phase, float | None]]:
    """When those of the next round ended, but for the last one."""
    yield Phase.START, reached.get(Milestone.SPAWNED.name.lower(), recovery.running)
    for phase, milestone in _MILESTONES:
        yield phase, reached.get(milestone.name.lower())
