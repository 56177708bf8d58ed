"""A real model on real data, trained through a crash; ``scripts/soak`` repeats it."""

from __future__ import annotations

import pytest

from tests.faults.soak import kill_node, kill_worker
from tests.support.cluster import Cluster

pytestmark = [pytest.mark.torch, pytest.mark.slow]


def test_a_killed_worker_costs_neither_the_job_nor_its_accuracy(cluster: Cluster) -> None:
    result = kill_worker(cluster)
    assert result.good, result
    assert "restart 1 of 3" in cluster.launchers[0].err


def test_a_node_joins_and_is_lost_and_the_first_trains_on(cluster: Cluster) -> None:
    result = kill_node(cluster)
    assert result.good, result
    cluster.nobody_left()
