"""What the master asks this agent for an operator: output of its workers, and their stacks.

Invariant: at most MOST questions wait at a time, and those that are just being ended; each is answered within
its wait and the time that stacks take; however many ask for the stacks of a worker, they are taken once at a
time, as the watch for hangs wants them too. What is answered in a second is bounded, so that reports to the
master never wait behind it. What was asked over a stream that is over is answered to nobody.

An answer about output waits until there is some: the router tells what goes through the agent, the kernel
what a worker writes to its file by itself. Somebody looks GATHER seconds after the first news, so a worker
that prints line by line causes few answers, and costs those that wait for another one few looks.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from elasticrun.clock import happens
from elasticrun.core.protocol.questions import (
    MAX_LOG_WAIT,
    AskNode,
    LogPiece,
    LogQuestion,
    NodeAnswer,
    RankAnswer,
)

if TYPE_CHECKING:
    from elasticrun.agent.logs.file_news import FileNews
    from elasticrun.agent.logs.kept import KeptOutput
    from elasticrun.agent.monitors.progress import HangWatch
    from elasticrun.agent.monitors.stacks import Taken

logger = logging.getLogger(__name__)

MOST = 32
#: Seconds between the first news and the answer.
GATHER = 0.1
#: Bytes of answers: at once, and in a second after that. A quarter of what an agent may say.
BURST = 8 << 20
BYTES_PER_SECOND = 256 << 10
#: Seconds of a wait where the kernel does not tell of a file's news.
BLIND_WAIT = 1.0
#: Seconds that answers may take when the agent ends.
LAST_WORDS = 1.0


class NodeAnswers:
    """Answers questions about the workers of this node. Made inside the running loop."""

    def __init__(
        self,
        incarnation: str,
        kept: KeptOutput,
        watch: HangWatch | None,
        send: Callable[[NodeAnswer], None],
    ) -> None:
        """``watch``: takes stacks; None: nobody can. ``send`` drops what it gets if there is no stream."""
        self._incarnation = incarnation
        self._kept = kept
        self._watch = watch
        self._send = send
        self._loop = asyncio.get_running_loop()
        self._tasks: set[asyncio.Task[None]] = set()
        self._waits: dict[_Wait, None] = {}  # those that wait for output, oldest first
        self._taking: dict[int, asyncio.Task[dict[int, Taken]]] = {}  # whose stacks, by local rank
        self._files: FileNews | None = None
        self._credit = float(BURST)
        self._since = self._loop.time()
        self._ending = asyncio.Event()  # the agent ends: nobody waits any more

    def ask(self, question: AskNode) -> None:
        """Answer a question, now or later.

        If as many wait as may, the one that has waited longest is over: nobody tells who has hung up. A
        master asks no more at a time than may wait, so of those that somebody waits for few are disturbed.
        """
        if len(self._tasks) >= MOST and self._waits:
            longest = next(iter(self._waits))
            del self._waits[longest]
            longest.end()
        elif len(self._tasks) >= MOST:
            self._refuse(question, f"it answers {MOST} questions already: try again")
            return
        task = self._loop.create_task(self._answer(question))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def attached(self) -> None:
        """There is a new stream: nobody there waits for what was asked over the one before."""
        for task in self._tasks:
            task.cancel()

    async def close(self) -> None:
        """Answer what waits with what there is."""
        self._ending.set()
        self._kept.tell()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=LAST_WORDS)
        for task in (*self._tasks, *self._taking.values()):
            task.cancel()
        if self._files is not None:
            self._files.close()

    async def _answer(self, question: AskNode) -> None:
        try:
            if question.log is None:
                answer = await self._stacks(question.local_rank)
            else:
                answer = RankAnswer(await self._log(question.local_rank, question.log))
            await self._pay(sum(len(piece.data) for piece in answer.pieces) + len(answer.stacks))
            self._send(NodeAnswer(self._incarnation, question.id, answer=answer))
        except _RefusedError as error:
            self._refuse(question, str(error))
        except Exception:  # a bug; a question is worth no job
            logger.exception("internal error; please report this traceback")
            self._refuse(question, "an internal error; its log has the traceback")

    def _refuse(self, question: AskNode, why: str) -> None:
        self._send(NodeAnswer(self._incarnation, question.id, refused=why))

    async def _pay(self, size: int) -> None:
        """Wait until the stream may carry so many bytes more."""
        now = self._loop.time()
        self._credit = min(BURST, self._credit + (now - self._since) * BYTES_PER_SECOND) - size
        self._since = now
        if self._credit < 0:
            await happens(self._ending, -self._credit / BYTES_PER_SECOND)

    # -- stacks

    async def _stacks(self, local_rank: int) -> RankAnswer:
        taken = {} if self._watch is None else await self._taken(self._watch, local_rank)
        if local_rank not in taken:
            raise _RefusedError("it does not run now, so it has no stacks")
        if not taken[local_rank].text:
            raise _RefusedError(f"no stack available: {taken[local_rank].problem}")
        return RankAnswer(stacks=taken[local_rank].text)

    async def _taken(self, watch: HangWatch, local_rank: int) -> dict[int, Taken]:
        """The stacks of a worker: those that are being taken now, if others have asked as well."""
        taking = self._taking.get(local_rank)
        if taking is None:
            taking = self._taking[local_rank] = self._loop.create_task(watch.take((local_rank,)))
            taking.add_done_callback(lambda _: self._taking.pop(local_rank))
        return await asyncio.shield(taking)

    # -- output

    async def _log(self, local_rank: int, question: LogQuestion) -> tuple[LogPiece, ...]:
        if local_rank not in self._kept.local_ranks:
            raise _RefusedError("it has not started yet")
        pieces = self._read(local_rank, question)
        if _is_news(pieces) or not question.wait:
            return pieces
        watched, seconds = self._watched(local_rank, question)
        wait = _Wait(self._loop.time() + seconds)
        self._waits[wait] = None
        self._kept.listen(wait.news.set)
        try:
            await self._until(wait, lambda: _is_news(self._read(local_rank, question)))
        finally:
            self._waits.pop(wait, None)
            self._kept.unlisten(wait.news.set)
            for path in watched:
                assert self._files is not None
                self._files.unwatch(path)
        return self._read(local_rank, question)

    async def _until(self, wait: _Wait, is_there: Callable[[], bool]) -> None:
        """Wait until something is there, or the wait is over."""
        while not is_there() and not self._ending.is_set():
            if (left := wait.until - self._loop.time()) <= 0:
                return
            await happens(wait.news, left)
            if wait.news.is_set():
                wait.news.clear()
                await happens(self._ending, GATHER)

    def _read(self, local_rank: int, question: LogQuestion) -> tuple[LogPiece, ...]:
        read = self._kept.read
        return tuple(read(local_rank, each.stream, each.after, question.lines) for each in question.places)

    def _watched(self, local_rank: int, question: LogQuestion) -> tuple[list[str], float]:
        """The files that are watched from now on, and how long to wait."""
        found = (self._kept.path_to_watch(local_rank, each.stream) for each in question.places)
        paths = {path for path in found if path}
        if paths and self._files is None:
            from elasticrun.agent.logs.file_news import FileNews  # most agents are never asked

            self._files = FileNews(self._kept.tell)
        watched = [path for path in paths if self._files is not None and self._files.watch(path)]
        wait = min(question.wait, MAX_LOG_WAIT)
        return watched, wait if len(watched) == len(paths) else min(wait, BLIND_WAIT)


class _Wait:
    """A wait for output."""

    def __init__(self, until: float) -> None:
        self.until = until  # of the loop's clock
        self.news = asyncio.Event()  # there may be some

    def end(self) -> None:
        """Wait no longer."""
        self.until = 0.0
        self.news.set()


class _RefusedError(Exception):
    """Why there is no answer, for the operator."""


def _is_news(pieces: tuple[LogPiece, ...]) -> bool:
    """Whether there is anything that the reader does not know."""
    return any(piece.data or piece.begins or piece.missed for piece in pieces)
