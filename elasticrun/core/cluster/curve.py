"""How much a job gets done with so many nodes: measured where it has run, assumed where it has not.

Theory. The unit is the *effective node*: what one node does by itself. Goodput of different jobs cannot be
compared, steps a second of two models even less; but how much more a job does with one node more can be. So
each curve is scaled to the assumed one at the smallest size that was measured.

The assumed curve is n / (1 + ``OVERHEAD`` (n - 1)). Its one figure is from Horovod's paper (Sergeev and Del
Balso, arXiv:1802.05799, figure 6): VGG-16, the worst of three models, keeps 68 % of its efficiency on 32
hosts with four GPUs each. That was one network and one year: it is only where a job starts.

Invariants. Each node adds no more than the one before it, and never less than nothing: measurements are
noisy, so the upper concave hull is taken of them, and nothing is gained beyond its highest point. Beyond
the largest size that was measured, a node adds what the assumed curve says, but no more than the last one
measured. No node counts as more than one effective node, whatever was measured: so a job that boasts gets no
more than one that scales perfectly.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from enum import Enum
from math import inf

from elasticrun.dataclass import dataclass

#: What each further node costs all of them: 1 / (1 + 31 x 0.015) is 0.68.
OVERHEAD = 0.015


class Batch(Enum):
    """What has the same size however many workers there are."""

    GLOBAL = "Global"  # the batch of a step: its workers share it
    PER_WORKER = "PerWorker"  # what a worker takes for a step

    def done(self, step_rate: float, workers: int) -> float:
        """How much is done a second, in a unit of the job, at so many steps a second."""
        return step_rate * workers if self is Batch.PER_WORKER else step_rate


@dataclass(frozen=True, slots=True)
class Curve:
    """``done[n]``: effective nodes of n nodes, from 0 to the most that a job may have."""

    done: tuple[float, ...]

    def of(self, nodes: int) -> float:
        """Effective nodes of so many nodes."""
        return self.done[nodes]

    def gain(self, nodes: int) -> float:
        """What one more than so many nodes adds."""
        return self.done[nodes + 1] - self.done[nodes]


def assumed(nodes: int, overhead: float = OVERHEAD) -> float:
    """Effective nodes of so many nodes of a job that nobody has measured."""
    return nodes / (1 + overhead * (nodes - 1)) if nodes else 0.0


def curve(most: int, measured: Mapping[int, float] | None = None) -> Curve:
    """Of a job with up to ``most`` nodes. ``measured``: how much it did, in any unit, by number of nodes.

    Sizes and figures that are not above zero, or not finite, are left out: they tell of nothing that ran.
    """
    known = {nodes: rate for nodes, rate in sorted((measured or {}).items()) if nodes > 0 and 0 < rate < inf}
    if not known:
        return Curve(tuple(assumed(nodes) for nodes in range(most + 1)))
    first = next(iter(known))
    scale = assumed(first) / known[first]
    points = [(nodes, assumed(nodes)) for nodes in range(min(first, most + 1))]  # first may be absurd
    hull = _hull([*points, *((nodes, min(rate * scale, nodes)) for nodes, rate in known.items())])
    return Curve(_spread(hull, max(known), most))


def _hull(points: Sequence[tuple[int, float]]) -> list[tuple[int, float]]:
    """The upper concave hull, up to its highest point."""
    found: list[tuple[int, float]] = []
    for point in points:
        while len(found) > 1 and _slope(found[-2], point) >= _slope(found[-2], found[-1]):
            found.pop()
        if _is_higher(found, point):
            found.append(point)
    return found


def _is_higher(found: Sequence[tuple[int, float]], point: tuple[int, float]) -> bool:
    return not found or point[1] > found[-1][1]


def _slope(a: tuple[int, float], b: tuple[int, float]) -> float:
    return (b[1] - a[1]) / (b[0] - a[0])


def _spread(hull: Sequence[tuple[int, float]], largest: int, most: int) -> tuple[float, ...]:
    """The value at each size: on the hull, then as assumed, or flat if it fell before ``largest``."""
    sizes = [nodes for nodes, _ in hull]
    top, height = hull[-1]
    last = _slope(hull[-2], hull[-1])
    done = list[float]()
    for nodes in range(most + 1):
        if nodes <= top:
            place = max(1, bisect_left(sizes, nodes))
            left = hull[place - 1]
            done.append(left[1] + _slope(left, hull[place]) * (nodes - left[0]))
        elif top < largest:
            done.append(height)
        else:
            more = height * (assumed(nodes) - assumed(nodes - 1)) / assumed(top)
            done.append(done[-1] + min(last, more))
    return tuple(done)
