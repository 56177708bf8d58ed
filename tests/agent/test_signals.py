"""The inbox with real signals to this process."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Iterable

import pytest

from elasticrun.agent.signals import SignalInbox
from tests.support.processes import DEADLINE


def kill_self(*signums: int) -> None:
    for signum in signums:
        os.kill(os.getpid(), signum)


def test_signals_before_during_and_after_the_loop() -> None:
    inbox = SignalInbox([signal.SIGTERM, signal.SIGINT])

    async def main() -> list[int]:
        seen: asyncio.Queue[int] = asyncio.Queue()
        inbox.attach(seen.put_nowait)
        got = [await asyncio.wait_for(seen.get(), DEADLINE) for _ in range(2)]
        kill_self(signal.SIGINT)
        got.append(await asyncio.wait_for(seen.get(), DEADLINE))
        inbox.detach()
        return got

    try:
        kill_self(signal.SIGTERM, signal.SIGINT)
        assert asyncio.run(main()) == [signal.SIGTERM, signal.SIGINT, signal.SIGINT]
        kill_self(signal.SIGTERM)
        assert inbox.take() == [signal.SIGTERM]
        assert inbox.take() == []
    finally:
        inbox.close()


def test_a_wait_before_there_is_a_loop() -> None:
    inbox = SignalInbox([signal.SIGTERM, signal.SIGWINCH])

    async def main() -> list[int]:
        seen: asyncio.Queue[int] = asyncio.Queue()
        inbox.attach(seen.put_nowait)
        got = [await asyncio.wait_for(seen.get(), DEADLINE) for _ in range(2)]
        inbox.detach()
        return got

    try:
        assert not inbox.wait(0.0)
        kill_self(signal.SIGWINCH)
        assert not inbox.wait(0.0, unmoved_by=(signal.SIGWINCH,))
        kill_self(signal.SIGTERM)
        assert inbox.wait(DEADLINE, unmoved_by=(signal.SIGWINCH,))
        assert inbox.wait(DEADLINE, unmoved_by=(signal.SIGWINCH,)), "it is not taken yet"
        assert asyncio.run(main()) == [signal.SIGWINCH, signal.SIGTERM]
        assert not inbox.wait(0.0)
    finally:
        inbox.close()


def test_signals_of_others_are_not_taken() -> None:
    before = signal.signal(signal.SIGUSR1, lambda number, frame: None)
    inbox = SignalInbox([signal.SIGTERM])
    try:
        kill_self(signal.SIGUSR1)
        assert inbox.take() == []
    finally:
        inbox.close()
        signal.signal(signal.SIGUSR1, before)


def test_close_gives_the_signals_back() -> None:
    before = signal.getsignal(signal.SIGTERM)
    SignalInbox([signal.SIGTERM]).close()
    assert signal.getsignal(signal.SIGTERM) is before
    assert signal.set_wakeup_fd(-1) == -1


@pytest.mark.parametrize(
    ("ignored", "signums", "taken"),
    [
        (signal.SIGHUP, [signal.SIGHUP, signal.SIGTERM], [signal.SIGTERM]),
        (signal.SIGINT, [signal.SIGHUP, signal.SIGINT], [signal.SIGHUP, signal.SIGINT]),
    ],
)
def test_nohup_is_respected(ignored: int, signums: Iterable[int], taken: list[int]) -> None:
    before = signal.signal(ignored, signal.SIG_IGN)
    inbox = SignalInbox(signums)
    try:
        kill_self(*signums)
        assert inbox.take() == taken
    finally:
        inbox.close()
        signal.signal(ignored, before)


def test_inbox_imports_no_asyncio() -> None:
    program = "import sys, elasticrun.agent.signals; sys.exit('asyncio' in sys.modules)"
    subprocess.run([sys.executable, "-c", program], check=True, timeout=DEADLINE)
