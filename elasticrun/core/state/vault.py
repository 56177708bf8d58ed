"""What one node holds in memory of the job's commits: the agent's side, without the memory itself.

Theory. A worker saves into a *buffer* that the agent owns, so the state outlives the worker. What a buffer
holds passes through these stages:

    FREE -> WRITING -> STORED -> (superseded) -> FREE

A worker may write only into a buffer that nobody needs: never over the newest commit that is known to be
safe, and never over a part whose fate is still open. A part is *open* from the moment it is stored until
the master says that its commit, or a newer one, is kept, or that it is void: some member went on without
saving that step. So each worker needs two buffers: one holds the state that can be restored, the other
takes the next one. A worker that saves faster than the job commits waits, for a bounded time, and then does
without that save.

What all ranks have alike is stored once on each node: the local ranks divide it among them if all of them
name the same contents. To find that out, the first save of a round waits until all local ranks ask for it
(``core/state/meeting.py``). Later ones do not wait, unless a rank names other contents than before. If the
ranks then turn out to have named different ones, some of it may be missing, so the commit is never reported.

Invariants, at each moment. No byte of a part that was reported changes until the master has said that
nobody needs it. A commit is reported only if all local ranks of its round have stored it.
"""

from __future__ import annotations

import hmac

from elasticrun.core.protocol.commits import CommitId, Holding, Part
from elasticrun.core.state.buffers import Buffer, Pins, Shelf
from elasticrun.core.state.events import (
    BufferMade,
    BufferRefused,
    Grant,
    Hold,
    Judged,
    Pinned,
    Refuse,
    RoundBegins,
    SaveBegins,
    SaveCopied,
    SaveEnds,
    Stored,
    VaultEffect,
    VaultEvent,
    WorkerGone,
)
from elasticrun.core.state.meeting import Meeting
from elasticrun.dataclass import dataclass

#: Seconds for which a save waits for the verdict on the one before, or a round's first for other local ranks.
PATIENCE = 5.0
#: Seconds for which a save that waits for nobody else waits until its buffer is made.
BUFFER_PATIENCE = 30.0


@dataclass(frozen=True, slots=True)
class Place:
    """This node's place in a round, and the ranks of its workers."""

    group_rank: int
    size: int
    ranks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Wish:
    """A save that waits: for others, and then for the buffer that is being made."""

    save: SaveBegins
    until: float
    awaits_buffer: bool = False  # and for nothing else


class Vault:
    """The saved states of one node. ``now`` is in seconds of the agent's clock."""

    def __init__(self) -> None:
        self._now = 0.0
        self._effects: list[VaultEffect] = []
        self.shelf = Shelf()  # changed here only
        self._rounds: dict[int, Place] = {}
        self._round = -1
        self._wishes: dict[int, Wish] = {}  # by rank
        self._meeting = Meeting()
        self._last: dict[int, int] = {}  # the step that each rank stored last, in this round
        self._needs: dict[int, int] = {}  # the bytes that each rank needed last, in this round
        self._impatient: set[int] = set()  # ranks that waited in vain: not again before there is news
        self._lost = 0  # steps of this round that were stored in vain, since one was kept
        self._kept: CommitId | None = None
        self._void: CommitId | None = None
        self.pins = Pins()
        self.told: dict[CommitId, Holding] = {}  # what this node has told to hold, the oldest first
        self._seen: list[tuple[int, CommitId | None]] | None = None  # what was stored at the last look

    def handle(self, event: VaultEvent, now: float) -> list[VaultEffect]:
        """Take in one event and return what to do, in order."""
        self._now, self._effects = now, []
        match event:
            case RoundBegins():
                self._begin_round(event)
            case SaveBegins():
                self._begin_save(event)
            case SaveEnds():
                self._end_save(event)
            case SaveCopied():
                self.shelf.copied(event, self._round)
            case WorkerGone():
                self._give_up(event)
            case BufferMade(buffer):
                self.shelf.made(buffer)
            case BufferRefused(buffer, reason):
                self._miss(self.shelf.refused(buffer), reason)
            case Judged() | Pinned():
                self._judge(event)
        self._lose_patience()
        self._drop_useless()
        self._grant_all()
        self._tell()
        return self._effects

    def next_deadline(self) -> float | None:
        """When to send a tick, or None."""
        return min((wish.until for wish in self._wishes.values()), default=None)

    def stored(self, commit: CommitId) -> list[Buffer]:
        """The buffers of a commit that this node has told to hold; none otherwise."""
        return list(self.shelf.parts(commit).values()) if commit in self.told else []

    # -- rounds

    def _begin_round(self, event: RoundBegins) -> None:
        self._wishes.clear()
        for rank in self._ranks:
            if (buffer := self.shelf.written_by(rank)) is not None:
                buffer.free()
        self._round = event.round
        self._rounds[event.round] = Place(event.group_rank, event.size, event.ranks)
        self._lost = 0
        self._seen = None
        self._last.clear()
        self._needs.clear()
        self._impatient.clear()
        self._meeting = Meeting()
        if event.restore is not None:
            self._kept = event.restore
        for buffer in self.shelf.stored:  # no commit of an earlier round is made any more
            if buffer.commit != self._kept and not self.pins.has(buffer.commit):
                buffer.free()
        self._forget_rounds()

    def _forget_rounds(self) -> None:
        used = {buffer.commit.round for buffer in self.shelf.stored if buffer.commit is not None}
        used.add(self._round)
        self._rounds = {number: place for number, place in self._rounds.items() if number in used}

    @property
    def _ranks(self) -> tuple[int, ...]:
        return self._rounds[self._round].ranks if self._round in self._rounds else ()

    # -- saves

    def _begin_save(self, event: SaveBegins) -> None:
        last = self._last.get(event.rank, -1)
        if event.rank not in self._ranks:
            self._refuse(event, f"rank {event.rank} is none of this node's workers, ranks {self._ranks}")
        elif event.rank in self._wishes or self.shelf.written_by(event.rank) is not None:
            self._refuse(event, f"rank {event.rank} has begun a save that has not ended")
        elif event.step <= last:
            self._refuse(event, f"step {event.step} must come after step {last}, which was saved last")
        else:
            self._meeting.name(event.rank, event.step, event.contents)
            patience = 0.0 if event.rank in self._impatient else PATIENCE
            self._wishes[event.rank] = Wish(event, self._now + patience)

    def _end_save(self, event: SaveEnds) -> None:
        buffer = self.shelf.meant_by(event, self._round)
        if buffer is None:
            self._refuse(event, f"rank {event.rank} does not write step {event.step} here")
        elif event.length > buffer.size:
            buffer.free()
            self._refuse(event, f"{event.length} bytes are more than the {buffer.size} of the buffer")
        else:
            buffer.store(event.length, event.digest, event.own)
            self._last[event.rank] = event.step
            self._effects.append(Stored(event.rank, event.step, event.peer))

    def _give_up(self, event: WorkerGone) -> None:
        """One process of a rank has gone: what another one of it saves goes on."""
        wish, buffer = self._wishes.get(event.rank), self.shelf.written_by(event.rank)
        if wish is not None and wish.save.peer == event.peer:
            del self._wishes[event.rank]
        if buffer is None or buffer.peer != event.peer:
            return
        if buffer.is_whole and not event.gave_up:
            assert buffer.commit is not None, "it is written"
            self._last[event.rank] = buffer.commit.step
            buffer.keep()
        else:
            buffer.free()

    def _miss(self, rank: int, reason: str) -> None:
        """There is no room for a rank's buffer."""
        wish = self._wishes.pop(rank, None)
        if wish is not None:
            self._refuse(wish.save, reason)

    def _lose_patience(self) -> None:
        for rank, wish in list(self._wishes.items()):
            if wish.awaits_buffer or self._now < wish.until:
                continue
            self._meeting.break_up()
            if not self._is_decided(rank):
                del self._wishes[rank]
                self._impatient.add(rank)
                saved = f"that all ranks have saved step {self._last[rank]}"
                self._refuse(wish.save, f"the master has not confirmed within {PATIENCE:.0f} s {saved}")

    def _refuse(self, asked: SaveBegins | SaveEnds, reason: str) -> None:
        self._effects.append(Refuse(asked.rank, asked.step, reason, asked.peer))

    def _is_decided(self, rank: int) -> bool:
        """Whether the fate of all that a rank has stored in this round is known."""
        return all(
            buffer.commit == self._kept or self.pins.has(buffer.commit)
            for buffer in self.shelf.stored
            if buffer.rank == rank and buffer.commit is not None and buffer.commit.round == self._round
        )

    def _grant_all(self) -> None:
        """Grant the saves that need not wait for anything."""
        for rank, wish in list(self._wishes.items()):
            may_meet = bool(wish.save.contents) and not wish.awaits_buffer
            waits = may_meet and self._meeting.awaits_some(len(self._ranks))
            if not waits and self._is_decided(rank):
                self._grant(wish)

    def _grant(self, wish: Wish) -> None:
        save = wish.save
        divides = bool(save.contents) and self._meeting.is_unanimous(len(self._ranks))
        need = self._needs[save.rank] = save.share if divides else save.whole
        if len(self._needs) == len(self._ranks):  # else one that is to come may need more
            self.shelf.drop_wide(max(self._needs.values()))
        buffer = self.shelf.take(need, save.rank)
        if buffer is not None:
            del self._wishes[save.rank]
            self._impatient.discard(save.rank)
            buffer.write(save, self._round, divides)
            self._effects.append(Grant(save.rank, save.step, buffer.number, divides, save.peer, self._lost))
            if len(self.shelf) < 2 * len(self._ranks):
                self.shelf.take(need, save.rank)  # for the next save: its pages are there by then
        elif not wish.awaits_buffer:
            self._wishes[save.rank] = Wish(save, self._now + BUFFER_PATIENCE, awaits_buffer=True)
        elif wish.until <= self._now:  # the buffer is free for whoever saves once it is there
            self._miss(save.rank, f"no buffer of {need} bytes was ready within {BUFFER_PATIENCE:.0f} s")
        self._effects += self.shelf.effects
        self.shelf.effects.clear()

    # -- commits

    def _judge(self, event: Judged | Pinned) -> None:
        """Free what is older than what is kept, or void, and not pinned."""
        if isinstance(event, Pinned):
            self.pins = self.pins._replace(storing=event.commit)
        else:
            self._impatient.clear()
            if event.kept is not None and (self._kept is None or event.kept.age > self._kept.age):
                self._kept = event.kept
                self._lost = 0
            self.pins, self._void = self.pins.after(event), event.void
        lost: set[CommitId] = set()
        for buffer in self.shelf.stored:
            assert buffer.commit is not None
            is_void = self._void is not None and buffer.commit.age <= self._void.age
            is_old = self._kept is not None and buffer.commit.age < self._kept.age
            is_pinned = buffer.commit == self._kept or self.pins.has(buffer.commit)
            if not is_pinned and (is_void or is_old):
                lost |= {buffer.commit} if not is_old and buffer.commit.round == self._round else set()
                buffer.free()
        self._lost += len(lost)
        self._forget_rounds()

    def _drop_useless(self) -> None:
        """Free what this node will never report: steps that one of its ranks passed, or stored otherwise."""
        newest = self.shelf.newest_steps(self._round)
        for rank, wish in self._wishes.items():
            newest[rank] = max(newest.get(rank, -1), wish.save.step)
        for commit in {buffer.commit for buffer in self.shelf.stored if buffer.commit} - self.told.keys():
            parts = self.shelf.parts(commit)
            is_passed = any(step > commit.step and rank not in parts for rank, step in newest.items())
            if is_passed or (len(parts) == len(self._ranks) and self._holding(commit) is None):
                self._lost += 1
                for buffer in parts.values():
                    buffer.free()

    def _tell(self) -> None:
        """Tell what this node holds, if that has changed. It follows from what is stored in which buffer."""
        seen = [(buffer.number, buffer.commit) for buffer in self.shelf.stored]
        if seen == self._seen:
            return
        self._seen = seen
        commits = {buffer.commit for buffer in self.shelf.stored if buffer.commit is not None}
        found = [self._holding(commit) for commit in sorted(commits, key=lambda each: each.age)]
        told = {holding.commit: holding for holding in found if holding is not None}
        if told != self.told:
            self.told = told
            self._effects.append(Hold(tuple(told.values())))

    def _holding(self, commit: CommitId) -> Holding | None:
        """What to tell of a commit; None unless all local ranks of its round have stored it whole."""
        place, parts = self._rounds[commit.round], self.shelf.parts(commit)
        kinds = {(buffer.contents, buffer.divides) for buffer in parts.values()}
        # some of what is shared may be missing
        is_torn = len(kinds) > 1 and any(divides for _, divides in kinds)
        if len(parts) < len(place.ranks) or is_torn:
            return None
        digests = ",".join(parts[rank].digest for rank in place.ranks)
        shared = ",".join(sorted({contents for contents, _ in kinds}))
        own = any(buffer.own for buffer in parts.values())
        part = Part(place.group_rank, _digest(digests), own, shared and _digest(shared))
        return Holding(commit, place.size, (part,))


def _digest(text: str) -> str:
    """A name for these digests together, in hex."""
    return hmac.digest(b"elasticrun part", text.encode(), "sha256").hex()[:32]
