"""What the other modules of this folder tell one another: what a node needs, where it is, how it was lost."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from elasticrun.core.fleet.replicas import Cause
from elasticrun.dataclass import dataclass

#: Of what a launcher prints: a number, from 1; 1 for stdout or 2 for stderr; and bytes.
Chunk = tuple[int, int, bytes]


@dataclass(frozen=True, slots=True)
class Needs:
    """What one node of the job takes from a host of the cluster."""

    cpus: float
    gpus: float = 0.0
    memory: int = 0  # bytes; 0: nothing is reserved
    others: tuple[tuple[str, float], ...] = ()  # resources of the cluster's own, by name

    def __str__(self) -> str:
        """For people."""
        parts = [f"{self.cpus:g} CPU", *([f"{self.gpus:g} GPU"] if self.gpus else [])]
        parts += [f"{self.memory / 2**30:.3g} GiB"] if self.memory else []
        return ", ".join([*parts, *(f"{count:g} {name}" for name, count in self.others)])


@dataclass(frozen=True, slots=True)
class Place:
    """Where a node is."""

    id: str  # of the host, in the cluster
    address: str  # at which other hosts reach it
    name: str  # of the host
    python: str  # the interpreter there
    directory: str  # that Ray has made for the job; "": none


class NodeLostError(Exception):
    """A node ended without an exit code."""

    def __init__(self, cause: Cause, words: str) -> None:
        super().__init__(words)
        self.cause = cause
        self.words = words


class Actor(Protocol):
    """One node's place in the cluster, which may still have to be found."""

    async def place(self) -> Place:
        """Wait until it is there. Raises NodeLostError."""

    async def run(self, request: bytes) -> int:
        """Run a launcher there; returns its exit code. Raises NodeLostError.

        ``request``: a line of ``platforms/remote.py``.
        """

    async def read(self, after: int) -> Sequence[Chunk]:
        """Wait for what the launcher prints after the chunk of this number; () at its end.

        Raises NodeLostError.
        """

    def signal(self, signum: int) -> None:
        """Pass a signal on to the launcher."""

    async def answers(self, seconds: float) -> bool:
        """Whether it answers within this time."""

    def kill(self) -> None:
        """Give the place back. A launcher that still runs is told to stop."""


class Cluster(Protocol):
    """A cluster that this process is connected to."""

    @property
    def address(self) -> str:
        """At which the hosts of the cluster reach this one."""

    async def reserve(self, count: int, needs: Needs) -> None:
        """Wait until there is room for so many nodes at once, and keep it. Raises PlatformError."""

    def release(self) -> None:
        """Give back what is reserved. Whatever is in it ends."""

    def start(self, name: str, needs: Needs, bundle: int, avoided: Sequence[str]) -> Actor:
        """Ask for a place: the reserved one of this number, or (-1) any that is on none of these hosts.

        Raises PlatformError.
        """
