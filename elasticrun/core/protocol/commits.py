"""Saved states of a job as agents and the master name them.

A *commit* is the state of all workers of one round after one step: model, optimizer, data positions, random
state. Each node of the round holds one *part* of it, named by the node's group rank in that round. What all
ranks have alike (replicated weights) is *shared*: every node holds a copy of its own, so that one is enough.
"""

from typing import Annotated

from elasticrun.core.protocol.bounds import (
    RANKS,
    ROUNDS,
    USED_PORTS,
    WORLD_SIZES,
    Address,
    Counted,
    Distinct,
    Epoch,
    Length,
    Range,
)
from elasticrun.dataclass import dataclass

#: The most commits of which a node holds something: two of its own, and replicas of others' parts.
MAX_HOLDINGS = 8
#: The most parts of one commit that a node holds: its own, and replicas for other nodes.
MAX_PARTS = 17
#: The most parts of one commit that a node is told to copy.
MAX_COPIES = 16
KEY_BYTES = 32
SAVED_STEPS = Range(0, 2**53)

Digest = Annotated[str, Length(64)]  # in hex; "": none


@dataclass(frozen=True, slots=True)
class CommitId:
    """Names a commit. A later round starts from a commit of an earlier one, so all its commits are newer."""

    round: Annotated[int, ROUNDS]
    step: Annotated[int, SAVED_STEPS]

    @property
    def age(self) -> tuple[int, int]:
        """Sorts commits, the newest last."""
        return self.round, self.step

    def __str__(self) -> str:
        return f"step {self.step} of round {self.round}"


@dataclass(frozen=True, slots=True)
class Part:
    """What one node of a round saved."""

    group_rank: Annotated[int, RANKS]
    digest: Digest = ""  # of its contents, as its node computed it
    own: bool = False  # it has shards of tensors that no other part has; else the others do without it
    shared: Digest = ""  # of the names and shapes of what is shared and is in it; "": nothing is


@dataclass(frozen=True, slots=True)
class Holding:
    """What a node has in memory of one commit."""

    commit: CommitId
    size: Annotated[int, WORLD_SIZES]  # how many parts the commit has: the nodes of its round
    parts: Annotated[tuple[Part, ...], Length(MAX_PARTS), Distinct("group_rank")]

    def contradiction(self) -> str:
        """A contradiction between its numbers, as a sentence; "" if there is none."""
        beyond = [part.group_rank for part in self.parts if part.group_rank >= self.size]
        return f"parts must be below size {self.size}, got {beyond[0]}" if beyond else ""


Holdings = Annotated[tuple[Holding, ...], Length(MAX_HOLDINGS), Distinct("commit")]


@dataclass(frozen=True, slots=True)
class Inlet:
    """Where a node takes copies of other nodes' parts in."""

    port: Annotated[int, USED_PORTS]
    key: Annotated[bytes, Length(KEY_BYTES, KEY_BYTES)]  # who knows it, may send some


@dataclass(frozen=True, slots=True)
class Copy:
    """An order to send one part to another node."""

    group_rank: Annotated[int, RANKS]  # of the part
    address: Address  # of the node that takes it in
    inlet: Inlet


Copies = Annotated[tuple[Copy, ...], Length(MAX_COPIES)]


@dataclass(frozen=True, slots=True)
class Sent:
    """A node is done with the copies that it was told to send at a time."""

    commit: CommitId
    number: Counted  # of ``JudgeCommits``: a commit may be copied again, to other nodes
    #: Places, in the order, of copies that could not be sent. The others are there.
    missed: Annotated[tuple[Annotated[int, Range(0, MAX_COPIES - 1)], ...], Length(MAX_COPIES)] = ()


@dataclass(frozen=True, slots=True)
class JudgeCommits:
    """What became of the commits of ``round``: which one is whole, and which ones never will be."""

    epoch: Epoch
    round: Counted
    kept: CommitId | None = None  # the newest whole one: no node needs an older one
    void: CommitId | None = None  # a member went on without it; it and older ones are whole now or never
    safe: CommitId | None = None  # on so many hosts that one may be lost: no node needs older copies
    copying: CommitId | None = None  # nobody writes over it: some nodes send their parts of it to others
    copies: Copies = ()  # of parts of ``copying``, that this node sends
    number: Counted = 0  # of this order to copy, among all of the job
