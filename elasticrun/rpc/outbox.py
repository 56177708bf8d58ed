"""Messages waiting to be written to a stream.

``put`` never blocks; one writer takes with ``get``. A peer that does not read makes the box fill up; ``put``
then says so instead of growing, and the stream's owner gives the stream up.

All boxes of a server share a ``Pool``. A message to thousands is one object in many boxes, and counts once.
When the pool is full, the box that holds most is emptied and its stream given up: a peer that reads has
little in its box, so that one does not read. Invariant: the boxes of a pool hold no more than its bound.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

_OVERHEAD = 128  # bytes that even an empty message costs, roughly


def _nothing() -> None:
    pass


class Pool:
    """Bounds what all outboxes of a server hold together: ``base`` bytes, and ``each`` more for each box."""

    def __init__(self, base: int, each: int) -> None:
        self._base = base
        self._each = each
        self._boxes: set[Outbox] = set()
        self._copies: dict[int, int] = {}  # in how many boxes a message is, by its id
        self.held = 0  # bytes

    def enter(self, box: Outbox) -> None:
        """Add a box to those in use."""
        self._boxes.add(box)

    def leave(self, box: Outbox) -> None:
        """Forget a box that is empty, and stays so."""
        self._boxes.discard(box)

    def put(self, data: bytes) -> None:
        """Count a message that came to a box; the fullest boxes are emptied if there is no room."""
        self._copies[id(data)] = copies = self._copies.get(id(data), 0) + 1
        if copies > 1:
            return
        self.held += len(data)
        while self._boxes and self.held > self._base + self._each * len(self._boxes):
            max(self._boxes, key=lambda box: box.held).overflow()

    def take(self, data: bytes) -> None:
        """Count off a message that left a box."""
        self._copies[id(data)] -= 1
        if not self._copies[id(data)]:
            del self._copies[id(data)]
            self.held -= len(data)


class Outbox:
    """A queue of encoded messages for one event loop, bounded in bytes, with an end.

    If the pool is full and this box holds most, it is emptied and calls ``give_up``.
    """

    def __init__(
        self, max_bytes: int, pool: Pool | None = None, give_up: Callable[[], None] = _nothing
    ) -> None:
        self._room = max_bytes
        self._pool = pool
        self._give_up = give_up
        self._queue: deque[bytes] = deque()
        self.held = 0  # bytes
        self._closed = False
        self._waiter: asyncio.Future[None] | None = None  # of the writer, while nothing is queued
        if pool is not None:
            pool.enter(self)

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
        self.held += cost
        self._queue.append(data)
        self._wake()
        if self._pool is not None:
            self._pool.put(data)
        return True

    def close(self) -> None:
        """Ends the box: what is queued is still taken, then ``get`` returns None."""
        self._closed = True
        self._wake()

    def overflow(self) -> None:
        """For the pool: give up the stream and drop what is queued, as others need the room."""
        self._give_up()
        self.empty()

    def empty(self) -> None:
        """Ends the box, and drops what is queued."""
        self.close()
        while self._queue:
            self._take()
        if self._pool is not None:
            self._pool.leave(self)
        self._give_up = _nothing  # it refers to the owner, who refers to the box

    async def get(self) -> bytes | None:
        """The next message; None after the last one of a closed box."""
        while not self._queue:
            if self._closed:
                return None
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        return self._take()

    def rest(self, room: int, joint: int) -> list[bytes]:
        """Takes more messages while they fit ``room`` bytes; each costs ``joint`` bytes extra."""
        taken = []
        while self._queue and (room := room - len(self._queue[0]) - joint) >= 0:
            taken.append(self._take())
        return taken

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _take(self) -> bytes:
        data = self._queue.popleft()
        cost = len(data) + _OVERHEAD
        self._room += cost
        self.held -= cost
        if self._pool is not None:
            self._pool.take(data)
        return data
