"""Which nodes make the others wait, as their steps' times tell."""

from __future__ import annotations

import math

import pytest

from elasticrun.core.health.stragglers import MOST, STREAK, Judged, Stragglers
from elasticrun.core.protocol.chronicle import StragglerFound
from elasticrun.core.protocol.round_progress import StepTimes

STEP = 0.06  # seconds that a step takes


class Round:
    """A round of nodes that tell of their steps in turn."""

    def __init__(self, ratio: float = 2.0) -> None:
        self.judge = Stragglers(ratio)
        self.number = 0
        self.steps = 0

    def hear(self, own: dict[str, float], whole: float = STEP, times: int = 1) -> list[Judged]:
        """What is told while all nodes tell of so many measurements, one after the other."""
        told = []
        for _ in range(times):
            self.steps += 8
            for node, seconds in own.items():
                judged = self.judge.take(node, self.number, StepTimes(0, self.steps, seconds, whole))
                told += [] if judged is None else [judged]
        return told


def found(told: list[Judged]) -> list[tuple[str, float]]:
    return [(each.found.node, round(each.found.factor, 3)) for each in told]


SLOW = {"a": 0.01, "b": 0.05}
SAME = {"a": 0.01, "b": 0.011}


def test_a_slow_node_is_told_of_once_with_what_was_measured() -> None:
    job = Round()
    job.number = 7
    assert job.hear(SLOW, times=STREAK - 1) == []
    (judged,) = job.hear(SLOW)
    assert (judged.found.round, judged.found.node) == (7, "b")
    assert judged.found.factor == pytest.approx(3.0)
    assert judged.why.startswith(
        "b makes others wait; a step takes 3.00 times as long as they need: a step takes 50 ms of its own"
        " (local rank 0), 10 ms on the median of 2 nodes; look at"
    )
    assert job.hear(SLOW, times=10) == []


def test_it_is_told_of_again_when_it_is_slow_no_longer_or_in_another_way() -> None:
    job = Round()
    assert found(job.hear(SLOW, times=3)) == [("b", 3.0)]
    assert job.hear({"a": 0.01, "b": 0.05}, 0.0605, times=5) == [], "about the same"
    assert found(job.hear({"a": 0.01, "b": 0.09}, 0.1, times=5)) == [("b", 5.0)]
    assert found(job.hear({"a": 0.01, "b": 0.03}, 0.04, times=5)) == [("b", 2.0)]
    assert job.hear({"a": 0.01, "b": 0.016}, 0.04, times=5) == [], "neither slow nor like the others"
    (judged,) = job.hear(SAME, times=5)
    assert judged.found == StragglerFound(0, "b", 1.0)
    assert judged.why.startswith("b makes others wait no longer: ")
    assert job.hear(SAME, times=5) == []
    assert found(job.hear(SLOW, times=3)) == [("b", 3.0)]


def test_what_is_slow_now_and_then_is_not_told_of() -> None:
    job = Round()
    for _ in range(10):
        assert job.hear(SLOW, times=STREAK - 1) == []
        assert job.hear(SAME) == []


def test_a_new_round_knows_nothing_of_the_one_before() -> None:
    job = Round()
    job.hear(SLOW, times=STREAK - 1)
    job.number = 1
    assert job.hear(SLOW, times=STREAK - 1) == []
    assert found(job.hear(SLOW)) == [("b", 3.0)]


def test_what_is_repeated_counts_once() -> None:
    job = Round()
    job.hear(SLOW)
    for _ in range(10):
        assert job.judge.take("b", 0, StepTimes(0, job.steps, 0.05, STEP)) is None


@pytest.mark.parametrize(
    ("own", "whole"),
    [
        ({"b": 0.05}, STEP),  # there is nobody to compare it with
        ({"a": 0.01, "b": 0.017}, 0.02),  # less than the ratio
        ({"a": 0.0001, "b": 0.0005}, STEP),  # it does not matter
        ({"a": 0.01, "b": 0.0175, "c": 0.01}, STEP),  # and less than the ratio
        ({"a": 0.05, "b": 0.05, "c": 0.01}, STEP),  # one is fast
        ({"a": 0.0, "b": 0.0}, STEP),
    ],
)
def test_nobody_is_slow(own: dict[str, float], whole: float) -> None:
    assert Round().hear(own, whole, times=10) == []


def test_the_ratio_is_that_of_the_health_check() -> None:
    own = {"a": 0.010, "b": 0.010, "c": 0.014}
    assert Round().hear(own, 0.02, times=10) == []
    assert found(Round(1.3).hear(own, 0.02, times=10)) == [("c", 1.25)]


def test_several_are_told_of_if_most_nodes_are_faster() -> None:
    own = {"a": 0.05, "b": 0.01, "c": 0.01, "d": 0.04}
    assert found(Round().hear(own, times=4)) == [("d", 2.0), ("a", 3.0)]


def test_who_needs_all_of_the_step_and_the_others_nothing_has_the_largest_factor() -> None:
    assert found(Round().hear({"a": 0.0, "b": STEP}, times=3)) == [("b", MOST)]
    assert found(Round().hear({"a": 0.0, "b": 1e9}, times=3)) == [("b", MOST)], "no more than the step"


def test_steps_that_are_not_made_together_slow_nobody_down() -> None:
    """As tasks that share parameters only: who is slow is slow alone."""
    job = Round()
    for steps in range(8, 100, 8):
        for node, own, whole in (("a", 0.01, 0.02), ("b", 0.05, 0.06)):
            assert job.judge.take(node, 0, StepTimes(0, steps, own, whole)) is None


@pytest.mark.parametrize("absurd", [math.nan, math.inf, -1.0])
def test_what_is_no_time_changes_nothing(absurd: float) -> None:
    job = Round()
    for steps in range(8, 100, 8):
        assert job.judge.take("c", 0, StepTimes(0, steps, absurd, STEP)) is None
        assert job.judge.take("d", 0, StepTimes(0, steps, 0.01, absurd)) is None
        assert job.judge.take("e", 0, StepTimes(0, steps, 0.01, 0.0)) is None
        assert job.judge.take("a", 0, StepTimes(0, steps, 0.01, STEP)) is None
