"""The rank that failed is named, not the one that noticed; ``tests/faults/blame.py`` tries it often."""

from __future__ import annotations

import sys

import pytest

from tests.faults.blame import CASES, ROOT, Tried, count_right


@pytest.mark.parametrize("name", ["slow", "recorded", "finally", "nodes", "finallynodes"])
def test_the_rank_that_failed_first_is_named(name: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert name in CASES
    assert count_right(name, Tried(sys.executable, ROOT), 1) == 1, capfd.readouterr().err
