"""Moments as people type them."""

from __future__ import annotations

from datetime import datetime

import pytest

from elasticrun.cli.moments import SinceStart, WallClock, moment
from elasticrun.errors import UsageError

LATEST = datetime(2026, 3, 5, 14, 30).timestamp()


@pytest.mark.parametrize(("text", "seconds"), [("63.5", 63.5), ("0", 0.0), ("-1", -1.0), ("1e3", 1000.0)])
def test_seconds_since_the_start(text: str, seconds: float) -> None:
    assert moment("--at", text, LATEST) == SinceStart(seconds)


@pytest.mark.parametrize(
    ("text", "when"),
    [
        ("14:05", datetime(2026, 3, 5, 14, 5)),
        ("14:05:30.5", datetime(2026, 3, 5, 14, 5, 30, 500000)),
        ("9:00", datetime(2026, 3, 5, 9)),
        ("14:31", datetime(2026, 3, 4, 14, 31)),  # the last such time
        ("2026-01-31T14:05", datetime(2026, 1, 31, 14, 5)),
        ("2026-01-31T14:05:00+00:00", datetime.fromisoformat("2026-01-31T14:05:00+00:00")),
    ],
)
def test_wall_clocks(text: str, when: datetime) -> None:
    assert moment("--at", text, LATEST) == WallClock(when.timestamp())


@pytest.mark.parametrize("text", ["", "nan", "inf", "25:00", "14:61", "14:05:99", "soon", "2026-13-01"])
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="is not valid: give seconds since the start"):
        moment("--at", text, LATEST)
