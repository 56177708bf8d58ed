"""Questions of an operator that only an agent can answer: what its workers print, and where they are.

The operator names a global rank. The master finds the node that runs it, asks its agent, and passes the
answer on; it keeps nothing. So an answer costs the master its size, once, and that is bounded here.

A *place* says how far somebody has read a stream. Only the agent that made it understands it. One that it
does not know, such as that of another agent, means that something was missed.
"""

from enum import Enum
from typing import Annotated, get_args

from elasticrun.core.protocol.bounds import (
    LIVES,
    LOCAL_SIZES,
    RANKS,
    ROUNDS_HEARD,
    Counted,
    Epoch,
    Keep,
    Label,
    Length,
    Name,
    Range,
    Sentence,
)
from elasticrun.dataclass import dataclass

#: Most bytes of a stream in one answer, most bytes of one worker's stacks, and most lines that are asked for.
MAX_PIECE = 64 << 10
MAX_STACKS = 256 << 10
MAX_NEWEST = 10_000
#: The longest wait for output, in seconds.
MAX_LOG_WAIT = 20.0
#: Most ranges of ranks; those of a world are one.
MAX_RANGES = 1024

LocalRank = Annotated[int, Range(0, LOCAL_SIZES.high)]
Rank = Annotated[int, RANKS]
Wait = Annotated[float, Range(0.0, MAX_LOG_WAIT)]
Newest = Annotated[int, Range(0, MAX_NEWEST)]


class LogStream(Enum):
    """One of a worker's output streams."""

    OUT = "stdout"
    ERR = "stderr"


@dataclass(frozen=True, slots=True)
class LogPlace:
    """How far a stream was read."""

    stream: LogStream
    after: Label = ""  # the ``place`` of the piece before; "": not at all


Places = Annotated[tuple[LogPlace, ...], Length(len(LogStream), least=1)]


@dataclass(frozen=True, slots=True)
class ReadLog:
    """Ask for what a rank printed after some places; the answer waits until there is something."""

    rank: Rank
    places: Places
    lines: Newest = 10  # of a stream that was not read at all, the newest so many lines
    wait: Wait = 0.0  # seconds until an empty answer


@dataclass(frozen=True, slots=True)
class ShowStacks:
    """Ask for the stacks of a rank's threads."""

    rank: Rank


@dataclass(frozen=True, slots=True)
class ListRanks:
    """Ask which ranks there are."""


Question = ReadLog | ShowStacks | ListRanks
QUESTIONS: tuple[type[Question], ...] = get_args(Question)


@dataclass(frozen=True, slots=True)
class RankRange:
    """Ranks that follow one another."""

    first: Rank
    count: Counted


@dataclass(frozen=True, slots=True)
class LogPiece:
    """What came next in one stream."""

    stream: LogStream
    place: Label  # after its last byte
    data: Annotated[bytes, Length(MAX_PIECE)] = b""
    round: Annotated[int, ROUNDS_HEARD] = -1  # in which it was printed; -1: nothing was
    attempt: Annotated[int, LIVES] = 0  # of a task that starts again within a round
    begins: bool = False  # the reader was in an earlier round or attempt, or nowhere
    missed: bool = False  # there was something before it that is not kept
    more: bool = False  # there is more already: ask again
    note: Sentence = ""  # why nothing of this stream is kept; "": it is


@dataclass(frozen=True, slots=True)
class RankAnswer:
    """What an agent answers for one of its workers: pieces of its log, or stacks."""

    pieces: Annotated[tuple[LogPiece, ...], Length(len(LogStream), keep=Keep.HEAD)] = ()
    stacks: Annotated[str, Length(MAX_STACKS, keep=Keep.HEAD)] = ""


@dataclass(frozen=True, slots=True)
class Found:
    """The answer to a question of an operator."""

    ranks: Annotated[tuple[RankRange, ...], Length(MAX_RANGES, keep=Keep.HEAD)] = ()  # if that was asked for
    answer: RankAnswer | None = None  # if one rank was asked for


@dataclass(frozen=True, slots=True)
class LogQuestion:
    """As ``ReadLog``, of one worker of a node."""

    places: Places
    lines: Newest
    wait: Wait


@dataclass(frozen=True, slots=True)
class AskNode:
    """The master asks an agent about one of its workers."""

    epoch: Epoch
    id: Annotated[int, Range(0, 2**62)]  # of the question
    local_rank: LocalRank
    log: LogQuestion | None = None  # None: its stacks are wanted


@dataclass(frozen=True, slots=True)
class NodeAnswer:
    """The agent's answer."""

    incarnation: Name
    id: Annotated[int, Range(0, 2**62)]
    refused: Sentence = ""  # why there is no answer
    answer: RankAnswer | None = None
