"""Named deadlines with O(log n) per change and no scan.

Each name has at most one live heap entry. Moving a deadline *later*, which is what every heartbeat
does, touches only the dictionary; the stale entry is pushed back when it surfaces. Moving it earlier
pushes a second entry and the older one is dropped when it surfaces. So the heap never holds more than
one entry for each push, and a heartbeat costs O(1).
"""

from __future__ import annotations

import heapq
from collections.abc import Hashable
from typing import Generic, TypeVar

Name = TypeVar("Name", bound=Hashable)


class Deadlines(Generic[Name]):
    """A set of deadlines in seconds of the caller's clock."""

    def __init__(self) -> None:
        self._due: dict[Name, float] = {}
        self._queued: dict[Name, float] = {}  # instant of the one valid heap entry of a name
        self._heap: list[tuple[float, int, Name]] = []
        self._tiebreak = 0

    def __contains__(self, name: object) -> bool:
        return name in self._due

    def set(self, name: Name, at: float) -> None:
        """Make ``name`` due at ``at``, whatever it was before."""
        self._due[name] = at
        queued = self._queued.get(name)
        if queued is None or at < queued:
            self._push(name, at)

    def set_default(self, name: Name, at: float) -> None:
        """Make ``name`` due at ``at`` unless it is set already."""
        if name not in self._due:
            self.set(name, at)

    def cancel(self, name: Name) -> None:
        """Forget ``name``; no error if it is not set."""
        self._due.pop(name, None)

    def at(self, name: Name) -> float | None:
        """When ``name`` is due, or None."""
        return self._due.get(name)

    def next(self) -> float | None:
        """The earliest deadline, or None."""
        self._settle()
        return self._heap[0][0] if self._heap else None

    def first_due(self, now: float) -> Name | None:
        """The earliest name due at ``now``, which stays set, or None."""
        at = self.next()
        return self._heap[0][2] if at is not None and at <= now else None

    def pop_due(self, now: float) -> list[Name]:
        """Remove and return the names due at ``now``, earliest first."""
        due: list[Name] = []
        while (at := self.next()) is not None and at <= now:
            _, _, name = heapq.heappop(self._heap)
            del self._queued[name], self._due[name]
            due.append(name)
        return due

    def _push(self, name: Name, at: float) -> None:
        self._tiebreak += 1
        self._queued[name] = at
        heapq.heappush(self._heap, (at, self._tiebreak, name))

    def _settle(self) -> None:
        """Bring a valid entry to the top of the heap."""
        while self._heap:
            at, _, name = self._heap[0]
            if self._queued.get(name) == at and self._due.get(name) == at:
                return
            heapq.heappop(self._heap)
            if self._queued.get(name) != at:
                continue  # a second, earlier entry took over
            del self._queued[name]
            if name in self._due:
                self._push(name, self._due[name])
