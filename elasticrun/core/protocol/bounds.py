"""Limits of the numbers, texts and lists that agents and the master exchange.

A field names its limits in its annotation: ``Annotated[int, RANKS]``. Each limit has a ``fault``: a
sentence without a subject that says why a value does not fit, "" if it fits. The codec refuses values that do
not fit, and the reader of the journal refuses such numbers. Values that a user's program wrote are never
refused: the sender makes them fit.

Each range is far narrower than its field on the wire, and the master adds only small numbers to those that it
receives. So the numbers that it sends fit their fields as well.

Counters need a second rule. One agent could push a counter to the end of its range: the journal keeps it, and
it could not grow any more. So a master also refuses a *jump*: more than ``WINDOW`` above the number that it
had when it started (``Horizon``). Real failovers stay far below. An epoch drawn at random adds at most 2**16
for each listed host, so a thousand unknown masters on 60 hosts stay below it. Rounds and checks take a tenth
of a second at least: the window is 13 years. The limit is set when a master starts. Numbers from agents do
not move it, so repeated jumps do not add up. The master's own counting moves it, so an agent at the limit
harms no later agent.
"""

from __future__ import annotations

from enum import Enum
from typing import Annotated, Generic, NamedTuple, TypeVar

from elasticrun.dataclass import dataclass

Number = TypeVar("Number", int, float)


class Keep(Enum):
    """What a sender keeps of a text or list that is too long."""

    ALL = "all"  # the receiver refuses it: two names must not become equal
    HEAD = "head"
    TAIL = "tail"  # the end of a traceback says what happened


@dataclass(frozen=True, slots=True)
class Range(Generic[Number]):
    """The numbers from ``low`` to ``high``."""

    low: Number
    high: Number
    clips: bool = False  # the sender makes the number fit: a user's program may have written it

    def fault(self, value: Number) -> str:
        return "" if value in self else f"must be between {self.low} and {self.high}, got {value}"

    def __contains__(self, value: Number) -> bool:
        return self.low <= value <= self.high  # never true of NaN

    def clip(self, value: Number) -> Number:
        """Return the nearest number in the range; ``low`` for NaN."""
        return min(max(value, self.low), self.high) if value == value else self.low


class Length(NamedTuple):  # named tuples are made ten times as fast as dataclasses, at each start
    """How long a text, bytes or a list may be: in characters, in bytes, in entries.

    A sender that clips a text counts the bytes of its UTF-8, so that a message has room for every alphabet.
    """

    most: int
    least: int = 0
    keep: Keep = Keep.ALL
    encoded: bool = False  # the receiver counts bytes of UTF-8 too

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
    """An enum member that is sent as an empty field; it stands for values that a receiver does not know."""

    member: Enum


class Mark(Enum):
    """What else an annotation tells the codec."""

    LOCAL = "local"  # this field is never sent
    SHARED = "shared"  # many messages carry the same value: it is encoded once


#: Largest message in bytes: the encoder never exceeds it, and the receiver refuses larger ones.
MAX_MESSAGE_BYTES = 1 << 20
#: Longest name (job, node, incarnation, host, role) in characters.
MAX_NAME = 512
#: Longest address of a node in bytes: many tasks' addresses have to fit into a message and an environment.
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


#: A master accepts numbers up to this far above those that it had at its start.
WINDOW = 2**32
_MOST = 2**53

EPOCHS = Range(0, _MOST)
EPOCHS_HEARD = Range(-1, _MOST)  # -1: none yet
ROUNDS = Range(0, _MOST)
ROUNDS_HEARD = Range(-1, _MOST)
CHECKS = Range(0, _MOST)
SEQUENCES = Range(0, _MOST)
#: Numbers from a master: it may count on from those of agents.
COUNTED = Range(0, 2**63 - 1)
COUNTED_ROUNDS = Range(-1, 2**63 - 1)
NODES = Range(1, 2**31 - 1)  # that an operator asks for
NODES_OR_NONE = Range(0, 2**31 - 1)
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
    """The largest numbers that a master accepts from agents; by default those before its start."""

    epoch: int = _MOST
    round: int = _MOST
    check: int = _MOST

    @classmethod
    def above(cls, epoch: int, round_: int, check: int) -> Horizon:
        """The horizon of a master that starts with these numbers."""
        return cls(*(min(number + WINDOW, _MOST - WINDOW) for number in (epoch, round_, check)))

    def beyond(self, epoch: int, round_: int, check: int) -> Horizon:
        """This horizon, raised to the numbers that the master itself has reached."""
        if epoch <= self.epoch and round_ <= self.round and check <= self.check:
            return self
        return Horizon(max(self.epoch, epoch), max(self.round, round_), max(self.check, check))

    def refuses(self, **told: int) -> str:
        """Why these numbers from an agent are refused; "" if they are accepted."""
        for name, number in told.items():
            if number > (most := getattr(self, name)):
                return f"{name} {number} is absurd: the job cannot be beyond {name} {most}"
        return ""
