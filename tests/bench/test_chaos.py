"""The soak under faults: its schedule, and what is foretold for it. The runs are too long for tests."""

from __future__ import annotations

import itertools
from collections import Counter

import pytest

from elasticrun.core.history.incidents import Kind, Sums
from elasticrun.core.whatif.measured import Measured
from elasticrun.core.whatif.replay import FIGURES
from scripts.benchmarks.chaos import Lived, foretold, schedule

JOB = Measured(100.0, 200.0, {kind: Sums(1, replaced=1) for kind in Kind}, most_nodes=2)


def test_a_shorter_run_has_the_first_faults_of_a_longer_one() -> None:
    long, short = (schedule(seconds, 20.0, 1, with_nodes=True) for seconds in (1800.0, 300.0))
    assert long[: len(short)] == short
    assert 12 <= len(short) <= 16
    assert all(later.at - earlier.at >= 14.0 for earlier, later in itertools.pairwise(long))
    assert short[-1].at < 300.0


def test_each_fourth_fault_is_of_a_node() -> None:
    kinds = [fault.kind for fault in schedule(400.0, 20.0, 3, with_nodes=True)]
    assert kinds[:4] == [Kind.FAILED, Kind.FAILED, Kind.FAILED, Kind.LOST]
    assert Kind.LOST not in [fault.kind for fault in schedule(400.0, 20.0, 3, with_nodes=False)]


def test_what_is_foretold_is_the_cost_of_each_fault() -> None:
    restart = FIGURES["restart-nodes"].usual + FIGURES["import"].usual
    least, usual, most = foretold(JOB, {Kind.FAILED: 3, Kind.LOST: 1}, {"every": 4.0}, 5.0)
    assert usual == pytest.approx(5.0 + 4 * (restart + 2.0) + FIGURES["replaced-node"].usual)
    assert least < usual < most


def test_what_was_lost_is_the_time_without_the_steps_that_count() -> None:
    assert Lived(100.0, 900, Counter()).lost(0.1) == pytest.approx(10.0)
