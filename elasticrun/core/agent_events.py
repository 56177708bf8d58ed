"""What an agent's machine is told, what it answers, and its table of transitions."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from elasticrun.core.protocol import (
    AgentMessage,
    AgentPhase,
    Assignment,
    Failure,
    MasterMessage,
    Outcome,
)


class AgentTrigger(Enum):
    """What moves an agent from one phase to another."""

    PREPARED = "prepared"
    ASSIGNED = "assigned"
    WORKER_FAILED = "worker failed"
    ALL_FINISHED = "all finished"
    TOLD_TO_STOP = "told to stop"
    GROUP_GONE = "group gone"


#: The whole state machine. A pair that is not here cannot happen, and raises KeyError if it does.
AGENT_TRANSITIONS: dict[tuple[AgentPhase, AgentTrigger], AgentPhase] = {
    (AgentPhase.PREPARING, AgentTrigger.PREPARED): AgentPhase.READY,
    (AgentPhase.READY, AgentTrigger.ASSIGNED): AgentPhase.RUNNING,
    (AgentPhase.RUNNING, AgentTrigger.WORKER_FAILED): AgentPhase.FAILED,
    (AgentPhase.RUNNING, AgentTrigger.ALL_FINISHED): AgentPhase.FINISHED,
    (AgentPhase.RUNNING, AgentTrigger.TOLD_TO_STOP): AgentPhase.STOPPING,
    (AgentPhase.FINISHED, AgentTrigger.TOLD_TO_STOP): AgentPhase.STOPPING,
    (AgentPhase.FAILED, AgentTrigger.GROUP_GONE): AgentPhase.READY,
    (AgentPhase.STOPPING, AgentTrigger.GROUP_GONE): AgentPhase.READY,
}

#: Phases without a worker, or anything that one left behind.
IDLE = frozenset({AgentPhase.PREPARING, AgentPhase.READY})
#: Phases in which the group is on its way out already.
ENDING = frozenset({AgentPhase.FAILED, AgentPhase.STOPPING})


@dataclass(frozen=True, slots=True)
class AgentTerms:
    """The times an agent keeps, in seconds."""

    shutdown_timeout: float = 30.0  # from the stop signal to SIGKILL
    kill_timeout: float = 30.0  # from SIGKILL to giving up on this node
    master_timeout: float = 60.0  # without a master, while no worker runs


@dataclass(frozen=True, slots=True)
class Prepared:
    """Workers could be started at once; ``store_port`` is free on this node."""

    store_port: int


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
class WorkerFailed:
    """A worker ended with a status other than 0, or could not be started."""

    round: int
    failure: Failure


@dataclass(frozen=True, slots=True)
class WorkerFinished:
    """A worker ended with 0."""

    round: int
    local_rank: int


@dataclass(frozen=True, slots=True)
class GroupGone:
    """Nothing that a worker of the round started is alive; ``store_port`` is free for the next round."""

    round: int
    store_port: int


@dataclass(frozen=True, slots=True)
class StopSignal:
    """The launcher received a signal to stop."""

    signum: int


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
    | LinkUp
    | LinkDown
    | Directed
    | WorkerFailed
    | WorkerFinished
    | GroupGone
    | StopSignal
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
class SignalWorkers:
    """Send a signal to the process group of each worker that is alive."""

    signum: int


@dataclass(frozen=True, slots=True)
class SweepWorkers:
    """SIGKILL whatever is left of the round, grandchildren included, then report GroupGone."""

    round: int


class Level(Enum):
    """How much a user wants to hear something."""

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


AgentEffect = Transmit | StartWorkers | SignalWorkers | SweepWorkers | Say | Finish
