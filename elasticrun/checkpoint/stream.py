"""The file that ``torch.save`` writes into: it digests what comes, and hands it on in blocks."""

from __future__ import annotations

import io
import zlib
from collections.abc import Callable
from typing import Any

from elasticrun.storage.store import Sink

#: Bytes that are written at a time.
BLOCK = 4 << 20
#: Bytes up to which writes are collected: ``torch.save`` makes dozens of a few bytes for each tensor.
SMALL = 256 << 10

Told = Callable[[int], None]


class Stream(io.RawIOBase):
    """What ``torch.save`` writes into. Counts, digests, and hands on in blocks; collects small writes."""

    def __init__(self, sink: Sink, told: Told) -> None:
        self._sink = sink
        self._told = told
        self._check = 0
        self._small = bytearray()
        self.at = 0
        self.failure: BaseException | None = None  # of the storage

    def writable(self) -> bool:
        """Say that it can be written."""
        return True

    def write(self, data: Any) -> int:
        """Write all of it."""
        view = memoryview(data).cast("B")
        if len(self._small) + len(view) > SMALL:
            self.drain()
        for start in range(0, len(view), BLOCK):
            block = view[start : start + BLOCK]
            self._check = zlib.crc32(block, self._check)
            if len(view) <= SMALL:
                self._small += block
            else:
                self._hand_on(block)
        self.at += len(view)
        return len(view)

    def drain(self) -> None:
        """Hand on what was collected."""
        if self._small:
            small, self._small = self._small, bytearray()
            self._hand_on(memoryview(small))

    def _hand_on(self, block: memoryview) -> None:
        try:
            self._sink(block)
            self._told(len(block))
        except BaseException as error:
            self.failure = error
            raise

    def take_check(self) -> str:
        """The digest of all since this was called last."""
        check, self._check = self._check, 0
        return f"{check:08x}"
