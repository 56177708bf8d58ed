"""Keeps the state that readers have up with the job.

Theory. Entries of the event log wake ``run``; it publishes a new state 1 / ``RATE`` seconds later, and so at
most ``RATE`` times a second, however many entries come. A recovery from a killed worker is mostly over by
then: on its host the readers do not take the cores while workers start. The status, which holds what no entry
tells (ranks, doubts, figures), is asked for after news; how soon, and how seldom, says
``core/history/staleness.py``. While nothing happens, readers get the passing of time every ``QUIET`` seconds;
without readers nothing is done at all. So the master hears from here as often with one reader as with five
hundred.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Protocol

from elasticrun.clock import happens, pause
from elasticrun.control import JobControl
from elasticrun.core.history.history import History
from elasticrun.core.history.staleness import Staleness
from elasticrun.core.protocol.chronicle import LogEntry
from elasticrun.core.protocol.status import JobStatus
from elasticrun.errors import ElasticRunError
from elasticrun.observer.changes import changes, is_news
from elasticrun.observer.hub import MOST_READERS, Hub, Reader
from elasticrun.observer.model import State, view

logger = logging.getLogger(__name__)

RATE = 4.0
QUIET = 5.0
#: Seconds that one who reads the state once waits for the status.
PATIENCE = 2.0


class Followed(Protocol):
    """What is shown: a ``Follower``, or one that pretends."""

    history: History
    status: JobStatus | None
    trouble: str

    @property
    def now(self) -> float: ...

    async def control(self) -> JobControl: ...

    async def refresh(self) -> JobStatus: ...


class Live:
    """The readers of one job. Made inside the running loop."""

    def __init__(self, followed: Followed, most: int = MOST_READERS) -> None:
        self._followed = followed
        self._loop = asyncio.get_running_loop()
        self._touched = asyncio.Event()
        self._touched.set()
        self._asked = float("-inf")
        self._staleness = Staleness()
        self._asking: asyncio.Task[None] | None = None
        self._published = float("-inf")
        self.hub = Hub(self._view(0), most)

    def take(self, entries: Sequence[LogEntry] = (), _lines: Sequence[str] = ()) -> None:
        """Something happened."""
        for entry in entries:
            self._staleness.take(entry.told)
        self._touched.set()
        if self._followed.history.outcome and len(self.hub):
            self.publish()  # now, as the observer of a launcher ends with it

    def join(self) -> Reader:
        """One reader more. Raises FullError."""
        if not len(self.hub):
            self.publish()
        reader = self.hub.join()
        self._ask()
        self._touched.set()
        return reader

    async def current(self) -> State:
        """The state, for one who reads it once; a master that is silent is not waited for for long."""
        is_due = self._loop.time() >= self._staleness.due(self._asked)
        if self._asking is None and is_due and self._may_ask:
            self._begin_to_ask()
        if self._asking is not None:
            await asyncio.wait({self._asking}, timeout=PATIENCE)
        if self._loop.time() - self._published >= 1 / RATE:
            self.publish()
        return self.hub.state

    async def run(self) -> None:
        """Publish until cancelled."""
        try:
            while True:
                await happens(self._touched, self._patience())
                await pause(1 / RATE)
                self._touched.clear()
                self._ask()
                if len(self.hub):
                    self.publish()
        finally:
            if self._asking is not None:
                self._asking.cancel()

    def publish(self) -> None:
        """Tell readers what is new."""
        now = self._loop.time()
        old = self.hub.state
        state = self._view(old.sequence + 1)
        if is_news(changes(old, state)) or now - self._published >= QUIET:
            self._published = now
            self.hub.publish(state)

    def _patience(self) -> float | None:
        if not len(self.hub):
            return None
        if not self._may_ask:
            return QUIET
        return min(max(self._staleness.due(self._asked) - self._loop.time(), 0.05), QUIET)

    def _view(self, sequence: int) -> State:
        it = self._followed
        return view(it.history, it.status, it.now, it.trouble, sequence)

    def _ask(self) -> None:
        """Ask for the status, if somebody looks and it is time."""
        is_due = self._loop.time() >= self._staleness.due(self._asked)
        if self._asking is None and len(self.hub) and is_due and self._may_ask:
            self._begin_to_ask()

    @property
    def _may_ask(self) -> bool:
        return not self._followed.history.outcome and not self._followed.trouble

    def _begin_to_ask(self) -> None:
        self._asked = self._loop.time()
        self._staleness.asked()
        self._asking = asyncio.create_task(self._refresh())

    async def _refresh(self) -> None:
        try:
            await self._followed.refresh()
        except ElasticRunError as error:
            logger.debug("no status: %s", error)
            self._staleness.unanswered()
        finally:
            self._asking = None
        self._touched.set()
