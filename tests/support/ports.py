"""Ports for tests that run side by side: each process of the test run draws from numbers of its own."""

from __future__ import annotations

import functools
import itertools
import os
import random
import socket
from collections.abc import Iterator

#: Outside the ranges that kernels and agents choose from by themselves.
FIRST, LAST = 6100, 9900
#: What pytest-xdist calls its processes: gw0, gw1 and so on. More than SHARES of them would share numbers.
WORKER, SHARES = "PYTEST_XDIST_WORKER", 16


def _own_range() -> range:
    share = int(os.environ.get(WORKER, "gw0").removeprefix("gw")) % SHARES
    width = (LAST - FIRST) // SHARES
    return range(FIRST + share * width, FIRST + (share + 1) * width)


@functools.cache
def _numbers() -> Iterator[int]:
    """This process's own numbers in a random order, again and again: a number comes back late."""
    numbers = list(_own_range())
    random.SystemRandom().shuffle(numbers)
    return itertools.cycle(numbers)


def free_port() -> int:
    """A port that nobody holds on any address, and that no other test of this run will draw.

    Two calls in one test give two ports, as each call goes on where the last one stopped.
    """
    for port in _numbers():
        with socket.socket() as probe:
            try:
                probe.bind(("", port))
            except OSError:
                continue
            return port
    raise AssertionError("the numbers never end")


def free_ports(number: int) -> list[int]:
    """So many such ports, each another one."""
    return [free_port() for _ in range(number)]
