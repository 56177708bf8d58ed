"""How many steps lie between two saves."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elasticrun.core.state.interval import (
    GROWTH,
    LONGEST,
    PRIOR,
    History,
    Measured,
    Pace,
    Rhythm,
    best_interval,
    oldest,
    steps_between_saves,
)

seconds = st.floats(1e-3, 1e6)
anything = st.floats(allow_nan=True, allow_infinity=True)
measured = st.builds(Measured, anything, anything, anything)


def test_the_estimate_is_that_of_the_papers() -> None:
    """Daly's own terms, computed by hand for a stall of 2 s and a failure each 100 s."""
    assert best_interval(2.0, 100.0) == pytest.approx(20 * (1 + 0.1 / 3 + 0.01 / 9) - 2)
    assert best_interval(1e-6, 100.0) == pytest.approx(math.sqrt(2 * 1e-6 * 100), rel=1e-3)  # Young's
    assert best_interval(200.0, 100.0) == 100.0
    assert best_interval(0.0, 100.0) == 0.0


def lost(interval: float, stall: float, between_failures: float) -> float:
    """The expected time to get a second of work done, if failures come at random: Daly's exact model."""
    return between_failures * math.expm1((interval + stall) / between_failures) / interval


@given(stall=st.floats(0.01, 10), between_failures=st.floats(100, 1e5), factor=st.floats(0.1, 10))
def test_no_other_interval_loses_much_less(stall: float, between_failures: float, factor: float) -> None:
    best = best_interval(stall, between_failures)
    assert lost(best, stall, between_failures) <= lost(best * factor, stall, between_failures) * 1.001


@given(stall=seconds, between_failures=seconds, factor=st.floats(1, 1e3))
def test_who_stalls_longer_or_fails_less_saves_less_often(
    stall: float, between_failures: float, factor: float
) -> None:
    """The two cases of the estimate differ by an eighth where they meet."""
    least = best_interval(stall, between_failures) * (1 - 1e-9)
    assert best_interval(stall * factor, between_failures) >= least
    assert best_interval(stall, between_failures * factor) >= least * 8 / 9
    assert 0 < least <= 2 * math.sqrt(stall * between_failures)


@given(measured=measured, before=st.integers(-5, 10**9))
def test_whatever_was_measured_the_steps_are_bounded(measured: Measured, before: int) -> None:
    steps = steps_between_saves(measured, before)
    assert 1 <= steps <= GROWTH * max(1, before)
    if steps > 1 and measured.step > 1e-6:
        assert steps * measured.step <= LONGEST


@given(
    stall=st.floats(0, 1e3),
    step=st.floats(1e-4, 1e3),
    between_failures=st.floats(1, 1e6),
    factor=st.floats(1, 100),
)
def test_steps_are_few_where_they_are_long(
    stall: float, step: float, between_failures: float, factor: float
) -> None:
    short = steps_between_saves(Measured(stall, step, 1 / between_failures), 10**9)
    long = steps_between_saves(Measured(stall, step * factor, 1 / between_failures), 10**9)
    assert long <= short


@pytest.mark.parametrize(
    ("measured", "before", "steps"),
    [
        (Measured(0.1, 0.1, 1 / 500), 1000, 99),
        (Measured(0.1, 0.1, 1 / 500), 10, 20),
        (Measured(0.0, 0.1, 1 / 500), 1000, 1),
        (Measured(1e9, 1.0, 1e-10), 10**9, 3600),
        (Measured(0.1, 1e9, 1 / 500), 1000, 1),
        (Measured(math.nan, math.nan, math.nan), 1000, 1),
    ],
)
def test_steps_between_saves(measured: Measured, before: int, steps: int) -> None:
    assert steps_between_saves(measured, before) == steps


# History


@given(age=st.floats(0, 1e9), failures=st.integers(0, 10**5), more=st.floats(0, 1e9))
def test_a_job_that_runs_on_fails_less_and_one_that_failed_more(
    age: float, failures: int, more: float
) -> None:
    history = History(age, failures)
    assert history.after(more).between_failures >= history.between_failures > 0
    assert history.failed(1).between_failures < history.between_failures


def test_with_no_failure_yet_one_is_expected_as_late_as_the_job_is_old() -> None:
    assert History().between_failures == PRIOR
    assert History(3600.0).between_failures == 3600.0 + PRIOR
    assert History(3600.0, 60).between_failures == pytest.approx(60.0, rel=0.1)


@given(st.builds(History, st.floats(0, 1e9), st.integers(0, 10**6)))
def test_a_commit_tells_what_the_job_went_through(history: History) -> None:
    told = History.of({"step": 1, **history.facts})
    assert told.age == pytest.approx(history.age, abs=1e-3)
    assert told.failures == history.failures


@pytest.mark.parametrize(
    "facts",
    [
        {},
        {"age": 1.0},
        {"age": "1", "failures": 1},
        {"age": 1.0, "failures": -1},
        {"age": 1.0, "failures": 0.5},
    ],
)
def test_a_commit_that_tells_nothing_counts_as_young(facts: dict[str, object]) -> None:
    assert History.of(facts) == History()


def test_absurd_numbers_in_a_commit_are_cut() -> None:
    for age in (math.inf, 10**400):
        history = History.of({"age": age, "failures": 10**400}).failed(10**400).after(math.inf)
        assert 0 < history.between_failures < 1e11
    assert History.of({"age": math.nan, "failures": 2}) == History(0.0, 2)
    assert History(5.0, 1).after(-math.inf).failed(-3) == History(5.0, 1)


def test_the_history_of_the_oldest_part_counts() -> None:
    assert oldest([History(1.0, 9), History(2.0, 1), History(2.0, 3)]) == History(2.0, 3)
    assert oldest([]) == History()


def test_what_a_rank_measures() -> None:
    history = History(940.0, 1)
    assert Measured.of([], 0.5, history) == Measured(0.0, 0.5, 1 / 500)
    assert Measured.of([9.0, 0.1, 0.2], 0.0, history) == Measured(0.2, 1e-6, 1 / 500)
    assert Measured.of([math.nan, -1.0], math.nan, history) == Measured(0.0, 1e-6, 1 / 500)


# Ranks agree


def test_a_job_goes_on_at_its_pace_and_saves_sooner_each_time_it_got_nowhere() -> None:
    pace = Pace.of({"step": 7, **Pace(40, 0.25).facts})
    assert pace == Pace(40, 0.25)
    assert [pace.after(rounds) for rounds in (0, 1, 2, 3, 9, 10**9)] == [20, 20, 10, 5, 1, 1]
    rhythm = Rhythm(100, pace.after(1))
    due = [step for step in range(101, 140) if not rhythm.needs_answer(step) and rhythm.is_due(step)]
    assert (due, rhythm.steps) == ([120], 20)


@pytest.mark.parametrize(
    "facts",
    [{}, {"every": 3}, {"every": 0, "stall": 1.0}, {"every": 10**13, "stall": 1}, {"every": 2.0, "stall": 1}],
)
def test_a_commit_that_tells_no_pace_has_none(facts: dict[str, object]) -> None:
    assert Pace.of(facts) is None


def test_the_interval_grows_step_by_step() -> None:
    rhythm, due = Rhythm(), []
    for step in range(1, 40):
        if rhythm.needs_answer(step):
            rhythm.hear(Measured(0.1, 0.1, 1 / 8))
        if rhythm.is_due(step):
            due.append(step)
    assert due == [1, 3, 7, 15, 26, 37]


def answers(rhythm: Rhythm, steps: range, stall: Callable[[int], float]) -> list[int]:
    """At which of these steps, each of which is due, the ranks tell what they measured."""
    asked = []
    for step in steps:
        if rhythm.needs_answer(step):
            asked.append(step)
            rhythm.hear(Measured(stall(step), 1.0, 0.1))
        assert rhythm.is_due(step)
    return asked


def test_ranks_talk_less_while_what_they_measure_changes_little() -> None:
    assert answers(Rhythm(), range(1, 50), lambda step: 0.0) == [2, 4, 8, 16, 24, 32, 40, 48]


def test_ranks_talk_after_each_save_again_once_the_interval_changes() -> None:
    rhythm, saves, asked = Rhythm(0, 10), 0, [0]
    rhythm.hear(Measured(5.0, 1.0, 0.1))
    for step in range(1, 400):
        if rhythm.needs_answer(step):
            asked.append(saves)
            rhythm.hear(Measured(5.0 if saves < 20 else 0.001, 1.0, 0.1))
        saves += rhythm.is_due(step)
    assert [after - before for before, after in pairwise(asked)][:9] == [1, 2, 4, 8, 8, 1, 2, 4, 8]


def test_a_step_may_be_asked_about_again() -> None:
    rhythm = Rhythm()
    assert [rhythm.is_due(7), rhythm.needs_answer(7), rhythm.is_due(7), rhythm.needs_answer(8)] == [
        True,
        False,
        True,
        True,
    ]
    rhythm.hear(Measured(0.1, 0.1, 1 / 500))
    assert [rhythm.is_due(8), rhythm.is_due(8), rhythm.needs_answer(9), rhythm.is_due(9)] == [
        False,
        False,
        False,
        True,
    ]


@given(st.lists(st.lists(measured, min_size=3, max_size=3), min_size=1, max_size=60))
def test_ranks_that_hear_the_largest_of_what_all_tell_save_the_same_steps(
    told: list[list[Measured]],
) -> None:
    """In each step each rank measures something else."""
    ranks = [Rhythm() for _ in range(3)]
    for step, each in enumerate(told):
        asking = [rank.needs_answer(step) for rank in ranks]
        assert len(set(asking)) == 1
        if asking[0]:
            for number, rank in enumerate(ranks):
                order = [*each[number:], *each[:number]]
                finite = [
                    [value for value in column if value == value] for column in zip(*order, strict=True)
                ]
                rank.hear(Measured(*(max(column, default=math.nan) for column in finite)))
        assert len({rank.is_due(step) for rank in ranks}) == 1
