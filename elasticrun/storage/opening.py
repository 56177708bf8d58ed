"""Opens the store at a path or a URL."""

from __future__ import annotations

import re

from elasticrun.errors import UsageError
from elasticrun.storage.disk import DiskStore
from elasticrun.storage.store import Store

_PROTOCOL = re.compile(r"([a-zA-Z][a-zA-Z0-9+.-]*)(?:://|::)")


def open_store(url: str, make: bool = False) -> Store:
    """The store at a directory, or at a URL such as ``s3://bucket/runs``. ``make``: it may be new.

    Raises:
        UsageError: there is nothing that could read such a URL.
        StorageError: the directory does not exist, or cannot be made.
    """
    match = _PROTOCOL.match(url)
    if match is None or match[1] == "file":
        return DiskStore(url.removeprefix("file://"), make=make)
    try:
        from elasticrun.storage.remote import RemoteStore
    except ImportError:
        raise UsageError(
            f"{url}: URLs are read with the package fsspec, which is not installed:"
            " pip install 'elasticrun[storage]'"
        ) from None
    return RemoteStore(url)
