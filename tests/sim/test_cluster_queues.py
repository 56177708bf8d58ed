"""Gangs in queues: kube-batch's actions, and elastic gangs beside rigid ones."""

from __future__ import annotations

from elasticrun.core.cluster.jobs import Rules
from elasticrun.sim.cluster.queues import Decision, Gang, Queues, Stop
from elasticrun.sim.cluster.replay import replay
from elasticrun.sim.cluster.trace import WEIGHTS, in_queues, synthetic

TWO = {"a": 1.0, "b": 1.0}


def gang(name: str, queue: str, pledge: int, runs: bool = False, priority: int = 0, at: float = 0.0) -> Gang:
    return Gang(name, queue, pledge, priority, at, runs)


def decide(*gangs: Gang, units: int = 8, now: float = 10.0) -> Decision:
    return Decision(gangs, units, TWO, now, Rules())


def test_the_queue_that_holds_least_comes_first() -> None:
    found = decide(gang("a1", "a", 4, runs=True), gang("a2", "a", 4), gang("b1", "b", 4, at=5.0))
    assert set(found.runs) == {"a1", "b1"}


def test_a_smaller_gang_passes_for_a_while() -> None:
    large, small = gang("large", "a", 6), gang("small", "a", 2, at=1.0)
    running = gang("r", "a", 4, runs=True)
    assert set(decide(running, large, small).runs) == {"r", "small"}
    assert set(decide(running, large, small, now=600.0).runs) == {"r"}


def test_a_queue_gets_back_what_it_deserves() -> None:
    running = [gang(f"a{n}", "a", 2, runs=True, at=n) for n in range(4)]
    found = decide(*running, gang("b", "b", 4))
    assert found.stops == [Stop("reclaim", "b", ("a3", "a2"))]
    assert set(found.runs) == {"a0", "a1", "b"}


def test_a_queue_keeps_what_it_deserves() -> None:
    """It deserves five: without a second gang it had four."""
    running = [gang(f"a{n}", "a", 2, runs=True) for n in range(4)]
    assert decide(*running, gang("b", "b", 3)).stops == []


def test_a_queue_that_has_what_it_deserves_reclaims_nothing() -> None:
    running = [gang("a1", "a", 4, runs=True), gang("b1", "b", 4, runs=True)]
    found = decide(*running, gang("b2", "b", 1))
    assert found.stops == []


def test_priority_preempts_in_its_own_queue_only() -> None:
    running = [gang("a1", "a", 4, runs=True), gang("b1", "b", 4, runs=True)]
    found = decide(*running, gang("b2", "b", 2, priority=1))
    assert found.stops == [Stop("preempt", "b2", ("b1",))]


def test_nobody_is_preempted_if_that_is_not_enough() -> None:
    running = [gang("a1", "a", 4, runs=True, priority=1), gang("a2", "a", 4, runs=True)]
    assert decide(*running, gang("a3", "a", 5, priority=1)).stops == []


def test_the_fewest_are_stopped() -> None:
    running = [gang("a1", "a", 2, runs=True, at=3.0), gang("a2", "a", 6, runs=True)]
    found = decide(*running, gang("a3", "a", 6, priority=1))
    assert found.stops == [Stop("preempt", "a3", ("a2",))]


def test_elastic_gangs_wait_less_and_are_stopped_less_often_than_rigid_ones() -> None:
    trace = in_queues(synthetic(120, seed=1, nodes=32))
    rigid, elastic = (replay(trace, Queues(WEIGHTS, is_elastic)) for is_elastic in (False, True))
    assert elastic.mean_wait < rigid.mean_wait and elastic.p95_wait <= rigid.p95_wait
    assert elastic.utilisation >= rigid.utilisation
    assert elastic.stopped <= rigid.stopped
    assert len(elastic.completions) == len(rigid.completions) == 120
    assert replay(trace, Queues(WEIGHTS, True)) == elastic
