"""Which offsets of a stream a broker may be told, so that it never knows more than a storage does.

Theory. Offsets that were told to a broker are a promise: what lies before them is not needed any more. A
state that is only in memory may still be lost, and the training then goes back behind it. So the offsets of
each saved step are kept here until a storage has that step, or a later one: ``durable``. A later step of the
same course has read on, so its offsets are beyond; therefore the newest step that is known, and not beyond
the durable one, is always safe to tell. To forget a saved step only makes the broker hear of it later, so the
memory is bounded.

Per partition the offsets only grow, except by ``restored``: the course of the training has changed then, and
with it what may be told. Calls may come late, twice or in any order: what was told before is not told again.
"""

from __future__ import annotations

from collections.abc import Mapping

from elasticrun.core.protocol.commits import CommitId
from elasticrun.errors import DataError

#: The most saved steps that are kept while no storage has them.
MAX_SAVES = 1024

Offsets = Mapping[str, int]  # by partition: the first one that is not trained on


class OffsetLog:
    """The offsets of saved steps, from the newest that is durable on."""

    def __init__(self) -> None:
        self._saves: dict[CommitId, dict[str, int]] = {}  # oldest first
        self._durable: CommitId | None = None  # the newest of them that a storage has
        self._told: dict[str, int] = {}  # what the broker knows

    def saved(self, commit: CommitId, offsets: Offsets) -> None:
        """A step is saved. If it is older than others, the training went back to before them.

        Raises:
            DataError: an offset went back without a restore.
        """
        self._forget_after(commit)
        self._saves.pop(commit, None)
        for partition, before in next(reversed(self._saves.values()), {}).items():
            if offsets.get(partition, before) < before:
                raise DataError(
                    f"the offset of {partition} went back from {before} to {offsets[partition]} at {commit}:"
                    " only a restored state may do that"
                )
        self._saves[commit] = dict(offsets)
        if len(self._saves) > MAX_SAVES:
            self._thin()

    def restored(self, commit: CommitId, offsets: Offsets) -> None:
        """The training goes on from a saved step, so the broker's offsets may go back to it."""
        self._forget_after(commit)
        self._saves.pop(commit, None)
        self._saves[commit] = dict(offsets)
        self._told.clear()

    def durable(self, commit: CommitId) -> dict[str, int]:
        """A storage has this step. Returns the offsets to tell the broker; none if it knows them all."""
        known = [each for each in self._saves if each.age <= commit.age]
        if known:
            self._durable = known[-1]
            for each in known[:-1]:
                del self._saves[each]
        if self._durable is None:
            return {}
        due = self._saves[self._durable]
        return {name: offset for name, offset in due.items() if offset > self._told.get(name, -1)}

    def told(self, offsets: Offsets) -> None:
        """The broker has taken these offsets."""
        for partition, offset in offsets.items():
            self._told[partition] = max(offset, self._told.get(partition, offset))

    @property
    def is_empty(self) -> bool:
        """Whether no saved step is known."""
        return not self._saves

    def _forget_after(self, commit: CommitId) -> None:
        for each in [each for each in self._saves if each.age > commit.age]:
            del self._saves[each]
        if self._durable is not None and self._durable.age > commit.age:
            self._durable = None

    def _thin(self) -> None:
        """Forget every second step, but neither the oldest, which may be the durable one, nor the newest."""
        for each in list(self._saves)[1:-1:2]:
            del self._saves[each]
