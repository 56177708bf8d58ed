"""What a ``StreamDataset`` asks of a broker's client.

Theory. A source reads from where it is told, and remembers nothing: which records count is decided by the
state that is saved with the model. So it takes no part in the broker's own sharing of partitions, such as the
consumer groups of Kafka and Redis, where the broker decides by what was fetched or acknowledged.

An offset is a number that grows with each record of its partition. It may skip numbers. The one after record
``n`` is ``n + 1``, also where no record has it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Any, NamedTuple, Protocol

from elasticrun.errors import OffsetGoneError


class Start(Enum):
    """Where a partition begins that is in no saved state."""

    OLDEST = "oldest"  # the first record that is left
    NEWEST = "newest"  # the next one that comes
    COMMITTED = "committed"  # where the broker was told that the last training stood; else the oldest


class Record(NamedTuple):
    """One record as it came from the broker."""

    partition: str
    offset: int
    value: Any  # Kafka: bytes, None in a tombstone; Redis: a dict of bytes
    key: bytes | None = None
    size: int = 0  # in bytes


class Source(Protocol):
    """A client of a broker. ``find`` and ``commit`` are called while another thread is in ``poll``.

    Each method may raise BrokerAwayError, which is tried again, or another StreamError, which is not. No
    message may have a password.
    """

    @property
    def name(self) -> str:
        """What it reads, for messages."""

    def partitions(self) -> Sequence[str]:
        """All partitions that there are now."""

    def find(self, partitions: Sequence[str], start: Start) -> Mapping[str, int]:
        """The offsets to begin at. COMMITTED has only those that the broker knows."""

    def seek(self, offsets: Mapping[str, int]) -> None:
        """Read these partitions from these offsets on, and no others."""

    def poll(self, timeout: float, most: int) -> Sequence[Record]:
        """Wait so many seconds for records; about ``most``, in the order of their partition.

        Raises:
            OffsetGoneError: what comes next in a partition was removed. Nothing was skipped.
        """

    def commit(self, offsets: Mapping[str, int]) -> None:
        """Tell the broker where the training stands. Called when a storage has the model of these offsets."""

    def shown(self, offset: int) -> str:
        """An offset as users know it."""

    def close(self) -> None:
        """Hang up."""


def gone(source: Source, partition: str, wanted: int, oldest: int) -> OffsetGoneError:
    """The error for records that were removed."""
    return OffsetGoneError(
        f"{partition} of {source.name} was to go on at offset {source.shown(wanted)}, but the oldest that is"
        f" left is {source.shown(oldest)}: keep records for longer, or go on from there with"
        " on_gap='oldest', which reports the gap",
        partition,
        wanted,
        oldest,
    )
