"""An observer at work: whom it waits for, and what it needs."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
from contextlib import suppress
from typing import Any, cast

import pytest

from elasticrun import follower
from elasticrun.clock import pause
from elasticrun.config import SecurityConfig
from elasticrun.control import JobControl
from elasticrun.errors import ElasticRunError, MasterUnreachableError, UsageError, WrongVersionError
from elasticrun.follower import Follower
from elasticrun.observer import observe as module
from elasticrun.observer.access import Reading
from elasticrun.observer.live import Live
from elasticrun.observer.observe import _work, observe
from elasticrun.observer.settings import ObserverSettings
from elasticrun.rpc.records import to_json
from tests.support.processes import DEADLINE
from tests.support.watched import Pretended

SETTINGS = ObserverSettings(
    job_id=None,
    launcher=1,
    endpoints=(),
    security=SecurityConfig(),
    timeout=1.0,
    listener=-1,
    host="",
    reading=Reading.AUTO,
    traces="",
)


def test_whatever_else_is_on_this_host_the_job_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another job of this user, of another version, is no reason to give up before the own master listens."""
    troubles: list[ElasticRunError] = [
        WrongVersionError("the job runs another version"),
        UsageError("another job is on this host and gives no sensible answer"),
        MasterUnreachableError("no job is on this host"),
    ]
    until = asyncio.Event()

    async def on_this_host(*_: Any) -> JobControl:
        if troubles:
            raise troubles.pop(0)
        until.set()
        raise MasterUnreachableError("no job is on this host")

    monkeypatch.setattr(follower, "RETRY", 0.0)
    monkeypatch.setattr(JobControl, "on_this_host", on_this_host)
    asyncio.run(asyncio.wait_for(observe(SETTINGS, None, until, lambda url: None), DEADLINE))
    assert not troubles


def test_traces_alone_need_no_aiohttp() -> None:
    code = "import sys; sys.modules['aiohttp'] = None; import elasticrun.observer.main"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=DEADLINE)
    assert done.returncode == 0, done.stderr


def test_signals_that_mean_its_launcher_do_not_end_it() -> None:
    """Slurm's notice, SIGUSR1, reaches all processes of a step."""
    command = [sys.executable, "-c", "from elasticrun.observer.main import main; raise SystemExit(main())"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None and process.stdout is not None
        process.stdin.write(json.dumps(to_json(SETTINGS)).encode() + b"\n")
        process.stdin.flush()
        assert json.loads(process.stdout.readline()) == {"url": ""}
        for name in ("SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT", "SIGUSR1"):
            process.send_signal(signal.Signals[name])
        process.stdin.close()
        assert process.wait(DEADLINE) == 0


class Behind:
    """A follower that has the job's last news some turns of the loop after they have come."""

    is_done = False

    async def run(self) -> None:
        for _ in range(20):
            await pause(0.0)
        self.is_done = True


def test_news_that_come_with_the_launchers_end_are_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """The host may have had no time for the observer until both were there."""
    monkeypatch.setattr(module, "LAST_NEWS", DEADLINE)

    async def watch() -> bool:
        until, behind = asyncio.Event(), Behind()
        until.set()
        await _work(cast("Follower", behind), Live(Pretended(2, 1)), until)
        return behind.is_done

    assert asyncio.run(watch())


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
