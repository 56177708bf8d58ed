"""What agents tell of their workers' progress, on its way into the event log.

It is no fact of the job: the journal does not need it, and a master that replays one knows nothing of it.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from elasticrun.core.job.events import DataAsked, DataOpened, JobEvent
from elasticrun.core.job.state import JobState
from elasticrun.core.protocol.status import JobPhase

if TYPE_CHECKING:
    from elasticrun.core.health.stragglers import Stragglers
    from elasticrun.core.job.progress_notes import ProgressNotes
    from elasticrun.core.protocol.round_progress import RoundProgress
    from elasticrun.master.event_log import Chronicle

logger = logging.getLogger(__name__)


class ProgressLog:
    """The progress of one job's rounds."""

    def __init__(self, state: JobState, chronicle: Chronicle | None) -> None:
        """``chronicle``: where it goes; None: nowhere, but stragglers are logged all the same."""
        self._state = state
        self._chronicle = chronicle
        self._seen: tuple[ProgressNotes, Stragglers] | None = None  # made when the first agent tells of some

    def take(self, node: str, progress: RoundProgress, now: float) -> None:
        """Write down how far a node is, and whether it makes others wait."""
        state = self._state
        if state.phase is not JobPhase.RUNNING or progress.round != state.round:
            return
        notes, stragglers = self._open()
        if self._chronicle is not None:
            self._chronicle.note_all(notes.take(node, progress, now))
        times = progress.times
        judged = None if times is None else stragglers.take(node, progress.round, times)
        if judged is None:
            return
        logger.warning("round %d: %s", judged.found.round, judged.why)
        if self._chronicle is not None:
            self._chronicle.note_all([(now, judged.found)])

    def before(self, event: JobEvent) -> None:
        """Write down the newest steps before an event that may end their round."""
        if self._chronicle is None or self._seen is None or isinstance(event, DataAsked | DataOpened):
            return
        notes, _ = self._seen
        self._chronicle.note_all(notes.rest())

    def _open(self) -> tuple[ProgressNotes, Stragglers]:
        if self._seen is None:
            from elasticrun.core.health.stragglers import Stragglers  # a job does not wait for it to begin
            from elasticrun.core.job.progress_notes import ProgressNotes

            self._seen = ProgressNotes(), Stragglers(self._state.config.health.straggler_ratio)
        return self._seen
