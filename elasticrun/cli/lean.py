"""Leave out of a process what it will never use."""

from __future__ import annotations

import sys


def import_asyncio_without_ssl() -> None:
    """Import asyncio as on a Python that was built without ssl, which asyncio provides for.

    The agent and the master speak to each other through gRPC, whose core brings its own TLS; Python's would
    cost each of them 4.5 MB and several milliseconds of its start. Nothing else is touched: whoever
    imports ssl afterwards gets it.
    """
    if "ssl" in sys.modules or "asyncio" in sys.modules:
        return
    sys.modules["ssl"] = None  # type: ignore[assignment]  # how Python marks what must not be found
    try:
        import asyncio  # noqa: F401
    finally:
        del sys.modules["ssl"]
