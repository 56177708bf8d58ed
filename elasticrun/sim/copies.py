"""The copies of parts that simulated agents hold for each other, and how these go from one to another.

The rule: what is sent is as it was saved, and nobody has written over it since.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from elasticrun.core.protocol.commits import KEY_BYTES, CommitId, Copy, Inlet, Sent
from elasticrun.core.protocol.messages import JudgeCommits
from elasticrun.core.state.buffers import Buffer
from elasticrun.core.state.events import (
    Accept,
    Arrived,
    CopiesChanged,
    Decline,
    DropBuffer,
    Interrupted,
    MakeBuffer,
    Offer,
    Offered,
    ReplicaEvent,
)
from elasticrun.core.state.replicas import Label, Replicas
from elasticrun.sim.kernel import require

if TYPE_CHECKING:
    from elasticrun.sim.memories import SimMemory

Stamp = tuple[CommitId, int]  # what a buffer holds: whose state, and of which rank
Stamped = tuple[Buffer, "Stamp | None"]
#: The first port of a simulated inlet.
_FIRST_PORT = 20_000


def must_be_whole(rule: str, parts: list[Stamped]) -> None:
    """Check that buffers hold what they are said to hold."""
    for buffer, stamp in parts:
        require(rule, stamp == (buffer.commit, buffer.rank), f"{stamp} {buffer}")


@dataclass
class Parcel:
    """A part on its way."""

    sender: SimCopies
    cut: int  # how often its sender was cut off before
    order: int  # the number of the newest one that it counts for
    place: int  # in that order
    commit: CommitId
    offer: Offer
    buffers: list[Buffer]  # that are read

    @property
    def is_whole(self) -> bool:
        """Whether its sender is still sending it."""
        return not self.sender.agent.over and self.sender.cuts == self.cut


class SimCopies:
    """What one node holds for others, sends and receives."""

    def __init__(self, memory: SimMemory) -> None:
        self.agent = memory.agent
        self.replicas = Replicas()
        self.contents: dict[int, Stamp | None] = {}  # by buffer; None: nothing, or half of something
        self.cuts = 0  # counts how often sending was cut off
        self.copied: Sent | None = None
        self.inlet: Inlet | None = None
        self._memory = memory
        self._sending: CommitId | None = None
        self._order = 0  # the number of the newest one; 0: none
        self._to_send: set[int] = set()  # places, in the order, of parts that are not sent yet
        self._missed: set[int] = set()  # and of those that could not be sent
        self._parcels: dict[Label, Parcel] = {}  # that come in

    def stored(self, commit: CommitId, group_rank: int | None = None) -> list[Stamped]:
        """The buffers of a commit, or of one part of it, with what they hold."""
        found = self.replicas.stored(commit, group_rank)
        return [(buffer, self.contents[buffer.number]) for buffer in found]

    def begin(self) -> None:
        """A round begins: nothing of what was to be sent matters any more."""
        self.copied = None
        self._cut_off()

    def keep_sending(self, commit: CommitId | None) -> None:
        """Leave off, unless this commit is what is sent."""
        if self._sending != commit:
            self._cut_off()

    def send(self, verdict: JudgeCommits) -> None:
        """Send what the master wants to be sent."""
        commit, saves = verdict.copying, self.agent.sim.saves
        if commit is None or not verdict.copies or self._order == verdict.number:
            return
        self._order, self._sending, self.copied = verdict.number, commit, None
        self._to_send, self._missed = set(range(len(verdict.copies))), set()
        for place, copy in enumerate(verdict.copies):
            self.agent.kernel.after(0.2 * saves.rng.random(), self._send, self._order, place, copy)

    def take(self, event: ReplicaEvent) -> None:
        """Feed the replicas and carry out their effects."""
        agent = self.agent
        if agent.over or agent.park(self.take, event):
            return
        for effect in self.replicas.handle(event):
            match effect:
                case Accept(commit, group_rank, buffers):
                    self._accept(self._parcels[commit, group_rank], buffers)
                case Decline(commit, group_rank, reason, is_here=is_here):
                    is_refused = "has not begun" in reason and self.replicas.pins.has(commit)
                    require("a part that the master has named is taken in", not is_refused, reason)
                    parcel = self._parcels.pop((commit, group_rank))
                    agent.kernel.after(0.0, parcel.sender.sent, parcel.order, parcel.place, is_here)
                case CopiesChanged():
                    self._memory.tell()
                case MakeBuffer(buffer):
                    agent.kernel.after(agent.sim.saves.buffer_time(), self.take, agent.sim.saves.made(buffer))
                case DropBuffer(buffer):
                    self.contents.pop(buffer, None)

    def open(self) -> None:
        """Take in parts from now on."""
        if self.inlet is None and self.agent.sim.saves.copies:
            inlets = self.agent.sim.saves.inlets
            self.inlet = Inlet(_FIRST_PORT + len(inlets), bytes(KEY_BYTES))
            inlets[self.inlet.port] = self
            self._memory.tell()

    def parts(self, commit: CommitId) -> list[Stamped]:
        """All buffers of a commit that are here, also those of our own workers, with what they hold."""
        return self._memory.parts(commit)

    def _cut_off(self) -> None:
        self._sending, self._order, self.cuts = None, 0, self.cuts + 1

    def _send(self, order: int, place: int, copy: Copy) -> None:
        """Offer a part to another node."""
        agent, commit = self.agent, self._sending
        if agent.over or self._order != order or commit is None:
            return
        if agent.park(self._send, order, place, copy):
            return
        target = agent.sim.saves.inlets[copy.inlet.port]
        where = agent.incarnation, target.agent.incarnation
        agent.sim.saves.gathering.offered(commit, copy.group_rank, *where)
        parcel = self._parcel(commit, order, place, copy.group_rank)
        if parcel is None or target.agent.over or agent.sim.saves.rng.random() < agent.sim.saves.losses:
            self.sent(order, place, False)
            return
        target.offered(parcel)

    def _parcel(self, commit: CommitId, order: int, place: int, group_rank: int) -> Parcel | None:
        offer = self._memory.offer(commit, group_rank) or self.replicas.offer(commit, group_rank)
        found = [buffer for buffer, _ in self._memory.held(commit, group_rank)]
        return None if offer is None else Parcel(self, self.cuts, order, place, commit, offer, found)

    def offered(self, parcel: Parcel) -> None:
        """Another node offers a part."""
        label = parcel.commit, parcel.offer.part.group_rank
        if self.agent.over or self.agent.park(self.offered, parcel):
            return
        if label in self._parcels:  # the real one declines before it asks
            if self._parcels[label].sender is parcel.sender:  # which waits for what is under way
                known = self._parcels[label]
                known.cut, known.order, known.place = parcel.cut, parcel.order, parcel.place
            else:
                self.agent.kernel.after(0.0, parcel.sender.sent, parcel.order, parcel.place, False)
            return
        self._parcels[label] = parcel
        self.take(Offered(parcel.offer))

    def _accept(self, parcel: Parcel, buffers: tuple[int, ...]) -> None:
        for buffer in buffers:
            self.contents[buffer] = None
        self.agent.kernel.after(self.agent.sim.saves.copy_time(), self._arrive, parcel, buffers)

    def _arrive(self, parcel: Parcel, buffers: tuple[int, ...]) -> None:
        agent, label = self.agent, (parcel.commit, parcel.offer.part.group_rank)
        if agent.over or agent.park(self._arrive, parcel, buffers):
            return
        del self._parcels[label]
        if not parcel.is_whole:
            self.take(Interrupted(*label))
            return
        sender = parcel.sender
        there = sender.parts(parcel.commit)
        read = [(each, stamp) for each in parcel.buffers for buffer, stamp in there if buffer is each]
        require("what is sent is still there", len(read) == len(parcel.buffers), str(parcel.buffers))
        must_be_whole("what is sent is as it was saved", read)
        for buffer, piece in zip(buffers, parcel.offer.pieces, strict=True):
            self.contents[buffer] = parcel.commit, piece.rank
        self.take(Arrived(*label))
        agent.kernel.after(0.0, sender.sent, parcel.order, parcel.place, True)

    def sent(self, order: int, place: int, is_there: bool) -> None:
        """A part that was to be sent is there, or cannot be sent."""
        if self.agent.over or self._order != order or self._sending is None:
            return
        if self.agent.park(self.sent, order, place, is_there):
            return
        self._to_send.discard(place)
        if not is_there:
            self._missed.add(place)
        if not self._to_send:
            self.copied = Sent(self._sending, order, tuple(sorted(self._missed)))
            self._sending = None
            self._memory.tell()
