"""The memory of an agent, in a loop of its own thread, so that a test speaks to it as a worker does."""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable, Coroutine
from types import TracebackType
from typing import Any, NamedTuple, TypeVar

from elasticrun.agent.memory.gate import MemoryGate
from elasticrun.agent.memory.peering import OnStock, Peering
from elasticrun.agent.memory.relay import DataRelay
from elasticrun.agent.memory.storage_access import StorageAccess
from elasticrun.checkpoint.agent_memory import ROUND, AgentMemory
from elasticrun.core.protocol.commits import CommitId, Copy, Holding, Inlet, JudgeCommits, Sent
from elasticrun.core.protocol.messages import Assignment, StoreReport

T = TypeVar("T")

#: Generous: only a bug lets a test wait that long.
DEADLINE = 60.0


class Stock(NamedTuple):
    """What an agent tells of the states that it holds."""

    holdings: tuple[Holding, ...]
    inlet: Inlet | None
    copied: Sent | None
    stored: StoreReport | None = None


class MemoryHost:
    """The agent's side, on one node."""

    def __init__(self, local_world_size: int = 1, round_: int = 1, nodes: int = 1, rank: int = 0) -> None:
        """``rank``: of this node among those of its world."""
        self.size, self.nodes, self.rank = local_world_size, nodes, rank
        self.peering: Peering | None = Peering("127.0.0.1", expects_others=nodes > 1)
        self.relay: DataRelay | None = None
        self.storage: StorageAccess | None = None
        self.round = round_
        self._told: queue.Queue[Stock] = queue.Queue()
        self._faults: list[dict[str, Any]] = []
        self._loop = asyncio.new_event_loop()
        self._loop.set_exception_handler(lambda _, fault: self._faults.append(fault))
        self._thread = threading.Thread(target=self._loop.run_forever, name="memory host")

    def __enter__(self) -> MemoryHost:
        self._thread.start()
        tell: OnStock = lambda *stock: self._told.put(Stock(*stock))  # noqa: E731
        self.gate = self.call(lambda: MemoryGate(self.size, tell, self.peering, self.relay, self.storage))
        self.begin(self.round)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.call(self.gate.close)
            self._run(self._loop.shutdown_default_executor())
        finally:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(DEADLINE)
            self._loop.close()
        if kind is None:
            assert not self._faults, self._faults

    def begin(self, round_: int, restore: CommitId | None = None) -> None:
        """A round starts on this node alone."""
        size, nodes, self.round = self.size, self.nodes, round_
        first, world = self.rank * size, nodes * size
        place = self.rank, nodes, first, world, first, world
        given = Assignment(round_, *place, "127.0.0.1", 1, 0, 3, restore=restore)
        self.call(lambda: self.gate.begin(given))

    def judge(
        self,
        kept: CommitId | None = None,
        void: CommitId | None = None,
        safe: CommitId | None = None,
        copying: CommitId | None = None,
        copies: tuple[Copy, ...] = (),
        number: int = 1,
    ) -> None:
        verdict = JudgeCommits(1, self.round, kept, void, safe, copying, copies, number)
        self.call(lambda: self.gate.judge(verdict))

    def holdings(self) -> tuple[Holding, ...]:
        """What this node tells next about its commits."""
        return self.stock().holdings

    def stock(self) -> Stock:
        """What this node tells next of what it holds."""
        return self._told.get(timeout=DEADLINE)

    def has_told_all(self) -> bool:
        """Whether nothing was told that no test has asked for."""
        self.settle()
        return self._told.empty()

    def environment(self, local_rank: int = 0) -> dict[str, str]:
        """What a worker of the round that runs finds in its environment."""
        return {
            **self.gate.environment(local_rank),
            ROUND: str(self.round),
            "RANK": str(self.rank * self.size + local_rank),
            "LOCAL_RANK": str(local_rank),
            "LOCAL_WORLD_SIZE": str(self.size),
        }

    def connect(self, local_rank: int = 0) -> AgentMemory:
        memory = AgentMemory.connect(self.environment(local_rank))
        assert memory is not None
        return memory

    def settle(self) -> None:
        """Return once the agent has taken in all that was sent to it, or hung up on, before this."""
        for _ in range(3):  # what the loop did not find in this turn it finds in the next one
            self.call(lambda: None)

    def call(self, function: Callable[[], T]) -> T:
        """Run a function in the loop."""

        async def run() -> T:
            return function()

        return self._run(run())

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(DEADLINE)
