"""Free ports for the workers' store, and for the tasks of a TensorFlow cluster.

A worker binds its port seconds later, after its imports. Meanwhile the kernel gives ports of its ephemeral
range to any outgoing connection, so one from below that range is chosen: only a program that binds it on
purpose can take it, and then the next round chooses another.

A task that is started again serves at the port it had: others know it under that address. Nobody holds the
port between its two attempts, and TensorFlow's server binds it at once although connections of the first
attempt are still closing. If another program was faster, that attempt fails like any other.
"""

from __future__ import annotations

import contextlib
import errno
import random
import socket
from collections.abc import Container, Sequence
from pathlib import Path

from elasticrun.config import TaskRole
from elasticrun.core.protocol.tasks import MAX_PORTS, Task
from elasticrun.core.tensorflow.cluster import ports_needed

_RANGE_FILE = Path("/proc/sys/net/ipv4/ip_local_port_range")
_SPAN = 12_000  # ports below the ephemeral range to choose from
_LOWEST = 10_000  # below are too many well-known services
_ATTEMPTS = 64
#: Ports that are held for tasks beyond those that a node has from the beginning.
SPARE_PORTS = 8
#: Workers that can wait for the store; the kernel's own limit is often lower.
BACKLOG = 65_535


class PortReserve:
    """Holds a port until the workers start, so that two agents of one host cannot choose the same.

    With ``given``, the MASTER_PORT of a node that is alone, it is the same one for every round, unless rank 0
    has to serve the store and somebody takes the port between two rounds.
    """

    def __init__(self, seed: random.Random, range_file: Path = _RANGE_FILE, given: int = 0) -> None:
        self._random = seed
        self._candidates = _port_range(range_file)
        self._given = given
        self._held: socket.socket | None = None

    def reserve(self) -> int:
        """Choose a fresh port, or the given one, and hold it. Raises OSError if this host has none left."""
        if self._held is not None and _port_of(self._held) == self._given:
            _turn_away(self._held)
            return self._given
        self.release()
        self._held = _bind_given(self._given) if self._given else None
        self._held = self._held or _choose(self._random, self._candidates, ()) or _refuse()
        return _port_of(self._held)

    def listen(self, port: int) -> socket.socket:
        """Let connections wait until the store serves on this socket, which stays ours."""
        if self._held is None or _port_of(self._held) != port:
            raise OSError(f"port {port} is not the one that this node held for the workers' store")
        self._held.listen(BACKLOG)
        return self._held

    def release(self) -> None:
        """Release the port: from now on a worker can bind it."""
        if self._held is not None:
            self._held.close()
            self._held = None


class PortPool:
    """Holds ports for tasks until these start, each by a socket that nobody listens to.

    Invariant: a port that was taken is not offered before ``forget``: its task may be between two attempts.
    """

    def __init__(self, seed: random.Random, range_file: Path = _RANGE_FILE) -> None:
        self._random = seed
        self._candidates = _port_range(range_file)
        self._held: dict[int, socket.socket] = {}
        self._taken: set[int] = set()

    def offer(self, number: int) -> tuple[int, ...]:
        """Up to ``number`` ports, fewer if this host has no more: those held already, then fresh ones."""
        while len(self._held) < number:
            held = _choose(self._random, self._candidates, self._taken)
            if held is None:
                break
            self._held[_port_of(held)] = held
        return tuple(self._held)[:number]

    def take(self, port: int) -> None:
        """Release the port, if it is held: a task is about to serve there."""
        held = self._held.pop(port, None)
        if held is not None:
            held.close()
        self._taken.add(port)

    def forget(self) -> None:
        """Allow taken ports to be chosen again: no task runs any more."""
        self._taken.clear()

    def close(self) -> None:
        """Release all ports."""
        while self._held:
            self._held.popitem()[1].close()


class NodePorts:
    """All ports that one agent holds: for the store, and for tasks if this node has roles."""

    def __init__(self, seed: random.Random, roles: Sequence[TaskRole], given: int = 0) -> None:
        self._reserve = PortReserve(seed, given=given)
        self._pool = PortPool(seed)
        self._needed = ports_needed(roles)
        self._served = 0  # how many tasks served here when the last of them started
        self._wanted = min(self._needed + SPARE_PORTS, MAX_PORTS) if roles else 0
        self._told: tuple[int, ...] = ()

    def prepare(self) -> tuple[int, tuple[int, ...]]:
        """Choose a port for the store, and ports for tasks, while nothing runs. OSError if too few are free.

        Tasks that were added to the last round get a port in the next one as well.
        """
        self._pool.forget()
        added = max(0, self._served - self._needed)
        ports = self._pool.offer(min(self._wanted + added, MAX_PORTS))
        if len(ports) < self._needed:
            raise OSError(f"only {len(ports)} ports are free, but {self._needed} tasks need one each")
        self._told = ports
        return self._reserve.reserve(), ports

    def release(self) -> None:
        """Release the store's port: from now on a worker, or a probe, can bind it."""
        self._reserve.release()

    def listen(self, port: int) -> socket.socket:
        """The socket for the store of a round; OSError if this port is not held for it."""
        return self._reserve.listen(port)

    def take(self, tasks: Sequence[Task], starting: Container[int]) -> None:
        """Release the ports of tasks whose local ranks are ``starting``; ``tasks`` are all of this node."""
        self._served = ports_needed(task.role for task in tasks)
        for task in tasks:
            if task.port and task.local_rank in starting:
                self._pool.take(task.port)

    def news(self) -> tuple[int, ...] | None:
        """The ports free for more tasks; None if they are those returned last."""
        before, self._told = self._told, self._pool.offer(self._wanted)
        return None if self._told == before else self._told

    def close(self) -> None:
        """Release all ports."""
        self._reserve.release()
        self._pool.close()


def _choose(seed: random.Random, candidates: range, avoid: Container[int]) -> socket.socket | None:
    """A socket that is bound to one of the candidates, else to whichever port the kernel chooses."""
    for _ in range(_ATTEMPTS):
        port = seed.choice(candidates)
        held = None if port in avoid else _bind(port)
        if held is not None:
            return held
    return _bind(0)


def _port_range(range_file: Path) -> range:
    try:
        low = int(range_file.read_text().split()[0])
    except (OSError, ValueError, IndexError):
        low = 32_768  # Linux's default
    return range(max(_LOWEST, low - _SPAN), max(low, _LOWEST + _SPAN))


def _bind_given(port: int) -> socket.socket | None:
    """A socket that listens at this port, although connections of the last round may linger there, in
    TIME_WAIT; None if another program has it.
    """
    held = _bind(port, reuse=True)
    if held is not None:
        try:
            held.listen(BACKLOG)
        except OSError:  # another program did the same first
            held.close()
            return None
    return held


def _turn_away(listener: socket.socket) -> None:
    """Close waiting connections: they came for a round that is over."""
    listener.setblocking(False)  # torch does so, too
    with contextlib.suppress(BlockingIOError):
        while True:
            listener.accept()[0].close()


def is_taken(port: int) -> bool:
    """Whether a program holds this port now, so that no store can serve there."""
    held = _bind_given(port)
    if held is not None:
        held.close()
    return held is None


def _bind(port: int, reuse: bool = False) -> socket.socket | None:
    """A socket on every address of this host, for IPv6 and IPv4 alike where there is IPv6."""
    for family, host in ((socket.AF_INET6, "::"), (socket.AF_INET, "0.0.0.0")):
        try:
            held = socket.socket(family, socket.SOCK_STREAM)
        except OSError:
            continue
        try:
            if reuse:
                held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family is socket.AF_INET6:
                held.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
            held.bind((host, port))
        except OSError as error:
            held.close()
            if error.errno == errno.EADDRINUSE:
                return None  # taken, perhaps over IPv6 alone
            continue
        return held
    return None


def _port_of(held: socket.socket) -> int:
    return int(held.getsockname()[1])


def _refuse() -> socket.socket:
    raise OSError("no port is free for the workers' store")
