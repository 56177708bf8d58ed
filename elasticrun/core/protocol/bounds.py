"""How large the numbers, texts and lists are that agents and the master tell each other.

A field names its limits in its annotation: ``Annotated[int, RANKS]``. Each limit has a ``fault``: a
sentence without its subject about a value that does not fit, "" for one that does. The codec refuses what
does not fit, and the reader of the journal refuses such numbers. What a user's program wrote is never refused
for it: its sender makes it fit.

Each range is far narrower than its field on the wire, and the master only adds small numbers to what it is
told. So whatever it is told within these ranges, what it says next fits its field as well.

Numbers that only grow need a second rule. If one agent could push a counter to the end of its range, nobody
could count on from there, and the counter is kept in the journal. So a master also refuses a *jump*: more
than ``WINDOW`` above what it knew when it started (``Horizon``). Real failovers stay far below. An epoch
drawn at random adds at most 2**16 for each listed host, so a thousand masters on 60 hosts that this one never
heard of stay below it. Rounds and checks take a tenth of a second at least: the window is 13 years. The limit
is set when a master starts and does not move with what it hears, so repeated jumps do not add up; it moves
with what the master counts itself, so an agent that went as far as it may harms nobody who follows.
"""

from __future__ import annotations

from enum import Enum
from typing import Annotated, Generic, NamedTuple, TypeVar

from elasticrun.dataclass import dataclass

Number = TypeVar("Number", int, float)


class Keep(Enum):
    """What a sender keeps of what is too long."""

    ALL = "all"  # the receiver refuses it: two names must not become equal
    HEAD = "head"
    TAIL = "tail"  # the end of a traceback says what happened


@dataclass(frozen=True, slots=True)
class Range(Generic[Number]):
    """The numbers from ``low`` to ``high``."""

    low: Number
    high: Number
    clips: bool = False  # a user's program may have written the number: its sender makes it fit

    def fault(self, value: Number) -> str:
        return "" if value in self else f"must be between {self.low} and {self.high}, got {value}"

    def __contains__(self, value: Number) -> bool:
        return self.low <= value <= self.high  # never true of NaN

    def clip(self, value: Number) -> Number:
        """The nearest number of the range, for what a user's program wrote; ``low`` in place of NaN."""
        return min(max(value, self.low), self.high) if value == value else self.low


class Length(NamedTuple):  # named tuples are made ten times as fast as dataclasses, at each start
    """How long a text, bytes or a list may be: in characters, in bytes, in entries.

    A sender that clips a text counts the bytes of its UTF-8, so that a message has room for every alphabet.
    """

    most: int
    least: int = 0
    keep: Keep = Keep.ALL
    encoded: bool = False  # a text is counted in bytes of UTF-8 by the receiver too

    def fault(self, value: str | bytes | tuple[object, ...]) -> str:
        unit = "characters" if isinstance(value, str) else "bytes" if isinstance(value, bytes) else "entries"
        size = len(value)
        if self.encoded and isinstance(value, str):
            size, unit = len(value.encode()), "bytes"
        if size < self.least:
            return "must not be empty"
        return f"must have at most {self.most} {unit}, got {size}" if size > self.most else ""


class Distinct(NamedTuple):
    """No two entries of a list have the same value of an attribute."""

    name: str

    def fault(self, entries: tuple[object, ...]) -> str:
        values = [getattr(entry, self.name) for entry in entries]
        if len(set(values)) == len(values):
            return ""
        return f"must each have a {self.name.replace('_', ' ')} of their own, got {values}"[:MAX_SENTENCE]


class HostPort:
    """A text is HOST:PORT."""

    def fault(self, value: str) -> str:
        host, _, port = value.rpartition(":")
        is_number = port.isascii() and port.isdigit() and len(port) <= 5
        fits = host and is_number and 0 < int(port) <= PORTS.high and len(value) <= MAX_NAME
        return "" if fits else f"must be HOST:PORT, got {value[:100]!r}"


class Unknown(NamedTuple):
    """A member of an enum that is said by saying nothing; it stands for all that a receiver does not know."""

    member: Enum


class Mark(Enum):
    """What else an annotation tells the codec."""

    LOCAL = "local"  # this field is on no wire
    SHARED = "shared"  # many messages carry the same value: it is turned into its message once


#: No message is larger, in bytes; an encoded one never is, and the receiver refuses one that is.
MAX_MESSAGE_BYTES = 1 << 20
#: Longest name (job, node, incarnation, host, role) in characters.
MAX_NAME = 512
#: Longest address of a node in bytes: a message, and an environment, has room for those of many tasks.
MAX_ADDRESS = 200
#: Longest path of an error file in characters.
MAX_PATH = 4096
#: Longest sentence about a part of a probe or a row of a table in characters.
MAX_SENTENCE = 400
#: Longest text of a failure's message, traceback or stderr tail in bytes of UTF-8 on the wire: a report of
#: MAX_FAILURES failures stays far below the limit of 1 MiB for a message.
MAX_FAILURE_TEXT = 10_000
#: Longest answer to an operator in characters.
MAX_REPLY = 500_000
#: Longest nonce or proof in bytes.
MAX_TOKEN = 64

Name = Annotated[str, Length(MAX_NAME, least=1)]
Label = Annotated[str, Length(MAX_NAME)]  # a name that may be empty
Address = Annotated[str, Length(MAX_ADDRESS, least=1, encoded=True)]
Served = Annotated[str, HostPort()]  # where a task serves
Text = Annotated[str, Length(MAX_FAILURE_TEXT, keep=Keep.HEAD)]
TextEnd = Annotated[str, Length(MAX_FAILURE_TEXT, keep=Keep.TAIL)]
Sentence = Annotated[str, Length(MAX_SENTENCE, keep=Keep.HEAD)]
SentenceEnd = Annotated[str, Length(MAX_SENTENCE, keep=Keep.TAIL)]
Path = Annotated[str, Length(MAX_PATH, keep=Keep.TAIL)]
Token = Annotated[bytes, Length(MAX_TOKEN)]


#: How far above what it knew at its start a master follows what it is told.
WINDOW = 2**32
_MOST = 2**53

EPOCHS = Range(0, _MOST)
EPOCHS_HEARD = Range(-1, _MOST)  # -1: none yet
ROUNDS = Range(0, _MOST)
ROUNDS_HEARD = Range(-1, _MOST)
CHECKS = Range(0, _MOST)
SEQUENCES = Range(0, _MOST)
#: What a master says: it may count on from what it was told.
COUNTED = Range(0, 2**63 - 1)
COUNTED_ROUNDS = Range(-1, 2**63 - 1)
NODES = Range(1, 2**31 - 1)  # that an operator asks for
LIVES = Range(0, _MOST)
STEPS = Range(-1, _MOST, clips=True)
STEPS_MADE = Range(0, _MOST, clips=True)
BYTES = Range(0, 2**60, clips=True)
#: Workers of one node. The ranks of 100,000 such nodes fit 31 bits.
LOCAL_SIZES = Range(1, 2**14)
WORLD_SIZES = Range(1, 2**20)  # in nodes
RANKS = Range(0, 2**30)
PIDS = Range(0, 2**30)
POSITIONS = Range(-1, 2**10)  # -1: this host is not listed
PORTS = Range(0, 65535)  # 0: none
USED_PORTS = Range(1, 65535)
EXIT_CODES = Range(-(2**31), 2**31 - 1)
COUNTS = Range(0, 2**30, clips=True)
SESSIONS = Range(0, 2**62)
SECONDS = Range(0.0, 1e9, clips=True)
TIMESTAMPS = Range(0.0, 1e11, clips=True)  # a wall clock until the year 5138: every program can print it
RATES = Range(0.0, 1e30, clips=True)  # per second
DELAYS = Range(1e-9, 1e30)  # seconds that a user chose

Counted = Annotated[int, COUNTED]
Epoch = Annotated[int, EPOCHS]


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
