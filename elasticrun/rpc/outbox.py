"""Messages waiting to be written to a stream.

``put`` never blocks; one writer takes with ``get``. A peer that does not read makes the box fill up; ``put``
then says so instead of growing, and the stream's owner gives the stream up.
"""

from __future__ import annotations

import asyncio
from collections import deque

_OVERHEAD = 128  # bytes that even an empty message costs, roughly


class Outbox:
    """A queue of encoded messages for one event loop, bounded in bytes, with an end."""

    def __init__(self, max_bytes: int) -> None:
        self._room = max_bytes
        self._queue: deque[bytes] = deque()
        self._closed = False
        self._changed = asyncio.Event()

    @property
    def closed(self) -> bool:
        """Whether nothing more is accepted."""
        return self._closed

    def put(self, data: bytes) -> bool:
        """Queues ``data``; False if there is no room. After ``close`` it is dropped silently."""
        if self._closed:
            return True
        cost = len(data) + _OVERHEAD
        if cost > self._room:
            return False
        self._room -= cost
        self._queue.append(data)
        self._changed.set()
        return True

    def close(self) -> None:
        """Ends the box: what is queued is still taken, then ``get`` returns None."""
        self._closed = True
        self._changed.set()

    async def get(self) -> bytes | None:
        """The next message; None after the last one of a closed box."""
        while not self._queue:
            if self._closed:
                return None
            self._changed.clear()
            await self._changed.wait()
        return self._take()

    def rest(self, room: int, joint: int) -> list[bytes]:
        """Takes what else waits, as far as it fits ``room`` bytes if each message costs ``joint`` more."""
        taken = []
        while self._queue and (room := room - len(self._queue[0]) - joint) >= 0:
            taken.append(self._take())
        return taken

    def _take(self) -> bytes:
        data = self._queue.popleft()
        self._room += len(data) + _OVERHEAD
        return data
