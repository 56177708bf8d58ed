"""Orders for the storage, as an agent's memory carries them out; a test plays the writers."""

from __future__ import annotations

import errno
import os
import queue
from collections.abc import Callable

from elasticrun.agent.memory.storage_access import StorageAccess, WriteJob
from elasticrun.core.protocol.commits import CommitId
from elasticrun.core.protocol.storing import StoreOrder, StorePart, StoreReport, StoreStage
from elasticrun.core.state.retrying import Trouble
from elasticrun.core.state.writing import Ended, Moved
from tests.support.memory_client import save
from tests.support.memory_host import DEADLINE, MemoryHost, Stock

STEP = CommitId(1, 7)
ORDER = StoreOrder(1, "run7", STEP, (StorePart(0, 0),))


class FakeWriters:
    """Writers that a test plays."""

    def __init__(self) -> None:
        self.started: queue.Queue[tuple[int, WriteJob, bytes]] = queue.Queue()
        self.killed: list[int] = []
        self.error: OSError | None = None
        self.on_event: Callable[[Moved | Ended], None]

    def start(self, attempt: int, job: WriteJob, on_event: Callable[[Moved | Ended], None]) -> None:
        if self.error is not None:
            error, self.error = self.error, None
            raise error
        data = b"".join(os.pread(fd, piece.length, 0) for _, held in job.parts for piece, fd in held)
        self.on_event = on_event
        self.started.put((attempt, job, data))

    def kill(self, attempt: int) -> None:
        self.killed.append(attempt)


class Node(MemoryHost):
    """An agent with a storage, and one worker."""

    def __init__(self, has_storage: bool = True) -> None:
        super().__init__()
        self.writers = FakeWriters()
        if has_storage:
            self.storage = StorageAccess("/run", 3, None, lambda: self.writers)

    def __enter__(self) -> Node:
        super().__enter__()
        return self

    def order(self, order: StoreOrder | None) -> None:
        self.call(lambda: self.gate.store(order))

    def ended(self, trouble: Trouble | None = None, reason: str = "", attempt: int = 1) -> None:
        self.call(lambda: self.writers.on_event(Ended(attempt, trouble, reason)))

    def until(self, stage: StoreStage) -> Stock:
        """What it tells once its order is at this stage."""
        while (stock := self.stock()).stored is None or stock.stored.stage is not stage:
            pass
        return stock

    def save(self, step: int, data: bytes) -> None:
        memory = self.connect()
        save(memory, step, data)
        memory.close()
        while self.stock().holdings[-1].commit.step != step:
            pass


def test_the_memory_of_a_part_is_handed_to_a_writer_and_its_outcome_told() -> None:
    with Node() as node:
        node.save(7, b"seven")
        node.order(ORDER)
        attempt, job, data = node.writers.started.get(timeout=DEADLINE)
        assert (attempt, job.url, job.order, job.keep_last) == (1, "/run", ORDER, 3)
        assert data == b"seven"
        node.ended()
        told = node.until(StoreStage.WRITTEN).stored
        assert told == StoreReport(1, "run7", StoreStage.WRITTEN)
        node.order(None)
        assert node.stock().stored is None


def test_a_step_that_is_written_stays_while_newer_ones_come() -> None:
    with Node() as node:
        node.save(7, b"seven")
        node.judge(kept=STEP)
        node.order(ORDER)
        for step in (8, 9):
            node.save(step, b"more")
            node.judge(kept=CommitId(1, step))
        node.settle()
        node.ended()
        held = node.until(StoreStage.WRITTEN).holdings
        assert [holding.commit.step for holding in held] == [7, 9]
        node.order(None)
        while [holding.commit.step for holding in node.stock().holdings] != [9]:
            pass


def test_a_part_that_is_not_here_is_not_written() -> None:
    with Node() as node:
        node.save(7, b"seven")
        for number, part in enumerate((StorePart(1, 1), StorePart(0, 0))):
            commit = STEP if part.group_rank else CommitId(1, 9)
            node.order(StoreOrder(number, "run7", commit, (part,)))
            told = node.until(StoreStage.FAILED).stored
            assert told is not None
            assert told.reason.startswith(f"part {part.group_rank} of {commit} is not here")
        assert node.writers.started.empty()


def test_a_node_without_the_option_says_so() -> None:
    with Node(has_storage=False) as node:
        node.save(7, b"seven")
        node.order(ORDER)
        told = node.until(StoreStage.FAILED).stored
        assert told is not None
        assert "this node was started without --state-storage" in told.reason


def test_a_node_that_holds_nothing_can_finish_a_commit() -> None:
    with Node() as node:
        node.order(None)
        assert node.has_told_all(), "nothing is there, and nothing to do"
        finish = StoreOrder(2, "run7", STEP, (), 1)
        node.order(finish)
        _, job, _ = node.writers.started.get(timeout=DEADLINE)
        assert (job.order, job.parts) == (finish, [])


def test_a_writer_that_fails_is_started_again_and_one_that_is_not_needed_killed() -> None:
    with Node() as node:
        node.save(7, b"seven")
        node.writers.error = OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        node.order(ORDER)
        attempt, _, data = node.writers.started.get(timeout=DEADLINE)
        assert (attempt, data) == (2, b"seven")
        node.order(None)
        node.settle()
        assert node.writers.killed == [2]
