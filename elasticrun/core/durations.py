"""Durations that are counted in buckets, as a histogram of Prometheus has them."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass as mutable
from dataclasses import field
from itertools import accumulate


@mutable(slots=True)
class Durations:
    """How many durations were at most each of ``bounds``, or longer, and their sum."""

    bounds: Sequence[float]  # in seconds, rising
    seconds: float = 0.0
    counts: list[int] = field(init=False)

    def __post_init__(self) -> None:
        self.counts = [0] * (len(self.bounds) + 1)

    def add(self, seconds: float) -> None:
        """Count one."""
        self.counts[bisect_left(self.bounds, seconds)] += 1
        self.seconds += seconds

    @property
    def cumulative(self) -> list[int]:
        """How many were at most each bound; the last one is how many there were."""
        return list(accumulate(self.counts))
