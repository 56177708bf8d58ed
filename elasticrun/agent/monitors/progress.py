"""The watch over the workers' steps.

``HangWatch`` ties the page that workers write, the rule (``core/progress/silence.py``), the stacks and a
timer of the loop together. It wakes only when the rule says that silence could have become too long.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from elasticrun.agent.monitors.footprint import FootprintReader
from elasticrun.agent.monitors.page import ProgressPage
from elasticrun.agent.monitors.stacks import StackTaker, Taken
from elasticrun.core.hangs import consequence
from elasticrun.core.progress.silence import (
    HangMachine,
    HangTerms,
    Looked,
    ProgressEffect,
    ProgressEvent,
    Resumed,
    StacksTaken,
    Stalled,
    TakeStacks,
    WorkerEnded,
    WorkerRestarted,
)
from elasticrun.core.protocol.messages import Stall

logger = logging.getLogger(__name__)


class HangWatch:
    """Watches the workers of one node, round after round, on the running loop.

    ``on_stall(round, stall)`` is called from the loop: with a Stall once the workers of a round hang, with
    None if they go on after all. A hang's first call comes after all stacks are saved beside the logs, and
    tells where they are.
    """

    def __init__(
        self,
        local_world_size: int,
        terms: HangTerms,
        search_path: str | None,
        on_stall: Callable[[int, Stall | None], None],
        auto: bool = True,
    ) -> None:
        """``search_path``: where py-spy may lie. OSError if descriptors run out."""
        self._terms = terms
        self._on_stall = on_stall
        self._auto = auto
        self._loop = asyncio.get_running_loop()
        self.page = ProgressPage(local_world_size)
        self._taker = StackTaker(search_path)
        self._footprints = FootprintReader()
        self._machine: HangMachine | None = None  # None: no round is watched
        self.judged: frozenset[int] = frozenset()  # local ranks of workers that make steps together
        self._directories: dict[int, str] = {}  # for stacks
        self.round = -1
        self._max_restarts = 0
        self._pids: dict[int, int] = {}  # by local rank
        self._last: dict[int, Taken] = {}  # the stacks that were taken last
        self._found = ("", 0.0)  # of the newest hang: where its stacks are, and when it was found
        self._timer: asyncio.TimerHandle | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    # -- the workers' life

    def environment(self, local_rank: int, inherited: Mapping[str, str]) -> dict[str, str]:
        """What one worker's environment needs on top of ``inherited``."""
        return self.page.environment(local_rank, inherited, self._auto)

    def start(self, round_: int, first_rank: int, local_ranks: Iterable[int], max_restarts: int) -> None:
        """Watch a round whose workers are about to start; those of ``local_ranks`` make steps together.

        ``max_restarts`` is what the job allows, for the text of a warning.
        """
        self.stop()
        self.page.reset()
        self.judged = frozenset(local_ranks)
        self._directories = {}
        self._taker.open_round(self._directories)
        self.round = round_
        self._max_restarts = max_restarts
        self._pids = {}
        self._last = {}
        self._machine = HangMachine(first_rank, self.judged, self._terms)
        self._look()

    def start_worker(self, local_rank: int, directory: str) -> None:
        """A worker is about to start, or start again; its stacks go to ``directory`` ("": nowhere)."""
        self._directories[local_rank] = directory
        self.page.clear(local_rank)
        if local_rank in self.judged:
            self._handle(WorkerRestarted(local_rank))

    def started(self, local_rank: int, pid: int) -> None:
        """A worker runs, in a session whose id is its pid."""
        self._pids[local_rank] = pid

    def ended(self, local_rank: int) -> None:
        """A worker ended, or was told to end, alone. Its slot can still be read."""
        self._pids.pop(local_rank, None)
        self._handle(WorkerEnded(local_rank))
        self._look()

    def stop(self) -> None:
        """Stop watching, as the round is being stopped. May be repeated."""
        self._machine = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for task in self._tasks:
            task.cancel()

    async def close(self) -> None:
        """Stop watching, and close the page."""
        self.stop()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self.page.close()

    # -- queries and requests

    def step(self, local_rank: int) -> int:
        """The last step that a worker of this round reported, alive or not; -1: none."""
        slot = self.page.read(local_rank)
        return slot.progress.step if slot is not None else -1

    def request_drain(self, seconds: float) -> None:
        """Ask the workers to save their state and exit within ``seconds``."""
        self.page.request_drain(self._loop.time() + seconds)

    def listens(self, local_rank: int) -> bool:
        """Whether a worker looks for drain requests by itself, and needs no signal."""
        slot = self.page.read(local_rank)
        return slot is not None and slot.listens

    def save_stacks(self) -> None:
        """Take the stacks of all workers and save them beside their logs."""
        self._spawn(self._take_and_save())

    # -- the watch

    def _handle(self, event: ProgressEvent) -> None:
        machine = self._machine
        if machine is None:
            return
        for effect in machine.handle(event, self._loop.time()):
            self._carry_out(effect)
        self._arm()

    def _carry_out(self, effect: ProgressEffect) -> None:
        match effect:
            case TakeStacks(local_ranks):
                self._spawn(self._take_and_judge(local_ranks))
            case Stalled(stall, again):
                if not again:
                    self._found = _above(self._taker.save(self._last)), time.time()
                    follows = consequence(stall, self._terms.last_bound, self._max_restarts)
                    _tell(self.round, stall, self._found[0], follows)
                stacks, found_at = self._found
                self._on_stall(self.round, replace(stall, stacks=stacks, timestamp=found_at))
            case Resumed():
                logger.warning("the workers of round %d make steps again", self.round)
                self._on_stall(self.round, None)

    def _arm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        deadline = self._machine.next_deadline() if self._machine is not None else None
        if deadline is not None:
            self._timer = self._loop.call_at(deadline, self._look)

    def _look(self) -> None:
        self._handle(Looked(self.page.workers()))

    # -- stacks

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        task.add_done_callback(_report_failure)

    async def _take_and_judge(self, local_ranks: tuple[int, ...]) -> None:
        learns = self._terms.timeout is None  # with a fixed timeout only time counts
        pids = {rank: pid for rank, pid in self._pids.items() if learns and rank in local_ranks}
        before = self._footprints.read(pids)
        self._last = await self.take(local_ranks)
        texts = {local_rank: taken.text for local_rank, taken in self._last.items() if taken.text}
        self._handle(StacksTaken(self.page.workers(), texts, before, self._footprints.read(pids)))

    async def _take_and_save(self) -> None:
        paths = self._taker.save(await self.take(tuple(self._pids)))
        where = ", ".join(paths) or "no worker runs, or nothing could be written"
        logger.warning("the stacks of %d workers were saved: %s", len(paths), where)

    async def take(self, local_ranks: tuple[int, ...]) -> dict[int, Taken]:
        pids = {local_rank: self._pids.get(local_rank) for local_rank in local_ranks}
        return await self._taker.take(
            self.page.target(local_rank, pid) for local_rank, pid in pids.items() if pid is not None
        )


def _tell(round_: int, stall: Stall, stacks: str, follows: str) -> None:
    logger.warning(
        "no worker of round %d has made a step for %.0f s (allowed: %.0f s); the slowest is rank "
        "%d, at step %d%s%s; %s",
        *(round_, stall.silence, stall.allowed, stall.rank, stall.step),
        f", in {stall.where}" if stall.where else "",
        f"; all stacks are in {stacks}" if stacks else "",
        follows,
    )


def _report_failure(task: asyncio.Task[None]) -> None:
    error = None if task.cancelled() else task.exception()
    if error is not None:
        task.get_loop().call_exception_handler({"message": "taking stacks failed", "exception": error})


def _above(paths: Sequence[str]) -> str:
    """A round's directory, from the paths of its workers' files; "" without paths."""
    return os.path.dirname(os.path.dirname(paths[0])) if paths else ""
