"""Publishing, and its end."""

from __future__ import annotations

import asyncio

from elasticrun.observer.live import Live
from tests.support.processes import DEADLINE
from tests.support.watched import Pretended


def test_publishing_ends_though_something_happens_at_that_moment() -> None:
    async def work() -> None:
        for turns in range(6):
            live = Live(Pretended(2, 1))
            task = asyncio.ensure_future(live.run())
            live._touched.clear()  # so that it waits for news
            for _ in range(turns):
                await asyncio.wait([asyncio.ensure_future(asyncio.Event().wait())], timeout=0)
            live.take()
            task.cancel()
            await asyncio.wait({task}, timeout=DEADLINE)
            assert task.done()

    asyncio.run(work())
