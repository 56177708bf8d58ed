"""Time as an argument.

Decisions take ``now`` as an argument; only the two interpreters of effects (the master's loop and the
agent's) own a clock, and tests own a fake one. Instants are seconds of a monotonic clock of one
process and are never compared across processes.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable
from typing import TYPE_CHECKING, Protocol, TypeVar

if TYPE_CHECKING:
    import asyncio

T = TypeVar("T")


class Clock(Protocol):
    """A monotonic clock."""

    def now(self) -> float:
        """Seconds since an arbitrary, fixed instant."""


class MonotonicClock:
    """The host's monotonic clock, shifted so that it continues from ``start``.

    A master that replays its journal passes the last instant written there, so that virtual time goes
    on where it stopped even if the host was rebooted in between.
    """

    def __init__(self, start: float = 0.0) -> None:
        self._offset = start - time.monotonic()

    def now(self) -> float:
        return time.monotonic() + self._offset


async def pause(seconds: float) -> None:
    """Space out attempts, or questions, where nothing tells when the next one will succeed."""
    import asyncio  # which not all who need a clock do

    over = asyncio.Event()  # no future: one cancelled at the moment of its timer could not be set
    timer = asyncio.get_running_loop().call_later(seconds, over.set)
    try:
        await over.wait()
    finally:
        timer.cancel()


async def within(seconds: float | None, work: Awaitable[T]) -> T:
    """What the work gives, in so many seconds at most; None: whenever. Raises asyncio.TimeoutError.

    As ``asyncio.wait_for``, which before Python 3.12 loses a cancellation that comes with the result.
    """
    import asyncio

    task = asyncio.ensure_future(work)
    task.add_done_callback(lambda it: it.cancelled() or it.exception())  # it was looked at, whoever waits
    try:
        await asyncio.wait({task}, timeout=seconds)
        if task.done():
            return task.result()
        raise asyncio.TimeoutError
    finally:
        if task.cancel():
            await asyncio.wait({task})


async def happens(event: asyncio.Event, seconds: float | None) -> bool:
    """Whether an event is set within so many seconds; None: once it is."""
    import asyncio

    try:
        return await within(seconds, event.wait())
    except asyncio.TimeoutError:
        return False
