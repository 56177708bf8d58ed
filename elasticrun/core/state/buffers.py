"""The buffers of one node, and what each of them holds.

    MAKING -> FREE -> WRITING -> STORED -> FREE

What is written may be *whole* before it is stored: then it is stored when its writer ends, as it is.

A buffer is made for one rank, whose save waits for it, and is free for any rank from then on. Buffers are
numbered, and no number is used twice. Invariant: a buffer has a commit exactly while it is written or
holds a part.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum
from typing import NamedTuple

from elasticrun.core.protocol.commits import CommitId
from elasticrun.core.state.events import DropBuffer, Judged, MakeBuffer, SaveBegins, SaveCopied, SaveEnds
from elasticrun.dataclass import dataclass

#: How many times as large as needed a buffer may be. To make a new one takes as long as a few copies into it.
WASTE = 2


class Stage(Enum):
    """What a buffer is used for."""

    MAKING = "making"
    FREE = "free"
    WRITING = "writing"
    STORED = "stored"


class Pins(NamedTuple):
    """What the master wants to stay as it is."""

    safe: CommitId | None = None
    copying: CommitId | None = None
    storing: CommitId | None = None

    def has(self, commit: CommitId | None) -> bool:
        """Whether a commit has to stay."""
        return commit is not None and commit in self

    def after(self, verdict: Judged) -> Pins:
        """What has to stay after a verdict. One without a safe commit may come of a master that forgot it."""
        safe = self.safe
        if verdict.safe is not None and (safe is None or safe.age < verdict.safe.age):
            safe = verdict.safe
        return Pins(safe, verdict.copying, self.storing)


@dataclass(slots=True)
class Buffer:
    """One piece of memory, and whose part it holds."""

    number: int
    size: int  # bytes
    rank: int = -1  # whose save it is made for, or whose part it holds
    home: int = -1  # the rank that it was made for, or that wrote into it last: it has it mapped
    peer: int = -1  # the process that writes it
    stage: Stage = Stage.MAKING
    commit: CommitId | None = None
    length: int = 0  # bytes of the part
    digest: str = ""  # of the part
    contents: str = ""  # digest of the names and shapes of what is shared
    divides: bool = False  # it has only a share of what is shared
    own: bool = False  # it has shards of tensors, which no other rank has

    @property
    def is_whole(self) -> bool:
        """Whether all of a part is there, digests aside."""
        return bool(self.digest)

    def write(self, save: SaveBegins, round_: int, divides: bool) -> None:
        """A rank writes its part of a commit from now on."""
        self.stage, self.rank, self.home, self.peer = Stage.WRITING, save.rank, save.rank, save.peer
        self.commit, self.contents, self.divides = CommitId(round_, save.step), save.contents, divides

    def copied(self, length: int, digest: str, own: bool) -> None:
        """All of the part is there but the digests of its items. ``digest``: of the part without them."""
        self.length, self.digest, self.own = length, digest, own

    def keep(self) -> None:
        """The part is taken as it is."""
        self.stage = Stage.STORED

    def store(self, length: int, digest: str, own: bool) -> None:
        """The part is complete."""
        self.stage, self.length, self.digest, self.own = Stage.STORED, length, digest, own

    def free(self) -> None:
        """Nobody needs what it holds."""
        self.stage, self.rank, self.peer, self.commit = Stage.FREE, -1, -1, None
        self.length, self.digest, self.contents, self.divides, self.own = 0, "", "", False, False


class Shelf:
    """All buffers of a node."""

    def __init__(self) -> None:
        self._buffers: dict[int, Buffer] = {}
        self._next = 0  # number of the next buffer
        self.effects: list[MakeBuffer | DropBuffer] = []  # to be carried out by whoever asked

    def __len__(self) -> int:
        """How many there are, also those that are being made."""
        return len(self._buffers)

    @property
    def stored(self) -> list[Buffer]:
        """The buffers that hold a complete part."""
        return [buffer for buffer in self._buffers.values() if buffer.stage is Stage.STORED]

    def parts(self, commit: CommitId) -> dict[int, Buffer]:
        """The complete parts of a commit, by rank."""
        return {buffer.rank: buffer for buffer in self.stored if buffer.commit == commit}

    def next_of(self, rank: int, number: int) -> Buffer | None:
        """The buffer that a rank is likely to write into after so many others; None: none is there."""
        own = [b for b in self._buffers.values() if b.home == rank and b.stage is not Stage.MAKING]
        own.sort(key=lambda buffer: (buffer.stage is not Stage.FREE, buffer.size))  # as ``take`` chooses
        return own[number] if number < len(own) else None

    def written_by(self, rank: int) -> Buffer | None:
        """The buffer that a rank is writing."""
        found = [b for b in self._buffers.values() if b.stage is Stage.WRITING and b.rank == rank]
        return found[0] if found else None

    def meant_by(self, event: SaveCopied | SaveEnds, round_: int) -> Buffer | None:
        """The buffer that a worker of a round speaks of."""
        buffer = self.written_by(event.rank)
        meant = CommitId(round_, event.step), event.peer
        return buffer if buffer is not None and (buffer.commit, buffer.peer) == meant else None

    def copied(self, event: SaveCopied, round_: int) -> None:
        """A part needs nothing more but digests. What is said of no save that is under way is ignored."""
        buffer = self.meant_by(event, round_)
        if buffer is not None and event.length <= buffer.size:
            buffer.copied(event.length, event.digest, event.own)

    def of(self, commit: CommitId, stage: Stage) -> list[Buffer]:
        """The buffers of a commit that are in one stage."""
        return [it for it in self._buffers.values() if it.stage is stage and it.commit == commit]

    def newest_steps(self, round_: int) -> dict[int, int]:
        """The newest step of each rank that writes or has stored something in a round."""
        newest: dict[int, int] = {}
        for buffer in self._buffers.values():
            if buffer.commit is not None and buffer.commit.round == round_:
                newest[buffer.rank] = max(newest.get(buffer.rank, -1), buffer.commit.step)
        return newest

    def take(self, size: int, rank: int) -> Buffer | None:
        """A free buffer with so much room, if possible one that the rank knows; None: one is being made."""
        free = [b for b in self._buffers.values() if b.stage is Stage.FREE]
        if fits := [buffer for buffer in free if size <= buffer.size]:
            return min(fits, key=lambda buffer: (buffer.home != rank, buffer.size))
        if not any(b.stage is Stage.MAKING and b.rank == rank for b in self._buffers.values()):
            self._drop(free)  # their room is needed
            self._buffers[self._next] = Buffer(self._next, size, rank, rank)
            self.effects.append(MakeBuffer(self._next, size))
            self._next += 1
        return None

    def drop_wide(self, need: int) -> None:
        """Drop the free buffers that are far larger than the largest ``need``, in bytes."""
        self._drop([b for b in self._buffers.values() if b.stage is Stage.FREE and b.size > WASTE * need])

    def _drop(self, buffers: Iterable[Buffer]) -> None:
        for buffer in buffers:
            del self._buffers[buffer.number]
            self.effects.append(DropBuffer(buffer.number))

    def made(self, number: int) -> None:
        """A buffer that was asked for is there."""
        buffer = self._buffers.get(number)
        if buffer is not None and buffer.stage is Stage.MAKING:
            buffer.free()

    def refused(self, number: int) -> int:
        """A buffer that was asked for cannot be made. Returns for whom it was; -1: for nobody."""
        buffer = self._buffers.get(number)
        if buffer is None or buffer.stage is not Stage.MAKING:
            return -1
        del self._buffers[number]
        return buffer.rank
