"""The benchmark with a clock of its own, and the two kinds of engines."""

from __future__ import annotations

import pytest

from elasticrun.probe.compute import BATCHES, CPU_SIZE, PythonEngine, TorchEngine, benchmark, cpu_engine
from elasticrun.probe.sockets import ProbeError


class FakeEngine:
    """Takes the seconds that it is told to, one product after the other."""

    name = "the fake"
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


def test_speed_is_per_second_of_the_wall() -> None:
    engine = FakeEngine([0.01])
    assert benchmark(engine, clock=engine.clock) == pytest.approx(100_000, rel=0.01)
    assert engine.checks == BATCHES


def test_a_quota_of_the_cpu_shows() -> None:
    engine = FakeEngine([0.01, 0.01, 0.08])  # runs for 20 ms, then has to wait for the rest of the period
    assert benchmark(engine, clock=engine.clock) == pytest.approx(30_000, rel=0.1)


def test_one_disturbance_does_not_show() -> None:
    engine = FakeEngine([0.01] * 24 + [1.0] + [0.01] * 1000)
    assert benchmark(engine, clock=engine.clock) == pytest.approx(100_000, rel=0.05)


def test_a_product_longer_than_a_batch_still_counts() -> None:
    engine = FakeEngine([3.0])
    assert benchmark(engine, clock=engine.clock) == pytest.approx(1000 / 3)


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
    for row, column in ((0, 0), (17, 300), (511, 511)):
        engine._c[row, column] -= 1
        assert not engine.is_right()
        engine._c[row, column] += 1
        assert engine.is_right()
