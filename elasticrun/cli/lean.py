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


def import_hmac_without_openssl() -> None:
    """Import hmac as on a Python without OpenSSL: with the digests that Python has of its own.

    Loading OpenSSL to hash some hundred bytes per stream would cost agent and master 3.5 MB each.
    """
    if "_hashlib" in sys.modules or "hmac" in sys.modules:
        return
    sys.modules["_hashlib"] = None  # type: ignore[assignment]
    try:
        import hashlib

        has_own_digest = "sha256" in hashlib.algorithms_available
        import hmac  # noqa: F401
    except ImportError:
        has_own_digest = False
    finally:
        del sys.modules["_hashlib"]
    if not has_own_digest:  # a Python that was built to have none; OpenSSL's then
        for name in ("hashlib", "hmac"):
            sys.modules.pop(name, None)
