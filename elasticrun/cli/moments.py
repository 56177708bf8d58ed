"""Moments of a job as people type them: seconds since its start, or a wall clock."""

from __future__ import annotations

import math
import re
from datetime import datetime, timedelta

from elasticrun.dataclass import dataclass
from elasticrun.errors import UsageError

_CLOCK = re.compile(r"(\d{1,2}):(\d{2})(?::(\d{2}(?:\.\d{1,6})?))?")


@dataclass(frozen=True, slots=True)
class SinceStart:
    """So many seconds of the job's clock."""

    seconds: float


@dataclass(frozen=True, slots=True)
class WallClock:
    """A moment of the wall clock, in seconds since 1970."""

    time: float


Moment = SinceStart | WallClock


def moment(option: str, text: str, latest: float) -> Moment:
    """What an option means. A time without a day is the last one before ``latest``, in the zone of this host.

    Raises UsageError for what is none of these.
    """
    try:
        seconds = float(text)
        if math.isfinite(seconds):
            return SinceStart(seconds)
    except ValueError:
        try:
            return WallClock(_time_of_day(text, latest) or datetime.fromisoformat(text).timestamp())
        except (ValueError, OverflowError, OSError):
            pass
    raise UsageError(
        f"{option} {text!r} is not valid: give seconds since the start, a time such as 14:05 or 14:05:30, or"
        " one by ISO 8601, such as 2026-01-31T14:05"
    )


def _time_of_day(text: str, latest: float) -> float | None:
    found = _CLOCK.fullmatch(text)
    if found is None:
        return None
    hour, minute, second = int(found[1]), int(found[2]), float(found[3] or 0)
    day = datetime.fromtimestamp(latest)
    whole = int(second)
    time = day.replace(hour=hour, minute=minute, second=whole, microsecond=round((second - whole) * 1e6))
    if time.timestamp() > latest:
        time -= timedelta(days=1)
    return time.timestamp()
