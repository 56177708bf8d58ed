"""What a training under faults achieved, by the lines that the digits print.

An epoch counts as *kept* if the final state contains it. A round that begins with "N epochs done before"
throws away every epoch above N that an earlier round trained; and whatever it begins with, somebody had
saved, even if the line about it was never printed. So each beginning of a round says all: the rounds before
it have kept exactly N epochs. They make the goodput; see ``GOODPUT``.
"""

from __future__ import annotations

import re
import statistics
from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise

GOODPUT = (
    "useful step time over wall time: epochs that count, each at the time of an undisturbed epoch in a world "
    "of its size, over the seconds in which faults came, recoveries included"
)
BEGIN = re.compile(r"^rank 0 of (\d+): pid \d+ on \S+, (\d+) of \d+ epochs done before")
EPOCH = re.compile(r"^epoch (\d+) loss")
ACCURACY = re.compile(r"^test accuracy ([\d.]+)")


@dataclass
class Round:
    """A world that trained; the digits do not know its number."""

    moment: float  # of its first line, seconds on the clock of whoever reads
    world: int
    done: int  # epochs that its checkpoint contained
    epochs: list[tuple[float, int]] = field(default_factory=list)  # (moment, number) of each that was printed


class Ledger:
    """Takes the lines of all launchers, in the order in which each of them printed them."""

    def __init__(self) -> None:
        self.rounds: list[Round] = []
        self.accuracy: float | None = None
        self._of: dict[str, Round] = {}  # the newest round whose rank 0 was under a launcher
        self._kept: list[int] = []  # the world that trained each epoch, of all rounds but the newest

    def line(self, launcher: str, moment: float, text: str) -> None:
        if found := BEGIN.match(text):
            self._begin(launcher, Round(moment, int(found[1]), int(found[2])))
        elif found := EPOCH.match(text):
            # A world that nobody wants any more may print late; its lines are not the newest round's.
            if round_ := self._of.get(launcher):
                round_.epochs.append((moment, int(found[1])))
        elif found := ACCURACY.match(text):
            self.accuracy = float(found[1])

    def _begin(self, launcher: str, round_: Round) -> None:
        if self.rounds:
            last = self.rounds[-1]
            self._kept += [last.world] * (round_.done - last.done)
            del self._kept[round_.done :]
        self.rounds.append(round_)
        self._of[launcher] = round_

    @property
    def newest(self) -> Round | None:
        return self.rounds[-1] if self.rounds else None

    @property
    def done(self) -> int:
        """How many epochs the newest round has behind it, as far as was printed."""
        if self.newest is None:
            return 0
        return max([self.newest.done, *(number for _, number in self.newest.epochs)])

    def kept(self) -> Counter[int]:
        """How many epochs were kept, by the size of the world that trained them, if training ended now."""
        if self.newest is None:
            return Counter()
        now = [*self._kept[: self.newest.done], *[self.newest.world] * (self.done - self.newest.done)]
        return Counter(now)

    def repeated(self) -> int:
        """How many epochs were trained once more because their state was lost."""
        printed = Counter(number for round_ in self.rounds for _, number in round_.epochs)
        return sum(count - 1 for count in printed.values())

    def first_epoch(self, after: float, new_round: bool) -> float | None:
        """When the first epoch ended after a moment; ``new_round``: in a round that began after it."""
        rounds = [it for it in self.rounds if it.moment > after] if new_round else self.rounds
        return min((moment for it in rounds for moment, _ in it.epochs if moment > after), default=None)

    def longest_pause(self, after: float) -> float:
        """The most seconds without the end of an epoch, from a moment until the newest one."""
        ends = sorted(moment for it in self.rounds for moment, _ in it.epochs if moment > after)
        return max((b - a for a, b in pairwise([after, *ends])), default=0.0)

    def pace(self) -> dict[int, float]:
        """The median seconds from the end of an epoch to the end of the next, by the size of the world."""
        spans: dict[int, list[float]] = defaultdict(list)
        for round_ in self.rounds:
            moments = [moment for moment, _ in round_.epochs]
            spans[round_.world] += [b - a for a, b in pairwise(moments)]
        return {world: statistics.median(found) for world, found in spans.items() if found}


def useful(kept: Mapping[int, int], pace: Mapping[int, float]) -> float:
    """The seconds that an undisturbed run would have needed for these epochs."""
    return sum(count * pace[world] for world, count in kept.items())
