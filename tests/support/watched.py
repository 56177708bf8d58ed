"""A job that never was, as large as one likes, for those who show jobs.

``python -m tests.support.watched NODES ROUNDS PORT`` serves the page of one that goes on.
"""

from __future__ import annotations

import asyncio
import random
import sys
from collections.abc import Iterator

from elasticrun.config import Endpoint
from elasticrun.control import JobControl
from elasticrun.core.history.history import History
from elasticrun.core.protocol import chronicle
from elasticrun.core.protocol.chronicle import Happening, LogEntry, Place
from elasticrun.core.protocol.commits import CommitId
from elasticrun.core.protocol.messages import AgentPhase
from elasticrun.core.protocol.status import JobPhase, JobStatus, NodeStatus
from elasticrun.errors import ElasticRunError
from elasticrun.observer.access import Door
from elasticrun.observer.listening import listen
from elasticrun.observer.live import Live
from elasticrun.observer.server import Names, Pages

WALL = 1_790_000_000.0
TOKEN = "a-token-that-nobody-guesses-0123456789abcdef"


class PretendControl:
    """Takes the orders of a page, and keeps them."""

    def __init__(self) -> None:
        self.orders: list[tuple[object, ...]] = []
        self.refusal: ElasticRunError | None = None

    async def drain(self, node: str, reason: str) -> str:
        return self._take("drain", node, reason)

    async def restart(self, reason: str) -> str:
        return self._take("restart", reason)

    async def scale(self, low: int, high: int) -> str:
        return self._take("scale", low, high)

    async def stacks(self) -> str:
        return self._take("stacks")

    def _take(self, *order: object) -> str:
        if self.refusal is not None:
            raise self.refusal
        self.orders.append(order)
        return f"{order[0]}: it is done"


class Pretended:
    """What a ``Follower`` has, of a job of so many nodes after so many rounds. The same each time."""

    def __init__(self, nodes: int, rounds: int, seed: int = 0, hosts: str = "node") -> None:
        self.history = History()
        self.trouble = ""
        self.pretend = PretendControl()
        self.refreshed = 0
        self.status: JobStatus | None = None
        self._draw = random.Random(seed)
        self._hosts = hosts
        self._at = 0.0
        self._event = 0
        self._step = 0
        self.size = nodes
        self._begin()
        for number in range(rounds):
            self.round(number, is_last=number == rounds - 1)

    @property
    def now(self) -> float:
        return self.history.last[0]

    async def control(self) -> JobControl:
        return self.pretend  # type: ignore[return-value]

    async def refresh(self) -> JobStatus:
        self.refreshed += 1
        self.status = self.describe()
        return self.status

    def describe(self) -> JobStatus:
        """The status that fits the history."""
        current = self.history.current
        places = self.history.saved
        saved = {place: CommitId(0, places[place].step) if place in places else None for place in Place}
        return JobStatus(
            "llm-pretrain",
            JobPhase.RUNNING,
            current.number if current else -1,
            max(1, self.size - 8),
            self.size,
            min(self.history.restarts, 9),
            100,
            nodes=tuple(
                NodeStatus(
                    name, rank, AgentPhase.RUNNING, doubt="its all-gather took 3.1 s" if rank == 7 else ""
                )
                for rank, name in enumerate(sorted(self.history.nodes))
            ),
            saved=saved[Place.MEMORY],
            safe=saved[Place.HOSTS],
            durable=saved[Place.STORAGE],
        )

    def tell(self, told: Happening, passes: float = 0.0) -> None:
        """Add an entry, so many seconds after the one before."""
        self._at += passes
        self._event += 1
        self.history.take(LogEntry(self._event, self._at, WALL + self._at, told))

    def name(self, number: int) -> str:
        return f"{self._hosts}{number:04d}/{number * 7919 % 16**6:06x}"

    def _begin(self) -> None:
        self.tell(chronicle.MasterStarted(1, True))
        for number in range(self.size):
            self.tell(chronicle.NodeJoined(self.name(number), f"{self._hosts}{number:04d}", 8, False), 0.01)
            self.tell(chronicle.NodeChanged(self.name(number), AgentPhase.READY.value, -1))

    def round(self, number: int, is_last: bool = False) -> None:
        """One round, which ends with a failure unless it is the last."""
        names = tuple(self.name(each) for each in range(min(self.size, 64)))
        self.tell(
            chronicle.Decision("gathering", number, f"start round {number} with {self.size} nodes"), 0.2
        )
        self.tell(
            chronicle.RoundStarted(
                number, self.size, 8 * self.size, names, number, self._step or None, "all nodes are ready"
            )
        )
        for each in range(self.size):
            self.tell(chronicle.NodeChanged(self.name(each), AgentPhase.RUNNING.value, number))
        for milestone in ("spawned", "imported", "connected", "restored", "first_step"):
            self.tell(chronicle.MilestoneReached(self.name(0), number, milestone), 0.4)
        for _ in range(4):
            self.work(number)
        for place in Place:
            self.tell(chronicle.StateSaved(place, number, self._step), 0.5)
        if self.size > 5:
            self.tell(chronicle.StragglerFound(number, self.name(5), 1.31))
        if not is_last:
            self.fail(number)

    def work(self, number: int) -> None:
        """Some steps."""
        self._step += self._draw.randrange(60, 90)
        self.tell(chronicle.StepsDone(number, self._step, 2.4 + self._draw.random() / 4), 30.0)

    def fail(self, number: int) -> None:
        """A worker dies, and the round ends."""
        bad = self._draw.randrange(self.size)
        why = f"rank {8 * bad} was killed by SIGKILL: RuntimeError: CUDA error: an illegal memory access"
        self.tell(
            chronicle.WorkerFailed(
                number,
                self.name(bad),
                self.name(bad)[:8],
                8 * bad,
                0,
                4000 + bad,
                "signal",
                -9,
                self._step,
                why,
            ),
            self._draw.uniform(1, 60),
        )
        self.tell(chronicle.RoundStopping(number, "worker failed", why))
        self.tell(chronicle.Decision("running", number, f"stop round {number}: {why}"))
        self.tell(chronicle.RoundStopped(number), 1.5)


def pages(followed: Pretended, live: Live, token: str | None = TOKEN, *, is_open: bool = True) -> Pages:
    """The handlers for a pretended job."""
    names = Names(frozenset({"testhost"}), "http", "elasticrun-test")
    return Pages(live, followed.control, Door(token, is_open), names)


async def serve(nodes: int, rounds: int, port: int) -> None:
    """Serve a job that goes on, until killed."""
    from aiohttp import web

    followed = Pretended(nodes, rounds)
    await followed.refresh()
    live = Live(followed)
    runner = web.AppRunner(pages(followed, live).app(), access_log=None, handler_cancellation=True)
    await runner.setup()
    await web.SockSite(runner, listen(Endpoint("127.0.0.1", port))).start()
    publishing = asyncio.ensure_future(live.run())
    loop, number = asyncio.get_running_loop(), iter(_numbers(rounds - 1))
    at = [next(number), 0]

    def go_on() -> None:
        at[1] += 1
        if at[1] % 40 == 0:
            followed.fail(at[0])
            at[0] = next(number)
            followed.round(at[0], is_last=True)
        else:
            followed.work(at[0])
        live.take()
        loop.call_later(0.25, go_on)

    go_on()
    print(f"http://127.0.0.1:{port}/", flush=True)
    await publishing


def _numbers(first: int) -> Iterator[int]:
    while True:
        yield first
        first += 1


if __name__ == "__main__":
    asyncio.run(serve(*map(int, sys.argv[1:4])))
