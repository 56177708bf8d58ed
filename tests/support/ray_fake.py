"""A cluster in memory in Ray's place."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from elasticrun.core.fleet.replicas import Cause
from elasticrun.platforms.ray.words import Chunk, Needs, NodeLostError, Place


class FakeActor:
    """An actor for which the test finds a place, and which ends as the test says."""

    def __init__(self, name: str, needs: Needs, bundle: int, avoided: Sequence[str]) -> None:
        self.name, self.needs, self.bundle, self.avoided = name, needs, bundle, list(avoided)
        loop = asyncio.get_running_loop()
        self.placed: asyncio.Future[Place] = loop.create_future()
        self.ended: asyncio.Future[int] = loop.create_future()
        self.request = b""
        self.signals: list[int] = []
        self.is_alive = True
        self.is_killed = False
        self.begun: Callable[[], object] = lambda: None

    async def place(self) -> Place:
        return await self.placed

    async def run(self, request: bytes) -> int:
        self.request = request
        self.begun()
        return await self.ended

    async def read(self, after: int) -> Sequence[Chunk]:
        return ()

    def signal(self, signum: int) -> None:
        self.signals.append(signum)

    async def answers(self, seconds: float) -> bool:
        return self.is_alive

    def kill(self) -> None:
        self.is_killed = True

    def lose(self, cause: Cause) -> None:
        self.ended.set_exception(NodeLostError(cause, "as the test says"))


class FakeCluster:
    """A cluster with a host for each actor, unless the test finds places itself."""

    address = "10.0.0.1"

    def __init__(self, places: bool = True) -> None:
        self.actors: list[FakeActor] = []
        self.reserved = asyncio.Event()
        self.wanted: list[tuple[int, int]] = []  # how many, of how much memory
        self.released = 0
        self.places = places
        if places:
            self.reserved.set()

    async def reserve(self, count: int, needs: Needs) -> None:
        self.wanted.append((count, needs.memory))
        await self.reserved.wait()

    def release(self) -> None:
        assert all(each.is_killed for each in self.actors if each.bundle >= 0)
        self.released += 1

    def start(self, name: str, needs: Needs, bundle: int, avoided: Sequence[str]) -> FakeActor:
        assert name not in [each.name for each in self.actors if not each.is_killed]
        actor = FakeActor(name, needs, bundle, avoided)
        self.actors.append(actor)
        if self.places:
            actor.placed.set_result(host(len(self.actors) - 1))
        return actor


def host(number: int) -> Place:
    return Place(f"id{number}", f"10.0.1.{number}", f"host{number}", "python3", "")
