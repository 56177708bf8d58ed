"""What if, for any sums: consistent with what was measured, monotone in what things cost, never absurd."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elasticrun.core.history.incidents import Kind, Sums
from elasticrun.core.whatif.measured import Measured
from elasticrun.core.whatif.replay import (
    FIGURES,
    Costs,
    as_measured,
    intervals,
    replayed,
    torchrun,
    with_interval,
    with_spare,
)

SECONDS = st.floats(0, 1e6)


@st.composite
def sums(draw: st.DrawFn) -> Sums:
    count = draw(st.integers(0, 1000))
    if not count:
        return Sums()
    waiting = draw(SECONDS)
    return Sums(
        count,
        seconds=waiting + draw(SECONDS),
        waiting=waiting,
        coverable=draw(st.floats(0, waiting)),
        redone=draw(SECONDS),
        undone=draw(SECONDS),
        replaced=draw(st.integers(0, count)),
    )


@st.composite
def jobs(draw: st.DrawFn) -> Measured:
    """Of what was lost, and some time more."""
    incidents = {kind: draw(sums()) for kind in Kind}
    stalled, trained = draw(SECONDS), draw(SECONDS)
    lost = sum(it.seconds + it.redone for it in incidents.values()) + stalled
    seconds = lost + draw(SECONDS)
    return Measured(
        seconds,
        seconds * draw(st.floats(0, 100)),
        incidents,
        stalled=stalled,
        trained=trained,
        saves=draw(st.integers(0, 1000)),
        stored=draw(st.integers(0, 3)),
        setup=draw(st.floats(0, 100)),
        first_import=draw(st.floats(0, 100)),
        most_nodes=draw(st.integers(1, 100)),
    )


@given(jobs())
def test_measured_costs_give_the_measured_time(job: Measured) -> None:
    outcome = replayed(job, Costs.of(job))
    assert outcome.seconds == pytest.approx(job.seconds, abs=1e-3)
    assert outcome.node_seconds == pytest.approx(job.node_seconds, rel=1e-6, abs=1e-1)
    assert with_interval(job, 1.0).seconds == pytest.approx(job.seconds, abs=1e-3)


@given(
    jobs(),
    st.sampled_from(["restart", "restart-nodes", "import", "lost-node", "replaced-node"]),
    SECONDS,
    SECONDS,
)
def test_dearer_restarts_never_make_a_job_shorter(job: Measured, name: str, one: float, other: float) -> None:
    low, high = sorted((one, other))
    less, more = (replayed(job, torchrun(job, {name: each})).seconds for each in (low, high))
    assert less <= more + 1e-6 * max(1.0, more)


@given(jobs(), st.sampled_from(sorted(FIGURES)), SECONDS)
def test_no_outcome_is_absurd(job: Measured, name: str, figure: float) -> None:
    base = job.seconds - as_measured(job).lost
    outcomes = [
        replayed(job, torchrun(job, {name: figure})),
        with_spare(job),
        *(row.outcome for row in intervals(job)),
    ]
    for outcome in outcomes:
        assert outcome.seconds >= base - 1e-6 * max(1.0, job.seconds)
        assert outcome.node_seconds >= 0


@given(jobs())
def test_a_spare_never_makes_a_job_longer(job: Measured) -> None:
    assert with_spare(job).seconds <= job.seconds
