"""Whose turn it is to record positions, where nobody gives out numbers. tests/checkpoint has the rest."""

from __future__ import annotations

from pathlib import Path

import pytest

from elasticrun.errors import CheckpointError
from elasticrun.storage.positions import PositionRecord, next_round


def test_each_record_has_the_number_after_the_newest(tmp_path: Path) -> None:
    assert next_round(tmp_path / "new") == 0
    for number in (0, 1):
        assert next_round(tmp_path) == number
        PositionRecord(tmp_path, number, 0, 1).close()
    PositionRecord(tmp_path, 9, 3, 4).close()
    (tmp_path / "data" / "round_x_rank_0.jsonl").touch()
    (tmp_path / "data" / "round_\u0664_rank_0.jsonl").touch()  # a digit, but no number of ours
    assert next_round(tmp_path) == 10


def test_two_at_once_do_not_share_a_record(tmp_path: Path) -> None:
    PositionRecord(tmp_path, 0, 0, 1).close()
    with pytest.raises(CheckpointError, match="is there already"):
        PositionRecord(tmp_path, 0, 0, 1)
