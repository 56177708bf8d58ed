"""The copies of other nodes' parts that one node holds: the agent's side, without the memory itself.

Theory. A part is *offered* by the node that has it. Its pieces, one for each rank that saved there, get a
buffer each; then it is received, and then *stored*. What is kept follows from the master's verdicts: the
commit that is safe, the one that is being copied, and the one that the round restored. What is older is
dropped, and its buffers take the next copies. A sender may hear of a new verdict before this node does, so
what is newer than all of these is taken in as well: ``MAX_UNHEARD`` commits, of rounds that have begun here.
A spare takes in parts of later rounds too, for the next world, but only those that the master has named.

Invariants. A part is told of only while all of it is stored. Nothing is received into a buffer that holds
something. A member that offers nonsense costs this node some memory, and nobody its place in the job: what
this node tells of its copies is always within the limits of the protocol.
"""

from __future__ import annotations

from dataclasses import replace

from elasticrun.core.protocol.commits import MAX_HOLDINGS, MAX_PARTS, CommitId, Holding
from elasticrun.core.state.buffers import Buffer, Pins, Shelf, Stage
from elasticrun.core.state.events import (
    Accept,
    Arrived,
    BufferMade,
    BufferRefused,
    CopiesChanged,
    Decline,
    Interrupted,
    Judged,
    Offer,
    Offered,
    Pinned,
    ReplicaEffect,
    ReplicaEvent,
    SaveBegins,
)

Label = tuple[CommitId, int]  # a commit, and the group rank of the part

#: The most commits that are taken in before the master has told of them.
MAX_UNHEARD = 2


class Replicas:
    """What one node holds for others."""

    def __init__(self) -> None:
        self._effects: list[ReplicaEffect] = []
        self._shelf = Shelf()
        self._waiting: dict[Label, Offer] = {}  # for their buffers
        self._incoming: dict[Label, Offer] = {}
        self._stored: dict[Label, Offer] = {}
        self.pins = Pins()
        self._restored: CommitId | None = None
        self._round = -1  # the newest that has begun here

    def handle(self, event: ReplicaEvent) -> list[ReplicaEffect]:
        """Take in one event and return what to do, in order."""
        self._effects = []
        match event:
            case Offered(offer):
                self._hear_offer(offer)
            case Arrived(commit, group_rank):
                self._store((commit, group_rank))
            case Interrupted(commit, group_rank):
                self._drop((commit, group_rank), self._incoming)
            case BufferMade(number):
                self._shelf.made(number)
            case BufferRefused(number, reason):
                self._miss(self._shelf.refused(number), reason)
            case Judged():
                self.pins = self.pins.after(event)
                self._drop_useless()
            case Pinned(commit):
                self.pins = self.pins._replace(storing=commit)
                self._drop_useless()
            case _:
                self._restored, self._round = event.restore, event.round
                self._drop_useless()
        self._accept_all()
        return self._effects

    def holdings(self, own: tuple[Holding, ...]) -> tuple[Holding, ...]:
        """What this node holds in all: its ``own`` parts, and those that are here for others."""
        found = {holding.commit: holding for holding in own}
        for offer in self._stored.values():
            known = found.get(offer.commit, Holding(offer.commit, offer.size, ()))
            if all(part.group_rank != offer.part.group_rank for part in known.parts):
                found[offer.commit] = replace(known, parts=(*known.parts, offer.part)[:MAX_PARTS])
        told = sorted(found.values(), key=lambda each: (self._is_kept(each.commit), each.commit.age))
        return tuple(sorted(told[-MAX_HOLDINGS:], key=lambda each: each.commit.age))

    def stored(self, commit: CommitId, group_rank: int | None = None) -> list[Buffer]:
        """The pieces of the parts of a commit that are here, in order of rank; of one part, or of all."""
        labels = [label for label in self._stored if label[0] == commit and group_rank in (None, label[1])]
        ranks = {piece.rank for label in labels for piece in self._stored[label].pieces}
        return [buffer for rank, buffer in sorted(self._shelf.parts(commit).items()) if rank in ranks]

    def offer(self, commit: CommitId, group_rank: int) -> Offer | None:
        """What one part of a commit was offered as that is here."""
        return self._stored.get((commit, group_rank))

    # -- offers

    def _hear_offer(self, offer: Offer) -> None:
        label = offer.commit, offer.part.group_rank
        if label in self._stored:
            self._decline(offer, "it is here already", is_here=self._stored[label].part == offer.part)
        elif label in self._waiting or label in self._incoming:
            self._decline(offer, "it is being received already")
        elif offer.commit.round > self._round and not self._is_kept(offer.commit):
            self._decline(offer, f"round {offer.commit.round} has not begun here")
        elif not self._wants(offer.commit):
            self._decline(offer, "nobody needs it any more")
        elif len(self._unheard() | {offer.commit}) > MAX_UNHEARD and not self._is_kept(offer.commit):
            self._decline(offer, f"the master has not told of the last {MAX_UNHEARD} commits yet")
        elif len(others := self._others(offer.commit)) >= MAX_PARTS - 1:
            self._decline(offer, f"{MAX_PARTS - 1} parts of that commit are here already")
        elif any({it.rank for it in other.pieces} & {it.rank for it in offer.pieces} for other in others):
            self._decline(offer, "another part of that commit has the same ranks")
        else:
            self._waiting[label] = offer

    def _others(self, commit: CommitId) -> list[Offer]:
        """All parts of a commit that are here, or on their way."""
        return [offer for offer in self._all() if offer.commit == commit]

    def _all(self) -> list[Offer]:
        return [*self._waiting.values(), *self._incoming.values(), *self._stored.values()]

    def _unheard(self) -> set[CommitId]:
        """The commits of which something is here, or on its way, and that no verdict has named."""
        return {offer.commit for offer in self._all() if not self._is_kept(offer.commit)}

    def _is_kept(self, commit: CommitId) -> bool:
        return self.pins.has(commit) or commit == self._restored

    def _wants(self, commit: CommitId) -> bool:
        """Whether a commit is kept; one that is newer than all that we were told of may be."""
        newest = max((pin.age for pin in self.pins if pin is not None), default=(-1, -1))
        return self._is_kept(commit) or commit.age > newest

    def _decline(self, offer: Offer, reason: str, is_here: bool = False) -> None:
        self._effects.append(Decline(offer.commit, offer.part.group_rank, reason, is_here))

    def _accept_all(self) -> None:
        """Accept the offers for which there are buffers."""
        if self._waiting:
            pieces = (piece for offer in self._all() for piece in offer.pieces)
            self._shelf.drop_wide(max((piece.length for piece in pieces), default=0))
        for label, offer in list(self._waiting.items()):
            found = {buffer.rank: buffer for buffer in self._writing(offer)}
            for piece in offer.pieces:
                if piece.rank not in found and (buffer := self._shelf.take(piece.length, piece.rank)):
                    taken = SaveBegins(piece.rank, offer.commit.step, piece.length, piece.length, "")
                    buffer.write(taken, offer.commit.round, divides=False)
                    found[piece.rank] = buffer
            if len(found) == len(offer.pieces):
                del self._waiting[label]
                self._incoming[label] = offer
                numbers = tuple(found[piece.rank].number for piece in offer.pieces)
                self._effects.append(Accept(*label, numbers))
        self._effects += self._shelf.effects
        self._shelf.effects.clear()

    def _writing(self, offer: Offer) -> list[Buffer]:
        ranks = {piece.rank for piece in offer.pieces}
        return [it for it in self._shelf.of(offer.commit, Stage.WRITING) if it.rank in ranks]

    def _miss(self, rank: int, reason: str) -> None:
        """There is no room for a piece of this rank."""
        for label, offer in list(self._waiting.items()):
            if any(piece.rank == rank for piece in offer.pieces):
                self._decline(offer, reason)
                self._drop(label, self._waiting)

    def _store(self, label: Label) -> None:
        offer = self._incoming.pop(label, None)
        if offer is None:
            return
        pieces = {piece.rank: piece for piece in offer.pieces}
        for buffer in self._writing(offer):
            buffer.store(pieces[buffer.rank].length, pieces[buffer.rank].digest, own=True)
        self._stored[label] = offer
        self._effects.append(CopiesChanged())

    # -- what is not needed

    def _drop_useless(self) -> None:
        for label in [label for label in self._stored if not self._wants(label[0])]:
            self._drop(label, self._stored)
            self._effects.append(CopiesChanged())
        for label in [label for label in self._waiting if not self._wants(label[0])]:
            self._decline(self._waiting[label], "nobody needs it any more")
            self._drop(label, self._waiting)

    def _drop(self, label: Label, offers: dict[Label, Offer]) -> None:
        offer = offers.pop(label, None)
        if offer is not None:
            ranks = {piece.rank for piece in offer.pieces}
            for stage in (Stage.WRITING, Stage.STORED):
                for buffer in self._shelf.of(offer.commit, stage):
                    if buffer.rank in ranks:
                        buffer.free()
