"""A free port for the workers' store.

Rank 0's worker binds it seconds later, after its imports. Meanwhile the kernel gives ports of its
ephemeral range to any outgoing connection, so one from below that range is chosen: only a program that
binds it on purpose can take it, and then the next round chooses another.
"""

from __future__ import annotations

import errno
import random
import socket
from pathlib import Path

_RANGE_FILE = Path("/proc/sys/net/ipv4/ip_local_port_range")
_SPAN = 12_000  # ports below the ephemeral range to choose from
_LOWEST = 10_000  # below are too many well-known services
_ATTEMPTS = 64


class PortReserve:
    """Holds a port until the workers start, so that two agents of one host cannot choose the same."""

    def __init__(self, seed: random.Random, range_file: Path = _RANGE_FILE) -> None:
        self._random = seed
        self._candidates = _port_range(range_file)
        self._held: socket.socket | None = None

    def reserve(self) -> int:
        """Choose a fresh port and hold it. Raises OSError if this host has no port left."""
        self.release()
        for _ in range(_ATTEMPTS):
            held = _bind(self._random.choice(self._candidates))
            if held is not None:
                self._held = held
                return _port_of(held)
        self._held = _bind(0) or _refuse()
        return _port_of(self._held)

    def release(self) -> None:
        """Let go of the port: from now on a worker can bind it."""
        if self._held is not None:
            self._held.close()
            self._held = None


def _port_range(range_file: Path) -> range:
    try:
        low = int(range_file.read_text().split()[0])
    except (OSError, ValueError, IndexError):
        low = 32_768  # Linux's default
    return range(max(_LOWEST, low - _SPAN), max(low, _LOWEST + _SPAN))


def _bind(port: int) -> socket.socket | None:
    """A socket on every address of this host, for IPv6 and IPv4 alike where there is IPv6."""
    for family, host in ((socket.AF_INET6, "::"), (socket.AF_INET, "0.0.0.0")):
        try:
            held = socket.socket(family, socket.SOCK_STREAM)
        except OSError:
            continue
        try:
            if family is socket.AF_INET6:
                held.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
            held.bind((host, port))
        except OSError as error:
            held.close()
            if error.errno == errno.EADDRINUSE:
                return None  # by somebody who is perhaps to be found over IPv6 alone
            continue
        return held
    return None


def _port_of(held: socket.socket) -> int:
    return int(held.getsockname()[1])


def _refuse() -> socket.socket:
    raise OSError("no port is free for the workers' store")
