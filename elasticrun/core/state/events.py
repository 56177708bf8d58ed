"""The events and effects of a vault (``core/state/vault.py``), and of the replicas beside it.

A ``peer`` is one process of a worker, by a number that nobody else on this node has: a worker may be several
processes, and only the one that began a save can end it.
"""

from __future__ import annotations

from typing import Annotated

from elasticrun.core.protocol.bounds import RANKS, WORLD_SIZES, Range
from elasticrun.core.protocol.commits import CommitId, Digest, Holding, Part
from elasticrun.core.protocol.messages import Assignment
from elasticrun.dataclass import dataclass


@dataclass(frozen=True, slots=True)
class RoundBegins:
    """Workers of a new round start; nobody writes any more."""

    round: int
    group_rank: int
    size: int  # nodes of the round
    ranks: tuple[int, ...]  # global ranks of this node's workers
    restore: CommitId | None = None

    @classmethod
    def of(cls, assignment: Assignment, local_world_size: int) -> RoundBegins:
        """The round that an agent is told to start."""
        ranks = tuple(range(assignment.first_rank, assignment.first_rank + local_world_size))
        size = assignment.group_world_size
        return cls(assignment.round, assignment.group_rank, size, ranks, assignment.restore)


@dataclass(frozen=True, slots=True)
class SaveBegins:
    """A worker asks for a buffer. The answer is ``Grant`` or ``Refuse``."""

    rank: int
    step: int
    whole: int  # bytes of its part with all that is shared
    share: int  # bytes of its part with this rank's share of what is shared
    contents: str  # digest of the names and shapes of what is shared; "": nothing is
    peer: int = 0


@dataclass(frozen=True, slots=True)
class SaveCopied:
    """A worker has written its part, and only its digests are missing: it is complete if the worker ends now.

    There is no answer.
    """

    rank: int
    step: int
    length: int  # bytes of the buffer that are in use
    digest: str  # of the part without digests of its items
    own: bool = False  # it has shards of tensors, which no other rank has
    peer: int = 0


@dataclass(frozen=True, slots=True)
class SaveEnds:
    """A worker has written its part, which has this digest. The answer is ``Stored`` or ``Refuse``."""

    rank: int
    step: int
    length: int  # bytes of the buffer that are in use
    digest: str
    own: bool = False  # it has shards of tensors, which no other rank has
    peer: int = 0


@dataclass(frozen=True, slots=True)
class WorkerGone:
    """A worker has ended, or gave its save up."""

    rank: int
    peer: int = 0
    gave_up: bool = False  # what it has written is not to be used


@dataclass(frozen=True, slots=True)
class BufferMade:
    """A buffer that was asked for is there."""

    buffer: int


@dataclass(frozen=True, slots=True)
class BufferRefused:
    """There is no room for a buffer that was asked for."""

    buffer: int
    reason: str


@dataclass(frozen=True, slots=True)
class Judged:
    """The master says what became of the commits of the round that runs."""

    kept: CommitId | None  # as safe as the job wants it: older ones are not needed
    void: CommitId | None  # this one and older ones will never be whole unless they are by now
    safe: CommitId | None = None  # the newest that several hosts have: it stays as it is
    copying: CommitId | None = None  # sent to other hosts now: it stays as it is


@dataclass(frozen=True, slots=True)
class Pinned:
    """This commit is written to the storage, and stays as it is; None: none has to."""

    commit: CommitId | None


@dataclass(frozen=True, slots=True)
class Tick:
    """Time has passed."""


VaultEvent = (
    RoundBegins
    | SaveBegins
    | SaveCopied
    | SaveEnds
    | WorkerGone
    | BufferMade
    | BufferRefused
    | Judged
    | Pinned
    | Tick
)


# Effects


@dataclass(frozen=True, slots=True)
class Grant:
    """Let a worker write into a buffer: its whole part, or only its share of what is shared."""

    rank: int
    step: int
    buffer: int
    divides: bool = False
    peer: int = 0
    lost: int = 0  # the newest steps that this node has stored, in this round, and that were saved in vain


@dataclass(frozen=True, slots=True)
class Stored:
    """Tell a worker that its part is stored."""

    rank: int
    step: int
    peer: int = 0


@dataclass(frozen=True, slots=True)
class Refuse:
    """Tell a worker that what it asked for is not done: its save is not made, or this was no end of one."""

    rank: int
    step: int
    reason: str
    peer: int = 0


@dataclass(frozen=True, slots=True)
class MakeBuffer:
    """Make a buffer of so many bytes, or say why not."""

    buffer: int
    size: int


@dataclass(frozen=True, slots=True)
class DropBuffer:
    """Give a buffer's memory back."""

    buffer: int


@dataclass(frozen=True, slots=True)
class Hold:
    """What this node holds has changed."""

    holdings: tuple[Holding, ...]


VaultEffect = Grant | Stored | Refuse | MakeBuffer | DropBuffer | Hold


# Replicas: copies of other nodes' parts (``core/state/replicas.py``)


@dataclass(frozen=True, slots=True)
class Piece:
    """What one rank saved, of a part."""

    rank: Annotated[int, RANKS]
    length: Annotated[int, Range(0, 2**53)]  # bytes
    digest: Digest


@dataclass(frozen=True, slots=True)
class Offer:
    """A part that another node would send."""

    commit: CommitId
    size: Annotated[int, WORLD_SIZES]  # how many parts the commit has
    part: Part
    pieces: tuple[Piece, ...]


@dataclass(frozen=True, slots=True)
class Offered:
    """Another node offers a part. The answer is ``Accept`` or ``Decline``."""

    offer: Offer


@dataclass(frozen=True, slots=True)
class Arrived:
    """A part that was accepted is here."""

    commit: CommitId
    group_rank: int


@dataclass(frozen=True, slots=True)
class Interrupted:
    """A part that was accepted does not come."""

    commit: CommitId
    group_rank: int


ReplicaEvent = Offered | Arrived | Interrupted | BufferMade | BufferRefused | Judged | Pinned | RoundBegins


@dataclass(frozen=True, slots=True)
class Accept:
    """Take a part in, each piece into one of these buffers."""

    commit: CommitId
    group_rank: int
    buffers: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Decline:
    """Tell the other node that its part is not taken in."""

    commit: CommitId
    group_rank: int
    reason: str
    is_here: bool = False  # the same is here already


@dataclass(frozen=True, slots=True)
class CopiesChanged:
    """This node has other parts for others than before."""


ReplicaEffect = Accept | Decline | CopiesChanged | MakeBuffer | DropBuffer
