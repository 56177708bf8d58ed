"""The driver of a job on Ray: its output, and its master, with a small program in the master's place."""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

import pytest

from elasticrun.config import Endpoint
from elasticrun.core.fleet.replicas import Record
from elasticrun.errors import MasterUnreachableError
from elasticrun.platforms.ray.driver import Patience
from elasticrun.platforms.ray.master import Master
from elasticrun.platforms.ray.words import Chunk
from tests.support.launcher import ROOT

DEADLINE = 20.0
#: Serves at once, and ends as the number of its journal says.
PROGRAM = """\
import json, sys
told = json.loads(sys.stdin.readline())
if told["journal"] == FAILS:
    sys.exit(5)
print(json.dumps({"port": told["port"] or 4321}), flush=True)
if not told["resume"] and told["journal"] == ENDS:
    sys.exit(0)
if not told["resume"] and told["journal"] == CRASHES:
    sys.exit(70)
sys.stdin.read()
"""


def master(ends: int = -1, fails: int = -1, crashes: int = -1) -> Master:
    program = PROGRAM.replace("ENDS", str(ends)).replace("FAILS", str(fails)).replace("CRASHES", str(crashes))

    def settings(host: str, port: int, journal: int) -> dict[str, object]:
        return {"host": host, "port": port, "journal": journal}

    return Master((sys.executable, "-c", program), settings, "10.0.0.1")


def run(test: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(test())


async def ended(found: Master) -> None:
    assert found._process is not None
    assert await found._process.ended(DEADLINE, asyncio.Event())


def test_a_master_that_ended_with_its_job_is_followed_by_another_at_the_same_port() -> None:
    async def test() -> None:
        found = master(ends=1)
        over: asyncio.Future[Record] = asyncio.get_running_loop().create_future()
        assert await found.endpoint() == Endpoint("10.0.0.1", 4321)
        keeping = asyncio.create_task(found.keep(over))
        await ended(found)
        assert (found.life, await found.endpoint(), found.life) == (0, Endpoint("10.0.0.1", 4321), 1)
        process = found._process
        await found.endpoint()
        assert found._process is process and not keeping.done()
        keeping.cancel()
        await asyncio.gather(keeping, return_exceptions=True)
        await found.close()

    run(test)


def test_a_master_that_was_killed_takes_the_job_up_again() -> None:
    async def test() -> None:
        found = master(crashes=1)
        over: asyncio.Future[Record] = asyncio.get_running_loop().create_future()
        await found.endpoint()
        first = found._process
        keeping = asyncio.create_task(found.keep(over))
        await ended(found)
        while found._process in (first, None):
            turn = asyncio.Event()
            asyncio.get_running_loop().call_soon(turn.set)
            await turn.wait()
        assert await found.endpoint() == Endpoint("10.0.0.1", 4321) and found.life == 0
        keeping.cancel()
        await asyncio.gather(keeping, return_exceptions=True)
        found.hurry()
        await found.close()

    run(test)


def test_one_that_does_not_serve_is_tried_again_by_the_next_who_asks() -> None:
    async def test() -> None:
        found = master(ends=1, fails=2)
        await found.endpoint()
        await ended(found)
        with pytest.raises(MasterUnreachableError, match="has not said why"):
            await found.endpoint()
        assert (found.life, await found.endpoint(), found.life) == (0, Endpoint("10.0.0.1", 4321), 1)
        await found.close()

    run(test)


def test_what_prints_for_ever_is_listened_to_for_a_while_after_the_end() -> None:
    async def test() -> None:
        over, loop = asyncio.Event(), asyncio.get_running_loop()
        patience = Patience(over)
        patience._left = 0.3

        async def read() -> Sequence[Chunk]:
            came = asyncio.Event()
            loop.call_later(0.1, came.set)
            await came.wait()
            return [(1, 1, b"still here")]

        assert await patience.wait(read())
        over.set()
        count = 0
        while await asyncio.wait_for(patience.wait(read()), DEADLINE):
            count += 1
        assert count <= 3

    run(test)


def test_nodes_are_kept_though_nobody_reads_what_the_driver_says() -> None:
    read_end, write_end = os.pipe2(os.O_NONBLOCK)
    with open(read_end, "rb"), open(write_end, "wb") as full:  # noqa: PTH123
        with contextlib.suppress(BlockingIOError):
            while os.write(write_end, b"x"):
                pass
        os.set_blocking(write_end, True)
        program = [sys.executable, str(ROOT / "tests/support/ray_unread.py")]
        done = subprocess.run(program, stderr=full, timeout=DEADLINE, check=False)
    assert done.returncode == 0
