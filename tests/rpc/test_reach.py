"""How a master is reached over a network that swallows the first questions."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from elasticrun.config import Endpoint
from elasticrun.errors import MasterUnreachableError
from elasticrun.rpc import reach as module
from elasticrun.rpc.reach import reach
from tests.rpc.harness import DEADLINE, run, serving

CONNECT = asyncio.open_connection


class Network:
    """Keeps back what comes of the first ``lost`` connections, until it is told to let them through."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, lost: int, again: float) -> None:
        self.attempts = 0
        self.cancelled = 0
        self.writers: list[asyncio.StreamWriter] = []
        self.healed = asyncio.Event()
        self._lost = lost
        monkeypatch.setattr(asyncio, "open_connection", self._open)
        monkeypatch.setattr(module, "CONNECT_AGAIN", again)

    async def _open(self, *args: Any, **kwargs: Any) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        self.attempts += 1
        is_lost = self.attempts <= self._lost
        streams = await CONNECT(*args, **kwargs)
        self.writers.append(streams[1])
        try:
            if is_lost:
                await self.healed.wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            streams[1].transport.abort()  # as an attempt does that is cancelled
            raise
        return streams


def test_who_gets_no_answer_asks_again(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        async with serving() as (_, endpoint):
            network = Network(monkeypatch, lost=3, again=0.2)
            assert await reach(endpoint, DEADLINE) == f"ipv4:127.0.0.1:{endpoint.port}"
            assert network.attempts > 3 <= network.cancelled

    run(main())


def test_an_old_question_may_still_be_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        async with serving() as (_, endpoint):
            network = Network(monkeypatch, lost=3, again=0.1)
            reaching = asyncio.create_task(reach(endpoint, DEADLINE))
            while len(network.writers) < 3:
                await asyncio.wait((reaching,), timeout=0.01)
            network.healed.set()
            await reaching
            assert len(network.writers) - network.cancelled >= 2, "several succeed at once"
            if not network.cancelled:
                assert all(writer.transport.is_closing() for writer in network.writers)

    run(main())


def test_nobody_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        async with serving() as (_, endpoint):
            network = Network(monkeypatch, lost=1_000, again=0.05)
            with pytest.raises(MasterUnreachableError, match=r"no answer within 3 s"):
                await reach(endpoint, 3.0)
            assert 2 <= network.attempts == network.cancelled

    run(main())


def test_who_is_refused_does_not_ask_again(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        async with serving() as (_, endpoint):
            port = endpoint.port
        network = Network(monkeypatch, lost=0, again=DEADLINE)
        with pytest.raises(
            MasterUnreachableError, match=f"cannot connect to 127.0.0.1:{port}: Connection refused"
        ):
            await reach(Endpoint("127.0.0.1", port), DEADLINE)
        assert network.attempts == 1

    run(main())
