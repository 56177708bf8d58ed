"""A report as values: what its page shows, and what ``elastic-ctl report --json`` prints.

Instants are seconds of the job's clock, lengths are seconds, shares are between 0 and 1. Lists are bounded;
``Report.rounds_before`` and the like say how many are not in them.
"""

from __future__ import annotations

from elasticrun.core.advice.rules import Advice
from elasticrun.dataclass import dataclass

VERSION = 1


@dataclass(frozen=True, slots=True)
class Spent:
    """Time of one activity."""

    activity: str
    seconds: float
    share: float


@dataclass(frozen=True, slots=True)
class Ratios:
    """The ratios until an instant, and those of the time since the one before."""

    at: float
    goodput: float
    ettr: float
    goodput_since: float
    ettr_since: float


@dataclass(frozen=True, slots=True)
class RoundRow:
    """One round."""

    round: int
    started: float
    first_step: float | None
    ended: float | None
    nodes: int
    workers: int
    cause: str  # of its end; "": none was told
    reason: str
    restored_step: int | None
    last_step: int | None


@dataclass(frozen=True, slots=True)
class FailureRow:
    """Failures that look the same."""

    how: str
    exit_code: int
    text: str  # of the first one
    count: int
    hosts: tuple[str, ...]
    first_at: float
    last_at: float
    first_round: int
    first_node: str
    first_rank: int
    first_local_rank: int
    first_pid: int
    tail: str = ""  # of its stderr, or its traceback, if a log of it was found
    tail_from: str = ""  # the file


@dataclass(frozen=True, slots=True)
class FailureAt:
    """One failure, for the timeline."""

    at: float
    round: int
    node: str
    rank: int
    text: str


@dataclass(frozen=True, slots=True)
class RecoveryRow:
    """From the end of the work of one round to the first work of the next one."""

    round: int
    began: float
    cause: str
    kind: str
    stopping: float | None  # until the next round was told to start
    starting: float | None  # until its workers ran
    first_step: float | None  # until its first step was done
    seconds: float | None


@dataclass(frozen=True, slots=True)
class RecoverySums:
    """Of all recoveries of a kind."""

    kind: str
    count: int
    seconds: float
    median: float | None  # of those that are listed
    longest: float | None
    waiting: float
    redone: float


@dataclass(frozen=True, slots=True)
class NodeRow:
    """One node."""

    node: str
    host: str
    seconds: float
    lost: float
    goodput: float
    worst: str  # what it lost most by; "": nothing
    slowness: float  # how many times as long as the others it took at worst
    losses: int  # how often it went


@dataclass(frozen=True, slots=True)
class SavedRow:
    """Saved states at one place."""

    place: str
    count: int
    last_step: int | None
    last_at: float | None


@dataclass(frozen=True, slots=True)
class Case:
    """What if. Lengths are differences to what was measured, rounded to two digits."""

    name: str
    more: float  # seconds of the job; less than 0: it would have been over earlier
    least: float
    most: float
    more_node_seconds: float
    money: float | None  # the same in money
    ettr: float | None  # of the job
    about: str


@dataclass(frozen=True, slots=True)
class Report:
    """A job in review."""

    version: int
    began: float  # seconds since 1970, of the first entry
    ended: float  # of the last one
    until: float  # the job's clock then
    seconds: float
    node_seconds: float
    outcome: str  # "": it is not over
    reason: str
    goodput: float | None  # None: nobody told of steps, so nobody knows
    ettr: float | None
    entries: int
    notes: tuple[str, ...]  # what is missing
    job: tuple[Spent, ...]
    nodes: tuple[Spent, ...]
    ratios: tuple[Ratios, ...]
    rounds: tuple[RoundRow, ...]
    rounds_before: int
    failures: tuple[FailureRow, ...]
    failed: int
    failures_at: tuple[FailureAt, ...]
    recoveries: tuple[RecoveryRow, ...]
    recovery_sums: tuple[RecoverySums, ...]
    slowest: tuple[NodeRow, ...]
    saved: tuple[SavedRow, ...]
    advice: tuple[Advice, ...]
    what_if: tuple[Case, ...]
    assumptions: tuple[str, ...]
    currency: str
    cost_per_node_hour: float | None
    cost: float | None  # of all of its time of nodes
