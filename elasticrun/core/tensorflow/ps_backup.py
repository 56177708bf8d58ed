"""Which copies of the parameter servers' variables may be restored: decisions only.

Words. The *shard* of a ps is all the variables that lie on it. The ps whose variables a copy holds is its
*owner*; the ps on whose host it lies is its *holder*. A shard is written and read in *parts* of bounded size,
so that only little of a large shard is in transit at any time.

Theory. A restart must never mix variables of two moments, and never use an older or newer state than the
newest checkpoint, whose step also numbers the samples that were read. So a copy is good only if its label
names exactly the wanted step and checkpoint, as many ps, and the same variables. Two runs may reach the same
step, so each save draws a name of its own, and all shards are taken from one save that has a good copy of
each. If there is no such save, or more than one, no copy is used: the checkpoint file has everything.

With ``peers`` = k the copies of a shard lie with k + 1 different ps. Any k of them can be lost, disks
included, and there is still one copy of each shard.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from math import prod

from elasticrun.dataclass import dataclass

#: Set by the agent for a chief: patterns of the agents' directories for copies, separated as in PATH. In each
#: lies one directory for each ps of its agent, named by the port.
ROOTS_VARIABLE = "ELASTICRUN_BACKUP_ROOTS"


@dataclass(frozen=True, slots=True)
class Piece:
    """A variable, or the part of a sharded one, that lies on one ps."""

    name: str  # the same in every run of the program
    dtype: str
    shape: tuple[int, ...]
    width: int  # bytes of one element

    @property
    def size(self) -> int:
        """In bytes."""
        return prod(self.shape) * self.width


@dataclass(frozen=True, slots=True)
class Slice:
    """Some rows of a piece, or all of it."""

    piece: int  # its place among the shard's pieces
    rows: tuple[int, int] | None = None  # from, up to; None: all of it

    @property
    def key(self) -> str:
        """Its name in a part."""
        return f"{self.piece}" if self.rows is None else f"{self.piece}:{self.rows[0]}"


def cut(pieces: Sequence[Piece], limit: int) -> tuple[tuple[Slice, ...], ...]:
    """Cut a shard into parts of at most ``limit`` bytes; one row, or a value without rows, may be larger."""
    parts: list[list[Slice]] = []
    room = -1
    for number, piece in enumerate(pieces):
        for rows in _chunks(piece, limit):
            size = piece.size if rows is None else piece.size // piece.shape[0] * (rows[1] - rows[0])
            if size > room:
                parts.append([])
                room = limit
            parts[-1].append(Slice(number, rows))
            room -= size
    return tuple(map(tuple, parts))


def _chunks(piece: Piece, limit: int) -> Iterator[tuple[int, int] | None]:
    if piece.size <= limit or not piece.shape:
        yield None
        return
    count = piece.shape[0]
    stride = max(1, limit * count // piece.size)
    yield from ((first, min(first + stride, count)) for first in range(0, count, stride))


def holders(owner: int, servers: int, peers: int) -> tuple[int, ...]:
    """Which of ``servers`` ps keep copies of the shard of ``owner``: itself and the next ones, each once."""
    return tuple((owner + distance) % servers for distance in range(min(peers + 1, servers)))


@dataclass(frozen=True, slots=True)
class Label:
    """A copy's description of itself. It is written last: without it there is no copy."""

    step: int
    checkpoint: str  # the file with the same state
    save: str  # drawn by the save that made it
    servers: int  # how many ps there were
    owner: int
    holder: int
    shard: str  # fingerprint of names, types, shapes and parts
    size: int  # bytes of its variables
    sums: tuple[str, ...]  # checksum of each part's index, which has the checksums of the part's contents


@dataclass(frozen=True, slots=True)
class Copy:
    """A copy that was found."""

    label: Label
    where: str  # its directory
    readers: tuple[int, ...]  # the ps that see it


@dataclass(frozen=True, slots=True)
class Wanted:
    """What is to be restored."""

    step: int
    checkpoint: str
    shards: tuple[str, ...]  # fingerprints by owner


def stale(label: Label, wanted: Wanted) -> bool:
    """Whether a copy is of another state than the wanted one, and so will never be wanted again."""
    return (label.step, label.checkpoint) != (wanted.step, wanted.checkpoint)


def refusal(label: Label, wanted: Wanted) -> str:
    """Why a copy must not be restored, in words; "" if it may."""
    if label.step != wanted.step:
        return f"stale, of step {label.step}"
    if label.checkpoint != wanted.checkpoint:
        return f"made with another checkpoint, {label.checkpoint}"
    if label.servers != len(wanted.shards):
        return f"made with {label.servers} ps, and there are {len(wanted.shards)}"
    if wanted.shards[label.owner : label.owner + 1] != (label.shard,):
        return "of other variables"
    return ""


@dataclass(frozen=True, slots=True)
class Choice:
    """Where the shard of one ps may come from."""

    owner: int
    sources: tuple[Copy, ...]  # the best one first
    passed: tuple[str, ...]  # in words: the other copies, and why they are not used

    @property
    def nothing(self) -> str:
        """Why there is no source, in words."""
        return f"ps {self.owner}: no good copy ({'; '.join(self.passed)})"


@dataclass(frozen=True, slots=True)
class Plan:
    """What to restore from where."""

    choices: tuple[Choice, ...]  # by owner
    problem: str = ""  # why copies cannot be used, in words


def plan(copies: Iterable[Copy], wanted: Wanted) -> Plan:
    """Choose among copies; a shard's best copy is one on its owner's own host."""
    found = list(copies)
    good = [copy for copy in found if not refusal(copy.label, wanted)]
    owners = range(len(wanted.shards))
    complete = [
        save
        for save in sorted({copy.label.save for copy in good})
        if {copy.label.owner for copy in good if copy.label.save == save} == set(owners)
    ]
    usable = [copy for copy in good if copy.label.save in complete]
    choices = tuple(_choose(owner, usable, found, wanted) for owner in owners)
    if len(complete) > 1:
        return Plan(choices, f"there are copies of {len(complete)} different saves of step {wanted.step}")
    lacking = [choice.nothing for choice in choices if not choice.sources]
    if lacking:
        return Plan(choices, _why_lacking(lacking, choices, good))
    return Plan(choices)


def _why_lacking(lacking: list[str], choices: tuple[Choice, ...], good: list[Copy]) -> str:
    """Name the shards without a good copy. No save is whole, so every shard lacks a source."""
    here = {copy.label.owner for copy in good}
    missing = [text for choice, text in zip(choices, lacking, strict=True) if choice.owner not in here]
    return "; ".join(missing) or f"no save of this step is complete; {lacking[0]}"


def _choose(owner: int, usable: list[Copy], found: list[Copy], wanted: Wanted) -> Choice:
    mine = sorted((copy for copy in found if copy.label.owner == owner), key=_distance)
    sources = tuple(copy for copy in mine if copy in usable)
    passed = [
        f"{called(copy.label)}: {refusal(copy.label, wanted) or 'of an incomplete save'}"
        for copy in mine
        if copy not in sources
    ]
    if all(copy.label.holder != owner for copy in mine):
        passed.insert(0, "own copy: absent")
    return Choice(owner, sources, tuple(passed))


def _distance(copy: Copy) -> tuple[bool, int, str]:
    label = copy.label
    return (label.owner not in copy.readers, (label.holder - label.owner) % label.servers, copy.where)


def called(label: Label) -> str:
    """A copy as its owner's log calls it."""
    return "own copy" if label.holder == label.owner else f"copy kept by ps {label.holder}"


def origin(label: Label, passed: Sequence[str]) -> str:
    """One line: where a ps has its variables from, and why not from a better place."""
    if label.holder == label.owner and not passed:
        return f"ps {label.owner}: from its own copy, step {label.step}"
    source = "its own copy" if label.holder == label.owner else f"its peer ps {label.holder}"
    return f"ps {label.owner}: from {source}, step {label.step} ({'; '.join(passed) or 'the nearest copy'})"
