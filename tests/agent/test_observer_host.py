"""The observer's process seen from its agent: real processes that are no observers."""

from __future__ import annotations

import asyncio
import logging
import sys

import pytest

from elasticrun.agent import observer_host
from elasticrun.agent.observer_host import MOST, ObserverCommand, ObserverHost
from tests.support.processes import DEADLINE

#: Says where its page is, and waits for the end of its stdin.
READ = "import sys, json; settings = json.loads(sys.stdin.readline());"
GOOD = f"{READ} print(json.dumps({{'url': settings['secret']}}), flush=True); sys.stdin.read()"
BAD = f"{READ} print(json.dumps({{'error': 'it is so'}}), flush=True)"
DEAD = READ


def host_of(code: str) -> ObserverHost:
    return ObserverHost(ObserverCommand((sys.executable, "-c", code), {"secret": "http://a/"}, None))


def test_it_hears_by_a_pipe_tells_where_the_page_is_and_ends_with_the_agent() -> None:
    async def work() -> None:
        host, told = host_of(GOOD), asyncio.Queue[str]()
        assert not host.pids
        host.start(told.put_nowait)
        assert await asyncio.wait_for(told.get(), DEADLINE) == "http://a/"
        (pid,) = host.pids
        assert pid > 0
        await host.close()
        assert not host.pids

    asyncio.run(work())


@pytest.mark.parametrize(
    ("code", "warning", "count"),
    [(BAD, "the observer ends: it is so; the job goes on without", 1), (DEAD, "is started again", MOST - 1)],
)
def test_one_that_fails_is_a_warning_and_no_more(
    code: str, warning: str, count: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(observer_host, "PAUSE", 0.0)

    async def work() -> None:
        host = host_of(code)
        host.start(lambda url: None)
        assert host._task is not None
        await asyncio.wait_for(host._task, DEADLINE)
        await host.close()

    with caplog.at_level(logging.WARNING):
        asyncio.run(work())
    assert sum(warning in message for message in caplog.messages) == count
    if code is DEAD:
        assert f"ended {MOST} times" in caplog.messages[-1]


def test_one_that_cannot_be_started_is_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    async def work() -> None:
        host = ObserverHost(ObserverCommand(("/nonexistent",), {}, None))
        host.start(lambda url: None)
        assert host._task is not None
        await asyncio.wait_for(host._task, DEADLINE)
        await host.close()

    with caplog.at_level(logging.WARNING):
        asyncio.run(work())
    assert "cannot be started" in caplog.text
