"""The events that an agent's machine takes in, and the effects that it returns."""

from __future__ import annotations

from enum import Enum

from elasticrun.core.protocol.messages import (
    AgentMessage,
    AgentPhase,
    AgentStatus,
    Assignment,
    Failure,
    Holding,
    Inlet,
    JudgeCommits,
    MasterMessage,
    NodeCheck,
    Outcome,
    ProbeReport,
    RejectCode,
    Sent,
    Stall,
    StartProbe,
    StoreOrder,
    StoreReport,
)
from elasticrun.core.recovery.own_failures import NOT_STOPPED, Stopping
from elasticrun.dataclass import dataclass
from elasticrun.errors import ExitCode

OUTCOME_STATUS: dict[Outcome, ExitCode] = {
    Outcome.SUCCEEDED: ExitCode.OK,
    Outcome.FAILED: ExitCode.JOB_FAILED,
    Outcome.TIMED_OUT: ExitCode.RENDEZVOUS_TIMEOUT,
    Outcome.REPEATED_ERROR: ExitCode.REPEATED_ERROR,
    Outcome.UNHEALTHY: ExitCode.UNHEALTHY,
    Outcome.STOPPED: ExitCode.DRAINED,
}

REJECT_STATUS: dict[RejectCode, ExitCode] = {
    RejectCode.WRONG_JOB: ExitCode.WRONG_JOB,
    RejectCode.WRONG_VERSION: ExitCode.WRONG_VERSION,
    RejectCode.SUPERSEDED: ExitCode.SUPERSEDED,
    RejectCode.EXCLUDED: ExitCode.EXCLUDED,
    RejectCode.DRAINED: ExitCode.DRAINED,
    RejectCode.UNAUTHENTICATED: ExitCode.UNAUTHENTICATED,
    RejectCode.TOO_MANY: ExitCode.TOO_MANY,
    RejectCode.IMPLAUSIBLE: ExitCode.PROTOCOL,
    RejectCode.MISFIT: ExitCode.WRONG_JOB,
    RejectCode.MALFORMED: ExitCode.PROTOCOL,
    RejectCode.OUT_OF_ORDER: ExitCode.PROTOCOL,
    RejectCode.OVERSIZED: ExitCode.PROTOCOL,
    RejectCode.NAME_IN_USE: ExitCode.SUPERSEDED,
}


class AgentTrigger(Enum):
    """What moves an agent from one phase to another."""

    PREPARED = "prepared"
    PROBE_WANTED = "probe wanted"
    ASSIGNED = "assigned"
    WORKER_FAILED = "worker failed"
    STORE_LOST = "store lost"
    ALL_FINISHED = "all finished"
    TOLD_TO_STOP = "told to stop"
    GROUP_GONE = "group gone"


#: Phases without a worker, or anything that one left behind.
IDLE = frozenset({AgentPhase.PREPARING, AgentPhase.READY})
#: Phases in which a round may have to make way.
STOPPABLE = frozenset({AgentPhase.RUNNING, AgentPhase.FINISHED})
#: Phases in which the group is on its way out already.
ENDING = frozenset({AgentPhase.FAILED, AgentPhase.STOPPING})


@dataclass(frozen=True, slots=True)
class AgentTerms:
    """An agent's settings; times are in seconds."""

    shutdown_timeout: float = 30.0  # from the stop signal to SIGKILL
    kill_timeout: float = 30.0  # from SIGKILL to giving up on this node
    master_timeout: float = 60.0  # without a master, while no worker runs
    drain_signal: int = 15  # for workers that stop because another node leaves with grace
    join_timeout: float = 600.0  # from one master to the next, while none of them can lead
    endpoints: int = 1  # hosts that may run the master
    flush_timeout: float = 0.0  # for which a leaving node stays until its state is in the storage; 0: none


@dataclass(frozen=True, slots=True)
class Prepared:
    """Workers could be started at once; ``store_port`` is free on this node, as are ``ports`` for tasks."""

    store_port: int
    ports: tuple[int, ...] = ()
    hosts_store: bool = False  # a process of ours would serve the store


@dataclass(frozen=True, slots=True)
class PortsOffered:
    """While tasks run: these ports are held free for more of them."""

    ports: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ImportsSeen:
    """A worker that started now would wait for the imports of its warm parent, or not any more."""

    under_way: bool


@dataclass(frozen=True, slots=True)
class HelloSent:
    """A Hello that tells this status is on its way to a master."""

    status: AgentStatus


@dataclass(frozen=True, slots=True)
class LinkUp:
    """The master welcomed our Hello."""

    epoch: int


@dataclass(frozen=True, slots=True)
class LinkDown:
    """The stream to the master broke."""

    reason: str


@dataclass(frozen=True, slots=True)
class Directed:
    """The master sent a message."""

    message: MasterMessage


@dataclass(frozen=True, slots=True)
class WorkersStarted:
    """All of this node's workers of a round have been started; some may have ended since."""

    round: int


@dataclass(frozen=True, slots=True)
class WorkerFailed:
    """A worker ended with a status other than 0, or could not be started."""

    round: int
    failure: Failure
    stopping: Stopping = NOT_STOPPED  # signals that the launcher had sent it before
    attempt: int = 0  # of its task; 0 if it has none


@dataclass(frozen=True, slots=True)
class WorkerFinished:
    """A worker ended with 0."""

    round: int
    local_rank: int
    attempt: int = 0  # of its task; 0 if it has none


@dataclass(frozen=True, slots=True)
class GroupGone:
    """Nothing that workers or a probe started is alive; the ports are free for the next round."""

    round: int  # under which they were started
    store_port: int
    ports: tuple[int, ...] = ()  # for tasks
    hosts_store: bool = False


@dataclass(frozen=True, slots=True)
class StoreLost:
    """The process on this node that serves a round's store has ended or could not be started."""

    round: int
    failure: Failure


@dataclass(frozen=True, slots=True)
class StopSignal:
    """The launcher received a signal to stop."""

    signum: int


@dataclass(frozen=True, slots=True)
class Preempted:
    """This node will be taken away: it has to leave with grace."""

    reason: str


@dataclass(frozen=True, slots=True)
class ProbeEnded:
    """The probe of this node's health is over, well or not."""

    report: ProbeReport


@dataclass(frozen=True, slots=True)
class StallSeen:
    """The workers of a round have stopped making steps (``stall``), or make them again (None)."""

    round: int
    stall: Stall | None


@dataclass(frozen=True, slots=True)
class HoldingsChanged:
    """What this node has in memory of the job's saved states is now this."""

    holdings: tuple[Holding, ...]
    inlet: Inlet | None = None
    copied: Sent | None = None
    stored: StoreReport | None = None


@dataclass(frozen=True, slots=True)
class Broken:
    """The launcher cannot go on; ``exit_status`` and ``reason`` say why."""

    exit_status: int
    reason: str


@dataclass(frozen=True, slots=True)
class AgentTick:
    """A deadline may have passed."""


AgentEvent = (
    Prepared
    | PortsOffered
    | ImportsSeen
    | HelloSent
    | LinkUp
    | LinkDown
    | Directed
    | WorkersStarted
    | WorkerFailed
    | WorkerFinished
    | GroupGone
    | StoreLost
    | StopSignal
    | Preempted
    | ProbeEnded
    | StallSeen
    | HoldingsChanged
    | Broken
    | AgentTick
)


@dataclass(frozen=True, slots=True)
class Transmit:
    """Put a message on the stream; dropped if there is none, as Hello repeats the status."""

    message: AgentMessage


@dataclass(frozen=True, slots=True)
class StartWorkers:
    """Start all workers of a round."""

    assignment: Assignment


@dataclass(frozen=True, slots=True)
class StartTask:
    """Start one task of the round that runs: a further attempt of it, or a task that was added."""

    assignment: Assignment
    local_rank: int


@dataclass(frozen=True, slots=True)
class SignalTask:
    """Send a signal to the process group of one task."""

    local_rank: int
    signum: int


@dataclass(frozen=True, slots=True)
class SignalWorkers:
    """Send a signal to the process group of each worker that is alive.

    ``drain``: a node leaves with grace; a worker that asked to be told in its own way is told so instead.
    """

    signum: int
    drain: bool = False
    spared: frozenset[int] = frozenset()  # local ranks that are not signalled


@dataclass(frozen=True, slots=True)
class SweepWorkers:
    """SIGKILL whatever is left of the round, or a probe, grandchildren included; then report GroupGone."""

    round: int
    spares_detached: bool = False  # except processes that workers have put into sessions of their own


@dataclass(frozen=True, slots=True)
class RunProbe:
    """Start the probe of this node's health, then report ProbeEnded."""

    start: StartProbe
    round: int  # under which it runs: the last one here


@dataclass(frozen=True, slots=True)
class DumpStacks:
    """Save the stacks of all workers beside their logs."""


@dataclass(frozen=True, slots=True)
class PassJudgement:
    """Tell those who keep the saved states what became of the commits of the round that runs."""

    verdict: JudgeCommits


@dataclass(frozen=True, slots=True)
class Store:
    """What those who keep the saved states have to write to the storage from now on; None: nothing."""

    order: StoreOrder | None


class Level(Enum):
    """How important a message is to the user."""

    INFO = "info"
    WARNING = "warning"


@dataclass(frozen=True, slots=True)
class Say:
    """Tell the user."""

    level: Level
    text: str


@dataclass(frozen=True, slots=True)
class Finish:
    """Everything is stopped: leave with ``exit_status``. Always the last effect."""

    exit_status: int
    reason: str
    outcome: Outcome | None = None  # None: the job goes on, or its end is unknown
    failures: tuple[Failure, ...] = ()
    checkup: tuple[NodeCheck, ...] = ()
    is_spare: bool = False  # the job has ended well, and this node never ran a worker


AgentEffect = (
    Transmit
    | StartWorkers
    | StartTask
    | SignalTask
    | SignalWorkers
    | SweepWorkers
    | RunProbe
    | DumpStacks
    | PassJudgement
    | Store
    | Say
    | Finish
)
