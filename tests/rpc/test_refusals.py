"""The same refusal is told once, then counted."""

from __future__ import annotations

import asyncio

import pytest

from elasticrun.rpc.security import refusals as module
from elasticrun.rpc.security.refusals import Refusals
from tests.support.processes import DEADLINE


def unexpected(count: int) -> None:
    raise AssertionError(f"{count} more are told of")


def test_more_of_the_same_are_counted_and_told_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "EACH", 0.01)

    async def main() -> list[int]:
        told: asyncio.Queue[int] = asyncio.Queue()
        refusals = Refusals()
        assert refusals.hear(b"a", "no token", told.put_nowait)
        assert not refusals.hear(b"a", "no token", told.put_nowait)
        assert not refusals.hear(b"a", "no token", told.put_nowait)
        assert refusals.hear(b"b", "no token", told.put_nowait)
        assert refusals.hear(b"a", "another reason", told.put_nowait)
        first = await asyncio.wait_for(told.get(), DEADLINE)
        assert not refusals.hear(b"a", "no token", told.put_nowait)
        return [first, await asyncio.wait_for(told.get(), DEADLINE)]

    assert asyncio.run(main()) == [2, 1]


def test_after_a_quiet_time_the_next_one_is_told_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "EACH", 0.0)

    async def main() -> None:
        refusals = Refusals()
        assert refusals.hear(b"a", "no token", unexpected)
        later = asyncio.Event()
        asyncio.get_running_loop().call_later(0.0, later.set)  # after the timer that was due before
        await asyncio.wait_for(later.wait(), DEADLINE)
        assert refusals.hear(b"a", "no token", unexpected)

    asyncio.run(main())


def test_what_is_kept_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST", 1)

    async def main() -> None:
        refusals = Refusals()
        assert refusals.hear(b"a", "", unexpected)
        assert refusals.hear(b"b", "", unexpected)
        assert refusals.hear(b"b", "", unexpected)
        assert not refusals.hear(b"a", "", unexpected)

    asyncio.run(main())
