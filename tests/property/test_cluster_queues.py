"""Gangs in queues, from any state: nothing is stopped in vain, and decisions settle."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elasticrun.core.cluster.jobs import Rules
from elasticrun.sim.cluster.queues import Decision, Gang, deserved

WEIGHTS = {"a": 1.0, "b": 1.0, "c": 2.0}
UNITS = 24


@st.composite
def gangs(draw: st.DrawFn) -> list[Gang]:
    """Some run, and these fit."""
    found, left = [], UNITS
    for number in range(draw(st.integers(0, 9))):
        pledge = draw(st.integers(1, 12))
        runs = draw(st.booleans()) and pledge <= left
        left -= pledge if runs else 0
        queue, priority = draw(st.sampled_from("abc")), draw(st.integers(0, 2))
        found.append(Gang(f"g{number}", queue, pledge, priority, draw(st.floats(0, 2000)), runs))
    return found


NOW = st.floats(2000, 3000)


def decide(given: Sequence[Gang], now: float) -> Decision:
    return Decision(given, UNITS, WEIGHTS, now, Rules())


def held(given: Sequence[Gang], queue: str, running: Sequence[str]) -> int:
    return sum(it.pledge for it in given if it.queue == queue and it.name in running)


@given(gangs())
def test_queues_deserve_all_that_is_asked_for_or_all_there_is(given: list[Gang]) -> None:
    found = deserved(given, UNITS, WEIGHTS)
    asked = {queue: sum(it.pledge for it in given if it.queue == queue) for queue in WEIGHTS}
    assert all(found[queue] <= asked[queue] + 1e-9 for queue in WEIGHTS)
    assert sum(found.values()) == pytest.approx(min(UNITS, sum(asked.values())))


@given(gangs(), NOW)
def test_units_are_promised_once(given: list[Gang], now: float) -> None:
    assert decide(given, now).left >= 0


@given(gangs(), NOW)
def test_nothing_is_stopped_in_vain(given: list[Gang], now: float) -> None:
    running = [it for it in given if it.runs]
    for gang in (it for it in given if not it.runs):
        found = decide([*running, gang], now)
        for stop in found.stops:
            assert stop.starter == gang.name in found.runs
            victims = [it for it in running if it.name in stop.victims]
            assert victims and all(found.left < it.pledge for it in victims)
            if stop.action == "preempt":
                assert all(it.queue == gang.queue and it.priority < gang.priority for it in victims)


@given(gangs(), NOW)
def test_reclaiming_takes_no_queue_below_what_it_deserves(given: list[Gang], now: float) -> None:
    running = [it for it in given if it.runs]
    for gang in (it for it in given if not it.runs):
        jobs = [*running, gang]
        found, deserve = decide(jobs, now), deserved(jobs, UNITS, WEIGHTS)
        for stop in (it for it in found.stops if it.action == "reclaim"):
            assert held(jobs, gang.queue, [*found.runs]) <= deserve[gang.queue] + 1e-9
            queues = {it.queue for it in running if it.name in stop.victims}
            assert all(held(jobs, it, [*found.runs]) >= deserve[it] - 1e-9 for it in queues)


@given(gangs(), NOW)
def test_repeated_decisions_settle(given: list[Gang], now: float) -> None:
    for _ in range(len(given) + 2):
        found = decide(given, now)
        after = [replace(it, runs=it.name in found.runs) for it in given]
        if after == given:
            return
        given = after
    raise AssertionError("they swing")


@given(gangs(), NOW)
def test_whoever_runs_is_only_stopped_for_another_one(given: list[Gang], now: float) -> None:
    found = decide(given, now)
    stopped = {name for stop in found.stops for name in stop.victims}
    assert {it.name for it in given if it.runs} - found.runs.keys() == stopped


@given(gangs(), NOW)
def test_the_first_that_waited_too_long_holds_what_is_free(given: list[Gang], now: float) -> None:
    """So none starves: only those before it in turn start before it, and some time it is the first one."""
    late = [it for it in given if not it.runs and now - it.submitted >= Rules().patience]
    if late:
        first = min(late, key=lambda it: (it.submitted - Rules().aging * it.priority, it.name))
        found = decide(given, now)
        if first.name not in found.runs:
            assert all(it.runs for it in found.runs.values())
