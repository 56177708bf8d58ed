"""From figures to places on a plot, and the marks of its axes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

_STEPS = (0.1, 0.2, 0.5, 1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200)
_DAY = 86400


class Scale(NamedTuple):
    """Figures from ``low`` to ``high``, on pixels from ``start`` to ``end``."""

    low: float
    high: float
    start: float
    end: float

    def at(self, value: float) -> float:
        """The pixel of a figure; one outside is at the edge."""
        if self.high <= self.low:
            return self.start
        part = min(1.0, max(0.0, (value - self.low) / (self.high - self.low)))
        return self.start + part * (self.end - self.start)


def marks(seconds: float, most: int = 10) -> Iterator[float]:
    """Round times from 0 up to so many seconds, no more than ``most``."""
    step = next((each for each in _STEPS if seconds / each <= most), None)
    if step is None:
        step = _DAY * max(1, -(-int(seconds / _DAY) // most))
    number = 0
    while number * step <= seconds:
        yield number * step
        number += 1


def short_time(seconds: float) -> str:
    """A time for an axis: ``30 s``, ``5 min``, ``1 min 15``, ``2 h``, ``1 h 30``, ``3 d``."""
    if seconds < 60:
        return f"{seconds:g} s"
    if seconds < 3600 and round(seconds) % 60:
        return f"{round(seconds) // 60} min {round(seconds) % 60:02}"
    minutes = round(seconds / 60)
    if minutes < 60:
        return f"{minutes} min"
    hours, rest = divmod(minutes, 60)
    if hours < 48:
        return f"{hours} h {rest:02}" if rest else f"{hours} h"
    days, over = divmod(hours, 24)
    return f"{days} d {over} h" if over else f"{days} d"
