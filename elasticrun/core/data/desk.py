"""How all ranks of a round share one dataset: the master's side of ``ShardedDataset``.

Theory. The truth is in the saved states. A state has what was left of the data when it was saved, so a round
that restores a commit opens its desk with that, and the model and what it has yet to see cannot differ. What
is here is of one round. It deals what is left to the readers, and nothing of it outlives the round.

A reader that saves waits until all readers have told what they have trained on. What is left then is in no
model, and all else is in the model of this step, on one rank or the other. So each rank saves the same, and
any one of these states is enough for a world of any size. Open leases count as left, as nobody has trained on
them yet; those who hold them go on with them, unless a restore deals them anew. What is told is noted at
once, also by who never saves, as of data for an evaluation: within a round nothing goes back.

Invariant: what is dealt is never dealt again within the round. That holds for a master that was restarted if
it knows of all that was dealt. Each reader numbers its asks, so a gap shows that it does not; so does a
reader that is not known, or that goes on although it waits here. Then the desk is *closed*: whoever asks is
refused, fails, and the next round goes on from the last commit. All readers take part in each save, so no
state is saved after a gap. A reader that fails, is lost or does not come ends its round as any worker does.

What is left out is told in the next state, and later ones have the newest of it: a few shards that cannot be
read must not make a long training's states grow, nor end it. So they are counted by epoch.

The master knows shards by their places in an epoch alone: how much it keeps does not depend on the number of
files. That a shard is over is for its reader to say.

Who may come: workers of the round, through their node's agent; the sender of each ask is checked before
(``core/job/data.py``). Readers of one job trust one another: one that lies spoils what it shares.
"""

from __future__ import annotations

from collections import Counter

from elasticrun.core.data.grants import granted
from elasticrun.core.data.leases import Holder, Ledger, Progress
from elasticrun.core.data.shards import ENDLESS, Places
from elasticrun.core.data.standing import Standing, standing
from elasticrun.core.protocol.commits import CommitId
from elasticrun.core.protocol.data import (
    MAX_FAILED,
    MAX_PIECES,
    MAX_TOLD,
    AskData,
    DataAnswer,
    DataLeft,
    FailedPiece,
    OpenData,
    ShardLease,
    ShardPiece,
)
from elasticrun.errors import DataError

#: How often what cannot be read is tried again.
RETRIES = 3
#: The most datasets of a round.
MAX_DESKS = 64
#: Ranks that are named in a message.
NAMED = 5
Told = tuple[int, DataAnswer]  # a rank, and what it is told


class Reader:
    """One rank at the desk."""

    def __init__(self, instance: str) -> None:
        self.instance = instance
        self.call = 0  # the newest
        self.answer: DataAnswer | None = None  # to the newest; None: it waits


class Desk:
    """One dataset in one round."""

    def __init__(self, opened: OpenData) -> None:
        """DataError: what is left cannot be."""
        self.load = opened.reader.load
        self.deadline: float | None = None  # of a save that some readers wait for
        self._opened = opened
        self._ledger = _ledger_of(opened)
        self._readers: dict[int, Reader] = {}
        self._saving: list[int] = []  # ranks that wait for the others
        self._closed = ""  # why
        self._known = len(self._ledger.failed)  # of those that are left out
        self.news: list[str] = []  # what was left out since somebody took this, in words

    def open(self, rank: int, message: OpenData) -> list[Told]:
        """A reader comes."""
        if self._closed:
            return [(rank, refusal(message, self._closed))]
        reader = self._readers.get(rank)
        if reader is not None and reader.instance != message.reader.instance:
            name = message.reader.name
            return [
                (
                    rank,
                    refusal(
                        message, f"rank {rank} reads {name} twice in this round: give each a name of its own"
                    ),
                )
            ]
        if reader is not None:  # it comes again
            return [(rank, reader.answer)] if reader.answer and reader.call == message.call else []
        if fault := self._misfit(rank, message):
            return [*self.close(fault), (rank, refusal(message, fault))]
        self._readers[rank] = reader = Reader(message.reader.instance)
        reader.call, reader.answer = message.call, _answer(message)
        return [(rank, reader.answer)]

    def ask(self, rank: int, message: AskData, now: float) -> list[Told]:
        """A reader tells what it has trained on, and asks for more."""
        reader = self._readers.get(rank)
        if reader is None or reader.instance != message.reader.instance:
            return [(rank, refusal(message, f"this master does not know that rank {rank} reads here"))]
        if message.call <= reader.call:  # it comes again
            is_newest = message.call == reader.call and reader.answer is not None
            return [(rank, reader.answer)] if is_newest and reader.answer is not None else []
        is_next, reader.call, reader.answer = message.call == reader.call + 1, message.call, None
        try:
            if not is_next or rank in self._saving:  # who waits asks nothing, unless it was answered
                raise DataError(f"this master does not know all that rank {rank} was told")
            if self._closed:
                raise DataError(self._closed)
            return self._serve(rank, message, now)
        except DataError as error:
            reader.answer = refusal(message, str(error))
            return [*self.close(str(error)), (rank, reader.answer)]

    def expire(self, now: float) -> list[Told]:
        """Close it if readers have waited for too long for others to save."""
        if self.deadline is None or self.deadline > now:
            return []
        lack = [rank for rank in range(self._opened.readers) if rank not in self._saving]
        more = ", ..." if len(lack) > NAMED else ""
        return self.close(
            f"rank {', '.join(map(str, lack[:NAMED]))}{more} has not saved within"
            f" {self._opened.patience:g} s what rank {self._saving[0]} saves: all readers save the same steps"
        )

    def close(self, reason: str) -> list[Told]:
        """Nobody is served any more."""
        self._closed = self._closed or reason
        waiting, self._saving, self.deadline = self._saving, [], None
        return [(rank, self._tell(rank, refused=self._closed)) for rank in waiting]

    def standing(self, epoch: int | None = None) -> Standing:
        """How far the readers are; it takes time in proportion to the pieces that are left."""
        return standing(self._ledger, self._opened.shards, epoch)

    def _misfit(self, rank: int, message: OpenData) -> str:
        """How a reader differs from the one that opened the desk, in words."""
        name, mine, its = message.reader.name, self._opened, message
        if (mine.plan, mine.shards) != (its.plan, its.shards):
            return f"the ranks have different data under the name {name}: other files, sizes, seed or shuffle"
        if mine.state != its.state:
            return f"the ranks have gone on from different states of {name}: load the same commit on all"
        if mine.readers != its.readers or len(self._readers) == mine.readers:
            return f"the ranks do not agree on how many of them read {name}, or there are more"
        return ""

    def _serve(self, rank: int, message: AskData, now: float) -> list[Told]:
        holder = Holder(0, f"rank {rank}")
        for fault in message.faults:
            self._ledger.fail(holder, fault.lease, fault.at, fault.reason)
        told = {
            each.lease: Progress(each.upto, each.is_over, each.stop or ENDLESS) for each in message.progress
        }
        self._ledger.consume(holder, message.call, told, now)
        self._ledger.settle(CommitId(0, message.call))
        self._look_at_failed()
        if message.saves:
            return self._save(rank, now)
        count = granted(message.wanted, self._opened.readers, self._ledger.waiting(message.epoch))
        found = self._ledger.take(holder, message.call, message.epoch, now, count) if count else ()
        leases = tuple(
            ShardLease(each.id, _piece(each.epoch, int(each.shard.name), each.shard.start, each.shard.stop))
            for each in found
        )
        return [(rank, self._tell(rank, leases=leases))]

    def _look_at_failed(self) -> None:
        """Tell of what was left out since the last time."""
        failed = self._ledger.failed
        if len(failed) == self._known:
            return
        name = self._opened.reader.name
        self.news += [
            f"{name}: a shard of epoch {each.piece.epoch} is left out: {each.reason}"
            for each in failed[self._known :]
        ]
        epoch, count = Counter(each.piece.epoch for each in failed).most_common(1)[0]
        if count > MAX_FAILED:
            raise DataError(
                f"more than {MAX_FAILED} shards of epoch {epoch} cannot be read: are the data there?"
            )
        self._forget_failed(MAX_TOLD)

    def _forget_failed(self, most: int) -> None:
        del self._ledger.failed[:-most]
        self._known = len(self._ledger.failed)

    def _save(self, rank: int, now: float) -> list[Told]:
        if not self._saving:
            self.deadline = now + self._opened.patience
        self._saving.append(rank)
        if len(self._saving) < self._opened.readers:
            return []
        left = self._left()
        if len(left.free) > MAX_PIECES:
            raise DataError(
                f"more than {MAX_PIECES} leases are open: cut the data into larger shards, or use fewer ranks"
            )
        self._forget_failed(MAX_FAILED)
        saving, self._saving, self.deadline = self._saving, [], None
        return [(each, self._tell(each, left=left)) for each in saving]

    def _left(self) -> DataLeft:
        epoch, place = self._ledger.cursor
        free = tuple(_piece(*each) for each in self._ledger.left())
        failed = tuple(FailedPiece(_piece(*each.piece), each.reason) for each in self._ledger.failed)
        return DataLeft(epoch, place, free, failed)

    def _tell(
        self,
        rank: int,
        refused: str = "",
        leases: tuple[ShardLease, ...] = (),
        left: DataLeft | None = None,
    ) -> DataAnswer:
        reader = self._readers[rank]
        reader.answer = DataAnswer(
            0, self._opened.reader.round, reader.instance, reader.call, refused, leases=leases, left=left
        )
        return reader.answer


class Desks:
    """All shared datasets of one round."""

    def __init__(self) -> None:
        self._desks: dict[str, Desk] = {}
        self._stopped = ""

    def open(self, rank: int, message: OpenData) -> list[Told]:
        """A reader comes, or comes back with a state that it has loaded."""
        reader, told = message.reader, list[Told]()
        desk = self._desks.get(reader.name)
        if self._stopped:
            return [(rank, refusal(message, self._stopped))]
        if desk is not None and reader.load < desk.load:
            return [(rank, refusal(message, f"other ranks have loaded a state of {reader.name} since"))]
        if desk is None or reader.load > desk.load:
            if message.state and message.left is None:
                return [(rank, _answer(message, needs_left=True))]
            if desk is None and len(self._desks) == MAX_DESKS:
                return [(rank, refusal(message, f"a round has at most {MAX_DESKS} shared datasets"))]
            if desk is not None:
                told = desk.close(f"another rank has loaded a state of {reader.name} since")
            try:
                self._desks[reader.name] = desk = Desk(message)
            except DataError as error:
                return [*told, (rank, refusal(message, str(error)))]
        return told + desk.open(rank, message)

    def ask(self, rank: int, message: AskData, now: float) -> list[Told]:
        """A reader asks."""
        desk = self._desks.get(message.reader.name)
        if desk is None or desk.load != message.reader.load:
            why = f"{message.reader.name} is not open here, or other ranks have loaded a state since"
            return [(rank, refusal(message, why))]
        return desk.ask(rank, message, now)

    def stop(self, reason: str) -> list[Told]:
        """The round ends, and not all of its workers can save any more."""
        self._stopped = reason
        return [told for desk in self._desks.values() for told in desk.close(reason)]

    def next_deadline(self) -> float | None:
        """When ``expire`` has something to do; None: never."""
        return min(
            (each.deadline for each in self._desks.values() if each.deadline is not None), default=None
        )

    def expire(self, now: float) -> list[Told]:
        """Close what somebody has waited at for too long."""
        return [told for desk in self._desks.values() for told in desk.expire(now)]

    def get(self, name: str) -> Desk | None:
        """The desk of one of them, if it is open."""
        return self._desks.get(name)

    def news(self, name: str) -> list[str]:
        """What is left out of a dataset since the last time, in words."""
        if name not in self._desks:
            return []
        desk = self._desks[name]
        found, desk.news = desk.news, []
        return found


def refusal(message: OpenData | AskData, reason: str) -> DataAnswer:
    """The answer to whom has no say any more."""
    return _answer(message, refused=reason)


def _answer(message: OpenData | AskData, refused: str = "", needs_left: bool = False) -> DataAnswer:
    reader = message.reader
    return DataAnswer(0, reader.round, reader.instance, message.call, refused, needs_left)


def _ledger_of(opened: OpenData) -> Ledger:
    plan, left = Places(opened.shards, opened.plan), opened.left
    if left is None:
        ledger = Ledger(plan, retries=RETRIES)
    else:
        state = {
            "format": 1,
            "plan": plan.identity,
            "cursor": [left.epoch, left.place],
            "free": [_listed(each) for each in left.free],
            "failed": [[_listed(each.piece), each.reason] for each in left.failed],
        }
        ledger = Ledger.of_state(plan, state, retries=RETRIES)
    ledger.restore(0, None)
    return ledger


def _piece(epoch: int, place: int, start: int, stop: int) -> ShardPiece:
    return ShardPiece(epoch, place, start, stop if stop < ENDLESS else 0)


def _listed(piece: ShardPiece) -> list[int]:
    return [piece.epoch, piece.place, piece.start, piece.stop or ENDLESS]
