"""Where a ``ShardedDataset`` gets its leases from.

``LocalLeases`` keeps the ledger in the worker's own process, so it is for a world of one. ``SharedLeases``
(``shared_leases.py``) asks the ledger of the master, which all ranks share. Their states are alike, so a
training goes on from one to the other.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from elasticrun.core.data.leases import Failed, Holder, Lease, Ledger, Progress
from elasticrun.core.data.shards import Plan
from elasticrun.core.protocol.commits import CommitId
from elasticrun.core.protocol.data import MAX_FAILED

_ME = Holder(0, "this process")


class LeaseSource(Protocol):
    """The ledger, as one worker sees it. Each method may raise DataError: this worker has no say any more."""

    @property
    def failed(self) -> tuple[Failed, ...]:
        """What could not be read, and is not tried again: the newest."""

    def news(self) -> tuple[Failed, ...]:
        """The same, since this was called last, or since a state was loaded."""

    def take(self, epoch: int) -> tuple[Lease, ...]:
        """The next lease of epochs up to this one, if there is one."""

    def consume(self, progress: Mapping[int, Progress]) -> None:
        """What was trained on is in the state that is being saved."""

    def end(self, lease: int, progress: Progress) -> None:
        """A lease is over, and in no state: nobody will ever read it again."""

    def fail(self, lease: int, at: int, reason: str) -> None:
        """A lease cannot be read from a record on."""

    def state(self) -> dict[str, Any]:
        """What was not consumed by now, as plain values."""

    def load(self, state: object) -> None:
        """Go on from a state. All leases are given back."""


class LocalLeases:
    """A ledger of this process alone."""

    def __init__(self, plan: Plan, retries: int = 3) -> None:
        self._plan, self._retries = plan, retries
        self._told = 0  # how many of the failures are no news
        self._use(Ledger(plan, retries=retries))

    @property
    def failed(self) -> tuple[Failed, ...]:
        return tuple(self._ledger.failed)

    def news(self) -> tuple[Failed, ...]:
        found = tuple(self._ledger.failed[self._told :])
        self._told = len(self._ledger.failed)
        return found

    def take(self, epoch: int) -> tuple[Lease, ...]:
        self._request += 1
        return self._ledger.take(_ME, self._request, epoch, 0.0)

    def consume(self, progress: Mapping[int, Progress]) -> None:
        """Failures that were told are forgotten, but for the newest."""
        forgotten = max(0, self._told - MAX_FAILED)
        del self._ledger.failed[:forgotten]
        self._told -= forgotten
        self._step += 1
        self._ledger.consume(_ME, self._step, progress, 0.0)
        self._ledger.settle(CommitId(0, self._step))

    def end(self, lease: int, progress: Progress) -> None:
        self.consume({lease: progress})

    def fail(self, lease: int, at: int, reason: str) -> None:
        self._ledger.fail(_ME, lease, at, reason)

    def state(self) -> dict[str, Any]:
        return self._ledger.state()

    def load(self, state: object) -> None:
        self._use(Ledger.of_state(self._plan, state, retries=self._retries))

    def _use(self, ledger: Ledger) -> None:
        self._ledger, self._request, self._step = ledger, 0, 0
        self._told = len(ledger.failed)
        ledger.restore(0, None)
