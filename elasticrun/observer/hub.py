"""Who reads along: each gets the state once, and then what changed.

Theory. A change is encoded once, and handed to all readers as the same bytes. Each reader has a queue of at
most ``BACKLOG`` changes. One that does not keep up loses its queue and gets the state as it is then: so it
costs no more than a fast one, and sees nothing old. Neither readers nor their number touch the job.
"""

from __future__ import annotations

import asyncio
import json
from collections import deque
from typing import Any

from elasticrun.errors import ElasticRunError
from elasticrun.observer.changes import changes
from elasticrun.observer.model import State
from elasticrun.rpc.records import to_json

#: Readers at a time, and the changes that wait for one of them.
MOST_READERS = 500
BACKLOG = 16


class FullError(ElasticRunError):
    """There are too many readers already."""


class Reader:
    """One who reads along."""

    def __init__(self, hub: Hub) -> None:
        self.snapshots = 0  # how often it got the whole state
        self._hub = hub
        self._queue: deque[bytes] = deque()
        self._is_behind = True  # it gets the state next
        self._news = asyncio.Event()
        self._news.set()

    @property
    def waiting(self) -> int:
        """How many changes wait for it."""
        return len(self._queue)

    def put(self, change: bytes) -> None:
        """Hand it a change."""
        if self._is_behind:
            return
        if len(self._queue) >= BACKLOG:
            self._queue.clear()
            self._is_behind = True
        else:
            self._queue.append(change)
        self._news.set()

    async def next(self) -> bytes:
        """The events to send next; waits until there are some."""
        await self._news.wait()
        self._news.clear()
        if self._is_behind:
            self._is_behind = False
            self.snapshots += 1
            return self._hub.snapshot
        told = b"".join(self._queue)
        self._queue.clear()
        return told


class Hub:
    """All readers, and the state that they have or get."""

    def __init__(self, state: State, most: int = MOST_READERS) -> None:
        self.state = state
        self._most = most
        self._readers: set[Reader] = set()
        self._snapshot: bytes | None = None

    def __len__(self) -> int:
        return len(self._readers)

    @property
    def snapshot(self) -> bytes:
        """The state as an event."""
        if self._snapshot is None:
            self._snapshot = _event("state", to_json(self.state))
        return self._snapshot

    def join(self) -> Reader:
        """One reader more. Raises FullError."""
        if len(self._readers) >= self._most:
            raise FullError(f"{self._most} pages are open already, which is the most: close one of them")
        reader = Reader(self)
        self._readers.add(reader)
        return reader

    def leave(self, reader: Reader) -> None:
        """It reads no longer."""
        self._readers.discard(reader)

    def publish(self, state: State) -> None:
        """Take the newest state, and tell all readers what changed."""
        old, self.state, self._snapshot = self.state, state, None
        if self._readers:
            change = _event("change", changes(old, state))
            for reader in self._readers:
                reader.put(change)


def _event(name: str, value: Any) -> bytes:
    """One server-sent event. JSON has no raw line breaks, so one line of data holds it."""
    return f"event: {name}\ndata: {json.dumps(value, separators=(',', ':'))}\n\n".encode()
