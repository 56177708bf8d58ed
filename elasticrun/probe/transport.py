"""What an all-gather must offer, and how it is measured, whatever carries the bytes."""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from typing import Protocol

#: Bytes of the all-gathers whose time is the latency; how many are timed, after how many that are not.
TINY = 8
TINY_ROUNDS = 20
WARM_UP = 3

#: Blocks grow from FIRST_BLOCK bytes until an all-gather takes ENOUGH of the AIM seconds, or a rank receives
#: as many bytes as the transport allows.
FIRST_BLOCK = 64 * 1024
AIM = 0.3
ENOUGH = 0.15
MAX_GROWTH = 16.0
#: The fastest of at most so many all-gathers of the final size counts; the repeats take up to ENOUGH seconds.
REPEATS = 3
#: Bytes that fill any network between CPUs, and are no burden on a small node.
MAX_RECEIVED = 16 * 1024 * 1024


class Transport(Protocol):
    """A group that can do all-gathers. Every method is a collective operation of all ranks.

    They raise ProbeError, OSError or, if torch does the work, RuntimeError.
    """

    size: int
    max_received: int  # bytes in one all-gather

    def share(self, value: float) -> list[float]:
        """The values of all ranks, by rank."""

    def time_gather(self, length: int) -> float:
        """Seconds for an all-gather of ``length`` bytes from each rank, whose contents are then verified."""

    def close(self) -> None:
        """Release everything; the port can be used again."""


@dataclass(frozen=True)
class Measurement:
    """The bandwidth and latency of an all-gather."""

    bandwidth: float  # bytes per second that this rank received
    latency: float  # seconds for an all-gather of a few bytes


def measure(transport: Transport) -> Measurement:
    """Verify and time all-gathers, first tiny, then large enough to fill the network."""
    for _ in range(WARM_UP):
        transport.time_gather(TINY)
    latency = statistics.median(transport.time_gather(TINY) for _ in range(TINY_ROUNDS))
    return Measurement(_bandwidth(transport), latency)


def _bandwidth(transport: Transport) -> float:
    """All ranks take the same steps, because each is decided by the slowest rank's time, which all know."""
    peers = transport.size - 1
    largest = max(FIRST_BLOCK, transport.max_received // peers)
    length = FIRST_BLOCK
    while True:
        seconds = transport.time_gather(length)
        slowest = max(transport.share(seconds))
        if slowest >= ENOUGH or length >= largest:
            break
        growth = min(MAX_GROWTH, max(2.0, AIM / slowest))
        length = min(largest, int(length * growth) // TINY * TINY)
    repeats = min(REPEATS - 1, int(ENOUGH / slowest))
    fastest = min([seconds, *(transport.time_gather(length) for _ in range(repeats))])
    return peers * length / fastest
