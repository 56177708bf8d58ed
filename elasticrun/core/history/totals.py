"""Counts over all of a job's life, which a history that forgets what is old could not tell.

Theory. Metrics are counters: they never fall, and a new observer that reads the same log finds the same. So
each is a fold over entries that only adds, and what may still be judged otherwise is not counted yet. A
recovery counts once it is settled: ``SETTLE`` seconds after it is over, as milestones of other nodes may be
told late, or when its round ends. One whose round ends before its first step, in a job that reports steps,
was none: it is not counted, and the next one is.

Invariants. No count falls. Memory is the same however long the job lives, whatever texts are in its log.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass as mutable
from dataclasses import field

from elasticrun.core.durations import Durations
from elasticrun.core.history.phases import Phase, PhaseSpan, phases
from elasticrun.core.history.views import Recovery, RoundView
from elasticrun.core.protocol import chronicle
from elasticrun.core.protocol.chronicle import LogEntry, Place
from elasticrun.core.protocol.failure import FailureKind
from elasticrun.core.protocol.round_progress import Milestone
from elasticrun.core.recovery.budget import StopCause

#: Seconds after which nothing more of a recovery is expected.
SETTLE = 5.0
#: Upper bounds of the buckets in which durations are counted, in seconds; one more has all.
BUCKETS = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1800.0)
#: What a text that is none of those known counts as.
OTHER = "other"
#: What the sum of all phases counts as.
TOTAL = "total"


def label(text: str) -> str:
    """A text of the log as the value of a label: one word."""
    return text.replace(" ", "_")


REASONS = frozenset(label(cause.value) for cause in StopCause)
HOWS = frozenset(kind.value for kind in FailureKind)


@mutable(slots=True)
class Totals:
    """Takes what a history takes."""

    restarts: dict[str, int] = field(default_factory=lambda: _zeros(REASONS))  # by why a round was stopped
    failures: dict[str, int] = field(default_factory=lambda: _zeros(HOWS))  # of workers, by how
    recoveries: dict[str, Durations] = field(
        default_factory=lambda: {name: Durations(BUCKETS) for name in (*(it.value for it in Phase), TOTAL)}
    )
    hangs: int = 0
    saves: dict[Place, int] = field(default_factory=lambda: dict.fromkeys(Place, 0))
    step: int = -1  # the newest that was told
    stepped: float | None = None  # the wall clock when steps were told last
    lost: int = 0  # entries that are said to be missing
    settled: int = 0  # recoveries
    newest: tuple[Recovery, RoundView, tuple[PhaseSpan, ...]] | None = None  # that is settled, with its round
    _open: Recovery | None = None
    _has_steps: bool = False

    def take(self, entry: LogEntry, rounds: Sequence[RoundView], newest: Recovery | None) -> None:
        """Take in an entry after the history has; ``rounds`` and ``newest``, a recovery, are its."""
        self._count(entry, rounds)
        if newest is not self._open:
            self._settle(rounds)
            self._open = newest
        elif self._open is not None and rounds and _is_settled(entry, self._open, rounds[-1]):
            self._settle(rounds)

    def _count(self, entry: LogEntry, rounds: Sequence[RoundView]) -> None:
        match entry.told:
            case chronicle.RoundStarted() if len(rounds) > 1:
                _add(self.restarts, label(rounds[-2].cause))
            case chronicle.WorkerFailed() as failed:
                _add(self.failures, failed.how)
            case chronicle.HangFound():
                self.hangs += 1
            case chronicle.StateSaved(place, _, _):
                self.saves[place] += 1
            case chronicle.StepsDone(_, step, _):
                self.step, self.stepped, self._has_steps = step, entry.time, True
            case chronicle.MilestoneReached() as reached if reached.milestone == _STEPPED:
                self.stepped, self._has_steps = entry.time, True
            case chronicle.EntriesLost(count):
                self.lost += max(1, count)
            case _:
                pass

    def _settle(self, rounds: Sequence[RoundView]) -> None:
        """Count the open recovery if it is over, and only once."""
        recovery = self._open
        if recovery is None or not rounds or rounds[-1].number != recovery.round:
            return
        if rounds[-1].first_step is None and self._has_steps:
            return
        spans = phases(recovery, rounds[-2] if len(rounds) > 1 else None, rounds[-1])
        if not spans or (self.newest is not None and self.newest[0] is recovery):
            return
        for span in spans:
            self.recoveries[span.phase.value].add(span.seconds)
        self.recoveries[TOTAL].add(spans[-1].ended - spans[0].began)
        self.settled += 1
        self.newest = recovery, rounds[-1], spans


_STEPPED = Milestone.FIRST_STEP.name.lower()
_ENDS = chronicle.RoundStopping | chronicle.RoundStopped | chronicle.JobEnded


def _is_settled(entry: LogEntry, recovery: Recovery, newest: RoundView) -> bool:
    """Whether nothing more of a recovery is expected after an entry."""
    if isinstance(entry.told, _ENDS):
        return True
    is_over = newest.first_step is not None and recovery.over is not None
    return is_over and entry.at >= (recovery.over or 0.0) + SETTLE


def _zeros(names: Iterable[str]) -> dict[str, int]:
    return dict.fromkeys((*sorted(names), OTHER), 0)


def _add(counts: dict[str, int], name: str) -> None:
    counts[name if name in counts else OTHER] += 1
