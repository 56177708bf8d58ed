"""How many nodes each job of a cluster gets."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

from elasticrun.core.cluster.curve import Batch, assumed, curve
from elasticrun.core.cluster.jobs import Change, Job, Rules
from elasticrun.core.cluster.plan import plan


def job(name: str, least: int = 1, most: int = 8, nodes: int = 0, **more: float | str) -> Job:
    return replace(Job(name, least, most, curve(most), nodes), **more)  # type: ignore[arg-type]


def nodes(units: int, *jobs: Job, now: float = 0.0, rules: Rules | None = None) -> Mapping[str, int]:
    return plan(jobs, {"": units}, now, rules or Rules()).nodes


# -- curves


def test_a_job_that_nobody_measured_has_the_assumed_curve() -> None:
    assert curve(3).done == (0.0, 1.0, assumed(2), assumed(3))
    assert assumed(32) / 32 == pytest.approx(0.68, abs=0.01)


def test_a_curve_goes_through_what_was_measured() -> None:
    found = curve(8, {2: 10.0, 4: 15.0})
    assert found.of(4) / found.of(2) == pytest.approx(1.5)
    assert found.of(3) == pytest.approx((found.of(2) + found.of(4)) / 2)
    assert found.gain(4) == pytest.approx(found.gain(3)) or found.gain(4) < found.gain(3)
    assert found.gain(7) > 0


def test_nothing_is_gained_beyond_the_highest_point() -> None:
    found = curve(8, {2: 10.0, 4: 15.0, 6: 14.0})
    assert found.of(8) == found.of(4)


def test_noise_is_smoothed_from_above() -> None:
    found = curve(4, {1: 1.0, 2: 1.1, 3: 2.9})
    assert found.of(2) > 1.5


def test_no_node_counts_as_more_than_one() -> None:
    assert curve(3, {1: 1.0, 2: 1e9, 3: 1e300}).done == (0.0, 1.0, 2.0, 3.0)


def test_how_much_is_done_a_second() -> None:
    assert [batch.done(2.5, 4) for batch in (Batch.GLOBAL, Batch.PER_WORKER)] == [2.5, 10.0]


def test_a_size_without_any_progress_tells_nothing() -> None:
    assert curve(2, {0: 1.0, 1: 0.0}) == curve(2)


def test_a_size_that_nobody_can_have_costs_nothing() -> None:
    assert curve(4, {1 << 60: 7.0}).done == pytest.approx(curve(4).done)


def test_only_the_largest_size_may_be_measured() -> None:
    assert curve(4, {4: 7.0}).of(4) == pytest.approx(assumed(4))


# -- who runs


def test_a_single_job_gets_all_up_to_its_most() -> None:
    assert nodes(10, job("a")) == {"a": 8}
    assert nodes(5, job("a")) == {"a": 5}


def test_room_is_made_for_a_job_that_waits() -> None:
    found = plan([job("a", nodes=8), job("b", 2, 4)], {"": 8}, 0.0)
    assert found.nodes == {"a": 4, "b": 4}
    room, start = found.changes
    assert room == Change("a", 8, 4, "room is made for a job that starts, or units are gone")
    assert (start.job, start.before, start.reason) == ("b", 0, "its least number of nodes can be had")


def test_a_rigid_job_is_left_alone() -> None:
    assert nodes(8, job("a", 6, 6, nodes=6), job("b", 4, 4)) == {"a": 6, "b": 0}


def test_nobody_gets_fewer_than_the_least() -> None:
    assert nodes(8, job("a", 5, nodes=8), job("b", 4)) == {"a": 8, "b": 0}


def test_a_smaller_job_passes_for_a_while() -> None:
    running, large, small = job("a", 6, 6, nodes=6), job("b", 4, 4), job("c", 2, 2, submitted=1.0)
    assert nodes(8, running, large, small, now=599.0)["c"] == 2
    assert nodes(8, running, large, small, now=600.0)["c"] == 0
    assert nodes(8, running, job("b", 9, 9), small, now=600.0)["c"] == 2  # that one never finds room


def test_priority_comes_first_and_age_after_a_while() -> None:
    old, urgent = job("a", 4, 4), job("b", 4, 4, submitted=100.0, priority=1)
    assert nodes(4, old, urgent) == {"a": 0, "b": 4}
    late = replace(urgent, submitted=1801.0)
    assert nodes(4, old, late, now=1801.0) == {"a": 4, "b": 0}


def test_a_smaller_cluster_stops_elastic_jobs_first_and_the_last_ones() -> None:
    rigid = job("r", 4, 4, nodes=4, submitted=9.0)
    first, second = job("a", 3, nodes=3), job("b", 3, nodes=3, submitted=1.0)
    found = plan([rigid, first, second], {"": 7}, 10.0)
    assert found.nodes == {"r": 4, "a": 3, "b": 0}
    assert found.changes[0].reason == "the cluster has only 7 units now; it needs 3 units, and 0 can be had"
    assert nodes(4, rigid, first, second) == {"r": 4, "a": 0, "b": 0}
    assert nodes(3, rigid, first, second) == {"r": 0, "a": 3, "b": 0}


def test_jobs_outside_their_bounds_are_brought_back() -> None:
    found = plan([job("a", 3, 4, nodes=2), job("b", 1, 2, nodes=5)], {"": 9}, 0.0)
    assert found.nodes == {"a": 4, "b": 2}
    assert [it.reason for it in found.changes] == [
        "it had more nodes than its most",
        "it had fewer nodes than its least",
    ]


def test_kinds_are_shared_apart() -> None:
    jobs = [job("a", kind="gpu", takes=2), job("b", kind="cpu"), job("c", kind="tpu")]
    assert plan(jobs, {"gpu": 7, "cpu": 2}, 0.0).nodes == {"a": 3, "b": 2, "c": 0}


def test_what_a_job_needs_besides_its_nodes_counts() -> None:
    assert nodes(8, job("a", besides=3)) == {"a": 5}


def test_gpu_jobs_do_not_swing_where_the_cluster_is_full() -> None:
    """The same bound holds for more and for fewer nodes; and what is taken is not idle any more."""
    jobs = [job(name, takes=2, kind="gpu") for name in "abc"]
    for _ in range(3):
        found = plan(jobs, {"gpu": 20}, 0.0)
        jobs = [replace(it, nodes=found.nodes[it.name]) for it in jobs]
        assert sum(it.uses(it.nodes) for it in jobs) == 20
    assert found.changes == ()


# -- how many nodes


def test_free_nodes_are_taken_if_that_pays() -> None:
    found = plan([job("a", nodes=4)], {"": 8}, 0.0)
    assert found.changes == (Change("a", 4, 8, "what it does more within the horizon is worth the change"),)
    assert nodes(8, job("a", nodes=4, rescale=300.0)) == {"a": 4}


def test_nodes_go_to_the_job_that_does_more_with_them() -> None:
    slow = replace(job("a", nodes=7), curve=curve(8, {1: 1.0, 7: 1.1}))
    found = plan([slow, job("b", nodes=1)], {"": 8}, 0.0)
    assert found.nodes == {"a": 1, "b": 7}
    assert found.changes[0] == Change("a", 7, 1, "b does more with its nodes")
    dear = replace(slow, rescale=1e6)
    assert nodes(8, dear, job("b", nodes=1)) == {"a": 7, "b": 1}


def test_priority_gets_more() -> None:
    found = nodes(12, job("a", priority=3), job("b"))
    assert found == {"a": 8, "b": 4}


def test_a_giver_gives_no_more_than_is_missing() -> None:
    slow = replace(job("a", nodes=7), curve=curve(8, {1: 1.0, 7: 1.1}))
    assert nodes(10, slow, job("b", 1, 4, nodes=1)) == {"a": 6, "b": 4}


def test_large_nodes_may_find_no_room() -> None:
    slow = replace(job("a", nodes=4), curve=curve(8, {1: 1.0, 4: 1.1}))
    assert nodes(8, slow, job("b", nodes=1, takes=4)) == {"a": 4, "b": 1}


def test_nobody_gives_where_free_nodes_are_enough() -> None:
    idle = replace(job("a", nodes=7), curve=curve(8, {1: 1.0, 7: 1.0}))
    assert nodes(20, idle, job("b", nodes=1)) == {"a": 7, "b": 8}
