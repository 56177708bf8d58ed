"""Runs what ``elastic-ctl`` asks of a job, with as few imports as that needs."""

from __future__ import annotations

import os
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


def run_lean(ask: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """What a coroutine returns, run in a loop of its own."""
    from elasticrun.cli.import_trimming import import_asyncio_without_ssl, import_hmac_without_openssl

    os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # else its core prints lines of its own
    import_asyncio_without_ssl()
    import_hmac_without_openssl()
    import asyncio

    return asyncio.run(ask())
