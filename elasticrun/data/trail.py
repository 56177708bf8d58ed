"""What a rank has trained on since it was asked last, for ``elastic-ctl audit``.

Nobody may ever ask, so it has an end: beyond ``MOST`` pieces it is dropped, and says that it was.
"""

from __future__ import annotations

from typing import Any

MOST = 100_000
Trained = tuple[int, str, int, int]  # epoch, name, first record, and the one after the last


class Trail:
    """Pieces of shards, in the order in which they were trained on."""

    def __init__(self) -> None:
        self._pieces: list[Trained] = []
        self._is_lost = False

    def add(self, epoch: int, name: str, start: int, stop: int) -> None:
        """Records were handed to the loop."""
        if self._pieces and self._pieces[-1][:2] == (epoch, name) and self._pieces[-1][3] == start:
            start = self._pieces.pop()[2]
        elif len(self._pieces) == MOST:
            self.clear()
            self._is_lost = True
        self._pieces.append((epoch, name, start, stop))

    def clear(self) -> None:
        """Begin anew."""
        self._pieces, self._is_lost = [], False

    def taken(self) -> dict[str, Any]:
        """What was added since the last time, as plain values."""
        found = {"trained": [list(each) for each in self._pieces], "lost": self._is_lost}
        self.clear()
        return found
