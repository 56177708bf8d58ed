"""How long steps of late took on a node: its workers' counters as a figure for the master.

Theory. A worker counts measured steps, the time that they took it by itself, and the time that they took in
all (``worker/own_time.py``). What is told is the difference to the last look at which there was something
new, so each new figure is of other steps than the one before. A node is as slow as its slowest worker.

Invariants. No difference spans two processes. A worker may have written anything: a counter that falls, or
says nothing, makes no figure, and none is more than the whole.
"""

from __future__ import annotations

from collections.abc import Mapping

from elasticrun.core.protocol.bounds import COUNTS, SECONDS
from elasticrun.core.protocol.round_progress import StepTimes
from elasticrun.dataclass import dataclass


@dataclass(frozen=True, slots=True)
class Measured:
    """What a process has measured since it began."""

    owner: int  # its pid
    steps: int
    own: float = 0.0  # seconds of these, in which it waited for no other rank
    whole: float = 0.0  # seconds of these in all


class StepMeter:
    """Of the workers of one node."""

    def __init__(self) -> None:
        self._round = -1
        self._last: dict[int, Measured] = {}  # by local rank
        self._times: dict[int, tuple[float, float]] = {}  # a step's own and its whole time, as told last
        self._steps = 0  # of all workers

    def measure(self, round_: int, workers: Mapping[int, Measured]) -> StepTimes | None:
        """The newest figure, from the counters by local rank; None as long as there is none in this round."""
        if round_ != self._round:
            self._round, self._last, self._times, self._steps = round_, {}, {}, 0
        for rank, newest in workers.items():
            before = self._last.get(rank)
            if before is None or before.owner != newest.owner:
                before = Measured(newest.owner, 0)
            elif newest.steps == before.steps:
                continue
            self._last[rank] = newest
            steps, whole = newest.steps - before.steps, newest.whole - before.whole
            own = newest.own - before.own
            if steps > 0 and whole > 0.0 and own >= 0.0:
                self._steps = COUNTS.clip(self._steps + steps)
                self._times[rank] = SECONDS.clip(min(own, whole) / steps), SECONDS.clip(whole / steps)
        if not self._times:
            return None
        slowest = max(self._times, key=lambda rank: self._times[rank])
        return StepTimes(slowest, self._steps, *self._times[slowest])
