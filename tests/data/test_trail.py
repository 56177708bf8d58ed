"""What a rank has trained on, for the audit."""

from __future__ import annotations

import json

import pytest

torch = pytest.importorskip("torch")

from elasticrun.data import trail as module  # noqa: E402
from elasticrun.data.trail import Trail  # noqa: E402

pytestmark = pytest.mark.torch


def test_what_follows_is_one_piece_and_is_told_once() -> None:
    trail = Trail()
    for piece in [(0, "a", 0, 2), (0, "a", 2, 4), (0, "b", 4, 5), (1, "b", 5, 6), (1, "b", 7, 8)]:
        trail.add(*piece)
    assert trail.taken() == {
        "trained": [[0, "a", 0, 4], [0, "b", 4, 5], [1, "b", 5, 6], [1, "b", 7, 8]],
        "lost": False,
    }
    assert trail.taken() == {"trained": [], "lost": False}


def test_what_nobody_asks_for_has_an_end_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST", 2)
    trail = Trail()
    for start in (0, 2, 4):
        trail.add(0, "a", start, start + 1)
    assert trail.taken() == {"trained": [[0, "a", 4, 5]], "lost": True}
    assert trail.taken()["lost"] is False


def test_what_was_left_out_is_told_once_and_has_an_end_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST", 2)
    trail = Trail()
    for start in (0, 2):
        trail.leave_out(0, "a", start, start + 1, "x" * 999)
    why = "x" * module.MOST_REASON
    assert trail.taken() == {
        "trained": [],
        "lost": False,
        "left_out": [[0, "a", 0, 1, why], [0, "a", 2, 3, why]],
    }
    assert trail.taken() == {"trained": [], "lost": False}
    for start in (0, 2, 4):
        trail.leave_out(0, "a", start, start + 1, "gone")
    trail.add(0, "a", 6, 7)
    assert (trail.taken()["lost"], trail.taken()["lost"]) == (True, False)
    trail.leave_out(0, "a", 0, 1, "gone")
    trail.clear()
    assert trail.taken() == {"trained": [], "lost": False}


def test_names_may_be_long_and_a_line_may_not() -> None:
    trail, name = Trail(), "\N{SNOWMAN}" * 1000
    for epoch in range(9000):
        trail.add(epoch, name, 0, 1)
        if epoch % 2:
            trail.leave_out(epoch, name, 1, 2, "gone")
    found = trail.taken()
    assert 1 << 23 < len(json.dumps(found)) <= module.MOST_BYTES + 100
    assert found["lost"] is True


def test_what_was_left_at_first_is_told_once() -> None:
    trail = Trail()
    trail.add(0, "a", 0, 2)
    trail.begin({"cursor": [0, 3], "plan": [[], 1]})
    assert trail.taken() == {"trained": [], "lost": False, "begun": {"cursor": [0, 3]}}
    assert "begun" not in trail.taken()
    trail.begin({"cursor": [0, 3]})
    trail.begin(None)
    assert "begun" not in trail.taken()
