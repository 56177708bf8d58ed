"""Carries out this node's orders for the storage (``core/state/writing.py``): pins, timers, writers."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from elasticrun.agent.memory.storage_access import Held, StorageAccess, WriteJob
from elasticrun.core.protocol.commits import CommitId
from elasticrun.core.protocol.storing import StoreOrder, StoreReport
from elasticrun.core.state.events import Pinned
from elasticrun.core.state.retrying import Trouble
from elasticrun.core.state.writing import (
    Ended,
    KillWriter,
    Ordered,
    Retry,
    StartWriter,
    Tell,
    Tick,
    Writing,
    WritingEvent,
)

logger = logging.getLogger(__name__)


class StateStoring:
    """The orders of one node. Made inside the running loop."""

    def __init__(
        self,
        access: StorageAccess | None,
        find: Callable[[CommitId, int], list[Held]],
        on_pin: Callable[[Pinned], None],
        on_report: Callable[[], None],
    ) -> None:
        """``find`` gives the pieces of a part, by group rank; none: it is not here. ``on_report`` is called
        whenever ``report`` has changed.
        """
        self.report: StoreReport | None = None
        self._access = access
        self._find = find
        self._on_pin = on_pin
        self._on_report = on_report
        self._loop = asyncio.get_running_loop()
        self._writing = Writing()
        self._timer: asyncio.TimerHandle | None = None

    def obey(self, order: StoreOrder | None) -> None:
        """Carry out an order; None: leave off."""
        self._handle(Ordered(order))

    def close(self) -> None:
        """Leave off. Writers end with the spawner."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _handle(self, event: WritingEvent) -> None:
        for effect in self._writing.handle(event, self._loop.time()):
            match effect:
                case Pinned():
                    self._on_pin(effect)
                case StartWriter(attempt, order):
                    self._start(attempt, order)
                case KillWriter(attempt):
                    assert self._access is not None, "a writer runs without a storage"
                    self._access.writers().kill(attempt)
                case Tell(report):
                    self.report = report
                    self._on_report()
                case Retry(text):
                    logger.warning("a saved state is not written yet: %s", text)
        self.close()
        deadline = self._writing.next_deadline()
        if deadline is not None:
            self._timer = self._loop.call_at(deadline, self._handle, Tick())

    def _start(self, attempt: int, order: StoreOrder) -> None:
        if self._access is None:
            self._refuse(attempt, "this node was started without --state-storage")
            return
        parts = [(part, self._find(order.commit, part.group_rank)) for part in order.parts]
        if missing := [part.group_rank for part, pieces in parts if not pieces]:
            self._refuse(attempt, f"part {missing[0]} of {order.commit} is not here")
            return
        job = WriteJob(self._access.url, order, parts, self._access.keep_last, self._access.keep_for)
        try:
            self._access.writers().start(attempt, job, self._handle)
        except OSError as error:
            self._fail(Ended(attempt, Trouble.OTHER, f"no writer can be started: {error.strerror}"))

    def _refuse(self, attempt: int, reason: str) -> None:
        self._fail(Ended(attempt, Trouble.DENIED, reason))

    def _fail(self, event: Ended) -> None:
        self._loop.call_soon(self._handle, event)  # not while another event is handled
