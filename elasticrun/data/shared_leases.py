"""``SharedLeases``: leases of the ledger that the master keeps for all ranks of a round.

Transport, and why this one. A worker asks its agent over the Unix socket that saved states use, and the agent
passes the ask on in its stream to the master. Both are there, prove who speaks, and come back by themselves:
the stream after a break, the master from its journal. So an ask is answered once, however often it is sent.
A worker of its own that serves leases would be one more process to lose; the script's process group would
need all ranks at the same time.

The truth about what was trained on is in the saved states (``core/data/desk.py``). ``state`` is a collective
call: it returns the same on all ranks, once all have called it. Between two states nothing is told but what
is wanted; and of data that are in no state, what is over. Leases are asked for ahead, while the present ones
are trained on. How many: ``core/data/grants.py``.

After a refusal this worker can save no state any more: it has trained on what others may read again. So each
further call raises the same error.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
from collections import deque
from collections.abc import Callable, Mapping
from itertools import islice
from typing import Any, NamedTuple

from elasticrun.core.data.grants import AHEAD, next_ahead
from elasticrun.core.data.leases import Failed, Lease, Ledger, Piece, Progress
from elasticrun.core.data.shards import ENDLESS, Plan, Shard
from elasticrun.core.protocol.data import (
    MAX_FAILED,
    MAX_PROGRESS,
    AskData,
    DataAnswer,
    DataLeft,
    DataReader,
    FailedPiece,
    OpenData,
    ShardFault,
    ShardPiece,
    ShardProgress,
)
from elasticrun.data.agent_line import AgentLine
from elasticrun.errors import DataError
from elasticrun.rpc.records import from_json, to_json

#: Seconds beyond ``patience`` that the answer of a master may take that is away.
GRACE = 60.0
_BY_AGENT = "by the agent"  # a text that the agent replaces


class Held(NamedTuple):
    """An open lease."""

    shard: Shard  # what of it is leased
    first: int  # the first record of the whole shard


class SharedLeases:
    """The master's ledger of one dataset, as one rank sees it."""

    def __init__(
        self,
        plan: Plan,
        name: str,
        readers: int,
        patience: float = 600.0,
        connect: Callable[[float], AgentLine] | None = None,
    ) -> None:
        """``name``: of the data, the same on all ranks that share them; ``readers``: how many these are.

        ``patience``: seconds for which a rank that saves waits for the others.
        """
        self._plan = plan
        self._digest = _digest(plan.identity)
        self._name = name
        self._readers = readers
        self._patience = patience
        self._connect = connect or (lambda wait: AgentLine.connect(os.environ, wait))
        self._line: AgentLine | None = None
        self._instance = secrets.token_hex(8)
        self._load = 0  # how many states were loaded
        self._left: DataLeft | None = None  # of the last one
        self._is_open = False
        self._call = 0
        self._is_asked = False  # an answer is to come
        self._ready: deque[Lease] = deque()
        self._held: dict[int, Held] = {}  # open leases, by their ids
        self._ahead = AHEAD
        self._progress: dict[int, Progress] = {}
        self._over: dict[int, Progress] = {}  # leases that are in no state, to tell with the next ask
        self._broken = ""
        self._failed: tuple[Failed, ...] = ()
        self._news: tuple[Failed, ...] = ()

    @property
    def failed(self) -> tuple[Failed, ...]:
        """What was left out by the time of the last state: the newest."""
        return self._failed

    def news(self) -> tuple[Failed, ...]:
        """What was left out by the time of the last state, and not by that of the one before."""
        found, self._news = self._news, ()
        return found

    def take(self, epoch: int) -> tuple[Lease, ...]:
        """The next lease, which was asked for before if all goes well."""
        self._check()
        if not self._ready:
            if self._is_asked and self._line is not None:
                self._ahead = next_ahead(self._ahead, not self._line.has_answer, self._readers)
            self._hear()
        if not self._ready:  # what was asked for ahead may have been of the epoch before
            self._want(epoch)
            self._hear()
        if not self._ready:
            return ()
        lease = self._ready.popleft()
        if len(self._ready) <= self._ahead // 2:
            self._want(epoch)
        return (lease,)

    def consume(self, progress: Mapping[int, Progress]) -> None:
        """Note what was trained on, for the next state."""
        self._check()
        self._progress.update(progress)

    def end(self, lease: int, progress: Progress) -> None:
        """A lease is over, and in no state."""
        self._check()
        self._over[lease] = progress

    def fail(self, lease: int, at: int, reason: str) -> None:
        """A lease cannot be read from a record on."""
        self._check()
        self._hear()
        held = self._held[lease]
        name = held.shard.name or "the dataset"
        self._ask(faults=(ShardFault(lease, at - held.first, f"{name}: {reason}"[:100]),))
        self._hear()
        self._held[lease] = held._replace(shard=Shard(held.shard.name, held.shard.start, at))

    def state(self) -> dict[str, Any]:
        """What is left once all ranks have called this. The same on all of them."""
        self._check()
        self._hear()
        told = [_told(id, self._held[id], each) for id, each in self._progress.items()]
        parts = [tuple(told[at : at + MAX_PROGRESS]) for at in range(0, len(told), MAX_PROGRESS)] or [()]
        self._broken = "its last attempt to save a state was given up"
        for part in parts[:-1]:
            self._ask(progress=part)
            self._hear()
        self._ask(progress=parts[-1], saves=True)
        answer = self._hear()
        if answer is None or answer.left is None:
            raise self._give_up("the master has answered without what is left")
        self._broken = ""
        for id, it in self._progress.items():
            if it.is_over or it.upto == self._held[id].shard.stop:
                del self._held[id]
        self._progress = {}
        found = self._state_of(answer.left)
        before, self._failed = self._failed, tuple(Ledger.of_state(self._plan, found).failed)
        self._news += tuple(each for each in self._failed if each not in before)
        return found

    def load(self, state: object) -> None:
        """Go on from a state, in a world of any size. DataError: it is of other data, or damaged."""
        self._check()
        saved = Ledger.of_state(self._plan, state)
        epoch, place = saved.cursor
        free = tuple(map(self._counted, saved.left()))
        newest = saved.failed[-MAX_FAILED:]
        failed = tuple(FailedPiece(self._counted(each.piece), each.reason[:100]) for each in newest)
        self._hear()
        self._left = DataLeft(epoch, place, free, failed)
        self._failed, self._news = tuple(newest), ()
        self._load += 1
        self._is_open, self._call = False, 0
        self._ready.clear()
        self._held.clear()
        self._progress, self._over = {}, {}

    # -- asks

    def _check(self) -> None:
        if self._broken:
            raise DataError(f"this rank has no say about {self._name} any more: {self._broken}")

    def _give_up(self, why: str) -> DataError:
        self._broken = why
        if self._line is not None:
            self._line.close()
        return DataError(f"the leases of {self._name} are lost: {why}")

    def _want(self, epoch: int) -> None:
        """Ask for leases ahead, unless that is under way."""
        if not self._is_asked:
            over = [(id, self._over.pop(id)) for id in list(islice(self._over, MAX_PROGRESS))]
            told = tuple(_told(id, self._held.pop(id), each) for id, each in over)
            self._ask(epoch=epoch, wanted=max(1, self._ahead - len(self._ready)), progress=told)

    def _ask(self, **what: Any) -> None:
        if not self._is_open:
            self._open()
        self._call += 1
        self._send(AskData(_BY_AGENT, self._reader(), self._call, **what))

    def _open(self) -> None:
        state = "" if self._left is None else _digest(to_json(self._left))
        left: DataLeft | None = None
        while True:
            self._call += 1
            first = self._digest, self._plan.count, self._readers, self._patience, state, left
            self._send(OpenData(_BY_AGENT, self._reader(), self._call, *first))
            answer = self._hear()
            assert answer is not None
            if not answer.needs_left:
                break
            left = self._left
        self._is_open = True

    def _reader(self) -> DataReader:
        return DataReader(0, 0, self._name, self._instance, self._load)

    def _send(self, ask: OpenData | AskData) -> None:
        body = to_json(ask)
        del body["incarnation"]
        try:
            if self._line is None:
                self._line = self._connect(self._patience + GRACE)
            self._line.ask(type(ask).__name__, body)
        except DataError as error:
            raise self._give_up(str(error)) from None
        self._is_asked = True

    def _hear(self) -> DataAnswer | None:
        """Wait for the answer that is to come, if one is."""
        if not self._is_asked:
            return None
        assert self._line is not None
        try:
            answer = from_json(DataAnswer, self._line.answer())
        except (DataError, ValueError) as error:
            raise self._give_up(str(error)) from None
        self._is_asked = False
        if answer.refused:
            raise self._give_up(answer.refused)
        for each in answer.leases:
            whole = self._plan.shard(each.piece.epoch, each.piece.place)
            _, _, start, stop = self._listed(each.piece)
            shard = Shard(whole.name, start, stop)
            self._ready.append(Lease(each.id, each.piece.epoch, shard))
            self._held[each.id] = Held(shard, whole.start)
        return answer

    # -- records are counted from the first one of their shard on the wire, and as the script counts them here

    def _counted(self, piece: Piece) -> ShardPiece:
        whole = self._plan.shard(piece.epoch, piece.place) if piece.place < self._plan.count else None
        if whole is None or piece.start < whole.start or piece.stop > whole.stop:
            raise DataError(f"the saved leases are damaged: {list(piece)} is no piece of a shard")
        stop = 0 if piece.stop == whole.stop else piece.stop - whole.start
        return ShardPiece(piece.epoch, piece.place, piece.start - whole.start, stop)

    def _listed(self, piece: ShardPiece) -> list[int]:
        whole = self._plan.shard(piece.epoch, piece.place)
        stop = whole.start + piece.stop if piece.stop else whole.stop
        return [piece.epoch, piece.place, whole.start + piece.start, min(stop, whole.stop)]

    def _state_of(self, left: DataLeft) -> dict[str, Any]:
        """As ``Ledger.state`` has it."""
        return {
            "format": 1,
            "plan": self._plan.identity,
            "cursor": [left.epoch, left.place],
            "free": [self._listed(each) for each in left.free],
            "failed": [[self._listed(each.piece), each.reason] for each in left.failed],
        }


def _told(id: int, held: Held, progress: Progress) -> ShardProgress:
    stop = held.shard.stop
    known = stop - held.first if stop < ENDLESS else 0
    return ShardProgress(id, progress.upto - held.first, progress.is_over or progress.upto == stop, known)


def _digest(value: object) -> str:
    return hashlib.sha256(json.dumps(value, separators=(",", ":")).encode()).hexdigest()
