"""Which ranks of a node have the same to save, so that each stores a share of it.

Theory. Before a save each rank names the contents that it takes for shared. Once all ranks have named some,
they know whether these are alike. Only then may a rank store a share: a step to which one rank gave a share
and another something else is torn. So the ranks *meet* at the first save of a round, and again when one of
them names other contents than before, as the others may be about to do the same. Who has begun that step
already is not waited for. Who waits in vain stores all of it.
"""

from __future__ import annotations


class Meeting:
    """The contents that the ranks of a round have named."""

    def __init__(self) -> None:
        self._told: dict[int, tuple[int, str]] = {}  # by rank: the step, and what it named last
        self._is_on = True

    def name(self, rank: int, step: int, contents: str) -> None:
        """A rank names what it shares, as it begins to save a step."""
        _, before = self._told.get(rank, (-1, contents))
        if before != contents:
            self._told = {other: told for other, told in self._told.items() if told[0] >= step}
            self._is_on = True
        self._told[rank] = (step, contents)

    def break_up(self) -> None:
        """Somebody has waited in vain: nobody waits until the contents change."""
        self._is_on = False

    def awaits_some(self, size: int) -> bool:
        """Whether one of so many ranks is still to come."""
        return self._is_on and len(self._told) < size

    def is_unanimous(self, size: int) -> bool:
        """Whether so many ranks have named the same contents."""
        return len(self._told) == size and len({contents for _, contents in self._told.values()}) == 1
