"""The benchmark with a clock of its own, and the two kinds of engines."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elasticrun.core.health.slowness import slowness_allowed
from elasticrun.probe.compute import (
    BRIEF,
    CHECK_EVERY,
    CPU_SIZE,
    DURATION,
    WARM_UP,
    PythonEngine,
    TorchEngine,
    benchmark,
    cpu_engine,
)
from elasticrun.probe.sockets import ProbeError


class FakeEngine:
    """Takes the seconds that it is told to, one product after the other."""

    name = "the fake"
    kind = "fake"
    flop = 1000.0

    def __init__(self, seconds: list[float]) -> None:
        self.now = 0.0
        self.checks = 0
        self.right = True
        self._seconds = seconds
        self._done = 0

    def multiply(self) -> None:
        self.now += self._seconds[self._done % len(self._seconds)]
        self._done += 1

    def is_right(self) -> bool:
        self.checks += 1
        return self.right

    def spoil(self) -> None:
        self.right = False

    def clock(self) -> float:
        return self.now


class ThrottledEngine(FakeEngine):
    """Products of 1 ms on a node that may compute for ``quota`` ms of each 100 ms.

    It does so as soon as it asks to, or, in each period, once other work has had its core for ``late`` ms.
    """

    def __init__(self, quota: int, passed: int, late: Sequence[int] = (0,)) -> None:
        super().__init__([0.001])
        self._quota, self._ticks, self._left, self._late = quota, passed, quota, late

    def multiply(self) -> None:
        if not self._left or self._ticks % 100 == 0:
            period = -(-self._ticks // 100)
            self._ticks = period * 100 + self._late[period % len(self._late)]
            self._left = self._quota
        self._left -= 1
        self._ticks += 1
        self.now = self._ticks / 1000


def speed_of(engine: FakeEngine) -> float:
    return benchmark(engine, clock=engine.clock)


def test_speed_is_per_second_of_the_wall() -> None:
    engine = FakeEngine([0.01])
    assert speed_of(engine) == pytest.approx(100_000)
    assert engine.checks == pytest.approx(BRIEF / CHECK_EVERY, abs=1)
    assert engine.now == pytest.approx(WARM_UP + BRIEF, abs=CHECK_EVERY + 0.02)


def test_who_is_held_up_is_measured_for_longer() -> None:
    engine = FakeEngine([0.001] * 99 + [0.01])
    speed_of(engine)
    assert engine.checks == pytest.approx(DURATION / CHECK_EVERY, abs=1)
    assert engine.now == pytest.approx(WARM_UP + DURATION, abs=CHECK_EVERY + 0.02)


@pytest.mark.parametrize("passed", range(0, 100, 10))
@pytest.mark.parametrize("share", [0.25, 0.5, 0.75])
def test_a_quota_of_the_cpu_is_no_noise(share: float, passed: int) -> None:
    """Whatever part of its first period is over when the node, rested, gets its turn."""
    assert speed_of(ThrottledEngine(round(100 * share), passed)) == pytest.approx(1e6 * share, rel=0.05)


@given(st.lists(st.integers(0, 50), min_size=1, max_size=15), st.integers(0, 50))
def test_half_a_core_never_seems_to_be_more_than_the_master_allows_for(late: list[int], passed: int) -> None:
    """Whenever in each period other work lets the node use its quota."""
    speed = speed_of(ThrottledEngine(50, passed, late))
    assert 1e6 / speed >= slowness_allowed(2.0)


def test_work_on_the_same_core_shows() -> None:
    assert speed_of(FakeEngine([0.001, 0.001, 0.006])) == pytest.approx(1e6 * 3 / 8, rel=0.05)


def test_a_node_that_is_slow_all_the_time_is_slow() -> None:
    assert speed_of(FakeEngine([0.002])) == pytest.approx(5e5)


def test_unevenness_does_not_show() -> None:
    assert speed_of(FakeEngine([0.001, 0.0015, 0.002])) == pytest.approx(1e6)


def test_what_passes_does_not_show() -> None:
    for passing in ([0.4], [0.001, 0.009] * 30):
        engine = FakeEngine([0.001] * 200 + passing + [0.001] * 100_000)
        assert benchmark(engine, duration=1.6, clock=engine.clock) == pytest.approx(1e6)


def test_less_time_will_do() -> None:
    engine = FakeEngine([0.01])
    assert benchmark(engine, duration=0.2, clock=engine.clock) == pytest.approx(100_000)
    assert engine.now == pytest.approx(WARM_UP + 0.2, abs=0.02)


def test_a_product_that_takes_longer_than_all_that_still_counts() -> None:
    engine = FakeEngine([9.0, 3.0])
    assert speed_of(engine) == pytest.approx(1000 / 3)
    assert engine.now == 12.0


def test_a_wrong_result_is_an_error() -> None:
    engine = FakeEngine([0.01])
    with pytest.raises(ProbeError, match=r"^the fake computes wrong results"):
        benchmark(engine, spoils=True, clock=engine.clock)


def test_python_finds_its_own_mistakes() -> None:
    engine = PythonEngine()
    engine.multiply()
    assert engine.is_right()
    engine.spoil()
    assert not engine.is_right()
    engine.multiply()
    assert engine.is_right()


def test_without_torch_python_computes() -> None:
    assert isinstance(cpu_engine(None), PythonEngine)


@pytest.mark.torch
def test_torch_finds_its_own_mistakes() -> None:
    import torch

    threads = torch.get_num_threads()
    engine = cpu_engine(torch)
    assert torch.get_num_threads() == 1
    torch.set_num_threads(threads)
    assert engine.flop == 2 * CPU_SIZE**3
    engine.multiply()
    assert engine.is_right()
    engine.spoil()
    assert not engine.is_right()


@pytest.mark.torch
def test_one_wrong_element_among_many_is_found() -> None:
    import torch

    engine = TorchEngine(torch, "cpu", CPU_SIZE, 2)
    engine.multiply()
    for row, column in ((0, 0), (17, 200), (255, 255)):
        engine._c[row, column] -= 1
        assert not engine.is_right()
        engine._c[row, column] += 1
        assert engine.is_right()
