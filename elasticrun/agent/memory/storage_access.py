"""What the memory for saved states is told of the job's storage, and asks of whoever starts processes."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol

from elasticrun.core.protocol.storing import StoreOrder, StorePart
from elasticrun.core.state.events import Piece
from elasticrun.core.state.writing import Ended, Moved

#: A piece of a part, and the descriptor of its memory.
Held = tuple[Piece, int]


class WriteJob(NamedTuple):
    """What one writer does."""

    url: str
    order: StoreOrder
    parts: list[tuple[StorePart, list[Held]]]  # to be written
    keep_last: int | None  # once it has finished a commit
    keep_for: float | None


class Writers(Protocol):
    """Starts the processes that write."""

    def start(self, attempt: int, job: WriteJob, on_event: Callable[[Moved | Ended], None]) -> None:
        """Start a writer; ``Ended`` follows, from the loop."""

    def kill(self, attempt: int) -> None:
        """Kill a writer."""


class StorageAccess(NamedTuple):
    """How this node writes to the storage."""

    url: str  # or an absolute path
    keep_last: int | None
    keep_for: float | None
    writers: Callable[[], Writers]
