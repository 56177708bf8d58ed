"""The end of an observer."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import cast

from elasticrun.follower import Follower
from elasticrun.observer.live import Live
from elasticrun.observer.observe import _work
from tests.support.processes import DEADLINE
from tests.support.watched import Pretended


class Deaf:
    """A follower that loses the first cancellation, as one whose master ends at that moment."""

    async def run(self) -> None:
        with suppress(asyncio.CancelledError):
            await asyncio.Event().wait()
        await asyncio.Event().wait()


def test_an_observer_ends_though_its_follower_loses_a_cancellation() -> None:
    async def watch() -> None:
        until = asyncio.Event()
        work = asyncio.ensure_future(_work(cast("Follower", Deaf()), Live(Pretended(2, 1)), until))
        asyncio.get_running_loop().call_soon(until.set)
        await asyncio.wait({work}, timeout=DEADLINE)
        assert work.done()
        await work

    asyncio.run(watch())
