"""Entries of the event log in words."""

from __future__ import annotations

import pytest

from elasticrun.ui.events import said


@pytest.mark.parametrize(
    ("factor", "words"),
    [
        (2.5, "n1 takes 2.50 times as long as the others of round 3"),
        (1.0, "n1 is not slower than the others of round 3 any more"),
        ("x", "straggler_found {'round': 3, 'node': 'n1', 'factor': 'x'}"),
    ],
)
def test_a_straggler_and_its_end(factor: object, words: str) -> None:
    assert said({"kind": "straggler_found", "round": 3, "node": "n1", "factor": factor}) == words
