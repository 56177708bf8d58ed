"""What samples are made into."""

from __future__ import annotations

from dataclasses import replace

import pytest

from scripts.benchmarks.figures import (
    FIGURES,
    Figure,
    Sample,
    Spread,
    Unit,
    Verdict,
    ratios,
    reference,
    spread,
    success,
    verdicts,
)
from scripts.benchmarks.launchers import LAUNCHERS, OURS, TORCHRUN, TUNED

KILL = Figure("kill", "kill", "kill", references=(TUNED, TORCHRUN), ratio=0.12, most=0.5, always=True)


def samples(launcher: str, *values: float | None) -> list[Sample]:
    """Runs of ``kill``; None is one that failed."""
    return [
        Sample("kill", launcher, number, {} if it is None else {"kill": it}, "" if it is not None else "hung")
        for number, it in enumerate(values)
    ]


def test_the_spread_of_values() -> None:
    assert spread([3.0, 1.0, 10.0]) == Spread(median=3.0, least=1.0, most=10.0, count=3)
    assert spread([1.0, 2.0]) == Spread(1.5, 1.0, 2.0, 2)
    assert spread([]) is None


def test_a_ratio_is_of_two_runs_of_one_round() -> None:
    found = samples(OURS, 1.0, None, 3.0) + samples(TORCHRUN, 10.0, 10.0, None)
    assert ratios(found, "kill", TORCHRUN) == Spread(0.1, 0.1, 0.1, 1)


def test_the_median_of_ratios_is_not_the_ratio_of_medians() -> None:
    found = samples(OURS, 1.0, 2.0, 3.0) + samples(TORCHRUN, 10.0, 5.0, 4.0)
    ratio = ratios(found, "kill", TORCHRUN)
    assert ratio is not None
    assert ratio.median == 0.4
    assert (ratio.least, ratio.most) == (0.1, 0.75)


def test_without_a_common_round_there_is_no_ratio() -> None:
    found = samples(OURS, 1.0, None) + samples(TORCHRUN, None, 1.0)
    assert ratios(found, "kill", TORCHRUN) is None
    assert reference(found, KILL) is None


def test_the_first_reference_that_was_measured_counts() -> None:
    found = samples(OURS, 1.0) + samples(TORCHRUN, 10.0)
    assert reference(found, KILL) == TORCHRUN
    assert reference(found + samples(TUNED, 5.0), KILL) == TUNED


def test_success_counts_runs_of_the_case_only() -> None:
    other = [replace(it, case="launch") for it in samples(OURS, 1.0)]
    assert success(samples(OURS, 1.0, None) + other, OURS, "kill") == (1, 2)


def test_a_run_that_failed_may_still_have_a_figure() -> None:
    found = [replace(it, failure="no step in the end") for it in samples(OURS, 1.0)]
    assert success(found, OURS, "kill") == (0, 1)
    assert ratios(found + samples(TORCHRUN, 2.0), "kill", TORCHRUN) == Spread(0.5, 0.5, 0.5, 1)


def test_targets_that_are_met() -> None:
    found = samples(OURS, 0.4, 0.6, 0.4) + samples(TORCHRUN, 4.0, 4.0, 4.0)
    assert verdicts(found, KILL) == [
        Verdict("<= 0.12 x torchrun", True),
        Verdict("<= 0.5 s", True),
        Verdict("no run fails", True),
    ]


def test_targets_that_are_missed() -> None:
    found = samples(OURS, 0.6, 0.6, None) + samples(TORCHRUN, 4.0, 4.0, 4.0)
    assert [it.met for it in verdicts(found, KILL)] == [False, False, False]


def test_a_run_of_ours_that_fails_misses_a_target_of_any_figure() -> None:
    launch = Figure("kill", "kill", "", ratio=0.5)
    theirs = samples(TORCHRUN, 4.0, None)
    assert verdicts(samples(OURS, 1.0, 1.0) + theirs, launch) == [Verdict("<= 0.5 x torchrun", True)]
    assert verdicts(samples(OURS, 1.0, None) + theirs, launch) == [
        Verdict("<= 0.5 x torchrun", True),
        Verdict("no run fails", False),
    ]


def test_targets_that_cannot_be_judged() -> None:
    assert [it.met for it in verdicts(samples(OURS, None), KILL)] == [None, None, False]
    assert [it.met for it in verdicts(samples(OURS, 0.1), KILL)] == [None, True, True]
    assert verdicts(samples(TORCHRUN, 1.0), KILL) == []


def test_a_share_has_to_be_large() -> None:
    goodput = Figure("kill", "kill", "", Unit.SHARE, least=0.985)
    assert [it.met for it in verdicts(samples(OURS, 0.985), goodput)] == [True]
    assert [it.met for it in verdicts(samples(OURS, 0.984), goodput)] == [False]


@pytest.mark.parametrize(
    ("unit", "value", "text"),
    [
        (Unit.SECONDS, 0.0123, "0.012"),
        (Unit.SECONDS, 3.456, "3.46"),
        (Unit.SECONDS, 44.44, "44.4"),
        (Unit.MEGABYTES, 41.44, "41.4"),
        (Unit.SHARE, 0.9876, "0.988"),
    ],
)
def test_values_are_written_with_three_digits(unit: Unit, value: float, text: str) -> None:
    assert unit.text(value) == text


def test_references_are_launchers() -> None:
    assert {name for figure in FIGURES for name in figure.references} <= LAUNCHERS.keys()
