"""Reads the logs of ranks for ``elastic-ctl logs``, and shows them.

A reader keeps a place for each stream of its rank, so nothing is shown twice and nothing is left out, unless
a note says so. Lines are shown whole where there are several ranks; of one rank on a pipe, every byte is as
the worker wrote it.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, Protocol

import click

from elasticrun.agent.logs.lines import LineSplitter, prefix_lines
from elasticrun.cli.documents import VERSION, LineKind, LogLineDocument, line_of
from elasticrun.clock import happens, pause
from elasticrun.control import JobControl, LogPiece, LogPlace, LogStream
from elasticrun.core.protocol.plain import one_line, plain
from elasticrun.core.protocol.questions import MAX_LOG_WAIT
from elasticrun.errors import ElasticRunError, OrderDeclinedError, UsageError
from elasticrun.follower import PASSING, PATIENCE, RETRY, Follower

#: Most ranks that are followed at once, and that are read at a time.
MOST_FOLLOWED = 32
_AT_A_TIME = 16
#: Most answers that are read for "what there is now".
_MOST_READS = 100
#: Questions at once, and in each second after that. A master takes at least 200 connections a second from an
#: address, but its agents there may need some of them.
QUESTIONS_AT_ONCE = 500.0
QUESTIONS_PER_SECOND = 150.0
#: Seconds until a rank whose node is away is asked again, unless something happens before.
AWAY = 5.0


class Show(Protocol):
    """How logs are shown."""

    def output(self, rank: int, piece: LogPiece) -> None:
        """A piece of a stream, which follows the one before."""

    def note(self, rank: int, text: str, piece: LogPiece | None = None) -> None:
        """Something to know about the output; ``piece``: where."""

    def finish(self) -> None:
        """Nothing follows: show unfinished lines."""


class Plain:
    """As text; notes go to stderr."""

    def __init__(self, is_escaped: bool, is_named: bool) -> None:
        """``is_escaped``: no control character passes. ``is_named``: each line begins with its rank."""
        self._is_escaped = is_escaped
        self._is_named = is_named
        self._lines: dict[tuple[int, LogStream], LineSplitter] = {}

    def output(self, rank: int, piece: LogPiece) -> None:
        if not (self._is_escaped or self._is_named):
            _write(piece.data)
            return
        lines = self._lines.setdefault((rank, piece.stream), LineSplitter())
        rest = lines.flush() if piece.begins else b""
        self._show(rank, rest + lines.feed(piece.data))

    def note(self, rank: int, text: str, piece: LogPiece | None = None) -> None:
        click.echo(f"elastic-ctl: rank {rank}: {one_line(text)}", err=True)

    def finish(self) -> None:
        for (rank, _), lines in self._lines.items():
            self._show(rank, lines.flush())

    def _show(self, rank: int, lines: bytes) -> None:
        if self._is_escaped:
            lines = plain(lines.decode(errors="replace")).encode()
        _write(prefix_lines(lines, b"[rank%d] " % rank) if self._is_named else lines)


class JsonLines:
    """As one JSON object in each line."""

    def __init__(self) -> None:
        self._lines: dict[tuple[int, LogStream], tuple[LineSplitter, LogPiece]] = {}

    def output(self, rank: int, piece: LogPiece) -> None:
        key = (rank, piece.stream)
        lines, before = self._lines.get(key, (LineSplitter(), piece))
        if piece.begins:
            self._show(rank, before, lines.flush())
        self._lines[key] = (lines, piece)
        self._show(rank, piece, lines.feed(piece.data))

    def note(self, rank: int, text: str, piece: LogPiece | None = None) -> None:
        stream = None if piece is None else piece.stream
        place = (-1, 0) if piece is None else (piece.round, piece.attempt)
        _tell(LogLineDocument(VERSION, rank, LineKind.NOTE, stream, *place, text))

    def finish(self) -> None:
        for (rank, _), (lines, piece) in self._lines.items():
            self._show(rank, piece, lines.flush())

    def _show(self, rank: int, piece: LogPiece, lines: bytes) -> None:
        for line in lines.split(b"\n")[:-1]:
            text = line.decode(errors="replace")
            place = (piece.stream, piece.round, piece.attempt)
            _tell(LogLineDocument(VERSION, rank, LineKind.LINE, *place, text))


def _tell(document: LogLineDocument) -> None:
    _write(line_of(document).encode() + b"\n")


def _write(data: bytes) -> None:
    if data:
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()


class Pace:
    """How fast a master is asked by all readers of a command."""

    def __init__(self, now: float) -> None:
        """``now``: of any clock that does not run back, in seconds."""
        self._credit = QUESTIONS_AT_ONCE
        self._since = now

    def delay(self, now: float) -> float:
        """Count a question; the seconds until it may be asked."""
        earned = (now - self._since) * QUESTIONS_PER_SECOND
        self._credit = min(QUESTIONS_AT_ONCE, self._credit + earned) - 1
        self._since = now
        return max(0.0, -self._credit / QUESTIONS_PER_SECOND)


class JobWatch:
    """Follows a job for all of its ranks whose logs are followed: whether it goes on, and what changes."""

    def __init__(self, job: JobControl) -> None:
        self.is_over = False  # the job is, or its master was away for too long
        self.lost: ElasticRunError | None = None  # why nobody knows whether it is over
        self._job = job
        self._follower = Follower(self._connect, lambda _entries, _lines: self._wake(), PATIENCE)
        self._news = asyncio.Event()
        self._is_noted = False  # it was told that the master does not answer

    async def run(self) -> None:
        """Follow until it is over."""
        try:
            await self._follower.run()
        except ElasticRunError as error:
            self.lost = error
        finally:
            self.is_over = True
            self._wake()

    async def next(self, seconds: float) -> None:
        """Wait until something has happened, or for so many seconds."""
        if not self.is_over:
            await happens(self._news, seconds)

    def note_loss(self, why: str) -> None:
        """Tell that a rank is not heard; once for all of them, until one is."""
        if not self._is_noted:
            click.echo(f"elastic-ctl: {one_line(why)}; trying again", err=True)
        self._is_noted = True

    def note_contact(self) -> None:
        """A rank is heard."""
        self._is_noted = False

    async def catch_up(self) -> None:
        """A rank is heard again: follow the job again, too, as it may end at any moment from now on."""
        if not self.is_over:
            await self._follower.catch_up_soon(AWAY)

    @property
    def last_words(self) -> str:
        """Why it is over."""
        return f"the job has ended: {one_line(self._follower.history.end_reason)}"

    async def _connect(self) -> JobControl:
        return self._job

    def _wake(self) -> None:
        self._news.set()
        self._news = asyncio.Event()


class RankLog:
    """The log of one rank, read on and on."""

    def __init__(
        self, job: JobControl, rank: int, streams: Sequence[LogStream], lines: int, show: Show, pace: Pace
    ) -> None:
        self._job = job
        self._pace = pace
        self._rank = rank
        self._places = dict.fromkeys(streams, "")
        self._lines = lines
        self._show = show
        self._told: set[str] = set()  # notes that are shown once
        self._at: tuple[int, int] | None = None  # the round and attempt of what was shown last

    async def read(self, wait: float = 0.0, on_heard: Callable[[], Awaitable[None]] | None = None) -> None:
        """Show what there is now; wait so many seconds for something. ``on_heard`` comes before output."""
        for _ in range(_MOST_READS):  # a worker may print faster than this
            if not await self._read_once(wait, on_heard):
                return
            wait, on_heard = 0.0, None

    async def follow(self, watch: JobWatch) -> None:
        """Show what there is and what comes, until nothing more can come."""
        await self.read()
        told, is_lost = "", False
        while True:
            try:
                await self.read(MAX_LOG_WAIT, watch.catch_up if is_lost else None)
            except PASSING as error:
                if watch.is_over:
                    return
                if is_lost:  # not the first time: that is how the end of a job begins, too
                    watch.note_loss(str(error))
                is_lost = True
                await watch.next(RETRY)
            except OrderDeclinedError as error:
                if watch.is_over:
                    return
                if str(error) != told:
                    told = str(error)
                    self._show.note(self._rank, told)
                await watch.next(AWAY)  # it may have changed then
            else:
                told, is_lost = "", False
                watch.note_contact()

    async def _read_once(self, wait: float, on_heard: Callable[[], Awaitable[None]] | None) -> bool:
        """Show the next pieces; whether there is more already."""
        if delay := self._pace.delay(asyncio.get_running_loop().time()):
            await pause(delay)
        places = [LogPlace(stream, after) for stream, after in self._places.items()]
        pieces = await self._job.log(self._rank, places, self._lines, wait)
        if on_heard is not None:
            await on_heard()
        for piece in pieces:
            if piece.stream in self._places:
                self._take(piece)
        return any(piece.more for piece in pieces)

    def _take(self, piece: LogPiece) -> None:
        self._places[piece.stream] = piece.place
        if piece.note:
            self._tell_once(piece.note, piece)
        at = (piece.round, piece.attempt)
        if piece.begins and self._at is not None and at > self._at:
            attempt = f", attempt {piece.attempt}" if piece.attempt else ""
            self._tell_once(f"started again: from here on this is round {piece.round}{attempt}", piece)
        if piece.begins:
            self._at = max(at, self._at or at)
        if piece.missed:
            self._show.note(self._rank, f"some of its {piece.stream.value} before this was not kept", piece)
        self._show.output(self._rank, piece)

    def _tell_once(self, text: str, piece: LogPiece) -> None:
        if text not in self._told:
            self._told.add(text)
            self._show.note(self._rank, text, piece)


async def read_logs(
    job: JobControl, rank: int | None, streams: Sequence[LogStream], lines: int, follow: bool, show: Show
) -> None:
    """Show the logs of a rank, or of all."""
    ranks = [rank] if rank is not None else await _all_ranks(job)
    if follow and len(ranks) > MOST_FOLLOWED:
        raise UsageError(
            f"{len(ranks)} ranks are too many to follow at once: name one, such as logs {ranks[0]} --follow"
        )
    pace = Pace(asyncio.get_running_loop().time())
    logs = [RankLog(job, each, streams, lines, show, pace) for each in ranks]
    if follow:
        try:
            await _follow(job, logs)
        finally:
            show.finish()
        return
    turn = asyncio.Semaphore(_AT_A_TIME)

    async def read(each: int, log: RankLog) -> None:
        async with turn:
            try:
                await log.read()
            except OrderDeclinedError as error:
                if rank is not None:
                    raise
                show.note(each, str(error))

    await _together([read(each, log) for each, log in zip(ranks, logs, strict=True)])
    show.finish()


async def _follow(job: JobControl, logs: Sequence[RankLog]) -> None:
    """Show what comes until the job is over. Raises ElasticRunError if its master is away for too long."""
    watch = JobWatch(job)
    watching = asyncio.ensure_future(watch.run())
    try:
        await _together([log.follow(watch) for log in logs])
        await watching
    finally:
        watching.cancel()
    if watch.lost is not None:
        raise watch.lost
    click.echo(f"elastic-ctl: {watch.last_words}", err=True)


async def _all_ranks(job: JobControl) -> list[int]:
    found = await job.ranks()
    ranks = [rank for each in found for rank in range(each.first, each.first + each.count)]
    if not ranks:
        raise OrderDeclinedError("no rank runs now: the job has not started a round, or its nodes have gone")
    return ranks


async def _together(work: Sequence[Coroutine[Any, Any, None]]) -> None:
    """Do all at once; the first error ends them."""
    tasks = [asyncio.ensure_future(each) for each in work]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
