"""What agents and the master tell each other, as values.

The protocol is level-triggered. An agent reports its whole *status* (which round it is in, what its
workers do, which of them failed), never a difference; the master tells each agent the *directive* in
force for it, never a step. So a message that is lost with its stream, delivered twice, late or out of
order cannot leave the two sides apart: the receiver drops anything whose (incarnation, sequence), or
(epoch, sequence), is not newer than what it has, and the next message carries everything again.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import Annotated

from elasticrun.config import TaskRole
from elasticrun.core.bounds import (
    CHECKS,
    COUNTS,
    EPOCHS,
    EPOCHS_HEARD,
    LOCAL_SIZES,
    PIDS,
    PORTS,
    POSITIONS,
    RANKS,
    RATES,
    ROUNDS,
    ROUNDS_HEARD,
    SECONDS,
    SEQUENCES,
    WORLD_SIZES,
)
from elasticrun.core.failure import MAX_SUMMARY_TEXT as MAX_SUMMARY_TEXT
from elasticrun.core.failure import Failure as Failure
from elasticrun.core.failure import FailureKind as FailureKind
from elasticrun.core.stall import Evidence as Evidence
from elasticrun.core.stall import Stall as Stall
from elasticrun.core.tasks import Cluster, Task, TaskReport
from elasticrun.core.trust import Trust as Trust
from elasticrun.core.usage import TaskUsage


class AgentPhase(Enum):
    """What an agent is doing, as it reports itself."""

    PREPARING = "preparing"  # joined, but could not start workers at once (checks, warm-up)
    READY = "ready"  # no worker runs; could start at once
    CHECKING = "checking"  # no worker runs, but a probe of this node's health
    RUNNING = "running"  # workers of ``round`` run
    FAILED = "failed"  # a worker of ``round`` failed; the others are being stopped
    FINISHED = "finished"  # every worker of ``round`` ended with 0
    STOPPING = "stopping"  # told to stop ``round``; some worker is still alive


@dataclass(frozen=True, slots=True)
class NodeInfo:
    """Who an agent is; constant for one incarnation."""

    node: str  # name of the node, unique in the job at any time
    incarnation: str  # fresh at each start of the agent
    host: str
    address: str  # where other nodes reach this one
    local_world_size: Annotated[int, LOCAL_SIZES]
    role: str = "default"
    node_rank: Annotated[int, RANKS] | None = None  # only if the user gave one: it orders the ranks
    pid: Annotated[int, PIDS] = 0
    # Of this host in the list of endpoints, if it may become the master's; -1: it may not.
    position: Annotated[int, POSITIONS] = -1
    roles: tuple[TaskRole, ...] = ()  # of a TensorFlow job's tasks, by local rank; (): no TensorFlow job
    program: str = ""  # what its workers run, with its path; "": unknown
    min_nodes: Annotated[int, COUNTS] = 0  # the bounds that it was started with
    max_nodes: Annotated[int, COUNTS] = 0  # 0: unknown


@dataclass(frozen=True, slots=True)
class GroupReport:
    """How one all-gather of a probe went, seen from one of its members."""

    error: str = ""  # "" if it was fine
    bandwidth: Annotated[float, RATES] = 0.0  # bytes per second that this node received
    latency: Annotated[float, SECONDS] = 0.0  # seconds for an all-gather of a few bytes
    transport: str = ""  # what carried it, for example gloo; "": unknown


@dataclass(frozen=True, slots=True)
class ProbeReport:
    """What one probe of a node found."""

    check: Annotated[int, CHECKS]  # the number of the probe, as the master gave it
    error: str = ""  # of the self test: what is wrong with this node by itself; "" if nothing is
    matmul_flops: Annotated[float, RATES] = 0.0  # floating point operations per second
    groups: tuple[GroupReport, ...] = ()  # in the order in which they were asked for
    engine: str = ""  # what multiplied, for example torch/cpu; "": unknown


@dataclass(frozen=True, slots=True)
class World:
    """A world as votes name it; see ``core/quorum.py``."""

    round: Annotated[int, ROUNDS]
    epoch: Annotated[int, EPOCHS]  # of the master that formed it
    size: Annotated[int, WORLD_SIZES]  # number of nodes


@dataclass(frozen=True, slots=True)
class Seat:
    """A place that a node accepted in a world: its vote for that world. See ``core/quorum.py``."""

    world: World
    base: World | None  # the newest world known to have started everywhere; None: there is none before this
    roll: tuple[str, ...] = ()  # the members' incarnations, if they are at most MAX_ROLL


@dataclass(frozen=True, slots=True)
class Charter:
    """What a world is founded on, as told to one of its members; see ``core/quorum.py``."""

    world: World
    base: World | None  # as in Seat
    prior: World | None  # the member's newest seat as the master knows it; a member that knows better refuses
    roll: tuple[str, ...] = ()  # as in Seat


@dataclass(frozen=True, slots=True)
class AgentStatus:
    """Everything the master needs to know of an agent's workers.

    ``round`` is the last round whose assignment the agent accepted, or -1. ``failures`` are those of
    that round and stay in every later status until the next round starts.
    """

    sequence: Annotated[int, SEQUENCES]  # grows with each status of one incarnation
    phase: AgentPhase
    round: Annotated[int, ROUNDS_HEARD] = -1
    failures: tuple[Failure, ...] = ()
    store_port: Annotated[int, PORTS] = 0  # one that is free for the workers' store, offered while READY
    probe: ProbeReport | None = None  # of the newest probe that ended
    stall: Stall | None = None  # while RUNNING
    seats: tuple[Seat, ...] = ()  # by round, at most MAX_SEATS; only if several hosts may become the master's
    warming: bool = False  # while READY: workers, of which this node has started none, would wait for imports
    # Held free for tasks, at most MAX_PORTS; only if this node has roles.
    ports: tuple[Annotated[int, PORTS], ...] = ()
    tasks: tuple[TaskReport, ...] = ()  # of ``round``, at most MAX_TASKS
    hosts_store: bool = False  # while READY: a process of its launcher would serve the workers' store


@dataclass(frozen=True, slots=True)
class Hello:
    """First message on a stream: who, for which job, and the status to resume from."""

    job_id: str
    version: str
    info: NodeInfo
    status: AgentStatus
    epoch: Annotated[int, EPOCHS_HEARD] = -1  # the newest master epoch this agent has seen
    nonce: bytes = b""  # of the agent, for the master's proofs
    proof: bytes = b""  # that the agent knows the job's token
    trust: Trust = Trust.STRANGER


@dataclass(frozen=True, slots=True)
class Report:
    """The status changed."""

    incarnation: str
    status: AgentStatus


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """The agent's loop is alive."""

    incarnation: str
    usage: tuple[TaskUsage, ...] = ()  # of tasks that run, at most MAX_TASKS; only if this node has roles


@dataclass(frozen=True, slots=True)
class Leave:
    """The agent leaves in good order (it was told to); not a failure."""

    incarnation: str
    reason: str


AgentMessage = Hello | Report | Heartbeat | Leave


@dataclass(frozen=True, slots=True)
class Assignment:
    """What one agent is told about a round. O(1) in the number of nodes, unless there is a ``cluster``."""

    round: int
    group_rank: int
    group_world_size: int  # number of nodes
    first_rank: int  # global rank of this node's local rank 0
    world_size: int
    role_first_rank: int
    role_world_size: int
    store_address: str
    store_port: int
    restart_count: int
    max_restarts: int
    charter: Charter | None = None  # only if several hosts may become the master's
    tasks: tuple[Task, ...] = ()  # of this node, if it has roles, at most MAX_TASKS
    cluster: Cluster = ()  # all tasks of all nodes but the evaluator: the one thing here that is O(n)
    tag: str = ""  # of the job, with a cluster
    store_hosted: bool = False  # by the launcher of node 0, until the round is over; else by rank 0

    def task(self, local_rank: int) -> Task | None:
        """The task of a local rank; None if it has none, as on a node without roles."""
        return next((task for task in self.tasks if task.local_rank == local_rank), None)

    def local_ranks(self, local_world_size: int) -> tuple[int, ...]:
        """Of the workers that the round starts with on this node; in a cluster there may be none."""
        if self.cluster:
            return tuple(task.local_rank for task in self.tasks)
        return tuple(range(local_world_size))


@dataclass(frozen=True, slots=True)
class NodeCheck:
    """What the health check found out about one node, for a table."""

    node: str
    matmul_flops: float  # per second; 0.0: unknown
    bandwidth: float  # bytes per second; 0.0: unknown
    latency: float  # seconds; 0.0: unknown
    verdict: str  # one word
    detail: str = ""
    engine: str = ""  # what multiplied, and what carried the all-gather


class Outcome(Enum):
    """How a job ended."""

    SUCCEEDED = "succeeded"
    FAILED = "failed"  # workers failed, no restart left
    TIMED_OUT = "timed_out"  # too few nodes within join_timeout
    REPEATED_ERROR = "repeated_error"  # the same error again and again, without progress
    UNHEALTHY = "unhealthy"  # the health check left too few nodes


class RejectCode(Enum):
    """Why a master refuses an agent or a message."""

    WRONG_JOB = "wrong_job"
    WRONG_VERSION = "wrong_version"
    MALFORMED = "malformed"
    OUT_OF_ORDER = "out_of_order"
    OVERSIZED = "oversized"
    SUPERSEDED = "superseded"
    EXCLUDED = "excluded"
    DRAINED = "drained"
    UNAUTHENTICATED = "unauthenticated"
    TOO_MANY = "too_many"
    IMPLAUSIBLE = "implausible"
    MISFIT = "misfit"
    NAME_IN_USE = "name_in_use"  # passes once the agent that has the name is gone


@dataclass(frozen=True, slots=True)
class Welcome:
    """Answer to Hello: the agent is attached."""

    epoch: int
    heartbeat_interval: float  # seconds
    ticket: bytes = b""  # with which this incarnation comes back; see ``rpc/tickets.py``
    returning: bytes = b""  # that the master knows the ticket which the agent came with
    key: bytes = b""  # the number of the key that the ticket was made with


@dataclass(frozen=True, slots=True)
class StartRound:
    """Run the workers of a round."""

    epoch: int
    sequence: int
    assignment: Assignment
    reason: str


@dataclass(frozen=True, slots=True)
class StopRound:
    """Stop the workers of ``round`` and of every earlier one, then be ready for the next."""

    epoch: int
    sequence: int
    round: int
    reason: str
    drain: bool = False  # a node leaves with grace: workers may save their state first


@dataclass(frozen=True, slots=True)
class ProbeGroup:
    """One all-gather that a node takes part in."""

    slot: int  # when: the same number for all its members, who may have nothing to do in others
    rank: int  # of this node in ``nodes``
    nodes: tuple[str, ...]
    address: str  # where rank 0 listens
    port: int


@dataclass(frozen=True, slots=True)
class StartProbe:
    """Test this node by itself, then with others, in the given order of groups."""

    epoch: int
    sequence: int
    check: int  # grows with each probe of the job
    groups: tuple[ProbeGroup, ...]
    slots: int  # of the whole probe, each as long: their ends are the same for all nodes
    timeout: float  # seconds for the whole probe
    secret: bytes = b""  # with which the members of its groups prove themselves to one another


@dataclass(frozen=True, slots=True)
class SaveStacks:
    """Save the stacks of this node's workers beside their logs, because somebody asked for them."""

    epoch: int


@dataclass(frozen=True, slots=True)
class JournalCopy:
    """Lines of the master's journal, for a host that may have to take over; see ``core/quorum.py``."""

    epoch: int
    first: int  # number of the first line, from 0; 0 means that the copy starts anew
    lines: tuple[str, ...]
    whole: int = 0  # with the first line: so many lines are needed before the copy is of any use


@dataclass(frozen=True, slots=True)
class Waiting:
    """Nothing to do yet; says who is there and who is missing. A text for humans, decides nothing."""

    epoch: int
    text: str


@dataclass(frozen=True, slots=True)
class JobEnded:
    """The job is over: stop workers if any are left, then exit."""

    epoch: int
    sequence: int
    outcome: Outcome
    reason: str
    failures: tuple[Failure, ...] = field(default=())  # the root cause first, at most MAX_FAILURES
    checkup: tuple[NodeCheck, ...] = field(default=())  # after ``--health-check-only``, at most MAX_CHECKS
    other_program: str = ""  # what the job ran, if this node was started to run something else


@dataclass(frozen=True, slots=True)
class Rejected:
    """The master refuses this stream; it is closed after this message."""

    code: RejectCode
    message: str
    proof: bytes = b""  # that the master knows the ticket which the agent came with


MasterMessage = (
    Welcome | StartRound | StopRound | StartProbe | SaveStacks | JournalCopy | Waiting | JobEnded | Rejected
)

#: The most seats that a status carries.
MAX_SEATS = 64
#: The most members of a world that its seats name.
MAX_ROLL = 64
#: The most groups of one probe.
MAX_GROUPS = 64
#: The most nodes in one group of a probe.
MAX_GROUP_NODES = 64
#: The most rows of a health check's table, the worst first.
MAX_CHECKS = 500
#: The most failures that one message carries; the rest is counted in its reason.
MAX_FAILURES = 8
#: Longest text of a failure's message, traceback or stderr tail in bytes of UTF-8 on the wire: a report of
#: MAX_FAILURES failures stays far below the limit of 1 MiB for a message.
MAX_FAILURE_TEXT = 10_000
