"""The journal's month runs, and what it tells is there; a month of it is no matter of a test."""

from __future__ import annotations

import re

import pytest

from scripts.benchmarks import command, month


def test_a_month_in_small(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["month", "20"]) == 0
    printed = capsys.readouterr().out
    assert re.search(rf"^20 failures on {month.NODES} nodes, \d+ events", printed)
    assert "a master has the state again after" in printed
    assert "another state" not in printed
