"""What a rank has trained on since it was asked last, and what was left out, for ``elastic-ctl audit``.

Nobody may ever ask, so it has an end: beyond ``MOST`` pieces, or what is too long for a line of a record, it
is dropped, and says that it was.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

MOST = 100_000
MOST_REASON = 200  # characters
MOST_BYTES = 16 << 20  # as JSON; names may be long
Trained = tuple[int, str, int, int]  # epoch, name, first record, and the one after the last
LeftOut = tuple[int, str, int, int, str]  # the same, and why


class Trail:
    """Pieces of shards, in the order in which they were trained on."""

    def __init__(self) -> None:
        self._begun: dict[str, Any] | None = None
        self.clear()

    def begin(self, left: Mapping[str, Any] | None) -> None:
        """Begin with what was left in a state; None: others tell that."""
        self.clear()
        self._begun = None if left is None else {key: it for key, it in left.items() if key != "plan"}

    def add(self, epoch: int, name: str, start: int, stop: int) -> None:
        """Records were handed to the loop."""
        if self._pieces and self._pieces[-1][:2] == (epoch, name) and self._pieces[-1][3] == start:
            start = self._pieces.pop()[2]
        else:
            self._make_room(epoch, name, start, stop)
        self._pieces.append((epoch, name, start, stop))

    def leave_out(self, epoch: int, name: str, start: int, stop: int, reason: str) -> None:
        """Records are not tried again."""
        piece = epoch, name, start, stop, reason[:MOST_REASON]
        self._make_room(*piece)
        self._left_out.append(piece)

    def clear(self) -> None:
        """Drop what was trained on, and left out."""
        self._pieces: list[Trained] = []
        self._left_out: list[LeftOut] = []
        self._bytes = 0
        self._is_lost = False

    def taken(self) -> dict[str, Any]:
        """What was added since the last time, as plain values."""
        found: dict[str, Any] = {"trained": [list(each) for each in self._pieces], "lost": self._is_lost}
        if self._left_out:
            found["left_out"] = [list(each) for each in self._left_out]
        if self._begun is not None:
            found["begun"] = self._begun
        self.clear()
        self._begun = None
        return found

    def _make_room(self, *piece: object) -> None:
        """Drop all if there is no room for one more."""
        size = len(json.dumps(piece))
        if len(self._pieces) + len(self._left_out) == MOST or self._bytes + size > MOST_BYTES:
            self.clear()
            self._is_lost = True
        self._bytes += size
