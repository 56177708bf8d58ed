"""What each simulated agent has in memory of the saved states, and how copies go from one to another.

The rules: what is restored, or sent, is as it was saved, and nobody has written over it since.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from elasticrun.core.agent.events import HoldingsChanged, PassJudgement
from elasticrun.core.protocol.commits import KEY_BYTES, CommitId, Copy, Holding, Inlet, Sent
from elasticrun.core.protocol.messages import Assignment
from elasticrun.core.state.buffers import Buffer
from elasticrun.core.state.events import (
    Accept,
    Arrived,
    BufferMade,
    BufferRefused,
    CopiesChanged,
    Decline,
    DropBuffer,
    Grant,
    Hold,
    Interrupted,
    Judged,
    MakeBuffer,
    Offer,
    Offered,
    Piece,
    Refuse,
    ReplicaEvent,
    RoundBegins,
    Stored,
    Tick,
    VaultEvent,
)
from elasticrun.core.state.replicas import Label, Replicas
from elasticrun.core.state.vault import Vault
from elasticrun.sim.kernel import require

if TYPE_CHECKING:
    from elasticrun.sim.node import SimAgent

Stamp = tuple[CommitId, int]  # what a buffer holds: whose state, and of which rank
#: The first port of a simulated inlet.
_FIRST_PORT = 20_000


@dataclass
class Parcel:
    """A part on its way."""

    sender: SimMemory
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


class SimMemory:
    """The saved states of one node."""

    def __init__(self, agent: SimAgent) -> None:
        self.agent = agent
        self.vault = Vault()
        self.replicas = Replicas()
        self.contents: dict[int, Stamp | None] = {}  # by buffer; None: nothing, or half of something
        self.copied_contents: dict[int, Stamp | None] = {}  # by buffer of a replica
        self.cuts = 0  # counts how often sending was cut off
        self._sending: CommitId | None = None
        self._order = 0  # the number of the newest one; 0: none
        self._copied: Sent | None = None
        self._to_send: set[int] = set()  # places, in the order, of parts that are not sent yet
        self._missed: set[int] = set()  # and of those that could not be sent
        self._own: tuple[Holding, ...] = ()
        self._inlet: Inlet | None = None
        self._parcels: dict[Label, Parcel] = {}  # that come in
        self._tick_at: float | None = None

    def begin(self, assignment: Assignment) -> None:
        """Workers of a round are about to start: what they restore must be there."""
        if assignment.restore is not None:
            self._must_be_whole("what is restored is as it was saved", self._parts(assignment.restore))
        self._copied = None
        self._cut_off()
        begins = RoundBegins.of(assignment, self.agent.spec.local_world_size)
        self.take(begins)
        self.handle(begins)

    def judge(self, effect: PassJudgement) -> None:
        """Hear from the master what became of the commits, and send what it wants to be sent."""
        verdict, saves = effect.verdict, self.agent.sim.saves
        if self._sending != verdict.copying:
            self._cut_off()
        event = Judged(verdict.kept, verdict.void, verdict.safe, verdict.copying)
        self.take(event)
        self.handle(event)
        commit = verdict.copying
        if commit is None or not verdict.copies or self._order == verdict.number:
            return
        self._order, self._sending, self._copied = verdict.number, commit, None
        self._to_send, self._missed = set(range(len(verdict.copies))), set()
        for place, copy in enumerate(verdict.copies):
            self.agent.kernel.after(0.2 * saves.rng.random(), self._send, self._order, place, copy)

    def has_heard_of(self, safe: CommitId) -> bool:
        """Whether it knows that a commit is safe."""
        pins = self.vault.pins, self.replicas.pins
        return all(each.safe is not None and each.safe.age >= safe.age for each in pins)

    def handle(self, event: VaultEvent) -> None:
        """Feed the vault and carry out its effects."""
        agent = self.agent
        if agent.over or agent.park(self.handle, event):
            return
        effects = self.vault.handle(event, agent.kernel.now)
        if agent.kernel.tracing:
            agent.kernel.say(agent.incarnation, f"{event} -> {', '.join(map(str, effects)) or '-'}")
        for effect in effects:
            self._carry_out(effect)
        deadline = self.vault.next_deadline()
        if deadline is not None and deadline != self._tick_at:
            self._tick_at = deadline
            agent.kernel.at(deadline, self._tick, deadline)

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
                    self._tell()
                case MakeBuffer(buffer):
                    agent.kernel.after(agent.sim.saves.buffer_time(), self.take, self._made(buffer))
                case DropBuffer(buffer):
                    self.copied_contents.pop(buffer, None)

    def _carry_out(self, effect: Any) -> None:
        saves = self.agent.sim.saves
        match effect:
            case Grant(rank, step, buffer):
                self.contents[buffer] = None
                self._open()
                saves.granted(self.agent, rank, step, buffer)
            case Stored(rank, step) | Refuse(rank, step):
                saves.answered(self.agent, rank, step)
            case MakeBuffer(buffer):
                self.agent.kernel.after(saves.buffer_time(), self.handle, self._made(buffer))
            case DropBuffer(buffer):
                self.contents.pop(buffer, None)
            case Hold(holdings):
                self._own = holdings
                self._tell()

    def _tick(self, deadline: float) -> None:
        if self._tick_at == deadline:
            self._tick_at = None
            self.handle(Tick())

    def _made(self, buffer: int) -> BufferMade | BufferRefused:
        is_there = self.agent.sim.saves.rng.random() > self.agent.sim.saves.shortage
        return BufferMade(buffer) if is_there else BufferRefused(buffer, "no room")

    def _tell(self) -> None:
        stock = HoldingsChanged(self.replicas.holdings(self._own), self._inlet, self._copied)
        self.agent.kernel.after(0.0, self.agent.handle, stock)

    def _parts(self, commit: CommitId) -> list[tuple[Buffer, Stamp | None]]:
        own = [(buffer, self.contents[buffer.number]) for buffer in self.vault.stored(commit)]
        copies = self.replicas.stored(commit)
        return own + [(buffer, self.copied_contents[buffer.number]) for buffer in copies]

    def _must_be_whole(self, rule: str, parts: list[tuple[Buffer, Stamp | None]]) -> None:
        for buffer, stamp in parts:
            require(rule, stamp == (buffer.commit, buffer.rank), f"{stamp} {buffer}")

    # -- copies

    def _open(self) -> None:
        if self._inlet is None and self.agent.sim.saves.copies:
            inlets = self.agent.sim.saves.inlets
            self._inlet = Inlet(_FIRST_PORT + len(inlets), bytes(KEY_BYTES))
            inlets[self._inlet.port] = self
            self._tell()

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
        told = self.vault.told.get(commit)
        if told is not None and told.parts[0].group_rank == group_rank:
            buffers = sorted(self.vault.stored(commit), key=lambda buffer: buffer.rank)
            pieces = tuple(Piece(each.rank, each.length, each.digest) for each in buffers)
            return Parcel(
                self,
                self.cuts,
                order,
                place,
                commit,
                Offer(commit, told.size, told.parts[0], pieces),
                buffers,
            )
        offer = self.replicas.offer(commit, group_rank)
        found = self.replicas.stored(commit, group_rank)
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
            self.copied_contents[buffer] = None
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
        there = sender._parts(parcel.commit)
        read = [(each, stamp) for each in parcel.buffers for buffer, stamp in there if buffer is each]
        require("what is sent is still there", len(read) == len(parcel.buffers), str(parcel.buffers))
        self._must_be_whole("what is sent is as it was saved", read)
        for buffer, piece in zip(buffers, parcel.offer.pieces, strict=True):
            self.copied_contents[buffer] = parcel.commit, piece.rank
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
            self._copied = Sent(self._sending, order, tuple(sorted(self._missed)))
            self._sending = None
            self._tell()
