"""What Ctrl-C does to a verb of ``elastic-ctl`` that waits."""

from __future__ import annotations

import asyncio
import signal

import pytest

from elasticrun.cli.ctl_run import run_lean


def test_ctrl_c_cancels_between_two_callbacks() -> None:
    ends: list[str] = []

    async def ask() -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda loop, context: ends.append(str(context["exception"])))
        asked = loop.create_future()

        def answer() -> None:
            assert not asked.done()
            signal.raise_signal(signal.SIGINT)
            asked.set_result(None)

        loop.call_soon(answer)
        try:
            await asked
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            ends.append("cancelled")
            raise

    with pytest.raises(KeyboardInterrupt):
        run_lean(ask)
    assert ends == ["cancelled"]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_second_ctrl_c_does_not_wait_for_the_loop() -> None:
    async def ask() -> None:
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)
        pytest.fail("code that never returns to the loop went on")

    with pytest.raises(KeyboardInterrupt):
        run_lean(ask)


def test_a_handler_of_somebody_else_stays() -> None:
    taken: list[int] = []

    async def ask() -> str:
        signal.raise_signal(signal.SIGINT)
        return "answer"

    before = signal.signal(signal.SIGINT, lambda signum, frame: taken.append(signum))
    try:
        assert run_lean(ask) == "answer"
    finally:
        signal.signal(signal.SIGINT, before)
    assert taken == [signal.SIGINT]


def test_a_verb_that_cancels_itself_was_not_interrupted() -> None:
    async def ask() -> None:
        raise asyncio.CancelledError

    with pytest.raises(asyncio.CancelledError):
        run_lean(ask)
