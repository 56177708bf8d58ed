"""One node's vault under arbitrary workers, verdicts and memory, beside a model of what buffers hold.

Honest here: the master keeps only commits that this node told it of. Everybody else may be late, wrong or
silent: workers begin, end and give up whatever they like, and memory is made, refused or never answered.
"""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from elasticrun.core.protocol.commits import CommitId, Holding
from elasticrun.core.state.events import (
    BufferMade,
    BufferRefused,
    DropBuffer,
    Grant,
    Hold,
    Judged,
    MakeBuffer,
    Refuse,
    RoundBegins,
    SaveBegins,
    SaveCopied,
    SaveEnds,
    Stored,
    Tick,
    VaultEffect,
    VaultEvent,
    WorkerGone,
)
from elasticrun.core.state.vault import Vault

#: The ranks of this node's workers in a round.
PLACES = ((0,), (0, 1), (0, 1, 2), (2, 3))
RANKS = st.integers(0, 4)  # the last one is nobody's
STEPS_AHEAD = st.integers(-1, 2)
SIZES = st.sampled_from((10, 10, 20, 40))
CONTENTS = st.sampled_from(("a", "a", "a", "b", ""))
PEERS = st.sampled_from((0, 0, 0, 1))  # processes of a rank
MOST_EVENTS = 200  # that it takes until everybody has an answer


@dataclass(frozen=True)
class Written:
    """What a buffer has in it: the part of one rank."""

    commit: CommitId
    rank: int
    contents: str
    divides: bool


class VaultMachine(RuleBasedStateMachine):
    """Feeds the vault, and checks each effect against what it must not spoil."""

    def __init__(self) -> None:
        super().__init__()
        self.vault = Vault()
        self.now = 0.0
        self.round = -1
        self.ranks: dict[int, tuple[int, ...]] = {}  # by round
        self.steps: dict[int, int] = {}  # the newest one that each rank has asked for
        self.unanswered: list[SaveBegins] = []
        self.asked: dict[int, int] = {}  # sizes of buffers that are being made
        self.sizes: dict[int, int] = {}  # of those that are there
        self.numbered = 0  # buffers so far
        self.live: dict[
            int, tuple[int, int, Written]
        ] = {}  # by rank: the process that writes, where, and what
        self.whole: set[int] = set()  # ranks whose part is whole though it has not ended
        self.stored: dict[int, Written] = {}  # by buffer; None of what is half written
        self.kept: CommitId | None = None
        self.told: tuple[Holding, ...] = ()
        self.ever_told: dict[CommitId, Holding] = {}
        self.safe: dict[int, Written] = {}  # by buffer: parts that were told of and are still needed

    # -- the vault

    def do(self, event: VaultEvent) -> None:
        effects = self.vault.handle(event, self.now)
        if isinstance(event, SaveEnds):
            self.check_end(event, effects.pop(0))
        for effect in effects:
            self.check_effect(effect)

    def check_effect(self, effect: VaultEffect) -> None:
        match effect:
            case Grant():
                self.grant(effect)
            case Refuse(rank, step, reason, peer):
                assert reason
                self.answer(rank, step, peer)
            case Stored():
                raise AssertionError("nobody has ended a save")
            case MakeBuffer(buffer, size):
                assert buffer == self.numbered, "no number is used twice"
                self.numbered += 1
                self.asked[buffer] = size
            case DropBuffer(buffer):
                assert buffer not in self.safe
                assert buffer not in self.written
                del self.sizes[buffer]
                self.stored.pop(buffer, None)
            case Hold(holdings):
                self.hold(holdings)

    @property
    def written(self) -> list[int]:
        """The buffers that somebody writes."""
        return [buffer for _, buffer, _ in self.live.values()]

    def answer(self, rank: int, step: int, peer: int) -> SaveBegins:
        """Each save has one answer, which goes to the process that asked."""
        # A second save of a rank is refused at once, so the answer is to the last one.
        asked = rank, step, peer
        [*_, save] = [save for save in self.unanswered if (save.rank, save.step, save.peer) == asked]
        self.unanswered.remove(save)
        return save

    def check_end(self, end: SaveEnds, answer: VaultEffect) -> None:
        """A process hears that its part is stored exactly if it is."""
        peer, buffer, written = self.live.get(end.rank, (-1, -1, None))
        asked = CommitId(self.round, end.step), end.peer
        if written is None or asked != (written.commit, peer):
            assert isinstance(answer, Refuse)
        else:
            del self.live[end.rank]
            self.whole.discard(end.rank)
            assert isinstance(answer, Stored if end.length <= self.sizes[buffer] else Refuse)
            if isinstance(answer, Stored):
                self.stored[buffer] = written
        assert isinstance(answer, Stored | Refuse)
        assert (answer.rank, answer.step, answer.peer) == (end.rank, end.step, end.peer)

    def grant(self, grant: Grant) -> None:
        save = self.answer(grant.rank, grant.step, grant.peer)
        assert self.sizes[grant.buffer] >= (save.share if grant.divides else save.whole)
        assert save.contents or not grant.divides
        assert grant.rank not in self.live
        assert grant.buffer not in self.written, "no two write one buffer"
        assert grant.buffer not in self.safe, "nobody writes over what was told of"
        written = Written(CommitId(self.round, grant.step), grant.rank, save.contents, grant.divides)
        assert grant.rank not in self.whole
        self.live[grant.rank] = grant.peer, grant.buffer, written
        self.stored.pop(grant.buffer, None)

    def hold(self, holdings: tuple[Holding, ...]) -> None:
        assert holdings != self.told, "there is news"
        self.told = holdings
        for holding in holdings:
            assert self.ever_told.setdefault(holding.commit, holding) == holding, "its digest never changes"
            parts = {number: it for number, it in self.stored.items() if it.commit == holding.commit}
            ranks = self.ranks[holding.commit.round]
            assert sorted(it.rank for it in parts.values()) == sorted(ranks), "all ranks have stored it"
            for contents in {it.contents for it in parts.values()}:
                divided = [it for it in parts.values() if it.contents == contents and it.divides]
                whole = [it for it in parts.values() if it.contents == contents and not it.divides]
                assert whole or len(divided) == len(ranks), "nothing is missing of what is shared"
            self.safe |= parts

    def release(self, event: Judged | RoundBegins) -> None:
        """Forget which parts this event says that nobody needs."""
        void = event.void if isinstance(event, Judged) else None
        for number, it in list(self.safe.items()):
            is_old = self.kept is not None and it.commit.age < self.kept.age
            is_void = void is not None and it.commit.age <= void.age
            if it.commit != self.kept and (is_old or is_void or isinstance(event, RoundBegins)):
                del self.safe[number]

    # -- rounds and verdicts

    @initialize(place=st.sampled_from(PLACES))
    def first_round(self, place: tuple[int, ...]) -> None:
        self.begin_round(0, place, None)

    @rule(gap=st.integers(1, 2), place=st.sampled_from(PLACES), data=st.data())
    def next_round(self, gap: int, place: tuple[int, ...], data: st.DataObject) -> None:
        known = st.sampled_from([None, *self.ever_told])
        self.begin_round(self.round + gap, place, data.draw(known, "restore"))

    def begin_round(self, round_: int, place: tuple[int, ...], restore: CommitId | None) -> None:
        event = RoundBegins(round_, 0, 2, place, restore)
        self.round, self.kept = round_, restore or self.kept
        self.ranks[round_] = place
        self.steps = dict.fromkeys(place, 0)
        self.unanswered, self.live, self.whole = [], {}, set()
        self.release(event)
        self.do(event)

    @precondition(lambda self: self.ever_told)
    @rule(ahead=STEPS_AHEAD, data=st.data())
    def judge(self, ahead: int, data: st.DataObject) -> None:
        newest = max((commit.step for commit in self.ever_told if commit.round == self.round), default=0)
        void = data.draw(st.sampled_from((None, CommitId(self.round, max(0, newest + ahead)))), "void")
        kept = data.draw(st.sampled_from([None, *self.ever_told]), "kept")
        self.hear_verdict(kept, void)

    def hear_verdict(self, kept: CommitId | None, void: CommitId | None) -> None:
        if kept is not None and (self.kept is None or kept.age > self.kept.age):
            self.kept = kept
        event = Judged(kept, void)
        self.release(event)
        self.do(event)

    # -- workers

    @rule(rank=RANKS, ahead=STEPS_AHEAD, whole=SIZES, share=SIZES, contents=CONTENTS, peer=PEERS)
    def begin_save(self, rank: int, ahead: int, whole: int, share: int, contents: str, peer: int = 0) -> None:
        step = max(0, self.steps.get(rank, 0) + ahead)
        event = SaveBegins(rank, step, max(whole, share), share, contents, peer)
        self.steps[rank] = step
        self.unanswered.append(event)
        self.do(event)

    @rule(
        whole=SIZES,
        contents=CONTENTS,
        last=st.sampled_from((None, "b")),
        keeps=st.booleans(),
        end=st.sampled_from(("it ends", "it ends", "it goes", "it gives up", "a round begins")),
    )
    def all_save(self, whole: int, contents: str, last: str | None, keeps: bool, end: str) -> None:
        """All ranks save the same step, as far as they get a buffer at once. Perhaps the last one differs.

        ``end``: what becomes of the last one once its part is whole.
        """
        step = max(self.steps.values()) + 1
        for rank in self.ranks[self.round]:
            self.steps[rank] = step - 1
            named = contents if last is None or rank != self.ranks[self.round][-1] else last
            self.begin_save(rank, 1, whole, whole, named)
        self.answer_all(True)
        *others, one = self.ranks[self.round]
        for rank in others:
            self.end_save(rank)
        self.copy(one)
        if end == "a round begins":
            self.begin_round(self.round + 1, self.ranks[self.round], self.kept)
            return
        if end == "it ends" or one not in self.live:
            self.end_save(one)
        else:
            self.leave(one, self.live[one][0], gave_up=end == "it gives up")
        if keeps and self.told:
            self.hear_verdict(self.told[-1].commit, None)

    @rule(ahead=st.sampled_from((0, 0, 1)), length=st.sampled_from((5, 5, 50)), data=st.data(), other=PEERS)
    def end_one(self, ahead: int, length: int, data: st.DataObject, other: int) -> None:
        """Perhaps a save that was never begun, or one of another process, or one that is too long."""
        self.end_save(data.draw(st.sampled_from((*self.live, 4)), "rank"), ahead, length, other)

    def end_save(self, rank: int, ahead: int = 0, length: int = 5, other: int = 0) -> None:
        peer, _, written = self.live.get(rank, (0, -1, None))
        step = (0 if written is None else written.commit.step) + ahead
        self.do(SaveEnds(rank, step, length, f"{self.now}", peer=peer + other))

    @rule(length=st.sampled_from((5, 5, 50)), data=st.data(), other=PEERS)
    def copy_one(self, length: int, data: st.DataObject, other: int) -> None:
        """Perhaps one of another process, or one that is too long."""
        self.copy(data.draw(st.sampled_from((*self.live, 4)), "rank"), length, other)

    def copy(self, rank: int, length: int = 5, other: int = 0) -> None:
        peer, buffer, written = self.live.get(rank, (0, -1, None))
        step = 0 if written is None else written.commit.step
        if written is not None and not other and length <= self.sizes[buffer]:
            self.whole.add(rank)
        self.do(SaveCopied(rank, step, length, f"{self.now} copied", peer=peer + other))

    @rule(other=PEERS, gave_up=st.booleans(), data=st.data())
    def give_up(self, other: int, gave_up: bool, data: st.DataObject) -> None:
        """Perhaps a process that saves nothing, beside one of the same rank that does."""
        saving = {4: 0} | {save.rank: save.peer for save in self.unanswered}
        saving |= {rank: peer for rank, (peer, _, _) in self.live.items()}
        rank = data.draw(st.sampled_from(sorted(saving)), "rank")
        self.leave(rank, saving[rank] + other, gave_up)

    def leave(self, rank: int, peer: int, gave_up: bool) -> None:
        """A process of a rank goes, or gives up what it saves."""
        if rank in self.live and self.live[rank][0] == peer:
            _, buffer, written = self.live.pop(rank)
            if rank in self.whole and not gave_up:
                self.stored[buffer] = written
            self.whole.discard(rank)
        self.unanswered = [save for save in self.unanswered if (save.rank, save.peer) != (rank, peer)]
        self.do(WorkerGone(rank, peer, gave_up))

    # -- memory and time

    @rule(made=st.booleans(), data=st.data())
    def answer_one(self, made: bool, data: st.DataObject) -> None:
        """Perhaps for a second time, or about a buffer that nobody asked for."""
        known = [*self.asked, *self.sizes, 99]
        self.answer_buffer(data.draw(st.sampled_from(known), "buffer"), made)

    def answer_buffer(self, buffer: int, made: bool) -> None:
        size = self.asked.pop(buffer, None)
        if size is not None and made:
            self.sizes[buffer] = size
        self.do(BufferMade(buffer) if made else BufferRefused(buffer, "no room"))

    def answer_all(self, made: bool) -> None:
        for _ in range(MOST_EVENTS):
            if not self.asked:
                return
            self.answer_buffer(min(self.asked), made)
        raise AssertionError("it asks for memory without end")

    @rule(seconds=st.sampled_from((0.0, 1.0, 2.0, 5.0)))
    def wait(self, seconds: float) -> None:
        self.now += seconds
        self.do(Tick())

    @rule(made=st.sampled_from((True, False, None)))
    def settle(self, made: bool | None) -> None:
        """Nobody waits forever: neither with memory, nor without, nor with memory that never comes (None)."""
        if made is not None:
            self.answer_all(made)
        while (deadline := self.vault.next_deadline()) is not None:
            assert deadline > self.now
            self.now = deadline
            self.do(Tick())
            if made is not None:
                self.answer_all(made)
        assert self.unanswered == []

    # -- what always holds

    @invariant()
    def all_that_is_held_was_told(self) -> None:
        anew = copy(self.vault)
        anew._seen, anew._effects = None, []
        anew._tell()
        assert anew._effects == [], "it looks again whenever something has changed"

    @invariant()
    def tells_what_is_needed(self) -> None:
        needed = {it.commit for it in self.safe.values()}
        assert {holding.commit for holding in self.told} == needed
        for commit in needed:
            here = {number: it.rank for number, it in self.safe.items() if it.commit == commit}
            assert {buffer.number: buffer.rank for buffer in self.vault.stored(commit)} == here

    def teardown(self) -> None:
        if self.ranks:
            self.settle(True)


TestVault = VaultMachine.TestCase
TestVault.settings = settings(max_examples=150, stateful_step_count=50, deadline=None)
