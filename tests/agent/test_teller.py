"""What an agent tells of its workers' way, and when."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable

import pytest

from elasticrun.agent.monitors.page import VARIABLE
from elasticrun.agent.monitors.progress import HangWatch
from elasticrun.agent.monitors.teller import Teller
from elasticrun.core.progress.silence import HangTerms
from elasticrun.core.protocol.round_progress import RoundProgress
from elasticrun.worker import marks, reporter
from elasticrun.worker.own_time import BATCH, KEPT
from elasticrun.worker.reporter import Reporter, connect
from tests.support.processes import DEADLINE


class Node:
    """An agent with two workers, whose reporters are in this process."""

    def __init__(self) -> None:
        self.news: asyncio.Queue[RoundProgress | None] = asyncio.Queue()
        self.watch = HangWatch(2, HangTerms(0.0), None, lambda *_: None)
        self.teller = Teller(self.watch, lambda: self.news.put_nowait(self.teller.progress()))
        self.workers: list[Reporter] = []
        self.start(0)

    def start(self, round_: int) -> None:
        self.watch.start(round_, 0, (0, 1), 3)
        found = [connect(self.watch.page.environment(each, {}, auto=False)[VARIABLE]) for each in (0, 1)]
        self.workers = [each for each in found if each is not None]

    async def heard(self) -> RoundProgress:
        told = await asyncio.wait_for(self.news.get(), DEADLINE)
        assert told is not None
        return told

    async def progress(self) -> RoundProgress:
        told = self.teller.progress()
        assert told is not None
        return told


def run(scene: Callable[[Node], Awaitable[None]], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reporter, "arm_stacks", lambda path: 0)

    async def main() -> None:
        node = Node()
        await scene(node)
        node.teller.close()
        await node.watch.close()

    asyncio.run(main())


def reached(told: RoundProgress) -> list[int]:
    return [each.milestone for each in told.reached]


def test_a_milestone_is_told_at_once_when_all_workers_have_reached_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scene(node: Node) -> None:
        assert node.teller.progress() is None
        one, other = node.workers
        one.reach(marks.IMPORTED)
        assert reached(await node.progress()) == []
        other.reach(marks.IMPORTED)
        assert reached(await node.heard()) == [2]
        one.step()
        told = await node.heard()
        assert reached(told) == [2, 5], "the first step of one is that of all"
        assert (told.round, told.step) == (0, 1)
        assert 0 <= told.reached[1].ago <= told.reached[0].ago < DEADLINE
        node.start(1)
        assert node.teller.progress() is None
        for each in node.workers:
            each.reach(marks.CONNECTED)
        assert reached(await node.heard()) == [3]

    run(scene, monkeypatch)


def test_a_burst_is_one_message(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scene(node: Node) -> None:
        for each in node.workers:
            each.reach(marks.IMPORTED)
            each.reach(marks.CONNECTED)
            each.restored(0)
        os.write(node.watch.page._ring, bytes(60_000))
        assert reached(await node.heard()) == [2, 3, 4]
        for each in node.workers:
            each.step()
        assert reached(await node.heard()) == [2, 3, 4, 5]
        assert node.news.empty()

    run(scene, monkeypatch)


def test_the_step_is_that_of_the_worker_that_is_least_far(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scene(node: Node) -> None:
        one, other = node.workers
        one.restored(10)
        other.restored(10)
        assert (await node.progress()).step == -1
        one.step()
        one.step()
        other.step()
        told = await node.progress()
        assert (told.step, told.step_rate) == (11, None)
        other.stalled(3_000_000_000)
        one.stalled(1_000_000_000)
        for _ in range(20):
            one.step()
            other.step()
        told = await node.progress()
        assert told.step == 31
        assert told.stalled == 3.0
        assert told.step_rate is not None
        assert told.step_rate > 0
        assert 0 <= told.step_ago < DEADLINE

    run(scene, monkeypatch)


def test_a_rate_is_that_of_this_round_and_of_steps_that_grow(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scene(node: Node) -> None:
        one = node.workers[0]
        one.numbered_step(100)
        await node.progress()
        one.numbered_step(101)
        assert (await node.progress()).step_rate is not None
        one.numbered_step(7)
        assert (await node.progress()).step_rate is None
        node.start(1)
        node.workers[0].numbered_step(8)
        assert (await node.progress()).step_rate is None

    run(scene, monkeypatch)


def test_the_times_are_those_of_the_slowest_worker_in_this_round(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scene(node: Node) -> None:
        one, other = node.workers
        one.step()
        assert (await node.progress()).times is None
        for _ in range(3 * BATCH):
            one.numbered_step(None, 0.0)
            other.numbered_step(None, 1e-9)
        told = (await node.progress()).times
        assert told is not None
        assert (told.local_rank, told.steps) == (1, 2 * KEPT)
        assert 0 < told.own <= told.whole < DEADLINE
        assert (await node.progress()).times == told
        node.start(1)
        node.workers[0].step()
        assert (await node.progress()).times is None

    run(scene, monkeypatch)
