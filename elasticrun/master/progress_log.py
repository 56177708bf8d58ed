"""What agents tell of their workers' progress, on its way into the event log.

It is no fact of the job: the journal does not need it, and a master that replays one knows nothing of it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from elasticrun.core.job.events import DataAsked, DataOpened, JobEvent
from elasticrun.core.job.progress_notes import ProgressNotes
from elasticrun.core.job.state import JobState
from elasticrun.core.protocol.status import JobPhase

if TYPE_CHECKING:
    from elasticrun.core.protocol.round_progress import RoundProgress
    from elasticrun.master.event_log import Chronicle


class ProgressLog:
    """The progress of one job's rounds."""

    def __init__(self, state: JobState, chronicle: Chronicle | None) -> None:
        """``chronicle``: where it goes; None: nowhere."""
        self._state = state
        self._chronicle = chronicle
        self._notes = ProgressNotes()

    def take(self, node: str, progress: RoundProgress, now: float) -> None:
        """Write down how far a node is."""
        state = self._state
        if self._chronicle is None or state.phase is not JobPhase.RUNNING or progress.round != state.round:
            return
        self._chronicle.note_all(self._notes.take(node, progress, now))

    def before(self, event: JobEvent) -> None:
        """Write down the newest steps before an event that may end their round."""
        if self._chronicle is None or isinstance(event, DataAsked | DataOpened):
            return
        self._chronicle.note_all(self._notes.rest())
