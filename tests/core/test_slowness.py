"""Who computes slowly, and who measures again before that is said."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elasticrun.core.health.slowness import FEW, slowness_allowed, times_slower, to_measure_again
from elasticrun.core.protocol.messages import ProbeReport


def speeds(*flops: float, engine: str = "torch/cpu") -> dict[str, ProbeReport]:
    return {
        f"{engine} {number}": ProbeReport(1, matmul_flops=it, engine=engine)
        for number, it in enumerate(flops)
    }


@pytest.mark.parametrize(
    ("ratio", "allowed"), [(2.0, 1.8), (3.0, 2.7), (1.25, 1.125), (1.1, 1.05), (1.01, 1.005)]
)
def test_slowness_allowed(ratio: float, allowed: float) -> None:
    assert slowness_allowed(ratio) == pytest.approx(allowed)


def test_nobody_measures_again_if_there_is_nobody_or_all_are_alike() -> None:
    assert to_measure_again({}, 2.0) == ()
    assert to_measure_again(speeds(1.0), 2.0) == ()
    assert to_measure_again(speeds(1.0, 1.0, 0.75), 2.0) == ()


def test_of_few_everybody_measures_again_if_one_is_near_to_being_slow() -> None:
    found = speeds(1.0, 0.7, 1.0)
    assert to_measure_again(found, 2.0) == tuple(found)
    assert to_measure_again(found, 3.0) == ()


def test_of_many_only_those_that_seem_slow_measure_again() -> None:
    found = speeds(*[1.0] * FEW, 0.5, 0.6)
    assert to_measure_again(found, 2.0) == (f"torch/cpu {FEW}",)


def test_each_engine_is_seen_by_itself() -> None:
    plain = speeds(1e-3, 0.5e-3, engine="python3")
    found = {**speeds(1.0, 1.0), **plain}
    assert to_measure_again(found, 2.0) == tuple(plain)


@given(st.lists(st.floats(0.01, 1.0), min_size=1, max_size=30), st.floats(1.01, 10.0))
def test_without_another_measurement_nobody_is_called_slow(values: list[float], ratio: float) -> None:
    found = speeds(*values)
    slow = {node for node, times in times_slower(found).items() if times >= slowness_allowed(ratio)}
    assert slow <= {*to_measure_again(found, ratio)}


@given(st.lists(st.sampled_from([1.0, 2.0]), min_size=2, max_size=FEW), st.data())
def test_a_slow_node_of_few_is_never_missed_unless_the_rest_lost_almost_a_third_of_their_time(
    times: list[float], data: st.DataObject
) -> None:
    """Whatever noise the first measurement had, it leads to a second one if the truth says so."""
    times.sort()
    noise = [data.draw(st.floats(0.72, 1.0)) if it == 1.0 else 1.0 for it in times]
    truth = speeds(*(1 / it for it in times))
    seen = speeds(*(luck / it for it, luck in zip(times, noise, strict=True)))
    if max(times_slower(truth).values()) >= slowness_allowed(2.0):
        assert to_measure_again(seen, 2.0) == tuple(seen)
