"""What was added to the event log lately, for those who watch a job, and how its nodes are.

Theory. The newest lines stay in memory, within bounds; each has a number, and a watcher says which one it has
read last. One that is too slow misses lines, and is told; it costs the master no more than a fast one.
Watchers that wait are woken together, a moment after a batch: more comes with it, such as all of a recovery,
and nobody who only looks on takes the cores meanwhile. The end of the job is told at once, as its agents and
observers are gone in a moment. One who has read the news by then waits on: an empty answer means that there
was none in all the time.

The numbers are those of this master: a watcher that comes with one of an earlier master begins anew.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from itertools import islice

from elasticrun.core.protocol.bounds import MAX_MESSAGE_BYTES
from elasticrun.core.protocol.orders import MAX_LINES, Watched
from elasticrun.rpc.event_lines import tells_the_end

#: Bounds of what is kept, and of one answer: a message has room for that, and for what each line costs more.
KEPT_LINES = 8192
KEPT_BYTES = 4 << 20
#: Seconds from news until those hear of it who wait for some.
SETTLE = 0.2
ANSWER_BYTES = MAX_MESSAGE_BYTES - 64 * MAX_LINES


class Feed:
    """The newest lines of the event log of this master. ``name``: its epoch, which no other master has."""

    def __init__(self) -> None:
        self.name = 0
        self._lines: deque[str] = deque()
        self._bytes = 0
        self._end = 0  # how many lines there were
        self._waiting: set[asyncio.Future[None]] = set()
        self._waking: asyncio.TimerHandle | None = None
        self._is_over = False  # the job is
        self._is_closed = False  # nobody has to wait any more

    def add(self, line: str) -> None:
        """Take a line, of ``MAX_LINE`` ASCII characters at most; who waits hears of it on ``wake``."""
        self._lines.append(line)
        self._is_over = self._is_over or tells_the_end(line)
        self._bytes += len(line)
        self._end += 1
        while len(self._lines) > KEPT_LINES or self._bytes > KEPT_BYTES:
            self._bytes -= len(self._lines.popleft())

    def wake(self) -> None:
        """Let whoever waits look, in a moment; at once if the job is over."""
        if self._is_over:
            self._wake_now()
        elif self._waking is None and self._waiting:
            self._waking = asyncio.get_running_loop().call_later(SETTLE, self._wake_now)

    def close(self) -> None:
        """Let nobody wait any more: the master goes."""
        self._is_closed = True
        self._wake_now()

    def clear(self) -> None:
        """Forget all lines: they were of an earlier job."""
        self._lines.clear()
        self._bytes = self._end = 0
        self._is_over = False

    def _wake_now(self) -> None:
        if self._waking is not None:
            self._waking.cancel()
            self._waking = None
        for waiter in self._waiting:
            _resolve(waiter)

    async def watch(self, after: str, wait: float) -> Watched:
        """The lines after a place, as many as an answer holds; waits for so many seconds if there is none."""
        place = self._number(after)
        begin = place or 0
        deadline = asyncio.get_running_loop().time() + wait
        while begin == self._end and await self.news(deadline):
            pass
        return self._page(begin, bool(after) and place is None)

    async def news(self, deadline: float) -> bool:
        """Wait for news until then, by the loop's clock; whether it is worth to look, and to wait again."""
        loop = asyncio.get_running_loop()
        if self._is_closed or loop.time() >= deadline:
            return False
        waiter = loop.create_future()  # and no task: who waits costs the master as little as may be
        timer = loop.call_at(deadline, _resolve, waiter)
        self._waiting.add(waiter)
        try:
            await waiter
        finally:
            self._waiting.discard(waiter)
            timer.cancel()
        return True

    def _number(self, after: str) -> int | None:
        """How many lines were read; None: it is no place of this master."""
        name, _, number = after.partition(":")
        is_ours = name == str(self.name) and number.isascii() and number.isdigit()
        return min(int(number[:18]), self._end) if is_ours else None

    def _page(self, begin: int, is_elsewhere: bool) -> Watched:
        oldest = self._end - len(self._lines)
        start = max(begin, oldest)
        found: list[str] = []
        size = 0
        for line in islice(self._lines, start - oldest, start - oldest + MAX_LINES):
            size += len(line)
            if found and size > ANSWER_BYTES:
                break
            found.append(line)
        upto = start + len(found)
        return Watched(f"{self.name}:{upto}", tuple(found), start > begin or is_elsewhere, upto < self._end)


async def until(feed: Feed, is_so: Callable[[], bool], wait: float) -> None:
    """Return once it is so, looked at again at all news, or after so many seconds."""
    deadline = asyncio.get_running_loop().time() + wait
    while not is_so() and await feed.news(deadline):
        pass


def _resolve(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)
