"""What bounds a wait, and what is not lost by it."""

from __future__ import annotations

import asyncio

import pytest

from elasticrun.clock import happens, within


def test_work_gives_its_result_or_its_error() -> None:
    async def given() -> int:
        return 3

    async def failing() -> int:
        raise KeyError("it")

    assert asyncio.run(within(30.0, given())) == 3
    with pytest.raises(KeyError):
        asyncio.run(within(30.0, failing()))


def test_work_that_takes_too_long_is_cancelled() -> None:
    ends: list[str] = []

    async def endless() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ends.append("cancelled")

    with pytest.raises(asyncio.TimeoutError):
        asyncio.run(within(0.0, endless()))
    assert ends == ["cancelled"]


def test_an_event_happens_in_time_or_not() -> None:
    async def main() -> None:
        event = asyncio.Event()
        assert not await happens(event, 0.0)
        event.set()
        assert await happens(event, 30.0)

    asyncio.run(main())


def test_a_cancellation_that_comes_with_the_result_is_not_lost() -> None:
    async def main() -> None:
        done, begun = asyncio.get_running_loop().create_future(), asyncio.Event()

        async def wait() -> None:
            begun.set()
            await within(30.0, done)

        waiting = asyncio.ensure_future(wait())
        await begun.wait()
        done.set_result(None)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting

    asyncio.run(main())
