"""Which nodes of a round make the others wait, judged while it trains.

Theory. Ranks step together, so a step takes the same time T everywhere; but each node tells as well how much
of it its slowest worker needed for itself, ``s``. With ``m``, the median of all nodes, a step would take
T - (s - m) if this node were like the others. So its *factor* is T / (T - (s - m)): how many times as long a
step takes as the others need, which is what accounting divides by. A node is slow if ``s`` is beyond ``m`` by
the ratio that the health check uses as well, *and* its factor is worth telling: three times a hundredth of a
step is nothing.

One measurement is noise. A node is told of once it was slow in ``STREAK`` measurements in a row, and told of
again once it was clearly not slow as often, or once its factor is another one. A measurement is of several
steps, without the longest of them. So with a ratio of 2 no node is told of as long as what nodes need for
themselves is within 28 % of the same.

Who may be wrong. The medians are lower ones, so that of two nodes the faster one is the measure, as in
``slowness.py``: then all depends on its word, which nobody can check. Of three and more, one that lies can
only move the measure to the next honest node: a node seems slow only if it is so beside another honest one.
It can accuse itself of no more than the step's time, which is a median as well. Nodes whose steps take longer
than the others' by what they need more do not make them wait (as tasks of a parameter server): they are not
slow in this sense.

Invariants. Values that are no times (NaN, infinite, negative, no time at all) change nothing. A measurement
counts once, however often it is repeated. Each one costs two searches in sorted lists.
"""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections import deque
from dataclasses import dataclass as mutable
from dataclasses import field

from elasticrun.core.health.slowness import slowness_allowed
from elasticrun.core.protocol.chronicle import StragglerFound
from elasticrun.core.protocol.round_progress import StepTimes
from elasticrun.dataclass import dataclass

#: Measurements in a row that say the same.
STREAK = 3
#: A factor that is worth telling; one that is none any more; how far another one differs; and the largest.
WORTH, NOTHING, OTHER, MOST = 1.1, 1.05, 1.25, 1000.0


@dataclass(frozen=True, slots=True)
class Judged:
    """A node makes others wait, or does so no longer."""

    found: StragglerFound
    why: str  # what was measured, and where to look


@mutable(slots=True)
class _Node:
    times: StepTimes
    told: float = 1.0  # its factor, as told last
    factors: deque[float] = field(default_factory=lambda: deque(maxlen=STREAK))  # the newest; 0: not clear


class Stragglers:
    """Of one job; knows the newest round only. ``ratio``: see ``slowness_allowed``."""

    def __init__(self, ratio: float) -> None:
        self._allowed = slowness_allowed(ratio)
        self._round = -1
        self._nodes: dict[str, _Node] = {}
        self._owns: list[float] = []  # of all nodes, sorted
        self._wholes: list[float] = []

    def take(self, name: str, round_: int, times: StepTimes) -> Judged | None:
        """Take in what a member of a round says of its steps; what follows, if there is something to tell."""
        if round_ != self._round:
            self._round, self._nodes, self._owns, self._wholes = round_, {}, [], []
        if not (0.0 <= times.own < math.inf and 0.0 < times.whole < math.inf):
            return None
        node = self._nodes.get(name)
        if node is None:
            node = self._nodes[name] = _Node(times)
        elif node.times.steps == times.steps:
            return None
        else:
            _remove(self._owns, node.times.own)
            _remove(self._wholes, node.times.whole)
            node.times = times
        insort(self._owns, times.own)
        insort(self._wholes, times.whole)
        if len(self._nodes) < 2:
            return None
        node.factors.append(self._factor(times))
        return self._tell(name, node)

    def _factor(self, times: StepTimes) -> float:
        """What this measurement says: 1.0 is not slow, 0.0 is not clear."""
        usual, step = _lower_median(self._owns), _lower_median(self._wholes)
        own = min(times.own, step)
        more = own - usual
        if own <= (1 + self._allowed) / 2 * usual or more <= 0.0:
            return 1.0
        factor = step / (step - more) if step > more else MOST
        if factor < NOTHING or abs(times.whole - step) > more / 2:  # the others do not wait for it
            return 1.0
        return min(MOST, factor) if own >= self._allowed * usual and factor >= WORTH else 0.0

    def _tell(self, name: str, node: _Node) -> Judged | None:
        factors = sorted(node.factors)
        if len(factors) < STREAK or factors[0] == 0.0:
            return None
        least, middle, most = factors[0], factors[STREAK // 2], factors[-1]
        if (least == 1.0) != (most == 1.0):
            return None  # slow, and not slow
        if node.told == 1.0 or most == 1.0:
            is_news = middle != node.told
        else:
            is_news = least > node.told * OTHER or most * OTHER < node.told
        if not is_news:
            return None
        node.told = middle
        return Judged(StragglerFound(self._round, name, middle), self._why(name, node))

    def _why(self, name: str, node: _Node) -> str:
        own, usual = 1e3 * node.times.own, 1e3 * _lower_median(self._owns)
        measured = (
            f"a step takes {own:.3g} ms of its own (local rank {node.times.local_rank}),"
            f" {usual:.3g} ms on the median of {len(self._nodes)} nodes"
        )
        if node.told == 1.0:
            return f"{name} makes others wait no longer: {measured}"
        return (
            f"{name} makes others wait; a step takes {node.told:.2f} times as long as they need: {measured};"
            " look at its data loading, at what else runs there, and at its clocks and temperatures"
        )


def _remove(values: list[float], value: float) -> None:
    del values[bisect_left(values, value)]


def _lower_median(ordered: list[float]) -> float:
    return ordered[(len(ordered) - 1) // 2]
