"""Ranks that talk to each other: processes of one world, on nodes with the memory of real agents."""

from __future__ import annotations

import datetime
import multiprocessing
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import TypeVar

import torch
import torch.distributed as dist

from elasticrun.checkpoint.parts import Part
from elasticrun.core.protocol.commits import CommitId, Holding
from elasticrun.core.protocol.messages import Assignment
from tests.support.memory_host import DEADLINE, MemoryHost

T = TypeVar("T")


class Ranks:
    """Processes that are connected, each of them one rank."""

    def __init__(self, size: int, folder: Path) -> None:
        context, store = multiprocessing.get_context("spawn"), f"file://{folder / 'store'}"
        self._pools = [
            ProcessPoolExecutor(1, context, initializer=_join, initargs=(rank, size, store))
            for rank in range(size)
        ]

    def run(
        self, environments: Sequence[dict[str, str]], function: Callable[..., T], *args: object
    ) -> list[T]:
        """Call a function on all ranks at once, each with its environment. Returns what each rank returns."""
        calls = [
            pool.submit(_call, environment, function, *args)
            for pool, environment in zip(self._pools, environments, strict=True)
        ]
        return [call.result(2 * DEADLINE) for call in calls]

    def close(self) -> None:
        for pool in self._pools:
            pool.shutdown(cancel_futures=True)


def _join(rank: int, size: int, store: str) -> None:
    torch.set_num_threads(1)
    timeout = datetime.timedelta(seconds=DEADLINE)  # who waits for a rank that has raised fails the test
    dist.init_process_group("gloo", store, timeout, size, rank)


def _call(environment: dict[str, str], function: Callable[..., T], *args: object) -> T:
    os.environ.update(environment)
    return function(*args)


class Member(MemoryHost):
    """One of several nodes of a job, with one worker."""

    def __init__(self, group_rank: int, size: int, round_: int) -> None:
        super().__init__(round_=round_)
        self._place = group_rank, size
        self.restored: CommitId | None = None

    def begin(self, round_: int, restore: CommitId | None = None) -> None:
        rank, size = self._place
        self.round, self.restored = round_, restore
        given = Assignment(round_, rank, size, rank, size, rank, size, "127.0.0.1", 1, 0, 3, restore=restore)
        self.call(lambda: self.gate.begin(given))

    def environment(self, local_rank: int = 0) -> dict[str, str]:
        return {**super().environment(local_rank), "RANK": str(self._place[0])}

    def move(self, group_rank: int) -> None:
        """Be another one of the nodes from the next round on."""
        self._place = group_rank, self._place[1]


class Nodes:
    """Two nodes, with a rank each."""

    def __init__(self, ranks: Ranks) -> None:
        self._ranks = ranks
        self._stack = ExitStack()
        self.round = 1
        self.hosts = [Member(rank, 2, self.round) for rank in range(2)]
        for host in self.hosts:
            self._stack.enter_context(host)

    def __enter__(self) -> Nodes:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.__exit__(kind, error, trace)

    def run(self, function: Callable[..., T], *args: object) -> list[T]:
        """Call a function on both ranks."""
        return self._ranks.run([host.environment() for host in self.hosts], function, *args)

    def restart(self, step: int, swapped: bool = False) -> list[Holding]:
        """The next round begins, and restores a step of this one. ``swapped``: the nodes swap their ranks.

        Returns what the nodes have told of that step.
        """
        saved, told = CommitId(self.round, step), []
        for host in self.hosts:
            while not (found := [holding for holding in host.holdings() if holding.commit == saved]):
                pass  # that was told before
            told += found
        self._begin(saved, swapped)
        return told

    def restart_again(self, swapped: bool = False) -> None:
        """The next round begins, and restores what this one has restored."""
        restored = self.hosts[0].restored
        assert restored is not None
        self._begin(restored, swapped)

    def _begin(self, restore: CommitId, swapped: bool) -> None:
        self.round += 1
        if swapped:
            self.hosts.reverse()
        for rank, host in enumerate(self.hosts):
            host.move(rank)
            host.begin(self.round, restore)

    def replace(self, rank: int) -> None:
        """Another node takes the place of one that is lost, with all that it had."""
        restore, round_ = self.hosts[rank].restored, self.round
        self._stack.enter_context(host := Member(rank, 2, round_))
        host.begin(round_, restore=restore)
        self.hosts[rank] = host

    def damage(self, rank: int, name: str = "") -> None:
        """A bit flips in the memory of a node, in an item of its part, or in the index."""
        for each, host in enumerate(self.hosts):
            memory = host.connect()
            (stored,) = memory.stored()
            data, part = bytearray(stored.memory), Part(each, memoryview(stored.memory), stored.digest)
            if each == rank:
                data[next((item.at for item in part.items if item.name == name), -20)] ^= 1
            granted = memory.begin(1000, len(data), len(data), "")
            granted.memory[: len(data)] = bytes(data)
            memory.end(1000, len(data), stored.digest, own=True)
            memory.close()
        self.restart(1000)
