"""How one node carries out its order for the storage: the agent's side, without processes and files.

Theory. A process of its own, the *writer*, does the work, so nothing that a storage does can touch training.
It tells of what it writes. One that is silent for too long is killed; if it fails, is killed, or ends without
a word, it is started again after a pause, a bounded number of times (``retrying.py``). The commit of an order
is *pinned*: nobody writes over it, until the master gives another order, or says that there is none.

A writer that was killed may still be in the middle of a call into a storage that hangs. Nothing else writes
files of the same commit before it has ended; if it does not, the order has failed. That holds for the writer
of an earlier order as well: what it writes late may be another share of what is in the same file.

Invariants. At most one writer of a commit runs. What a writer says counts only while it is the newest one. An
order has one outcome, which stands until the next order.
"""

from __future__ import annotations

from enum import Enum

from elasticrun.core.protocol.commits import CommitId
from elasticrun.core.protocol.storing import StoreOrder, StoreReport, StoreStage
from elasticrun.core.state.events import Pinned
from elasticrun.core.state.retrying import PATIENCE, Trouble, next_try
from elasticrun.dataclass import dataclass

#: Seconds from SIGKILL until a writer counts as one that cannot be killed.
DEATH_PATIENCE = 30.0


@dataclass(frozen=True, slots=True)
class Ordered:
    """The master says what is to be done now."""

    order: StoreOrder | None


@dataclass(frozen=True, slots=True)
class Moved:
    """A writer has written something."""

    attempt: int


@dataclass(frozen=True, slots=True)
class Ended:
    """A writer has ended. ``trouble``: what was in its way; None: all is done."""

    attempt: int
    trouble: Trouble | None = None
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Tick:
    """Time has passed."""


WritingEvent = Ordered | Moved | Ended | Tick


@dataclass(frozen=True, slots=True)
class StartWriter:
    """Start a writer. ``Ended`` follows."""

    attempt: int
    order: StoreOrder


@dataclass(frozen=True, slots=True)
class KillWriter:
    """Kill a writer. ``Ended`` follows, unless the kernel cannot end it."""

    attempt: int


@dataclass(frozen=True, slots=True)
class Tell:
    """Tell the master how the order fares; None: there is none."""

    report: StoreReport | None


@dataclass(frozen=True, slots=True)
class Retry:
    """Tell the user that a try has failed, and what follows."""

    text: str


WritingEffect = Pinned | StartWriter | KillWriter | Tell | Retry


class Phase(Enum):
    """What happens to the order."""

    IDLE = "idle"  # there is none, or it has its outcome
    WRITING = "writing"
    KILLING = "killing"
    PAUSING = "pausing"  # until the next try
    WAITING = "waiting"  # until a writer of an earlier order has ended


class Writing:
    """The order of one node. ``now`` is in seconds of the agent's clock."""

    def __init__(self) -> None:
        self._now = 0.0
        self._effects: list[WritingEffect] = []
        self._phase = Phase.IDLE
        self._order: StoreOrder | None = None
        self._attempt = 0  # number of the newest writer
        self._running: dict[int, CommitId] = {}  # what each writer writes that has not ended
        self._failures = 0
        self._until: float | None = None

    def handle(self, event: WritingEvent, now: float) -> list[WritingEffect]:
        """Take in one event and return what to do, in order."""
        self._now, self._effects = now, []
        match event:
            case Ordered(order):
                if order != self._order:
                    self._obey(order)
            case Moved(attempt):
                if attempt == self._attempt and self._phase is Phase.WRITING:
                    self._until = now + PATIENCE
            case Ended(attempt):
                self._running.pop(attempt, None)
                if self._phase is Phase.WAITING:
                    self._start()
                elif attempt == self._attempt and self._phase in (Phase.WRITING, Phase.KILLING):
                    self._end(event)
            case _:
                if self._until is not None and now >= self._until:
                    self._expire()
        return self._effects

    def next_deadline(self) -> float | None:
        """When to send a tick, or None."""
        return self._until

    def _obey(self, order: StoreOrder | None) -> None:
        if self._phase is Phase.WRITING:
            self._effects.append(KillWriter(self._attempt))
        self._order, self._failures, self._phase, self._until = order, 0, Phase.IDLE, None
        self._effects.append(Pinned(None if order is None else order.commit))
        if order is None:
            self._effects.append(Tell(None))
        else:
            self._tell(StoreStage.WRITING)
            self._until = self._now + DEATH_PATIENCE
            self._start()

    def _start(self) -> None:
        """Start a writer once no other one is left that writes the same commit."""
        assert self._order is not None, "nobody waits for an order that is gone"
        if self._order.commit in self._running.values():
            self._phase = Phase.WAITING
            return
        self._attempt += 1
        self._running[self._attempt] = self._order.commit
        self._phase, self._until = Phase.WRITING, self._now + PATIENCE
        self._effects.append(StartWriter(self._attempt, self._order))

    def _end(self, event: Ended) -> None:
        """A writer is gone. One that we killed was silent, unless it was done by then."""
        if event.trouble is None:
            self._conclude(StoreStage.WRITTEN)
            return
        trouble, reason = event.trouble, event.reason
        if self._phase is Phase.KILLING:
            trouble, reason = Trouble.STUCK, f"nothing was written for {PATIENCE:.0f} s"
        self._failures += 1
        follows = next_try(trouble, self._failures)
        if follows.pause is None:
            self._conclude(StoreStage.FAILED, f"{reason}; {follows.reason}")
        else:
            self._phase, self._until = Phase.PAUSING, self._now + follows.pause
            self._effects.append(Retry(f"{reason}; {follows.reason}"))

    def _expire(self) -> None:
        match self._phase:
            case Phase.WRITING:
                self._phase, self._until = Phase.KILLING, self._now + DEATH_PATIENCE
                self._effects.append(KillWriter(self._attempt))
            case Phase.KILLING | Phase.WAITING:
                stuck = "the process that writes hangs in the storage, and cannot be killed"
                self._conclude(StoreStage.FAILED, stuck)
            case _:
                self._start()

    def _conclude(self, stage: StoreStage, reason: str = "") -> None:
        self._phase, self._until = Phase.IDLE, None
        self._tell(stage, reason)

    def _tell(self, stage: StoreStage, reason: str = "") -> None:
        assert self._order is not None, "nothing was ordered"
        report = StoreReport(self._order.number, self._order.run, stage, reason)
        self._effects.append(Tell(report))
