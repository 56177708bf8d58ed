"""Ports for tests that run side by side: each process of the test run draws from numbers of its own."""

from __future__ import annotations

import os
import random
import socket

#: Outside the ranges that kernels and agents choose from by themselves.
FIRST, LAST = 6100, 9900
#: What pytest-xdist calls its processes: gw0, gw1 and so on. More than SHARES of them would share numbers.
WORKER, SHARES = "PYTEST_XDIST_WORKER", 16


def _own_range() -> range:
    share = int(os.environ.get(WORKER, "gw0").removeprefix("gw")) % SHARES
    width = (LAST - FIRST) // SHARES
    return range(FIRST + share * width, FIRST + (share + 1) * width)


def free_port() -> int:
    """A port that nobody holds on any address, and that no other test of this run will draw."""
    chooser, numbers = random.SystemRandom(), _own_range()
    while True:
        port = chooser.choice(numbers)
        with socket.socket() as probe:
            try:
                probe.bind(("", port))
            except OSError:
                continue
            return port


def free_ports(number: int) -> list[int]:
    """So many such ports, each another one."""
    found: set[int] = set()
    while len(found) < number:
        found.add(free_port())
    return list(found)
