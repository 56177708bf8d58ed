"""How a ``StreamDataset`` reads, checked."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from elasticrun.core.data.record import is_number
from elasticrun.data.streams.prefetch import Item, Limits
from elasticrun.data.streams.source import Record, Start
from elasticrun.dataclass import dataclass
from elasticrun.errors import DataError

#: The longest reason for which a record is left out: it is saved with each state.
LONGEST = 200


@dataclass(frozen=True, slots=True)
class Options:
    """The options of a ``StreamDataset``."""

    batch_size: int
    linger: float
    may_be_empty: bool
    start: str
    on_gap: str
    prefetch: int
    max_bytes: int
    max_failed: int
    patience: float

    def check(self) -> None:
        """DataError: one of them is none that can be."""
        for name, least in (("batch_size", 1), ("prefetch", 1), ("max_bytes", 1), ("max_failed", 0)):
            if not is_number(value := getattr(self, name), least):
                raise DataError(f"{name} is a number from {least} on, got {value!r}")
        for name in ("linger", "patience"):
            if not 0 <= (seconds := getattr(self, name)) < 1e9:
                raise DataError(f"{name} is a number of seconds from 0 on, got {seconds!r}")
        if self.on_gap not in ("refuse", "oldest"):
            raise DataError(f"on_gap is 'refuse' or 'oldest', got {self.on_gap!r}")
        if self.start not in [each.value for each in Start]:
            raise DataError(f"start is 'oldest', 'newest' or 'committed', got {self.start!r}")

    @property
    def limits(self) -> Limits:
        """How much is read ahead."""
        ahead = self.prefetch
        return Limits(self.batch_size * ahead, self.max_bytes * ahead, self.patience, self.on_gap == "oldest")


def converter(decode: Callable[[Record], Any] | None, max_bytes: int) -> Callable[[Record], Item]:
    """Makes items of records, in the thread that reads."""

    def convert(record: Record) -> Item:
        value, fault = record.value, ""
        if record.size > max_bytes:
            fault = f"it has {record.size} bytes, at most {max_bytes} are read (max_bytes)"
        elif decode is not None:
            try:
                value = decode(record)
            except Exception as error:  # noqa: BLE001 whatever is wrong with a record, the others are read
                fault = f"{type(error).__name__}: {error}"[:LONGEST]
        if fault:
            return Item(record.partition, record.offset, None, record.offset + 1, fault=fault)
        return Item(record.partition, record.offset, value, record.offset + 1, record.size)

    return convert
