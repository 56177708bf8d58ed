"""What of the agents' progress is worth an entry of the event log.

Each message of an agent repeats all of a round, so that none has to arrive. Here what was told already is
left out: a milestone is told once for each node, steps for the whole round, at most once in ``EACH`` seconds,
and once more before something else happens, as that may end the round. So the log grows by a bounded rate,
whatever agents say.
"""

from __future__ import annotations

from collections.abc import Iterator

from elasticrun.core.protocol.chronicle import Happening, MilestoneReached, SaveStalled, StepsDone
from elasticrun.core.protocol.round_progress import Milestone, RoundProgress

#: Seconds between two samples of steps.
EACH = 1.0

Note = tuple[float, Happening]  # when it happened


class ProgressNotes:
    """Of one job; remembers the newest round only."""

    def __init__(self) -> None:
        self._round = -1
        self._told: set[tuple[str, int]] = set()  # milestones by node
        self._step = -1  # the newest that was heard
        self._pending: Note | None = None  # it, if it was not told yet
        self._sampled = -EACH  # when
        self._stalled = self._told_stalled = self._heard = 0.0

    def take(self, node: str, progress: RoundProgress, now: float) -> Iterator[Note]:
        """What is new in a message, and when it happened. The round is the one that runs."""
        if progress.round != self._round:
            self._round, self._told, self._step, self._pending = progress.round, set(), -1, None
            self._sampled, self._stalled, self._told_stalled = -EACH, 0.0, 0.0
        for reached in sorted(progress.reached, key=lambda it: it.milestone):
            if (node, reached.milestone) not in self._told:
                self._told.add((node, reached.milestone))
                name = Milestone(reached.milestone).name.lower()
                yield max(0.0, now - reached.ago), MilestoneReached(node, progress.round, name)
        if progress.step > self._step:
            at = max(0.0, now - progress.step_ago)
            self._pending = at, StepsDone(progress.round, progress.step, progress.step_rate)
            self._step = progress.step
        self._stalled = max(self._stalled, progress.stalled)
        self._heard = now
        is_new = self._pending is not None or self._stalled > self._told_stalled
        if is_new and now - self._sampled >= EACH:
            self._sampled = now
            yield from self.rest()

    def rest(self) -> Iterator[Note]:
        """What was heard and not told yet, as it was too soon after something else. Stalls are told before
        the steps that they were part of.
        """
        if self._stalled > self._told_stalled:
            more, self._told_stalled = self._stalled - self._told_stalled, self._stalled
            at = self._heard if self._pending is None else self._pending[0]
            yield at, SaveStalled(self._round, more)
        if self._pending is not None:
            pending, self._pending = self._pending, None
            yield pending
