"""What the keys do to a picture of a job, whatever the picture is fed by."""

from __future__ import annotations

from collections.abc import Sequence

from elasticrun.ui.top.frame import Frame, NodeRow
from elasticrun.ui.top.picture import View

_MOVES = {"j": 1, "down": 1, "k": -1, "up": -1, "page down": 10, "page up": -10}
_LEAVE = frozenset({"q", "Q", "escape", "\x03", "\x04"})


class Board:
    """Which node is selected, and what is said at the lower edge."""

    def __init__(self, keys: str) -> None:
        """``keys``: what can be typed, in words."""
        self.selected = ""
        self.message = ""
        self.question = ""
        self.is_help = False
        self.is_left = False
        self._keys = keys

    def view(self, frame: Frame, is_plain: bool, moment: str = "") -> View:
        """How this frame is looked at. A selected node that is gone is none any more."""
        if frame.nodes and all(row.name != self.selected for row in frame.nodes):
            self.selected = frame.nodes[0].name
        return View(
            selected=self.selected if frame.nodes else "",
            keys=self._keys,
            question=self.question,
            message=self.message,
            moment=moment,
            is_help=self.is_help,
            is_plain=is_plain,
        )

    def key(self, key: str, rows: Sequence[NodeRow]) -> bool:
        """Take a key that works in any picture; whether it was one."""
        self.message = ""
        if key in _LEAVE:
            if self.is_help and key == "escape":
                self.is_help = False
            else:
                self.is_left = True
        elif key == "?":
            self.is_help = not self.is_help
        elif key in _MOVES:
            self._move(_MOVES[key], rows)
        else:
            return False
        return True

    def select(self, number: int, rows: Sequence[NodeRow]) -> None:
        """Select one of these rows; the nearest, if there is none of that number."""
        if rows:
            self.selected = rows[min(max(number, 0), len(rows) - 1)].name

    def _move(self, by: int, rows: Sequence[NodeRow]) -> None:
        at = next((number for number, row in enumerate(rows) if row.name == self.selected), 0)
        self.select(at + by, rows)
