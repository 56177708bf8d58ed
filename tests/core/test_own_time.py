"""What a node tells of its steps' times: figures from its workers' counters."""

from __future__ import annotations

from typing import Any

import pytest

from elasticrun.core.progress.own_time import Measured, StepMeter
from elasticrun.core.protocol.round_progress import StepTimes


def times(rank: int, steps: int, own: float, whole: float) -> StepTimes:
    about: Any = pytest.approx
    return StepTimes(rank, steps, about(own), about(whole))


def test_a_figure_is_of_the_steps_since_the_one_before() -> None:
    meter = StepMeter()
    assert meter.measure(0, {}) is None
    assert meter.measure(0, {0: Measured(7, 6, 0.6, 1.2)}) == times(0, 6, 0.1, 0.2)
    same = meter.measure(0, {0: Measured(7, 6, 0.6, 1.2)})
    assert same == times(0, 6, 0.1, 0.2), "it is repeated, in case that it was lost"
    newer = meter.measure(0, {0: Measured(7, 18, 3.0, 6.0)})
    assert newer == times(0, 18, 0.2, 0.4)
    assert meter.measure(1, {}) is None


def test_a_node_is_as_slow_as_its_slowest_worker() -> None:
    meter = StepMeter()
    meter.measure(0, {0: Measured(7, 6, 0.6, 1.2), 1: Measured(8, 6, 1.2, 1.2)})
    told = meter.measure(0, {0: Measured(7, 12, 1.2, 2.4), 1: Measured(8, 6, 1.2, 1.2)})
    assert told == times(1, 18, 0.2, 0.2)


def test_a_process_that_starts_again_counts_anew() -> None:
    meter = StepMeter()
    meter.measure(0, {0: Measured(7, 60, 6.0, 12.0)})
    assert meter.measure(0, {0: Measured(9, 6, 1.2, 1.8)}) == times(0, 66, 0.2, 0.3)


@pytest.mark.parametrize(
    ("newest", "told"),
    [
        (Measured(7, 12, 0.5, 2.4), times(0, 6, 0.1, 0.2)),  # counters that fall
        (Measured(7, 12, 1.2, 1.2), times(0, 6, 0.1, 0.2)),
        (Measured(7, 3, 1.2, 2.4), times(0, 6, 0.1, 0.2)),
        (Measured(7, 12, 1e9, 2.4), times(0, 12, 0.2, 0.2)),  # beyond all
        (Measured(7, 7, 1e18, 1e18), times(0, 7, 1e9, 1e9)),
        (Measured(7, 2**64 - 1, 0.6, 1.3), times(0, 2**30, 0.0, 0.0)),
    ],
)
def test_whatever_a_worker_writes_is_a_figure_or_none(newest: Measured, told: StepTimes) -> None:
    meter = StepMeter()
    meter.measure(0, {0: Measured(7, 6, 0.6, 1.2)})
    assert meter.measure(0, {0: newest}) == told
