"""Shares of a cluster, from any state: within bounds, settled after one plan, worth their changes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from elasticrun.core.cluster.curve import curve
from elasticrun.core.cluster.jobs import Job, Plan, Rules
from elasticrun.core.cluster.plan import plan
from elasticrun.core.cluster.shares import ideal

KINDS = ("cpu", "gpu")
RULES = Rules()


@st.composite
def job(draw: st.DrawFn, name: str) -> Job:
    least = draw(st.integers(1, 6))
    most = least + draw(st.sampled_from([0, 0, 1, 2, 5, 12]))
    sizes = st.dictionaries(st.integers(1, most + 2), st.floats(0.1, 100), max_size=4)
    return Job(
        name,
        least,
        most,
        curve(most, draw(sizes)),
        draw(st.integers(0, most + 2)),
        draw(st.floats(0, 5000)),
        draw(st.integers(-2, 2)),
        draw(st.sampled_from([1, 1, 2, 3, 8])),
        kind=draw(st.sampled_from(KINDS)),
        rescale=draw(st.floats(0, 200)),
        besides=draw(st.sampled_from([0, 0, 2])),
    )


@st.composite
def some_jobs(draw: st.DrawFn) -> list[Job]:
    return [draw(job(f"job-{number}")) for number in range(draw(st.integers(0, 8)))]


UNITS = st.fixed_dictionaries({kind: st.integers(0, 60) for kind in KINDS})
NOW = st.floats(5000, 10000)


def carried_out(jobs: Sequence[Job], found: Plan) -> list[Job]:
    return [replace(job, nodes=found.nodes[job.name]) for job in jobs]


def used(jobs: Sequence[Job], kind: str) -> int:
    return sum(job.uses(job.nodes) for job in jobs if job.nodes and job.kind == kind)


def value(jobs: Sequence[Job]) -> float:
    return sum(job.curve.of(job.nodes) * job.worth * RULES.horizon for job in jobs)


@given(some_jobs(), UNITS, NOW)
def test_a_plan_keeps_the_bounds_of_cluster_and_jobs(
    jobs: list[Job], units: Mapping[str, int], now: float
) -> None:
    after = carried_out(jobs, plan(jobs, units, now))
    assert all(used(after, kind) <= units[kind] for kind in KINDS)
    assert all(job.nodes == 0 or job.least <= job.nodes <= job.most for job in after)


@given(some_jobs(), UNITS, NOW, st.floats(0, 1e6))
def test_one_plan_settles_everything_for_good(
    jobs: list[Job], units: Mapping[str, int], now: float, later: float
) -> None:
    after = carried_out(jobs, plan(jobs, units, now))
    assert plan(after, units, now).changes == ()
    assert plan(after, units, now + later).changes == ()


@given(some_jobs(), UNITS, NOW, st.randoms(use_true_random=False))
def test_the_order_of_jobs_does_not_matter(
    jobs: list[Job], units: Mapping[str, int], now: float, chance: Random
) -> None:
    mixed = list(jobs)
    chance.shuffle(mixed)
    assert plan(mixed, units, now) == plan(jobs, units, now)


@given(some_jobs(), UNITS, NOW)
def test_changes_that_nothing_forces_add_more_than_they_lose(
    jobs: list[Job], units: Mapping[str, int], now: float
) -> None:
    jobs = carried_out(jobs, plan(jobs, units, now))
    more = {kind: 2 * units[kind] for kind in KINDS}
    running = [job for job in jobs if job.nodes]  # none can start
    found = plan(running, more, now)
    after = carried_out(running, found)
    changed = {it.job for it in found.changes}
    cost = sum(job.curve.of(job.nodes) * job.worth * job.rescale for job in running if job.name in changed)
    assert not changed or value(after) - value(running) > cost * (1 - 1e-9)


@given(some_jobs(), UNITS, NOW)
def test_running_jobs_go_on_as_long_as_their_least_is_there(
    jobs: list[Job], units: Mapping[str, int], now: float
) -> None:
    found = plan(jobs, units, now)
    for kind in KINDS:
        running = [job for job in jobs if job.nodes and job.kind == kind]
        if sum(job.pledge for job in running) <= units[kind]:
            assert all(found.nodes[job.name] for job in running)
            assert all(found.nodes[job.name] == job.most for job in running if job.is_rigid)


@given(some_jobs(), UNITS, NOW)
def test_the_first_in_turn_waits_only_for_what_nobody_can_give(
    jobs: list[Job], units: Mapping[str, int], now: float
) -> None:
    found = plan(jobs, units, now)
    waiting = [job for job in jobs if not found.nodes[job.name]]
    if waiting:
        first = min(waiting, key=lambda job: (job.submitted - RULES.aging * job.priority, job.name))
        runs = [job for job in jobs if found.nodes[job.name] and job.kind == first.kind]
        assert sum(job.pledge for job in runs) + first.pledge > units[first.kind]


@given(some_jobs(), UNITS, NOW)
def test_more_priority_never_keeps_a_job_from_starting(
    jobs: list[Job], units: Mapping[str, int], now: float
) -> None:
    before = plan(jobs, units, now)
    for place, job in enumerate(jobs):
        if not job.nodes and before.nodes[job.name]:
            raised = [*jobs[:place], replace(job, priority=job.priority + 1), *jobs[place + 1 :]]
            assert plan(raised, units, now).nodes[job.name]


@given(some_jobs(), st.integers(0, 40), st.integers(0, 20))
def test_a_larger_cluster_gives_no_job_less(jobs: list[Job], room: int, more: int) -> None:
    alike = [replace(job, takes=1) for job in jobs]
    units = sum(job.pledge for job in alike) + room
    small, large = ideal(alike, units), ideal(alike, units + more)
    assert all(small[name] <= large[name] for name in small)


@given(some_jobs(), st.integers(0, 40))
def test_of_two_equal_jobs_the_more_urgent_gets_no_less(jobs: list[Job], room: int) -> None:
    if jobs:
        twin = replace(jobs[0], name="twin", priority=jobs[0].priority + 1)
        units = sum(job.pledge for job in [*jobs, twin]) + room
        found = ideal([*jobs, twin], units)
        assert found["twin"] >= found[jobs[0].name]
