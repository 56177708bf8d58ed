"""The words of this folder: what is wished of a job, what is seen of its replicas, and what is remembered.

A *replica* is what a platform starts to hold one node of a job, such as a pod. Its index is never used again.
Memory is in bytes, and 0 means that it is not known, or not bounded. Times are seconds of the platform's wall
clock: they are only compared with one another, over minutes, and outlive whoever decides.
"""

from __future__ import annotations

from enum import Enum

from elasticrun.dataclass import dataclass


class Phase(Enum):
    """Of one replica."""

    PENDING = "pending"
    RUNNING = "running"
    ENDED = "ended"


class Cause(Enum):
    """Why a replica ended, or ends, as its platform tells it."""

    EXITED = "exited"  # by itself; the exit code says more
    OUT_OF_MEMORY = "out of memory"  # killed by the kernel at its own limit
    EVICTED = "evicted"  # its host ran low on memory or disk, and sent it away
    HOST_LOST = "host lost"
    PREEMPTED = "preempted"  # for something more urgent, or because its host shuts down
    DELETED = "deleted"  # by somebody else
    NOT_STARTED = "not started"  # its host refused it


class CleanPolicy(Enum):
    """Which replicas are removed once the job has ended."""

    RUNNING = "Running"
    ALL = "All"
    NONE = "None"


class Verdict(Enum):
    """What is known of the job's end."""

    SUCCEEDED = "Succeeded"
    FAILED = "Failed"
    STOPPED = "Stopped"  # every replica was told to leave, as by elastic-ctl stop
    AGAIN = "Again"  # one found too few: the job begins again with others, if these end too


@dataclass(frozen=True, slots=True)
class Bounds:
    """How many replicas one role has."""

    role: str
    least: int
    most: int


@dataclass(frozen=True, slots=True)
class Shape:
    """What all agents of a job must have been told alike."""

    min_replicas: int
    max_replicas: int
    slots: int = 1  # how many of the replicas have a name or a role that a successor has again
    roles: tuple[Bounds, ...] = ()  # of several, which add up to the above; (): one role, which is called ""

    def __str__(self) -> str:
        return f"{self.min_replicas}:{self.max_replicas}"


@dataclass(frozen=True, slots=True)
class Amounts:
    """Memory in bytes, and thousandths of a core; 0: not known, or not meant."""

    memory: int = 0
    cpu: int = 0


@dataclass(frozen=True, slots=True)
class Usage:
    """What was measured of a job's replicas."""

    peak: Amounts = Amounts()  # the most that any of them used
    room: Amounts = Amounts()  # the least that any of them had
    by_role: tuple[tuple[str, Usage], ...] = ()  # the same of the replicas of each role, as far as known


UNMEASURED = Usage()


@dataclass(frozen=True, slots=True)
class Role:
    """What is asked of one role of several; the fields mean what they mean in ``Wish``."""

    name: str
    wanted: int
    max_failures: int = 10
    memory: int = 0
    max_memory: int = 0
    caps: Amounts = Amounts()


@dataclass(frozen=True, slots=True)
class Share:
    """What a job may have of a cluster that it shares with others."""

    replicas: int | None = None  # of its elastic role; 0: it waits; None: nobody has decided it yet
    why: str = ""


@dataclass(frozen=True, slots=True)
class Wish:
    """What is asked for."""

    shape: Shape
    wanted: int  # brought within the bounds of the shape
    suspended: bool = False
    max_failures: int = 10  # replacements of replicas that failed; others are free
    memory: int = 0  # of a replica at first
    max_memory: int = 0  # 0: eight times the first
    clean: CleanPolicy = CleanPolicy.RUNNING
    grace: float = 45.0  # seconds that a replica may take to end
    caps: Amounts = Amounts()  # of requests by what was measured; 0: there are others
    # If the job has several roles, each says what is asked of it, and ``max_failures`` is how often
    # the whole job begins again.
    roles: tuple[Role, ...] = ()
    name: str = ""  # what people call the only role
    share: Share | None = None  # None: the cluster is not shared


@dataclass(frozen=True, slots=True)
class Seen:
    """What the platform shows of one replica."""

    index: int
    phase: Phase
    slot: int = -1  # the name that it has; -1: none
    exit_code: int | None = None
    cause: Cause = Cause.EXITED
    host: str = ""
    memory: int = 0  # its limit
    leaves_by: float | None = None  # it is being deleted, and should be gone by then
    trouble: str = ""  # why it does not run yet
    words: str = ""  # what the platform says of its end
    is_homeless: bool = False  # no host has room for it, and it requests what was measured
    lingers: bool = False  # it has ended, and something beside it goes on in its place
    role: str = ""  # as it was started

    @property
    def is_leaving(self) -> bool:
        """Whether it is being deleted."""
        return self.leaves_by is not None


@dataclass(frozen=True, slots=True)
class Live:
    """One replica that is meant to run."""

    index: int
    slot: int = -1
    seen: bool = False  # whether it was ever seen; else it may still have to be started
    role: str = ""


class ScalePhase(Enum):
    """Of an operation."""

    WAITING = "Waiting"  # for another one
    RUNNING = "Running"
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"


#: Phases of an operation that never change again.
ENDED = frozenset({ScalePhase.SUCCEEDED, ScalePhase.FAILED})


@dataclass(frozen=True, slots=True)
class Operation:
    """A wish for more or fewer replicas, once."""

    key: str  # no other operation has it
    more: int = 0  # negative: fewer
    indices: tuple[int, ...] = ()  # of those that shall leave, instead
    timeout: float = 600.0  # seconds
    role: str = ""  # whose replicas; "": that of a job with only one


@dataclass(frozen=True, slots=True)
class Scaling:
    """The operation that is under way."""

    key: str
    target: int  # how many replicas there shall be
    grows: bool
    before: int  # the offset
    until: float
    role: str = ""


@dataclass(frozen=True, slots=True)
class Result:
    """How an operation is doing, or has ended."""

    key: str
    phase: ScalePhase
    text: str


@dataclass(frozen=True, slots=True)
class Tally:
    """What is remembered of one role; the fields mean what they mean in ``Record``."""

    role: str = ""
    failures: int = 0
    streak: int = 0
    failed_at: float | None = None
    losses: int = 0
    lost_at: float | None = None
    memory: int = 0
    halted: str = ""
    base: int = 0
    offset: int = 0
    requests: Amounts = Amounts()
    peak: Amounts = Amounts()
    unsized: str = ""


@dataclass(frozen=True, slots=True)
class Record:
    """What is remembered from one decision to the next, wherever the platform keeps it.

    Of a job with several roles each role has a tally, and the same fields here are of the job as a whole.
    """

    next_index: int = 0
    shape: Shape | None = (
        None  # of the replicas that run; a wish for another one holds once none of them does
    )
    live: tuple[Live, ...] = ()  # by index
    failures: int = 0  # replacements that were spent
    streak: int = 0  # failures in a row
    failed_at: float | None = None  # the last of them
    losses: int = 0  # replacements in a row that cost nothing
    lost_at: float | None = None  # the last of them
    drained_at: float | None = None  # when a replica left because it was told to, and others may follow
    memory: int = 0  # what new replicas get; 0: as at first
    avoided: tuple[str, ...] = ()  # hosts, the newest last
    halted: str = ""  # why nothing is replaced any more
    verdict: Verdict | None = None
    why: str = ""  # of the verdict
    since: float = 0.0  # of the verdict
    base: int = 0  # what was wished for when the offset began
    offset: int = 0  # what operations have added to that
    scaling: Scaling | None = None
    results: tuple[Result, ...] = ()  # of operations, the newest last
    requests: Amounts = Amounts()  # of new replicas, by what was measured
    peak: Amounts = Amounts()  # from which they were chosen
    unsized: str = ""  # why nothing is requested by what was measured
    tallies: tuple[Tally, ...] = ()


@dataclass(frozen=True, slots=True)
class Start:
    """Start a replica; doing it twice does nothing the second time, as the index is part of its name."""

    index: int
    slot: int
    memory: int
    avoided: tuple[str, ...]
    shape: Shape
    requests: Amounts = Amounts()
    role: str = ""


@dataclass(frozen=True, slots=True)
class Remove:
    """Remove a replica, with the grace that it was started with."""

    index: int
    why: str


Action = Start | Remove


@dataclass(frozen=True, slots=True)
class Condition:
    """One thing that holds of the job, or does not."""

    kind: str
    holds: bool
    reason: str  # one word
    text: str


@dataclass(frozen=True, slots=True)
class Note:
    """Something that people should hear once."""

    reason: str  # one word
    text: str
    is_warning: bool = False


@dataclass(frozen=True, slots=True)
class Count:
    """How many replicas of a role run, and are wanted."""

    role: str
    running: int
    wanted: int


@dataclass(frozen=True, slots=True)
class Decision:
    """What to do, what to remember, and what to tell."""

    record: Record
    actions: tuple[Action, ...]
    phase: str
    conditions: tuple[Condition, ...]
    notes: tuple[Note, ...]
    look_at: float | None  # when to decide again, even if nothing happens
    running: int
    wanted: int = 0
    results: tuple[Result, ...] = ()  # of the operations that were asked for
    roles: tuple[Count, ...] = ()  # of a job with several
    held: int | None = None  # how many hold a place, as they end or are meant to run; None: nobody asks
