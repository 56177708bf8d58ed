"""Reads a stream in a thread, ahead of the loop.

Theory. Three places matter in a partition: what the source has fetched, what is in the buffer, and what the
loop has got. The thread owns the first, the loop the last one, and this file never moves the last one: each
item carries the position that the loop has once it takes it. So records that were read ahead are read again
after a restart. Records come in order; one that is below what was fetched already is dropped.

The buffer is bounded by records and by bytes. Where it is full, the thread waits for the loop. An error ends
the thread, and is raised in the loop after all that was read before it.

A broker that is away is tried again for ``patience`` seconds, with a warning, and is an error after that. The
training waits meanwhile: it has nothing to train on.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeVar

from elasticrun.core.data.streams import Gap
from elasticrun.data.streams.source import Record, Source
from elasticrun.errors import BrokerAwayError, OffsetGoneError

logger = logging.getLogger("elasticrun")

T = TypeVar("T")

#: How long a read waits for a record, in seconds. A record ends the wait; this bounds how long a stop takes.
WAIT = 1.0
#: How often the number of partitions is looked up, in seconds.
REFRESH = 300.0
FIRST_DELAY, LAST_DELAY = 0.1, 5.0  # seconds between two attempts to reach the broker


class Item(NamedTuple):
    """What the loop takes next of a partition."""

    partition: str
    offset: int
    value: Any  # decoded
    next: int  # the position after it
    size: int = 0
    fault: str = ""  # why the record is left out
    gap: Gap | None = None  # it is no record: some were removed


class Stopped(Exception):
    """The reading is over."""


class Limits(NamedTuple):
    """How much is read ahead, and how long a broker may be away."""

    records: int
    bytes: int
    patience: float
    skips_gaps: bool


def persist(action: Callable[[], T], patience: float, stopped: threading.Event) -> T:
    """Do something with the broker, again and again while it is away.

    Raises:
        BrokerAwayError: it was away for ``patience`` seconds.
        Stopped: nobody wants it any more.
    """
    began, delay = 0.0, FIRST_DELAY
    while True:
        try:
            found = action()
        except BrokerAwayError as error:
            now = time.monotonic()
            if not began:
                began = now
                logger.warning("%s; the training waits for it, up to %g s", error, patience)
            if now - began >= patience:
                raise BrokerAwayError(f"{error}; it was away for {patience:g} s") from error
            if stopped.wait(min(delay, max(0.0, began + patience - now))):
                raise Stopped from None
            delay = min(2 * delay, LAST_DELAY)
        else:
            if began:
                logger.warning("the broker answers again, after %.1f s", time.monotonic() - began)
            return found


class Prefetch:
    """A thread that fills a buffer from a source."""

    def __init__(
        self,
        source: Source,
        offsets: Mapping[str, int],
        convert: Callable[[Record], Item],
        limits: Limits,
    ) -> None:
        """``offsets``: where each partition begins. ``convert`` is called in the thread."""
        self._source, self._convert, self._limits = source, convert, limits
        self._fetched = dict(offsets)  # the thread's: where each partition goes on
        self._stopped = threading.Event()
        self._changed = threading.Condition()
        self._items = deque[Item]()  # with the lock of _changed, as all below
        self._bytes = 0
        self._error: Exception | None = None
        self._joining = dict[str, int]()  # partitions to read as well
        self._seen: tuple[str, ...] = ()
        self._thread = threading.Thread(target=self._run, name="elasticrun-stream", daemon=True)
        self._thread.start()

    def take(self, most: int, linger: float, may_be_empty: bool) -> list[Item]:
        """The next items: as soon as there are ``most``, or ``linger`` seconds after the first one came.

        At least one; ``may_be_empty``: or none after ``linger`` seconds. What went wrong in the thread is
        raised once nothing is left.
        """
        with self._changed:
            if not may_be_empty:
                self._changed.wait_for(lambda: self._items or self._error is not None)
            self._changed.wait_for(
                lambda: (
                    len(self._items) >= most or self._bytes >= self._limits.bytes or self._error is not None
                ),
                linger,
            )
            if self._error is not None and not self._items:
                raise self._error
            taken = [self._items.popleft() for _ in range(min(most, len(self._items)))]
            self._bytes -= sum(each.size for each in taken)
            self._changed.notify_all()
            return taken

    def join(self, offsets: Mapping[str, int]) -> None:
        """Read these partitions as well."""
        with self._changed:
            self._joining.update(offsets)
            self._changed.notify_all()

    @property
    def seen(self) -> tuple[str, ...]:
        """The partitions that there were when they were looked up last."""
        with self._changed:
            return self._seen

    def stop(self) -> None:
        """End the thread; takes up to ``WAIT`` seconds, or as long as the broker's client needs to answer."""
        self._stopped.set()
        with self._changed:
            self._changed.notify_all()
        self._thread.join()

    def _run(self) -> None:
        try:
            self._persist(lambda: self._source.seek(self._fetched))
            looked_up = time.monotonic()
            while (room := self._room()) is not None:
                self._take_in()
                if room and self._fetched:
                    self._read(room)
                if time.monotonic() - looked_up >= REFRESH:
                    looked_up = time.monotonic()
                    seen = tuple(self._persist(self._source.partitions))
                    with self._changed:
                        self._seen = seen
        except Stopped:
            pass
        except Exception as error:  # noqa: BLE001 whatever it is, the loop must hear of it
            with self._changed:
                self._error = error
                self._changed.notify_all()

    def _room(self) -> int | None:
        """Wait for room for records, or for something to read. None: it is over."""

        def is_ready() -> bool:
            has_room = len(self._items) < limits.records and self._bytes < limits.bytes
            has_work = bool(self._fetched) and has_room
            return has_work or bool(self._joining) or self._stopped.is_set()

        limits = self._limits
        with self._changed:
            self._changed.wait_for(is_ready, REFRESH)
            return None if self._stopped.is_set() else max(0, limits.records - len(self._items))

    def _take_in(self) -> None:
        with self._changed:
            joining, self._joining = self._joining, {}
        if joining:
            self._fetched |= joining
            self._persist(lambda: self._source.seek(self._fetched))

    def _read(self, room: int) -> None:
        try:
            records = self._persist(lambda: self._source.poll(WAIT, room))
        except OffsetGoneError as error:
            if not self._limits.skips_gaps or error.oldest <= self._fetched[error.partition]:
                raise
            gap = Gap(error.partition, self._fetched[error.partition], error.oldest)
            self._put(Item(gap.partition, gap.wanted, None, gap.oldest, gap=gap))
            self._fetched[gap.partition] = gap.oldest
            self._persist(lambda: self._source.seek(self._fetched))
            return
        for record in records:
            if record.offset >= self._fetched.get(record.partition, record.offset + 1):
                self._put(self._convert(record))
                self._fetched[record.partition] = record.offset + 1

    def _put(self, item: Item) -> None:
        with self._changed:
            self._items.append(item)
            self._bytes += item.size
            self._changed.notify_all()

    def _persist(self, action: Callable[[], T]) -> T:
        return persist(action, self._limits.patience, self._stopped)
