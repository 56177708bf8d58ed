"""A job followed live: its history, kept up with the master's event log from somewhere else.

Whatever shows a running job in another process (``elastic-ctl top``, the observer with its web page and
metrics) has one follower for all that look. So the master has one reader, however many there are.

Theory. The follower asks for the lines after the last one that it has; the answer waits until there are some.
A master that is away is asked again after a moment; the history stays as it was. A job that was heard before
is waited for in the same way if another one answers in its place. Each line is taken once, in order. If the
master does not have all lines in between any more, the history says so (``missed``).

A later master numbers its lines anew, and begins with those of the earlier ones that it knows. These are
passed over: all up to the first one that is neither known nor older than what is known. The time of the wall
clock is no part of that comparison, as a master that has only the journal estimates it.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable, Sequence

from elasticrun.clock import happens
from elasticrun.control import JobControl, JobStatus
from elasticrun.core.history.history import History
from elasticrun.core.protocol.chronicle import LogEntry
from elasticrun.errors import (
    ElasticRunError,
    EndpointTakenError,
    MasterUnreachableError,
    OrderDeclinedError,
    ProtocolError,
    TooManyError,
)
from elasticrun.rpc.event_lines import known_entry
from elasticrun.rpc.nearby import GoneError

#: Seconds between attempts to find a master that is away, and until it is given up.
RETRY = 1.0
PATIENCE = 60.0
#: The same once nobody is at the master's socket on this host: the next one comes soon, or the job is over.
GONE_PATIENCE = 15.0
#: Seconds that one question waits for news.
WAIT = 20.0
#: Of so many of the newest entries it is known that they were taken: no master's memory holds more.
KNOWN = 8192
#: What may pass: its master is started again, or has much to do.
PASSING = (MasterUnreachableError, EndpointTakenError, TooManyError, ProtocolError)


class Follower:
    """Follows one job. Made inside the running loop."""

    def __init__(
        self,
        connect: Callable[[], Awaitable[JobControl]],
        on_entries: Callable[[Sequence[LogEntry], Sequence[str]], None] = lambda _entries, _lines: None,
        patience: float = PATIENCE,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        """Follow from the oldest entry that the master has in memory.

        Args:
            connect: Makes a client of the job; called again after the master was away.
            on_entries: Called with each batch of entries, after the history has taken them, and their lines.
            patience: Seconds for which a master may be away.
            wall_clock: Of this host; tells how old the entries are that happened before we came.
        """
        self.history = History()
        self.status: JobStatus | None = None  # as of the last ``refresh``
        self.trouble = ""  # why nothing is heard, while nothing is; ""
        self._connect = connect
        self._on_entries = on_entries
        self._patience = patience
        self._control: JobControl | None = None
        self._upto = ""
        self._known: deque[tuple[int, int]] = deque(maxlen=KNOWN)  # the event, and a hash, of each entry
        self._repeats = set[tuple[int, int]]()  # of these, what another master tells again is passed over
        self._wall_clock = wall_clock
        self._is_behind = True  # what there was when we came was not all taken
        self._loop = asyncio.get_running_loop()
        self._heard = self._loop.time()  # when the newest entry came
        self._in_touch = asyncio.Event()  # the last question was answered
        self._hurried = asyncio.Event()  # others have heard the master since it was away

    @property
    def now(self) -> float:
        """The job's clock, as far as one can tell from here: it stands still once the job is over."""
        passed = 0.0 if self.history.outcome else self._loop.time() - self._heard
        return self.history.last[0] + passed

    async def control(self) -> JobControl:
        """The client of the job. Raises ElasticRunError if there is no way to it."""
        if self._control is None:
            self._control = await self._connect()
        return self._control

    async def refresh(self) -> JobStatus:
        """Ask for the job's status. Raises ElasticRunError as ``JobControl`` does."""
        self.status = await (await self.control()).status()
        return self.status

    async def catch_up(self) -> None:
        """Take what there is now. Raises ElasticRunError as ``JobControl`` does."""
        while await self._ask(0.0):
            pass

    async def catch_up_soon(self, seconds: float) -> None:
        """Others have heard the master: ask it now if it was away; wait so long until it has answered."""
        if self._in_touch.is_set():
            return
        self._hurried.set()
        await happens(self._in_touch, seconds)

    async def run(self) -> None:
        """Follow until the job is over. Raises ElasticRunError if its master is away for too long."""
        try:
            await self._run()
        finally:
            if self._control is not None:
                self._control.following.close()

    async def _run(self) -> None:
        away: float | None = None  # since when nothing is heard; and since when nobody is at its socket
        gone: float | None = None
        while not self.history.outcome:
            try:
                await self._ask(WAIT)
            except ElasticRunError as error:
                if not self._may_pass(error):
                    raise
                if self._control is not None:
                    self._control.following.close()
                self._control, self.trouble = None, str(error)
                self._in_touch.clear()
                now = self._loop.time()
                away = now if away is None else away
                gone = (now if gone is None else gone) if isinstance(error, GoneError) else None
                if now - away >= self._patience or (gone is not None and now - gone >= GONE_PATIENCE):
                    raise
                await happens(self._hurried, RETRY)
                self._hurried.clear()
                continue
            away, gone, self.trouble = None, None, ""
            self._in_touch.set()
            self._hurried.clear()

    def _may_pass(self, error: ElasticRunError) -> bool:
        """Whether it is worth asking again. What the job itself declines, it declines."""
        was_heard = bool(self._upto) and not isinstance(error, OrderDeclinedError)
        return was_heard or isinstance(error, PASSING)

    async def _ask(self, wait: float) -> bool:
        """Take the next lines; whether there are more already."""
        control = await self.control()
        watched = await (control.following.follow if wait else control.watch)(self._upto, wait)
        is_other = bool(self._upto) and _master(watched.upto) != _master(self._upto)
        entries, overlaps = self._new(watched.lines, is_other)
        self._upto = watched.upto
        self.history.missed = self.history.missed or (watched.missed and not overlaps)
        self._take(entries)
        self._is_behind = self._is_behind and watched.more
        return watched.more

    def _new(self, lines: Sequence[str], is_other: bool) -> tuple[list[tuple[LogEntry, str]], bool]:
        """The entries that were not taken yet, and whether there were others. ``is_other``: the master is."""
        found = [(entry, line) for line in lines if (entry := known_entry(line)) is not None]
        if is_other:
            self._repeats = set(self._known)
        old = 0
        if self._repeats:
            oldest = self._known[0][0]
            while old < len(found) and self._is_old(found[old][0], oldest):
                old += 1
        if old < len(found):
            self._repeats = set()
        return found[old:], old > 0

    def _is_old(self, entry: LogEntry, oldest: int) -> bool:
        return entry.event < oldest or _mark(entry) in self._repeats

    def _take(self, found: Sequence[tuple[LogEntry, str]]) -> None:
        for entry, _ in found:
            self.history.take(entry)
            self._known.append(_mark(entry))
        if found:
            age = max(0.0, self._wall_clock() - found[-1][0].time) if self._is_behind else 0.0
            self._heard = self._loop.time() - age
            self._on_entries([entry for entry, _ in found], [line for _, line in found])


def _mark(entry: LogEntry) -> tuple[int, int]:
    """What tells entries apart, wherever they are read."""
    return entry.event, hash((entry.at, entry.told))


def _master(upto: str) -> str:
    return upto.partition(":")[0]
