"""The events and effects of the job's machine, and its table of transitions."""

from __future__ import annotations

from enum import Enum
from typing import Annotated

from elasticrun.core.protocol.bounds import EPOCHS, SESSIONS
from elasticrun.core.protocol.messages import (
    AgentStatus,
    AskData,
    Hello,
    MasterMessage,
    OpenData,
    Outcome,
    Rejected,
)
from elasticrun.core.protocol.orders import Order
from elasticrun.core.protocol.status import JobPhase
from elasticrun.dataclass import dataclass


class Trigger(Enum):
    """What moves the job from one phase to another."""

    CHECK_WANTED = "check wanted"
    CHECKED = "checked"
    CHECK_FAILED = "check failed"  # too few healthy nodes are left, or a check-only job found a fault
    CHECK_PASSED = "check passed"  # of a check-only job
    WORLD_FORMED = "world formed"
    JOIN_TIMED_OUT = "join timed out"
    ALL_FINISHED = "all finished"
    MUST_STOP = "must stop"  # a worker failed or hangs, a member was lost or a node can join
    ALL_STOPPED = "all stopped"
    BUDGET_SPENT = "budget spent"
    ERROR_REPEATED = "error repeated"
    STOP_ORDERED = "stop ordered"


#: The whole state machine. A pair that is not here cannot happen, and raises KeyError if it does.
TRANSITIONS: dict[tuple[JobPhase, Trigger], JobPhase] = {
    (JobPhase.GATHERING, Trigger.CHECK_WANTED): JobPhase.CHECKING,
    (JobPhase.CHECKING, Trigger.CHECKED): JobPhase.GATHERING,
    (JobPhase.CHECKING, Trigger.CHECK_FAILED): JobPhase.UNHEALTHY,
    (JobPhase.CHECKING, Trigger.CHECK_PASSED): JobPhase.SUCCEEDED,
    (JobPhase.GATHERING, Trigger.WORLD_FORMED): JobPhase.RUNNING,
    (JobPhase.GATHERING, Trigger.JOIN_TIMED_OUT): JobPhase.TIMED_OUT,
    (JobPhase.RUNNING, Trigger.ALL_FINISHED): JobPhase.SUCCEEDED,
    (JobPhase.RUNNING, Trigger.MUST_STOP): JobPhase.STOPPING,
    (JobPhase.STOPPING, Trigger.ALL_FINISHED): JobPhase.SUCCEEDED,  # before they heard that they must stop
    (JobPhase.STOPPING, Trigger.ALL_STOPPED): JobPhase.GATHERING,
    (JobPhase.STOPPING, Trigger.BUDGET_SPENT): JobPhase.FAILED,
    (JobPhase.STOPPING, Trigger.ERROR_REPEATED): JobPhase.HOPELESS,
    (JobPhase.GATHERING, Trigger.STOP_ORDERED): JobPhase.STOPPED,
    (JobPhase.CHECKING, Trigger.STOP_ORDERED): JobPhase.STOPPED,
    (JobPhase.STOPPING, Trigger.STOP_ORDERED): JobPhase.STOPPED,
}

#: The phases that end a job, with the outcome that agents are told.
OUTCOMES: dict[JobPhase, Outcome] = {
    JobPhase.SUCCEEDED: Outcome.SUCCEEDED,
    JobPhase.FAILED: Outcome.FAILED,
    JobPhase.TIMED_OUT: Outcome.TIMED_OUT,
    JobPhase.HOPELESS: Outcome.REPEATED_ERROR,
    JobPhase.UNHEALTHY: Outcome.UNHEALTHY,
    JobPhase.STOPPED: Outcome.STOPPED,
}


@dataclass(frozen=True, slots=True)
class MasterStarted:
    """A master took up the job; ``epoch`` is larger than that of any master before it.

    ``key`` is drawn at random, in hex; the first key of a journal holds for all its masters. ``host`` is the
    incarnation of the agent that started this master, if it is known.
    """

    epoch: Annotated[int, EPOCHS]
    key: str = ""
    host: str = ""


@dataclass(frozen=True, slots=True)
class Attached:
    """A stream said Hello and was admitted to this job."""

    session: Annotated[int, SESSIONS]
    hello: Hello


@dataclass(frozen=True, slots=True)
class Reported:
    """An agent's status changed."""

    session: Annotated[int, SESSIONS]
    status: AgentStatus


@dataclass(frozen=True, slots=True)
class DataOpened:
    """A worker begins to read shared data."""

    session: Annotated[int, SESSIONS]
    message: OpenData


@dataclass(frozen=True, slots=True)
class DataAsked:
    """A worker asks for shards of shared data, or tells what it has trained on."""

    session: Annotated[int, SESSIONS]
    message: AskData


@dataclass(frozen=True, slots=True)
class Beat:
    """An agent's loop is alive."""

    session: Annotated[int, SESSIONS]


@dataclass(frozen=True, slots=True)
class Left:
    """An agent leaves in good order."""

    session: Annotated[int, SESSIONS]
    reason: str


@dataclass(frozen=True, slots=True)
class Detached:
    """A stream ended: the agent, its host or the network between us is gone."""

    session: Annotated[int, SESSIONS]
    reason: str


@dataclass(frozen=True, slots=True)
class Expired:
    """A deadline passed: the kind of timer, and its node, or "" for the job."""

    timer: str
    node: str = ""


#: An operator's order is itself an event.
JobEvent = (
    MasterStarted | Attached | Reported | DataOpened | DataAsked | Beat | Left | Detached | Expired | Order
)


@dataclass(frozen=True, slots=True)
class Send:
    """Put a message on a session's stream."""

    session: Annotated[int, SESSIONS]
    message: MasterMessage


@dataclass(frozen=True, slots=True)
class Drop:
    """Send ``farewell`` if there is one, then close the session."""

    session: Annotated[int, SESSIONS]
    farewell: Rejected | None = None


@dataclass(frozen=True, slots=True)
class Decided:
    """A decision with its reason, for the log."""

    text: str
    phase: JobPhase
    round: int
    event: int = 0  # the number of the event that caused it


@dataclass(frozen=True, slots=True)
class Ended:
    """The job is over; nothing but farewells follows."""

    outcome: Outcome
    reason: str


@dataclass(frozen=True, slots=True)
class StepDown:
    """This master cannot lead: end the process, so that its agents look for another one."""

    reason: str


@dataclass(frozen=True, slots=True)
class Answered:
    """The answer to an operator's order; each order gets exactly one."""

    ok: bool
    text: str


JobEffect = Send | Drop | Decided | Ended | StepDown | Answered
