"""What of the agents' progress is worth an entry of the event log.

Each message of an agent repeats all of a round, so that none has to arrive. Here what was told already is
left out: a milestone is told once for each node, steps for the whole round, at most once in ``EACH`` seconds.
So the log grows by a bounded rate, whatever agents say.
"""

from __future__ import annotations

from collections.abc import Iterator

from elasticrun.core.accounting.facts import Milestone
from elasticrun.core.protocol.chronicle import Happening, MilestoneReached, SaveStalled, StepsDone
from elasticrun.core.protocol.round_progress import RoundProgress

#: Seconds between two samples of steps.
EACH = 1.0


class ProgressNotes:
    """Of one job; remembers the newest round only."""

    def __init__(self) -> None:
        self._round = -1
        self._told: set[tuple[str, int]] = set()  # milestones by node
        self._step = -1
        self._sampled = 0.0  # when
        self._stalled = 0.0

    def take(self, node: str, progress: RoundProgress, now: float) -> Iterator[tuple[float, Happening]]:
        """What is new in a message, and when it happened. The round is the one that runs."""
        if progress.round != self._round:
            self._round, self._told, self._step, self._sampled, self._stalled = (
                progress.round,
                set(),
                -1,
                0.0,
                0.0,
            )
        for reached in sorted(progress.reached, key=lambda it: it.milestone):
            if (node, reached.milestone) not in self._told:
                self._told.add((node, reached.milestone))
                name = Milestone(reached.milestone).name.lower()
                yield max(0.0, now - reached.ago), MilestoneReached(node, progress.round, name)
        if progress.stalled > self._stalled:
            more, self._stalled = progress.stalled - self._stalled, progress.stalled
            yield now, SaveStalled(progress.round, more)
        if progress.step > self._step and (self._step < 0 or now - self._sampled >= EACH):
            self._step, self._sampled = progress.step, now
            yield now, StepsDone(progress.round, progress.step, progress.step_rate)
