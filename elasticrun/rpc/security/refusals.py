"""Refused streams, told once and counted: an agent with a wrong token tries again and again.

The first refusal of an address for a reason is told at once. More of the same are counted, and told together
every ``EACH`` seconds, until none came for so long. Only the first ``MOST`` pairs of an address and a reason
are kept; of others each is told, as far as the gate lets lines be written at all (``limits.py``).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

#: Seconds between two lines about the same, and how many different ones are kept.
EACH = 60.0
MOST = 64
_Kind = tuple[bytes, str]


class Refusals:
    """Of one server."""

    def __init__(self) -> None:
        self._counts: dict[_Kind, int] = {}  # since the last line

    def hear(self, key: bytes, reason: str, tell_more: Callable[[int], None]) -> bool:
        """Note a refusal. Returns whether a line should tell it; ``tell_more`` hears how many more came."""
        kind = (key, reason)
        if kind in self._counts:
            self._counts[kind] += 1
            return False
        if len(self._counts) < MOST:
            self._counts[kind] = 0
            asyncio.get_running_loop().call_later(EACH, self._look, kind, tell_more)
        return True

    def _look(self, kind: _Kind, tell_more: Callable[[int], None]) -> None:
        count = self._counts.pop(kind)
        if count:
            tell_more(count)
            self._counts[kind] = 0
            asyncio.get_running_loop().call_later(EACH, self._look, kind, tell_more)
