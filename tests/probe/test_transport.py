"""How the all-gather is measured: sizes, repeats, and that all ranks take the same steps."""

from __future__ import annotations

import pytest

from elasticrun.probe.transport import FIRST_BLOCK, TINY, measure

LATENCY = 0.0001


class FakeTransport:
    """A network of a given speed; another rank may be slower."""

    def __init__(self, speed: float, size: int = 2, slower: float = 1.0) -> None:
        self.size = size
        self.max_received = 16 * 1024 * 1024
        self.lengths: list[int] = []
        self._speed = speed
        self._slower = slower

    def share(self, value: float) -> list[float]:
        return [value, value * self._slower]

    def time_gather(self, length: int) -> float:
        self.lengths.append(length)
        return LATENCY + (self.size - 1) * length / self._speed

    def close(self) -> None:
        raise AssertionError("whoever made it closes it")

    @property
    def large(self) -> list[int]:
        return [length for length in self.lengths if length > TINY]


@pytest.mark.parametrize("size", [2, 5])
@pytest.mark.parametrize("speed", [1e5, 1e7, 1e9, 1e11])
def test_the_speed_is_found_within_reason(speed: float, size: int) -> None:
    transport = FakeTransport(speed, size)
    found = measure(transport)
    assert found.latency == pytest.approx(LATENCY + (size - 1) * TINY / speed)
    assert found.bandwidth == pytest.approx(speed, rel=0.1 if speed < 1e11 else 0.5)
    assert sum((size - 1) * length / speed for length in transport.lengths) < 1 + 4 * FIRST_BLOCK / speed
    assert max(transport.lengths) * (size - 1) <= transport.max_received


def test_the_slowest_rank_decides_for_all() -> None:
    fast, slow = FakeTransport(1e9, slower=50), FakeTransport(2e7, slower=0.02)
    measure(fast)
    measure(slow)
    assert fast.large[:2] == pytest.approx(slow.large[:2], rel=0.2)
    assert len(fast.lengths) == len(slow.lengths)


def test_a_slow_network_is_not_loaded_again() -> None:
    transport = FakeTransport(1e5)
    measure(transport)
    assert transport.large == [FIRST_BLOCK]
