"""Who reads which shard: leases that are acknowledged by the commit of a step, not by reading.

Theory. Every record of an epoch is at each moment in exactly one of these: not dealt yet (beyond the cursor),
free, in an open lease, consumed at a step of a round, or failed. Each rule moves records from one to another,
so none is lost and none is in two. A worker says what it has trained on with the step that it saves, and
*before* its part of that step is complete. So a step that can be restored has all that it consumed in here;
to restore it makes free again what was consumed after it, and all open leases. What is in the history of the
model that is restored is then exactly what is consumed in here.

A holder is one worker of one round. Its leases have a deadline, which only progress moves. When it passes, or
the holder is lost, what is left of its leases is free, and any later word of this holder is refused: its step
is not saved, so what it trained on is in no commit. The lease that it was at has then failed once. After
``retries`` more failures what is left of that shard is set aside, and reported; an epoch can end without it.

Messages may come late or twice. Requests and steps are numbered by their holder, a number that was answered
is answered again, and changes nothing. Faster holders take more, as they ask more often.

Cost of each call: in proportion to the leases of one holder. Memory: free pieces, open leases, and what was
consumed since the oldest step that may still be restored (``settle``).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from heapq import heapify, heappop, heappush
from typing import NamedTuple

from elasticrun.core.data.shards import ENDLESS, Shard, Shards
from elasticrun.core.protocol.commits import CommitId
from elasticrun.dataclass import dataclass
from elasticrun.errors import DataError

#: The most open leases of one holder. What it has read stays open until it saves.
MAX_OPEN = 1 << 18


class Piece(NamedTuple):
    """Records ``start`` to ``stop`` of the shard at a place of an epoch."""

    epoch: int
    place: int
    start: int
    stop: int


class Holder(NamedTuple):
    """One worker of one round."""

    round: int
    name: str  # that no other worker of the round has


@dataclass(frozen=True, slots=True)
class Lease:
    """A piece that one holder may read."""

    id: int
    epoch: int
    shard: Shard  # what is left of it


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a holder has trained on a lease."""

    upto: int  # the first record that it has not trained on
    is_over: bool = False  # nothing comes after it: the file has ended
    stop: int = ENDLESS  # of the shard, if its reader knows that and the ledger does not


@dataclass(frozen=True, slots=True)
class Failed:
    """What is left of a shard that is not tried again."""

    piece: Piece
    shard: Shard
    reason: str


class Held:
    """The leases of one holder."""

    def __init__(self) -> None:
        self.open: dict[int, Piece] = {}  # what is left of each lease, by its id, oldest first
        self.request = -1  # the newest
        self.answer: tuple[Lease, ...] = ()  # to the newest request
        self.step = -1  # the newest


class Ledger:
    """The leases of one dataset. ``now`` is in seconds of the caller's clock."""

    def __init__(self, plan: Shards, patience: float = 600.0, retries: int = 3) -> None:
        self._plan = plan
        self._patience = patience
        self._retries = retries
        self._round = -1
        self._branches: list[tuple[int, CommitId | None]] = []  # of the lineage: round, what it went on from
        self.cursor = 0, 0  # epoch and place of the first shard that was not dealt
        self._free: list[Piece] = []  # a heap
        self._holders: dict[str, Held] = {}  # of this round
        self._due: dict[str, float] = {}  # deadlines of those with open leases, the first one first
        self._gone: set[str] = set()  # holders of this round that have no say any more
        self._consumed: dict[CommitId, list[Piece]] = {}  # that a restore may make free again
        self._settled: CommitId | None = None
        self._failures: dict[tuple[int, int], int] = {}  # by epoch and place
        self._next = 0  # id of the next lease
        #: What was set aside, oldest first. What was told in a state may be forgotten: nobody deals it again.
        self.failed: list[Failed] = []

    # -- what workers say

    def take(self, holder: Holder, request: int, epoch: int, now: float, count: int = 1) -> tuple[Lease, ...]:
        """Lease up to ``count`` more shards, of epochs up to this one. None are left: others read the rest.

        Raises:
            DataError: this holder has no say any more, or has taken too much since it saved last.
        """
        held = self._held(holder)
        if request > held.request:
            is_idle = not held.open
            if len(held.open) + count > MAX_OPEN:
                raise DataError(
                    f"{holder.name} has {len(held.open)} leases that are in no saved state. Give the dataset"
                    " to the Checkpointer with the rest of the state; one that is not to be saved, as for an"
                    " evaluation, needs saved=False. If it is saved: save more often, or cut the data into"
                    " larger shards"
                )
            held.request = request
            pieces = [piece for _ in range(count) if (piece := self._draw(epoch)) is not None]
            held.answer = tuple(self._lease(held, piece) for piece in pieces)
            if is_idle:
                self._renew(holder.name, held, now)
        return held.answer if request == held.request else ()

    def consume(self, holder: Holder, step: int, progress: Mapping[int, Progress], now: float) -> None:
        """Note what a holder has trained on, by lease, in the state that it saves after ``step``.

        Raises:
            DataError: this holder has no say any more, or has no such lease: the step must not be saved.
        """
        held = self._held(holder)
        if step <= held.step:
            return
        for id, each in progress.items():
            piece = held.open.get(id)
            if piece is None or not piece.start <= each.upto <= piece.stop:
                raise DataError(
                    f"{holder.name} has trained on record {each.upto} of lease {id}, which it does not hold"
                )
        held.step = step
        commit, has_moved = CommitId(holder.round, step), False
        for id, each in progress.items():
            piece = held.open[id]
            if each.upto > piece.start:
                self._consumed.setdefault(commit, []).append(piece._replace(stop=each.upto))
            has_moved = has_moved or each.upto > piece.start or each.is_over
            rest = piece._replace(start=each.upto)
            lacking = rest._replace(stop=min(rest.stop, each.stop))
            if each.is_over and lacking.start < lacking.stop < ENDLESS:
                self._set_aside(lacking, f"it ended at record {rest.start}")
            if each.is_over or rest.start == rest.stop:
                del held.open[id]
            else:
                held.open[id] = rest
        if has_moved:
            self._renew(holder.name, held, now)

    def fail(self, holder: Holder, lease: int, at: int, reason: str) -> None:
        """A holder cannot read a lease from record ``at`` on. DataError as in ``consume``."""
        held = self._held(holder)
        piece = held.open.get(lease)
        if piece is None or not piece.start <= at < piece.stop:
            return  # it was told before
        if at > piece.start:
            held.open[lease] = piece._replace(stop=at)
        else:
            del held.open[lease]
        self._give_back(piece._replace(start=at), reason)

    # -- what the master says

    def lose(self, name: str, reason: str = "its worker was lost") -> None:
        """A holder of this round is gone: what is left of its leases is free."""
        self._gone.add(name)
        held = self._holders.pop(name, None)
        self._due.pop(name, None)
        for number, piece in enumerate(held.open.values() if held is not None else ()):
            if number:
                heappush(self._free, piece)
            else:
                self._give_back(piece, reason)  # the one that it was at

    def expire(self, now: float) -> list[str]:
        """Lose the holders whose deadline has passed. Returns their names."""
        late = list[str]()
        for name, until in self._due.items():
            if until > now:
                break
            late.append(name)
        for name in late:
            self.lose(name, f"nothing of it was acknowledged for {self._patience:g} s")
        return late

    def next_deadline(self) -> float | None:
        """When ``expire`` has something to do; None: never."""
        return next(iter(self._due.values()), None)

    def restore(self, round_: int, commit: CommitId | None) -> None:
        """A new round begins, which restores this commit. None: it begins with nothing.

        Raises:
            DataError: this is no new round, or what was consumed until that commit is not known any more.
        """
        if round_ <= self._round:
            raise DataError(f"round {round_} is none that follows round {self._round}")
        if self._settled is not None and (commit is None or commit.age < self._settled.age):
            raise DataError(f"{commit or 'nothing'} cannot be restored: the data went on to {self._settled}")
        kept = [each for each in self._branches if commit is not None and each[0] <= commit.round]
        if commit is not None and (not kept or kept[-1][0] != commit.round):
            raise DataError(f"{commit} cannot be restored: the data was never there")
        for _, begun in self._branches[len(kept) :]:
            if commit is not None and (begun is None or begun.age < commit.age):
                raise DataError(f"{commit} cannot be restored: the data went on from {begun or 'nothing'}")
        later = [each for each in self._consumed if commit is None or each.age > commit.age]
        freed = [piece for each in later for piece in self._consumed.pop(each)]
        freed += self.open()
        self._free = _merged([*self._free, *freed])
        self._branches, self._round = [*kept, (round_, commit)], round_
        self._holders.clear()
        self._due.clear()
        self._gone.clear()

    def settle(self, commit: CommitId) -> None:
        """No commit before this one will ever be restored."""
        for each in [each for each in self._consumed if each.age <= commit.age]:
            del self._consumed[each]
        if self._settled is None or commit.age > self._settled.age:
            self._settled = commit
        self._branches = [each for each in self._branches if each[0] >= commit.round]

    # -- what a state needs

    def waiting(self, epoch: int) -> int:
        """How many pieces nobody has leased, up to the end of an epoch; with free ones of later epochs."""
        at, place = self.cursor
        return len(self._free) + max(0, (epoch + 1 - at) * self._plan.count - place)

    def left(self) -> list[Piece]:
        """What was dealt and not consumed by now, in order."""
        return sorted(_merged([*self._free, *self.open()]))

    def open(self) -> list[Piece]:
        """What of the leases was not consumed by now, in no order."""
        return [piece for held in self._holders.values() for piece in held.open.values()]

    def state(self) -> dict[str, object]:
        """What was not consumed by now, as plain values: for a state that is saved with the model."""
        return {
            "format": 1,
            "plan": self._plan.identity,
            "cursor": list(self.cursor),
            "free": [list(piece) for piece in self.left()],
            "failed": [[list(each.piece), each.reason] for each in self.failed],
        }

    @classmethod
    def of_state(cls, plan: Shards, state: object, patience: float = 600.0, retries: int = 3) -> Ledger:
        """A ledger that goes on from a state.

        Raises:
            DataError: it is damaged, or of other data.
        """
        made = cls(plan, patience, retries)
        if not isinstance(state, Mapping) or state.get("format") != 1:
            raise DataError("the saved leases are none: they have no format that this elasticrun reads")
        if state.get("plan") != plan.identity:
            raise DataError(
                "the saved leases are of other files, lengths, sizes, seed or shuffle: start anew"
            )
        try:
            epoch, place = (_count(each) for each in state["cursor"])
            made.cursor = epoch, place
            made._free = _merged(_piece(each, (epoch, place)) for each in state["free"])
            for listed, reason in state["failed"]:
                made._set_aside(_piece(listed, (epoch, place)), str(reason))
        except (KeyError, TypeError, ValueError) as error:
            raise DataError(f"the saved leases are damaged: {error!r}") from error
        return made

    # -- parts

    def _held(self, holder: Holder) -> Held:
        if holder.round != self._round or holder.name in self._gone:
            raise DataError(
                f"{holder.name} of round {holder.round} has no leases any more: its round has ended, it was"
                " lost, or it acknowledged nothing for too long"
            )
        if holder.name not in self._holders:
            self._holders[holder.name] = Held()
        return self._holders[holder.name]

    def _renew(self, name: str, held: Held, now: float) -> None:
        self._due.pop(name, None)
        if held.open:
            self._due[name] = now + self._patience  # the last one

    def _draw(self, epoch: int) -> Piece | None:
        if self._free and self._free[0].epoch <= epoch:
            return heappop(self._free)
        at, place = self.cursor
        if at > epoch:
            return None
        shard = self._plan.shard(at, place)
        self.cursor = (at, place + 1) if place + 1 < self._plan.count else (at + 1, 0)
        return Piece(at, place, shard.start, shard.stop)

    def _lease(self, held: Held, piece: Piece) -> Lease:
        self._next += 1
        held.open[self._next] = piece
        return Lease(self._next, piece.epoch, _shard(self._plan, piece))

    def _give_back(self, piece: Piece, reason: str) -> None:
        """What is left of a shard has failed once more."""
        key = piece.epoch, piece.place
        self._failures[key] = self._failures.get(key, 0) + 1
        if self._failures[key] > self._retries:
            self._set_aside(piece, reason)
        else:
            heappush(self._free, piece)

    def _set_aside(self, piece: Piece, reason: str) -> None:
        self.failed.append(Failed(piece, _shard(self._plan, piece), reason))


def _shard(plan: Shards, piece: Piece) -> Shard:
    return Shard(plan.shard(piece.epoch, piece.place).name, piece.start, piece.stop)


def _merged(pieces: Iterable[Piece]) -> list[Piece]:
    """The same records in as few pieces as possible, as a heap."""
    merged = list[Piece]()
    for piece in sorted(pieces):
        last = merged[-1] if merged else None
        if last is not None and (last.epoch, last.place, last.stop) == piece[:3]:
            merged[-1] = last._replace(stop=piece.stop)
        else:
            merged.append(piece)
    heapify(merged)
    return merged


def _count(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise ValueError(f"{value!r} is no number from 0 on")
    return value


def _piece(listed: Iterable[object], cursor: tuple[int, int]) -> Piece:
    piece = Piece(*map(_count, listed))
    if piece.start >= piece.stop or (piece.epoch, piece.place) >= cursor:
        raise ValueError(f"{list(piece)} is no piece that was dealt")
    return piece
