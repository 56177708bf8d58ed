"""What workers ask the master about shards of data that all ranks share (``core/data/desk.py``), as values.

Each ask has the number of the one before it, plus one. A number that comes again gets the same answer, so an
ask is sent again when its answer may be lost.
"""

from typing import Annotated

from elasticrun.core.protocol.bounds import (
    DELAYS,
    LOCAL_SIZES,
    MAX_NAME,
    ROUNDS,
    WORLD_SIZES,
    Counted,
    Epoch,
    Keep,
    Length,
    Name,
    Range,
)
from elasticrun.dataclass import dataclass

#: The most leases that are given at once; fewer if many ranks share the data (``core/data/grants.py``).
MAX_WANTED = 256
#: The most leases of which one ask tells the progress; it takes some 30 bytes for each.
MAX_PROGRESS = 1024
#: The most shards of which one ask tells that they cannot be read.
MAX_FAULTS = 16
#: The most pieces of shards that are left beyond the first shard that was not dealt. All open leases are
#: among them, and each rank gets them with each saved state.
MAX_PIECES = 4096
#: The most shards of an epoch that are left out. If more cannot be read, the data are not there. Of past
#: epochs a state tells as many, the newest ones.
MAX_FAILED = 256
#: The most that one state tells of, with those of several epochs since the state before.
MAX_TOLD = 4 * MAX_FAILED
_RECORDS = Range(0, 2**62)
_NUMBERS = Range(0, 2**53)

Number = Annotated[int, _NUMBERS]
Record = Annotated[int, _RECORDS]
Cause = Annotated[str, Length(100, keep=Keep.HEAD)]
Digest = Annotated[str, Length(64)]  # in hex; "": none


@dataclass(frozen=True, slots=True)
class DataReader:
    """Who asks: one object of one worker of a round."""

    round: Annotated[int, ROUNDS]
    local_rank: Annotated[int, Range(0, LOCAL_SIZES.high - 1)]
    name: Name  # of the data; the ranks that share them say the same
    instance: Name  # drawn at random; no other object has it
    load: Number  # how many states it has loaded in this round


@dataclass(frozen=True, slots=True)
class ShardPiece:
    """Records of the shard at a place of an epoch, counted from the shard's first one."""

    epoch: Number
    place: Number
    start: Record
    stop: Record  # 0: to the end of the shard


@dataclass(frozen=True, slots=True)
class FailedPiece:
    """What is left out, as it could not be read."""

    piece: ShardPiece
    reason: Cause


@dataclass(frozen=True, slots=True)
class DataLeft:
    """What is left of the data: all places from one on, and some pieces before it."""

    epoch: Number = 0  # of the first place that was not dealt
    place: Number = 0
    free: Annotated[tuple[ShardPiece, ...], Length(MAX_PIECES)] = ()
    failed: Annotated[tuple[FailedPiece, ...], Length(MAX_TOLD)] = ()


@dataclass(frozen=True, slots=True)
class ShardLease:
    """A piece that one reader may read."""

    id: Number
    piece: ShardPiece


@dataclass(frozen=True, slots=True)
class ShardProgress:
    """How far a reader has trained on a lease."""

    lease: Number
    upto: Record
    is_over: bool = False  # the shard ends there
    stop: Record = 0  # where it should have ended; 0: nobody knows


@dataclass(frozen=True, slots=True)
class ShardFault:
    """A reader cannot read a lease from a record on."""

    lease: Number
    at: Record
    reason: Cause


@dataclass(frozen=True, slots=True)
class OpenData:
    """A reader begins, or goes on from a state that it has loaded."""

    incarnation: Name
    reader: DataReader
    call: Number
    plan: Digest  # of all that makes the order of the shards
    shards: Annotated[int, Range(1, 2**62)]  # of an epoch
    readers: Annotated[int, WORLD_SIZES]  # that share the data
    patience: Annotated[float, DELAYS]  # seconds that a reader that saves waits for the others
    state: Digest = ""  # of ``left``; "": it begins with nothing
    left: DataLeft | None = None  # only if the master has asked for it


@dataclass(frozen=True, slots=True)
class AskData:
    """A reader tells what it has trained on, and asks for more."""

    incarnation: Name
    reader: DataReader
    call: Number
    epoch: Number = 0  # leases may be of epochs up to this one
    wanted: Annotated[int, Range(0, MAX_WANTED)] = 0
    progress: Annotated[tuple[ShardProgress, ...], Length(MAX_PROGRESS)] = ()
    faults: Annotated[tuple[ShardFault, ...], Length(MAX_FAULTS)] = ()
    saves: bool = False  # answer with what is left, once all readers have asked that


@dataclass(frozen=True, slots=True)
class DataAnswer:
    """The answer to one ask."""

    epoch: Epoch
    round: Counted
    instance: Name
    call: Number
    refused: Annotated[str, Length(MAX_NAME, keep=Keep.HEAD)] = ""  # why this reader has no say any more
    needs_left: bool = False  # open again, and say what is left
    leases: Annotated[tuple[ShardLease, ...], Length(MAX_WANTED)] = ()
    left: DataLeft | None = None
