"""Runs what a verb of ``elastic-ctl`` does, with as few imports as that needs, and ends it if it fails."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import click

from elasticrun.core.protocol.plain import one_line, plain
from elasticrun.errors import ElasticRunError, OrderDeclinedError

T = TypeVar("T")


def run_lean(ask: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """What a coroutine returns, run in a loop of its own. Ctrl-C cancels it, and raises KeyboardInterrupt."""
    from elasticrun.cli.import_trimming import import_asyncio_without_ssl, import_hmac_without_openssl

    os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # else its core prints lines of its own
    import_asyncio_without_ssl()
    import_hmac_without_openssl()
    import asyncio

    with _interrupts() as interrupts:
        try:
            return asyncio.run(interrupts.watch(ask))
        except asyncio.CancelledError:
            if interrupts.count:
                raise KeyboardInterrupt from None
            raise


class _Interrupts:
    """Cancels the running task at the first Ctrl-C, between two callbacks of its loop.

    The handler of ``asyncio.run`` cancels in the midst of whichever callback runs: one that has just asked
    whether a future is done then fails as it sets it, and the loop prints a traceback of that. A second
    Ctrl-C is raised at once, as the first may wait for code that does not return to the loop.
    """

    def __init__(self) -> None:
        self.count = 0
        self._cancel: Callable[[], object] | None = None

    async def watch(self, ask: Callable[[], Coroutine[Any, Any, T]]) -> T:
        import asyncio

        task = asyncio.current_task()
        assert task is not None
        loop = asyncio.get_running_loop()
        self._cancel = lambda: loop.call_soon_threadsafe(task.cancel)
        try:
            return await ask()
        finally:
            self._cancel = None

    def take(self, signum: int, frame: object) -> None:
        self.count += 1
        if self.count > 1 or self._cancel is None:
            raise KeyboardInterrupt
        self._cancel()


@contextmanager
def _interrupts() -> Iterator[_Interrupts]:
    """Takes Ctrl-C, unless it is ignored or somebody else takes it."""
    interrupts = _Interrupts()
    taken = signal.getsignal(signal.SIGINT) is not signal.default_int_handler
    if taken or threading.current_thread() is not threading.main_thread():  # which alone may set a handler
        yield interrupts
        return
    signal.signal(signal.SIGINT, interrupts.take)
    try:
        yield interrupts
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@contextmanager
def exit_on_errors() -> Iterator[None]:
    """End the program if what is inside fails: with one sentence on stderr, and the exit code of the error.

    What the master declines is told in its own words. Ctrl-C ends the program without a word, as a signal.
    """
    try:
        yield
    except OrderDeclinedError as error:
        click.echo(plain(str(error)), err=True)
        sys.exit(error.exit_code)
    except ElasticRunError as error:
        click.echo(f"elastic-ctl: error: {one_line(str(error))}", err=True)
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        sys.exit(128 + signal.SIGINT)


def has_colours() -> bool:
    """Whether stdout is a terminal that has colours, and nobody asked for none."""
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
