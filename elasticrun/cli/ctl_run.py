"""Runs what a verb of ``elastic-ctl`` does, with as few imports as that needs, and ends it if it fails."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import click

from elasticrun.core.protocol.plain import one_line, plain
from elasticrun.errors import ElasticRunError, OrderDeclinedError

T = TypeVar("T")


def run_lean(ask: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """What a coroutine returns, run in a loop of its own."""
    from elasticrun.cli.import_trimming import import_asyncio_without_ssl, import_hmac_without_openssl

    os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # else its core prints lines of its own
    import_asyncio_without_ssl()
    import_hmac_without_openssl()
    import asyncio

    return asyncio.run(ask())


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
