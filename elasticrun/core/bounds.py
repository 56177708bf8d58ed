"""How large the numbers are that agents and the master tell each other.

Each range is far narrower than its field on the wire, and the master only adds small numbers to what it is
told. So whatever it is told within these ranges, what it says next fits its field as well. A field names its
range in its annotation; the codec and the reader of the journal refuse what lies outside.

Numbers that only grow need a second rule. If one agent could push a counter to the end of its range, nobody
could count on from there, and the counter is kept in the journal. So a master also refuses a *jump*: more
than ``WINDOW`` above what it knew when it started (``Horizon``). Real failovers stay far below. An epoch
drawn at random adds at most 2**16 for each listed host, so a thousand masters on 60 hosts that this one never
heard of stay below it. Rounds and checks take a tenth of a second at least: the window is 13 years. The limit
is set when a master starts and does not move with what it hears, so repeated jumps do not add up; it moves
with what the master counts itself, so an agent that went as far as it may harms nobody who follows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar

Number = TypeVar("Number", int, float)


@dataclass(frozen=True, slots=True)
class Range(Generic[Number]):
    """The numbers from ``low`` to ``high``."""

    low: Number
    high: Number

    def __contains__(self, value: Number) -> bool:
        return self.low <= value <= self.high  # never true of NaN

    def clip(self, value: Number) -> Number:
        """The nearest number of the range, for what a user's program wrote; ``low`` in place of NaN."""
        return min(max(value, self.low), self.high) if value == value else self.low


#: How far above what it knew at its start a master follows what it is told.
WINDOW = 2**32
_MOST = 2**53

EPOCHS = Range(0, _MOST)
EPOCHS_HEARD = Range(-1, _MOST)  # -1: none yet
ROUNDS = Range(0, _MOST)
ROUNDS_HEARD = Range(-1, _MOST)
CHECKS = Range(0, _MOST)
SEQUENCES = Range(0, _MOST)
LIVES = Range(0, _MOST)
STEPS = Range(-1, _MOST)
BYTES = Range(0, 2**60)
#: Workers of one node. The ranks of 100,000 such nodes fit 31 bits.
LOCAL_SIZES = Range(1, 2**14)
WORLD_SIZES = Range(1, 2**20)  # in nodes
RANKS = Range(0, 2**30)
PIDS = Range(0, 2**30)
POSITIONS = Range(-1, 2**10)  # -1: this host is not listed
PORTS = Range(0, 65535)
EXIT_CODES = Range(-(2**31), 2**31 - 1)
COUNTS = Range(0, 2**30)
SESSIONS = Range(0, 2**62)
SECONDS = Range(0.0, 1e9)
TIMESTAMPS = Range(0.0, 1e11)  # a wall clock until the year 5138: every program can print it
RATES = Range(0.0, 1e30)  # per second


@dataclass(frozen=True, slots=True)
class Horizon:
    """The largest numbers that agents may tell a master of; by default of one that has not started."""

    epoch: int = _MOST
    round: int = _MOST
    check: int = _MOST

    @classmethod
    def above(cls, epoch: int, round_: int, check: int) -> Horizon:
        """That of a master that starts with these numbers."""
        return cls(*(min(number + WINDOW, _MOST - WINDOW) for number in (epoch, round_, check)))

    def beyond(self, epoch: int, round_: int, check: int) -> Horizon:
        """This one, moved by what the master itself has counted since."""
        if epoch <= self.epoch and round_ <= self.round and check <= self.check:
            return self
        return Horizon(max(self.epoch, epoch), max(self.round, round_), max(self.check, check))

    def refuses(self, **told: int) -> str:
        """Why an agent cannot be followed that tells these numbers; "" if it can."""
        for name, number in told.items():
            if number > (most := getattr(self, name)):
                return f"{name} {number} is absurd: the job cannot be beyond {name} {most}"
        return ""
