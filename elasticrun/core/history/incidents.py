"""What the incidents of a job cost, summed over all of its history, for its report, what-if and advice.

Theory. A history keeps the newest of each thing; questions such as what a restart costs on average, or which
host fails most, need all of them. So what is over is added up here, by kind: an incident is what a recovery
repairs. It is open until the next one begins, as only then it is known which work was done again for it.

Invariant. Memory is bounded: kinds are few, and of hosts, ranks and classes of failures the first ``KNOWN``
are told apart. Each incident is in exactly one sum.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass as mutable
from dataclasses import field, replace
from enum import Enum
from typing import TypeVar

from elasticrun.core.accounting.activities import Activity, Spent, nothing
from elasticrun.core.history.views import Recovery
from elasticrun.core.protocol import chronicle
from elasticrun.core.protocol.chronicle import LogEntry, Place
from elasticrun.core.recovery.budget import StopCause

K = TypeVar("K")

#: How many hosts, ranks, and classes of failures are told apart.
KNOWN = 4096
CLASSES = 64
#: How many saved steps are remembered until they are in the storage.
_UNDERWAY = 256
_MICROS = 1e6
_SLOWEST = 1000.0
_OTHERS = ("others", 0, "")
_WHO = re.compile(r"^rank \d+ \([^)]*\) ")
_NUMBERS = re.compile(r"0x[0-9a-fA-F]+|\d+")
#: Entries that sums depend on.
TOLD = (
    chronicle.WorkerFailed,
    chronicle.RoundStarted,
    chronicle.RoundStopping,
    chronicle.StateSaved,
    chronicle.NodeGone,
    chronicle.StragglerFound,
    chronicle.JobEnded,
)


class Kind(Enum):
    """What kind of incident ended a round."""

    FAILED = "worker failures"  # a worker, or the store of the workers; or the workers hung
    LOST = "lost nodes"
    CHANGED = "changes of the world"  # nodes came or left, or somebody ordered it

    @classmethod
    def of(cls, cause: str) -> Kind:
        """That of a cause of a stop; what is not known is a failure."""
        return _KINDS.get(cause, cls.FAILED)


_KINDS = {StopCause.MEMBER_LOST.value: Kind.LOST} | dict.fromkeys(
    (
        StopCause.MEMBER_LEFT.value,
        StopCause.NODE_JOINED.value,
        StopCause.RESIZED.value,
        StopCause.ORDERED.value,
        StopCause.SAVED.value,
    ),
    Kind.CHANGED,
)


@mutable(slots=True)
class Sums:
    """Of all incidents of a kind, in seconds of the job unless it says otherwise."""

    count: int = 0
    seconds: float = 0.0  # from the first sign to the first work of the next round
    waiting: float = 0.0  # of these, for nodes
    coverable: float = 0.0  # of these, where no more than one node was gone
    imports: float = 0.0  # in the next round
    redone: float = 0.0  # work that was done again, or was lost
    undone: float = 0.0  # work since the last step that was in the storage: what its loss would cost
    replaced: int = 0  # of these, after which no fewer nodes trained than before

    def plus(self, other: Sums) -> Sums:
        """Both."""
        return Sums(
            self.count + other.count,
            self.seconds + other.seconds,
            self.waiting + other.waiting,
            self.coverable + other.coverable,
            self.imports + other.imports,
            self.redone + other.redone,
            self.undone + other.undone,
            self.replaced + other.replaced,
        )


@mutable(slots=True)
class FailureClass:
    """Failures of workers that look the same but for numbers."""

    how: str
    exit_code: int
    first: chronicle.WorkerFailed
    first_at: float
    last_at: float
    count: int = 0
    hosts: set[str] = field(default_factory=set)  # the first of them


@mutable(slots=True)
class Incidents:
    """Takes what a history takes."""

    classes: dict[tuple[str, int, str], FailureClass] = field(default_factory=dict)
    hosts: Counter[str] = field(default_factory=Counter)  # failures of workers
    ranks: Counter[int] = field(default_factory=Counter)
    losses: Counter[str] = field(default_factory=Counter)  # of nodes, by name
    slow: dict[str, float] = field(default_factory=dict)  # how slow nodes were at worst
    most_nodes: int = 0  # in a round
    first_import: float = 0.0  # seconds of imports before the first incident
    _closed: dict[Kind, Sums] = field(default_factory=lambda: {kind: Sums() for kind in Kind})
    _open: Recovery | None = None
    _now: Sums = field(default_factory=Sums)  # of the open incident, as far as it is known
    _began: Spent = field(default_factory=nothing)  # what the job had spent then
    _gone: int = 0  # nodes, since the round began
    _nodes: int = 0  # of the newest round
    _made: dict[int, float] = field(default_factory=dict)  # saved step -> seconds of training until then
    _durable: float = 0.0  # seconds of training until the newest step that is in the storage

    def take(self, entry: LogEntry, newest: Recovery | None, spent: Spent) -> None:
        """Take in an entry of ``TOLD``. ``spent``: what the job had until then; ``newest`` is after it."""
        match entry.told:
            case chronicle.WorkerFailed() as failed:
                self._failed(entry.at, failed)
            case chronicle.RoundStarted() as started:
                self._started(started, newest, spent)
            case chronicle.StateSaved() as saved:
                self._saved(saved, _trained(spent))
            case chronicle.NodeGone():
                self._gone += 1
                _count(self.losses, entry.told.node)
            case chronicle.StragglerFound() as found:
                self._slowed(found)
            case _:
                pass
        if isinstance(entry.told, chronicle.JobEnded):
            self._end()
        elif newest is not self._open:
            self._close(entry.at, spent)
            self._begin(newest, spent)

    def sums(self, at: float, spent: Spent) -> dict[Kind, Sums]:
        """Of all incidents until now, the open one included if the job works again."""
        found = {kind: replace(each) for kind, each in self._closed.items()}
        if self._open is not None and self._open.started is not None:
            kind = Kind.of(self._open.cause)
            found[kind] = found[kind].plus(self._until(at, spent))
        return found

    # -- incidents

    def _begin(self, newest: Recovery | None, spent: Spent) -> None:
        if self._open is None:
            self.first_import = spent[Activity.IMPORT] / _MICROS
        self._open, self._began = newest, dict(spent)
        self._now = Sums(1, undone=max(0.0, _trained(spent) - self._durable))

    def _close(self, at: float, spent: Spent) -> None:
        if self._open is not None:
            kind = Kind.of(self._open.cause)
            self._closed[kind] = self._closed[kind].plus(self._until(at, spent))

    def _end(self) -> None:
        """The job ends: an incident that no round followed was no recovery."""
        if self._open is not None and self._open.started is None:
            self._open = None

    def _until(self, at: float, spent: Spent) -> Sums:
        """What the open incident costs until now."""
        opened = self._open
        assert opened is not None
        end = next((each for each in (opened.over, opened.running) if each is not None), at)
        return replace(
            self._now,
            seconds=max(0.0, end - opened.began),
            imports=self._more(spent, Activity.IMPORT),
            redone=self._more(spent, Activity.REDONE),
        )

    def _more(self, spent: Mapping[Activity, int], activity: Activity) -> float:
        return max(0, spent[activity] - self._began[activity]) / _MICROS

    def _started(self, started: chronicle.RoundStarted, newest: Recovery | None, spent: Spent) -> None:
        self.most_nodes = max(self.most_nodes, started.nodes)
        if newest is not None and newest is self._open and newest.round == started.round:
            waited = self._more(spent, Activity.WAITING)
            self._now.waiting, self._now.coverable = waited, waited if self._gone <= 1 else 0.0
            self._now.replaced = int(started.nodes >= self._nodes)
        self._gone, self._nodes = 0, started.nodes

    # -- the rest

    def _failed(self, at: float, failed: chronicle.WorkerFailed) -> None:
        _count(self.hosts, failed.host)
        _count(self.ranks, failed.rank)
        key = (failed.how, failed.exit_code, class_text(failed.summary))
        if key not in self.classes and len(self.classes) >= CLASSES:
            key = _OTHERS
        found = self.classes.setdefault(key, FailureClass(key[0], key[1], failed, at, at))
        found.count += 1
        found.last_at = at
        if len(found.hosts) < CLASSES:
            found.hosts.add(failed.host)

    def _saved(self, saved: chronicle.StateSaved, trained: float) -> None:
        if saved.place is Place.STORAGE:
            self._durable = self._made.get(saved.step, trained)
            self._made = {step: when for step, when in self._made.items() if step > saved.step}
        elif saved.step not in self._made:
            self._made[saved.step] = trained
            if len(self._made) > _UNDERWAY:
                self._made.pop(next(iter(self._made)))

    def _slowed(self, found: chronicle.StragglerFound) -> None:
        if found.factor > 1.0 and (found.node in self.slow or len(self.slow) < KNOWN):
            self.slow[found.node] = max(self.slow.get(found.node, 1.0), min(_SLOWEST, found.factor))


def class_text(summary: str) -> str:
    """What failures of a class have in common: the text without who it was, and without numbers."""
    return _NUMBERS.sub("#", _WHO.sub("", summary))[:200]


def _trained(spent: Spent) -> float:
    return (spent[Activity.PRODUCTIVE] + spent[Activity.REDONE]) / _MICROS


def _count(counter: Counter[K], key: K) -> None:
    if key in counter or len(counter) < KNOWN:
        counter[key] += 1
