"""Many jobs on one cluster, replayed with several schedulers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import inf

import pytest

from elasticrun.sim.cluster.edl import PUBLISHED, case_1, case_2
from elasticrun.sim.cluster.replay import Result, percentile, replay
from elasticrun.sim.cluster.schedulers import SCHEDULERS, Live
from elasticrun.sim.cluster.trace import Asked, Trace, synthetic
from elasticrun.sim.kernel import Violation

SMALL = synthetic(60, seed=3, nodes=32)


def results(trace: Trace) -> Mapping[str, Result]:
    return {name: replay(trace, scheduler) for name, scheduler in SCHEDULERS.items()}


def test_the_same_seed_gives_the_same_trace_and_the_same_result() -> None:
    assert synthetic(60, seed=3, nodes=32) == SMALL != synthetic(60, seed=4, nodes=32)
    assert results(SMALL) == results(SMALL)


@pytest.mark.parametrize("seed", range(3))
def test_elastic_jobs_use_more_and_wait_less_than_static_ones(seed: int) -> None:
    found = results(synthetic(60, seed=seed, nodes=32))
    ours, static = found["elastic"], found["static"]
    assert ours.utilisation >= static.utilisation
    assert ours.mean_wait <= static.mean_wait and ours.p95_wait <= static.p95_wait
    assert ours.mean_completion <= static.mean_completion


def test_all_jobs_come_to_an_end_and_none_has_to_stop() -> None:
    for found in results(SMALL).values():
        assert len(found.completions) == len(found.waits) == 60
        assert found.stopped == 0 and found.useful <= found.utilisation <= 1


def test_jobs_of_one_size_are_never_changed() -> None:
    found = results(SMALL)
    assert found["elastic"].rescales > 0 == found["static"].rescales == found["gang"].rescales


def test_a_large_job_is_not_passed_for_ever() -> None:
    """Small jobs come all the time, two at least of which always run."""
    small = [Asked(f"s{n:03}", 50.0 * n, 1, 1, 1, work=120.0, pause=0.0) for n in range(200)]
    large = Asked("large", 60.0, 4, 4, 4, work=100.0, pause=0.0)
    jobs = tuple(sorted([*small, large], key=lambda job: job.submitted))
    found = replay(Trace("", 4, 4, jobs), SCHEDULERS["elastic"])
    assert 600 <= max(found.waits) <= 600 + 120 + 60


def test_the_published_comparison_in_pending_time() -> None:
    found = results(case_1())
    ours, others = found["elastic"], found["pod by pod"]
    assert others.mean_wait == pytest.approx(308.5, rel=0.1)  # as measured without the autoscaler
    assert ours.mean_wait < PUBLISHED[1][1].pending
    assert ours.utilisation > PUBLISHED[1][1].utilisation
    assert ours.swings == 0


def test_the_published_comparison_in_utilisation() -> None:
    found = results(case_2())
    ours = found["elastic"]
    assert found["pod by pod"].utilisation == pytest.approx(PUBLISHED[2][0].utilisation, abs=0.05)
    assert ours.utilisation > PUBLISHED[2][1].utilisation
    assert ours.swings == ours.stopped == 0


# -- what is measured


def by_hand(*sizes: int, units: int = 4) -> Result:
    """One job, which gets these sizes from minute to minute, and then the last one."""
    left = list(sizes)

    def scheduler(jobs: Sequence[Live], units: int, now: float) -> Mapping[str, int]:
        size = left.pop(0) if len(left) > 1 else left[0]
        return {job.asked.name: size for job in jobs}

    job = Asked("a", 0.0, 1, 4, 1, overhead=0.0, pause=10.0)
    return replay(Trace("", units, units, (job,), end=240.0), scheduler)


def test_utilisation_and_what_is_useful_of_it() -> None:
    found = by_hand(2)
    assert found.utilisation == pytest.approx(0.5)
    assert found.useful == pytest.approx(0.5 * 230 / 240)
    assert found.waits == (0.0,) and found.completions == ()


def test_a_swing_is_seen() -> None:
    found = by_hand(1, 3, 1)
    assert (found.rescales, found.turns, found.swings, found.stopped) == (2, 1, 1, 0)


def test_a_job_that_has_to_stop_waits_no_second_time() -> None:
    found = by_hand(0, 1, 0, 1)
    assert found.waits == (60.0,) and found.stopped == 1


def test_more_than_there_is_is_refused() -> None:
    with pytest.raises(Violation, match="5 of 4 units"):
        by_hand(5)


def test_percentiles() -> None:
    assert percentile([3.0, 1.0, 2.0, 4.0], 0.5) == 2.0
    assert percentile([1.0, 2.0], 0.95) == 2.0
    assert percentile([], 0.95) == 0.0


def test_backfill_puts_nothing_off() -> None:
    """The wide job waits for the first one; only the job that ends before that passes it."""
    first = Asked("first", 0.0, 3, 3, 3, work=3 * 100.0, overhead=0.0, pause=0.0)
    wide = Asked("wide", 1.0, 4, 4, 4, work=4.0, overhead=0.0, pause=0.0)
    long, short = (
        Asked(name, 2.0, 1, 1, 1, work=work, overhead=0.0, pause=0.0)
        for name, work in (("long", 500.0), ("short", 50.0))
    )
    found = replay(Trace("", 4, 4, (first, wide, long, short), end=inf), SCHEDULERS["gang"])
    assert found.waits == pytest.approx((0.0, 0.0, 99.0, 99.0))
