"""What each simulated agent has in memory of the saved states of its workers.

The rule: what is restored is as it was saved, and nobody has written over it since.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from elasticrun.core.agent.events import HoldingsChanged, PassJudgement
from elasticrun.core.protocol.commits import CommitId, Holding, Part
from elasticrun.core.protocol.messages import Assignment
from elasticrun.core.state.events import (
    DropBuffer,
    Grant,
    Hold,
    Judged,
    MakeBuffer,
    Offer,
    Piece,
    Pinned,
    Refuse,
    RoundBegins,
    Stored,
    Tick,
    VaultEvent,
)
from elasticrun.core.state.vault import Vault
from elasticrun.sim.copies import SimCopies, Stamp, Stamped, must_be_whole
from elasticrun.sim.writers import SimStoring

if TYPE_CHECKING:
    from elasticrun.sim.node import SimAgent


class SimMemory:
    """The saved states of one node."""

    def __init__(self, agent: SimAgent) -> None:
        self.agent = agent
        self.vault = Vault()
        self.copies = SimCopies(self)
        self.storing = SimStoring(self)
        self.contents: dict[int, Stamp | None] = {}  # by buffer; None: nothing, or half of something
        self.kinds: dict[CommitId, set[str]] = {}  # what was shared in our workers' parts
        self._own: tuple[Holding, ...] = ()
        self._tick_at: float | None = None

    def begin(self, assignment: Assignment) -> None:
        """Workers of a round are about to start: what they restore must be there."""
        if assignment.restore is not None:
            must_be_whole("what is restored is as it was saved", self.parts(assignment.restore))
        self.copies.begin()
        begins = RoundBegins.of(assignment, self.agent.spec.local_world_size)
        self.copies.take(begins)
        self.handle(begins)

    def judge(self, effect: PassJudgement) -> None:
        """Hear from the master what became of the commits, and send what it wants to be sent."""
        verdict = effect.verdict
        self.copies.keep_sending(verdict.copying)
        event = Judged(verdict.kept, verdict.void, verdict.safe, verdict.copying)
        self.copies.take(event)
        self.handle(event)
        self.copies.send(verdict)

    def pin(self, pinned: Pinned) -> None:
        """Keep what is written to the storage as it is."""
        self.copies.take(pinned)
        self.handle(pinned)

    def has_heard_of(self, safe: CommitId) -> bool:
        """Whether it knows that a commit is safe."""
        pins = self.vault.pins, self.copies.replicas.pins
        return all(each.safe is not None and each.safe.age >= safe.age for each in pins)

    def may_drop(self, safe: CommitId) -> bool:
        """Whether it knows that a newer commit is safe, so that nobody needs this one."""
        pins = self.vault.pins, self.copies.replicas.pins
        return any(each.safe is not None and each.safe.age > safe.age for each in pins)

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

    def tell(self) -> None:
        """Tell the agent's machine what is here now."""
        holdings = self.copies.replicas.holdings(self._own)
        stock = HoldingsChanged(holdings, self.copies.inlet, self.copies.copied, self.storing.report)
        self.agent.kernel.after(0.0, self.agent.handle, stock)

    # -- parts

    def parts(self, commit: CommitId) -> list[Stamped]:
        """All buffers of a commit that are here, with what they hold."""
        return self._stamped(commit) + self.copies.stored(commit)

    def held(self, commit: CommitId, group_rank: int) -> list[Stamped]:
        """The buffers of one part, our own or a copy, with what they hold; none if it is not here."""
        if self.offer(commit, group_rank) is None:
            return self.copies.stored(commit, group_rank)
        return sorted(self._stamped(commit), key=lambda each: each[0].rank)

    def offer(self, commit: CommitId, group_rank: int) -> Offer | None:
        """What the part of our own workers is offered as; None if this is another one."""
        told = self.vault.told.get(commit)
        if told is None or told.parts[0].group_rank != group_rank:
            return None
        buffers = sorted(self.vault.stored(commit), key=lambda buffer: buffer.rank)
        pieces = tuple(Piece(each.rank, each.length, each.digest) for each in buffers)
        return Offer(commit, told.size, told.parts[0], pieces)

    def told(self, commit: CommitId, group_rank: int) -> Part | None:
        """What is told of a part that is here."""
        own = self.offer(commit, group_rank) or self.copies.replicas.offer(commit, group_rank)
        return None if own is None else own.part

    def _stamped(self, commit: CommitId) -> list[Stamped]:
        return [(buffer, self.contents[buffer.number]) for buffer in self.vault.stored(commit)]

    # -- effects

    def _carry_out(self, effect: Any) -> None:
        saves = self.agent.sim.saves
        match effect:
            case Grant(rank, step, buffer):
                self.contents[buffer] = None
                self.copies.open()
                saves.granted(self.agent, rank, step, buffer)
            case Stored(rank, step) | Refuse(rank, step):
                saves.answered(self.agent, rank, step)
            case MakeBuffer(buffer):
                self.agent.kernel.after(saves.buffer_time(), self.handle, saves.made(buffer))
            case DropBuffer(buffer):
                self.contents.pop(buffer, None)
            case Hold(holdings):
                self._own = holdings
                for holding in holdings:
                    self.kinds[holding.commit] = {part.shared for part in holding.parts if part.shared}
                self.tell()

    def _tick(self, deadline: float) -> None:
        if self._tick_at == deadline:
            self._tick_at = None
            self.handle(Tick())
