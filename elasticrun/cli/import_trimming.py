"""Import asyncio and hmac without the libraries that our processes never use."""

from __future__ import annotations

import sys


def import_asyncio_without_ssl() -> None:
    """Import asyncio as on a Python that was built without ssl, which asyncio supports.

    The agent and the master speak to each other through gRPC, whose core brings its own TLS; Python's would
    cost each of them 4.5 MB and several milliseconds of its start. A later import of ssl works as usual.
    """
    if "ssl" in sys.modules or "asyncio" in sys.modules:
        return
    sys.modules["ssl"] = None  # type: ignore[assignment]  # how Python marks what must not be found
    try:
        import asyncio  # noqa: F401
    finally:
        del sys.modules["ssl"]


def import_hmac_without_openssl() -> None:
    """Import hmac as on a Python without OpenSSL: with Python's own digests.

    Loading OpenSSL to hash some hundred bytes per stream would cost agent and master 3.5 MB each. A Python
    built without its own digests keeps OpenSSL's.
    """
    if "_hashlib" in sys.modules or "hmac" in sys.modules or not _has_digests():
        return
    sys.modules["_hashlib"] = None  # type: ignore[assignment]
    try:
        import hmac  # noqa: F401
    finally:
        del sys.modules["_hashlib"]


def _has_digests() -> bool:
    """Whether Python has all digests that hashlib wants; it would complain of a missing one on stderr."""
    sha2 = ("_sha2",) if sys.version_info >= (3, 12) else ("_sha256", "_sha512")
    try:
        for name in ("_md5", "_sha1", *sha2, "_sha3", "_blake2"):
            __import__(name)
    except ImportError:
        return False
    return True
