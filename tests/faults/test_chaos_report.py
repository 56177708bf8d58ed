"""What the soak's report says, of a run that never was."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace

import pytest

from tests.faults.chaos import TOLERANCE, Outcome, Plan, Reference, Strike
from tests.faults.chaos_run import as_json, table

REFERENCE = Reference(100, 0.98, seconds=10.0, pace={1: 0.2, 2: 0.1})
STRIKES = [Strike(kind, 0, 1.0, 0.5, 1.5, 0.7, 1) for kind in ("hang", "node", "hang")]
CLEAN: dict[str, list[str]] = {"processes": [], "descriptors": [], "temporary files": [], "shared memory": []}
GOOD = Outcome(
    Plan(60, 20, seed=1), REFERENCE, STRIKES,
    window=20.0, kept=Counter({1: 10, 2: 80}), pace={1: 0.25, 2: 0.2}, accuracy=0.98,
    leftovers=CLEAN, stacks=4,
)  # fmt: skip


def test_the_report_has_goodput_faults_and_leftovers() -> None:
    report = json.loads(json.dumps(as_json(GOOD)))
    assert report["good"] is True
    assert report["goodput"] == pytest.approx((10 * 0.2 + 80 * 0.1) / 20)
    assert report["goodput_at_own_pace"] == pytest.approx((10 * 0.25 + 80 * 0.2) / 20)
    assert {kind: row["count"] for kind, row in report["faults"].items()} == {"hang": 2, "node": 1}
    assert report["fault_count"] == 3
    assert report["leftovers"] == CLEAN
    text = "\n".join(table(GOOD))
    for words in ("0.500", "useful step time over wall time", "temporary files: none", "4 files", "good"):
        assert words in text


def test_it_says_that_training_ended_before_the_time_was_over() -> None:
    words = "20.0 of 60 s: training was nearly done"
    assert words in "\n".join(table(GOOD))
    assert words not in "\n".join(table(replace(GOOD, plan=replace(GOOD.plan, most=len(STRIKES)))))
    assert "60.5 of 60 s\n" in "\n".join(table(replace(GOOD, window=60.5)))


@pytest.mark.parametrize("kind", CLEAN)
def test_anything_that_is_left_is_told_and_not_good(kind: str) -> None:
    outcome = replace(GOOD, leftovers={**CLEAN, kind: ["it"]})
    assert not outcome.good
    assert f"{kind}: it" in "\n".join(table(outcome))


@pytest.mark.parametrize(
    "worse", [replace(GOOD, accuracy=0.98 - 2 * TOLERANCE), replace(GOOD, failure="no end of training")]
)
def test_a_worse_end_is_not_good(worse: Outcome) -> None:
    assert not worse.good
    assert "BAD" in "\n".join(table(worse))
