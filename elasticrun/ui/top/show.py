"""``elastic-ctl top`` on a terminal: live, fed by a follower, or the past, from a log.

Theory. Whatever changes the picture asks for it to be drawn; it is drawn at most ``1 / SHORTEST`` times a
second, so a job of which much is heard costs no more than a quiet one. Once a second it is drawn for the sake
of its clock. The figures of nodes are in the job's status, which no event announces: it is asked for every
``REFRESH`` seconds, the next time only when the answer has come.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

from elasticrun.clock import pause
from elasticrun.control import JobControl
from elasticrun.errors import ElasticRunError
from elasticrun.follower import Follower
from elasticrun.rpc.event_lines import to_line
from elasticrun.ui.events import said
from elasticrun.ui.top.board import Board
from elasticrun.ui.top.frame import Frame, frame_of
from elasticrun.ui.top.past import Past
from elasticrun.ui.top.picture import LIVE_KEYS, PAST_KEYS, lines
from elasticrun.ui.top.screen import Screen

#: Seconds between two pictures at least, and if nothing happens; and between two questions for the status.
SHORTEST = 0.25
TICK = 1.0
REFRESH = 2.0
_REASON = "an operator asked for it in elastic-ctl top"


class _Picture:
    """Draws when it is asked to, but not too often."""

    def __init__(self, draw: Callable[[], None]) -> None:
        self._draw = draw
        self._loop = asyncio.get_running_loop()
        self._drawn = -SHORTEST
        self._timer: asyncio.TimerHandle | None = None

    def soon(self) -> None:
        """Draw as soon as may be."""
        due = max(self._loop.time(), self._drawn + SHORTEST)
        if self._timer is None or self._timer.when() > due:
            self._arm(due)

    def close(self) -> None:
        """Draw no more."""
        if self._timer is not None:
            self._timer.cancel()

    def now(self) -> None:
        """Draw at once: somebody typed."""
        self._drawn = self._loop.time()
        self._arm(self._drawn + TICK)
        self._draw()

    def _arm(self, due: float) -> None:
        self.close()
        self._timer = self._loop.call_at(due, self.now)


class LiveTop:
    """A running job on the terminal."""

    def __init__(self, connect: Callable[[], Awaitable[JobControl]]) -> None:
        """Made inside the running loop. ``connect``: makes a client of the job."""
        self._loop = asyncio.get_running_loop()
        self._follower = Follower(connect, lambda _entries, _lines: self._picture.soon())
        self._board = Board(LIVE_KEYS)
        self._picture = _Picture(self._draw)
        self._frame: Frame | None = None
        self._screen: Screen | None = None
        self._left: asyncio.Future[None] = self._loop.create_future()
        self._orders = set[asyncio.Task[None]]()

    async def run(self) -> int:
        """Until somebody leaves; the number of the signal that ended it, or 0. Raises ElasticRunError."""
        await self._follower.refresh()
        await self._follower.catch_up()
        with Screen(self._key, self._picture.now) as self._screen:
            self._picture.now()
            tasks = [self._loop.create_task(each) for each in (self._follow(), self._refresh())]
            try:
                await _first(*tasks, self._left, self._screen.ended)
            finally:
                self._picture.close()
                for task in (*tasks, *self._orders):
                    task.cancel()
                done = await asyncio.gather(*tasks, return_exceptions=True)
        for error in done:
            if isinstance(error, ElasticRunError):
                raise error
        return self._screen.ended.result() if self._screen.ended.done() else 0

    async def _follow(self) -> None:
        await self._follower.run()
        self._picture.soon()
        await asyncio.Event().wait()  # the last picture stays until somebody leaves

    async def _refresh(self) -> None:
        while not self._follower.history.outcome:
            try:
                await self._follower.refresh()
                self._picture.soon()
            except ElasticRunError:
                pass  # the follower says what is wrong
            await pause(REFRESH)
        await asyncio.Event().wait()

    def _draw(self) -> None:
        follower, screen = self._follower, self._screen
        if screen is None:
            return
        self._frame = frame_of(follower.history, follower.now, follower.status, follower.trouble)
        width, height = screen.size
        screen.show(lines(self._frame, width, height, self._board.view(self._frame, screen.is_plain)))

    # -- keys

    def _key(self, key: str) -> None:
        rows = () if self._frame is None else self._frame.nodes
        board = self._board
        if board.question:
            board.question = ""
            if key in ("y", "Y"):
                node = board.selected
                self._order(lambda job: job.drain(node, _REASON))
            else:
                board.message = "nothing was ordered"
        elif not board.key(key, rows):
            self._own_key(key, len(rows))
        if board.is_left:
            _resolve(self._left)
        else:
            self._picture.now()

    def _own_key(self, key: str, count: int) -> None:
        board = self._board
        match key:
            case "home" | "end" if self._frame is not None:
                board.select(0 if key == "home" else count, self._frame.nodes)
            case "d" if board.selected and not self._follower.history.outcome:
                board.question = f"drain {board.selected}? It leaves with grace (y/n)"
            case "s" if not self._follower.history.outcome:
                self._order(lambda job: job.stacks())

    def _order(self, order: Callable[[JobControl], Awaitable[str]]) -> None:
        self._board.message = "ordering ..."
        task = self._loop.create_task(self._give(order))
        self._orders.add(task)
        task.add_done_callback(self._orders.discard)

    async def _give(self, order: Callable[[JobControl], Awaitable[str]]) -> None:
        try:
            self._board.message = await order(await self._follower.control())
        except ElasticRunError as error:
            self._board.message = str(error)
        self._picture.now()


class PastTop:
    """The past of a job on the terminal."""

    def __init__(self, past: Past) -> None:
        """Made inside the running loop."""
        self._past = past
        self._board = Board(PAST_KEYS)
        self._frame: Frame | None = None
        self._screen: Screen | None = None
        self._left: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def run(self) -> int:
        """Until somebody leaves; the number of the signal that ended it, or 0."""
        with Screen(self._key, self._draw) as self._screen:
            self._draw()
            await _first(self._left, self._screen.ended)
        return self._screen.ended.result() if self._screen.ended.done() else 0

    def _draw(self) -> None:
        if self._screen is None:
            return
        self._frame = frame_of(self._past.history, self._past.now)
        view = self._board.view(self._frame, self._screen.is_plain, told(self._past))
        self._screen.show(lines(self._frame, *self._screen.size, view))

    def _key(self, key: str) -> None:
        if not self._board.key(key, () if self._frame is None else self._frame.nodes):
            moves = {
                "left": self._past.previous,
                "h": self._past.previous,
                "right": self._past.next,
                "l": self._past.next,
                "home": self._past.first,
                "end": self._past.last,
            }
            moves.get(key, lambda: None)()
        if self._board.is_left:
            _resolve(self._left)
        else:
            self._draw()


def told(past: Past) -> str:
    """What happened at this moment of the past, in words."""
    entry = past.entry
    return f"#{entry.event} {said(json.loads(to_line(entry)))}"


async def _first(*futures: asyncio.Future[Any]) -> None:
    """Until one of them is done."""
    await asyncio.wait(futures, return_when=asyncio.FIRST_COMPLETED)


def _resolve(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
