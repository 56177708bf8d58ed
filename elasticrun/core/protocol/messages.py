"""What agents and the master tell each other, as values.

The protocol is level-triggered. An agent reports its whole *status* (which round it is in, what its
workers do, which of them failed), never a difference; the master tells each agent the *directive* in
force for it, never a step. So a message that is lost with its stream, delivered twice, late or out of
order cannot leave the two sides apart: the receiver drops anything whose (incarnation, sequence), or
(epoch, sequence), is not newer than what it has, and the next message carries everything again.
"""

from enum import Enum
from typing import Annotated

from elasticrun.config import TaskRole
from elasticrun.core.protocol.bounds import (
    COUNTED_ROUNDS,
    COUNTS,
    DELAYS,
    EPOCHS_HEARD,
    LOCAL_SIZES,
    MAX_MESSAGE_BYTES,
    PIDS,
    PORTS,
    POSITIONS,
    RANKS,
    ROUNDS_HEARD,
    SEQUENCES,
    USED_PORTS,
    Address,
    Counted,
    Epoch,
    Keep,
    Label,
    Length,
    Mark,
    Name,
    Sentence,
    SentenceEnd,
    Text,
    Token,
)
from elasticrun.core.protocol.commits import CommitId as CommitId
from elasticrun.core.protocol.commits import Holding as Holding
from elasticrun.core.protocol.commits import Holdings
from elasticrun.core.protocol.commits import Inlet as Inlet
from elasticrun.core.protocol.commits import JudgeCommits as JudgeCommits
from elasticrun.core.protocol.commits import Sent as Sent
from elasticrun.core.protocol.data import AskData as AskData
from elasticrun.core.protocol.data import DataAnswer as DataAnswer
from elasticrun.core.protocol.data import OpenData as OpenData
from elasticrun.core.protocol.failure import MAX_SUMMARY_TEXT as MAX_SUMMARY_TEXT
from elasticrun.core.protocol.failure import Failure as Failure
from elasticrun.core.protocol.failure import FailureKind as FailureKind
from elasticrun.core.protocol.probing import MAX_CHECKS as MAX_CHECKS
from elasticrun.core.protocol.probing import MAX_GROUP_NODES as MAX_GROUP_NODES
from elasticrun.core.protocol.probing import MAX_GROUPS as MAX_GROUPS
from elasticrun.core.protocol.probing import GroupReport as GroupReport
from elasticrun.core.protocol.probing import NodeCheck as NodeCheck
from elasticrun.core.protocol.probing import ProbeGroup as ProbeGroup
from elasticrun.core.protocol.probing import ProbeReport as ProbeReport
from elasticrun.core.protocol.questions import AskNode as AskNode
from elasticrun.core.protocol.questions import NodeAnswer as NodeAnswer
from elasticrun.core.protocol.round_progress import NodeFigures, RoundProgress
from elasticrun.core.protocol.stall import Evidence as Evidence
from elasticrun.core.protocol.stall import Stall as Stall
from elasticrun.core.protocol.storing import StoreOrder as StoreOrder
from elasticrun.core.protocol.storing import StoreReport as StoreReport
from elasticrun.core.protocol.storing import WriteState as WriteState
from elasticrun.core.protocol.tasks import MAX_PORTS, MAX_TASKS, Cluster, Task, TaskReports, Tasks, misfit_of
from elasticrun.core.protocol.trust import Trust as Trust
from elasticrun.core.protocol.usage import TaskUsages
from elasticrun.core.protocol.votes import MAX_NAMED_MEMBERS as MAX_NAMED_MEMBERS
from elasticrun.core.protocol.votes import MAX_VOTES as MAX_VOTES
from elasticrun.core.protocol.votes import Proposal as Proposal
from elasticrun.core.protocol.votes import Vote as Vote
from elasticrun.core.protocol.votes import World as World
from elasticrun.dataclass import dataclass

#: The most failures that one message carries; the rest is counted in its reason.
MAX_FAILURES = 8

Failures = Annotated[tuple[Failure, ...], Length(MAX_FAILURES, keep=Keep.HEAD)]


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

    node: Name  # name of the node, unique in the job at any time
    incarnation: Name  # fresh at each start of the agent
    host: Name
    address: Address  # where other nodes reach this one
    local_world_size: Annotated[int, LOCAL_SIZES]
    role: Name = "default"
    node_rank: Annotated[int, RANKS] | None = None  # only if the user gave one: it orders the ranks
    pid: Annotated[int, PIDS] = 0
    # This host's position in the list of endpoints, if it may run the master; -1: it may not.
    position: Annotated[int, POSITIONS] = -1
    # Roles of a TensorFlow job's tasks by local rank; (): no TensorFlow job.
    roles: Annotated[tuple[TaskRole, ...], Length(MAX_TASKS)] = ()
    program: SentenceEnd = ""  # what its workers run, with its path; "": unknown
    min_nodes: Annotated[int, COUNTS] = 0  # the bounds that it was started with
    max_nodes: Annotated[int, COUNTS] = 0  # 0: unknown


@dataclass(frozen=True, slots=True)
class AgentStatus:
    """Everything the master needs to know of an agent's workers.

    ``round`` is the last round whose assignment the agent accepted, or -1. ``failures`` are those of
    that round and stay in every later status until the next round starts.
    """

    sequence: Annotated[int, SEQUENCES]  # grows with each status of one incarnation
    phase: AgentPhase
    round: Annotated[int, ROUNDS_HEARD] = -1
    failures: Failures = ()
    store_port: Annotated[int, PORTS] = 0  # one that is free for the workers' store, offered while READY
    probe: ProbeReport | None = None  # of the newest probe that ended
    stall: Stall | None = None  # while RUNNING
    # By round; only if several hosts may run the master.
    votes: Annotated[tuple[Vote, ...], Length(MAX_VOTES, keep=Keep.TAIL)] = ()
    warming: bool = False  # while READY, before this node's first workers: they would wait for imports
    # Held free for tasks; only if this node has roles.
    ports: Annotated[tuple[Annotated[int, USED_PORTS], ...], Length(MAX_PORTS, keep=Keep.HEAD)] = ()
    tasks: TaskReports = ()  # of ``round``
    hosts_store: bool = False  # while READY: a process of its launcher would serve the workers' store
    holdings: Holdings = ()  # what it has in memory of the job's saved states
    inlet: Inlet | None = None  # where it takes in copies of other nodes' saved states
    copied: Sent | None = None  # the newest order to copy with which it is done
    stored: StoreReport | None = None  # how its newest order for the storage fares
    leaving: Sentence = ""  # why it will leave, once nobody needs what it holds; "": it stays

    def contradiction(self) -> str:
        """A contradiction in its votes or holdings, as a sentence; "" if there is none."""
        rounds = {"votes": [vote.world.round for vote in self.votes]}
        rounds["holdings"] = [holding.commit.round for holding in self.holdings]
        for name, told in rounds.items():
            if any(round_ > self.round for round_ in told):
                return f"{name} must be of rounds up to {self.round}, the last that was accepted"
        return ""


@dataclass(frozen=True, slots=True)
class Hello:
    """First message on a stream: who, for which job, and the status to resume from."""

    job_id: Label
    version: Name
    info: NodeInfo
    status: AgentStatus
    epoch: Annotated[int, EPOCHS_HEARD] = -1  # the newest master epoch this agent has seen
    nonce: Token = b""  # of the agent, for the master's proofs
    proof: Token = b""  # that the agent knows the job's token
    trust: Annotated[Trust, Mark.LOCAL] = Trust.STRANGER


@dataclass(frozen=True, slots=True)
class Report:
    """The status changed."""

    incarnation: Name
    status: AgentStatus


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """The agent's loop is alive."""

    incarnation: Name
    # Of tasks that run; only if this node has roles.
    usage: TaskUsages = ()
    progress: RoundProgress | None = None  # None: no worker runs, or none reports
    figures: NodeFigures | None = None  # None: not measured this time


@dataclass(frozen=True, slots=True)
class Leave:
    """The agent leaves in good order (it was told to); not a failure."""

    incarnation: Name
    reason: Text


#: What an agent says once the master has welcomed it.
AttachedMessage = Report | Heartbeat | Leave | OpenData | AskData | NodeAnswer
AgentMessage = Hello | AttachedMessage


@dataclass(frozen=True, slots=True)
class Assignment:
    """What one agent is told about a round. O(1) in the number of nodes, unless there is a ``cluster``."""

    round: Counted
    group_rank: Counted
    group_world_size: Counted  # number of nodes
    first_rank: Counted  # global rank of this node's local rank 0
    world_size: Counted
    role_first_rank: Counted
    role_world_size: Counted
    store_address: Name
    store_port: Annotated[int, PORTS]
    restart_count: Counted
    max_restarts: Counted
    proposal: Proposal | None = None  # only if several hosts may run the master
    tasks: Tasks = ()  # of this node, if it has roles
    # All tasks of all nodes except the evaluator: the only field that is O(n).
    cluster: Annotated[Cluster, Mark.SHARED] = ()
    tag: Label = ""  # the job's; only with a cluster
    store_hosted: bool = False  # by the launcher of node 0, until the round is over; else by rank 0
    restore: CommitId | None = None  # the saved state that its workers start from; None: none in memory

    def contradiction(self) -> str:
        """A contradiction between its numbers, as a sentence; "" if there is none."""
        for name, number, most in (
            ("group_rank", self.group_rank, self.group_world_size - 1),
            ("first_rank", self.first_rank, self.world_size - 1),
            ("role_first_rank", self.role_first_rank, self.role_world_size - 1),
            ("group_world_size", self.group_world_size, self.world_size),
            ("role_world_size", self.role_world_size, self.world_size),
        ):
            if number > most:
                return f"{name} must be at most {most}, got {number}"
        return f"cluster {fault}" if (fault := misfit_of(self.cluster)) else ""

    def task(self, local_rank: int) -> Task | None:
        """The task of a local rank; None if it has none, as on a node without roles."""
        return next((task for task in self.tasks if task.local_rank == local_rank), None)

    def local_ranks(self, local_world_size: int) -> tuple[int, ...]:
        """Local ranks of the workers that start with the round on this node; a cluster may have none here."""
        if self.cluster:
            return tuple(task.local_rank for task in self.tasks)
        return tuple(range(local_world_size))


class Outcome(Enum):
    """How a job ended."""

    SUCCEEDED = "succeeded"
    FAILED = "failed"  # workers failed, no restart left
    TIMED_OUT = "timed_out"  # too few nodes within join_timeout
    REPEATED_ERROR = "repeated_error"  # the same error again and again, without progress
    UNHEALTHY = "unhealthy"  # the health check left too few nodes
    STOPPED = "stopped"  # an operator ordered it


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

    epoch: Epoch
    heartbeat_interval: Annotated[float, DELAYS]  # seconds
    ticket: Token = b""  # with which this incarnation comes back; see ``rpc/security/tickets.py``
    returning: Token = b""  # proof that the master knows the ticket that the agent presented
    key: Token = b""  # the number of the key that the ticket was made with


@dataclass(frozen=True, slots=True)
class StartRound:
    """Run the workers of a round."""

    epoch: Epoch
    sequence: Counted
    assignment: Assignment
    reason: Text
    after: Text = ""  # why the round before it has stopped; "": there was none


@dataclass(frozen=True, slots=True)
class StopRound:
    """Stop the workers of ``round`` and of every earlier one, then be ready for the next."""

    epoch: Epoch
    sequence: Counted
    round: Annotated[int, COUNTED_ROUNDS]
    reason: Text
    drain: bool = False  # a node leaves with grace: workers may save their state first


@dataclass(frozen=True, slots=True)
class StartProbe:
    """Test this node by itself, then with others, in the given order of groups."""

    epoch: Epoch
    sequence: Counted
    check: Counted  # grows with each probe of the job
    groups: Annotated[tuple[ProbeGroup, ...], Length(MAX_GROUPS)]
    slots: Counted  # of the whole probe, equally long: they end at the same time on all nodes
    timeout: Annotated[float, DELAYS]  # seconds for the whole probe
    secret: Token = b""  # with which the members of its groups prove themselves to one another


@dataclass(frozen=True, slots=True)
class SaveStacks:
    """Save the stacks of this node's workers beside their logs, because somebody asked for them."""

    epoch: Epoch


@dataclass(frozen=True, slots=True)
class JournalCopy:
    """Lines of the master's journal, for a host that may take over (``core/membership/quorum.py``)."""

    epoch: Epoch
    first: Counted  # number of the first line, from 0; 0 means that the copy starts anew
    lines: Annotated[tuple[Annotated[str, Length(MAX_MESSAGE_BYTES)], ...], Length(MAX_MESSAGE_BYTES)]
    whole: Counted = 0  # with the first line: how many lines make the copy usable


@dataclass(frozen=True, slots=True)
class Waiting:
    """Nothing to do yet; says who is there and who is missing. A text for humans, decides nothing."""

    epoch: Epoch
    text: Text


@dataclass(frozen=True, slots=True)
class JobEnded:
    """The job is over: stop workers if any are left, then exit."""

    epoch: Epoch
    sequence: Counted
    outcome: Outcome
    reason: Text
    failures: Failures = ()  # the root cause first
    # After ``--health-check-only``.
    checkup: Annotated[tuple[NodeCheck, ...], Length(MAX_CHECKS, keep=Keep.HEAD)] = ()
    other_program: Sentence = ""  # what the job ran, if this node was started to run something else


@dataclass(frozen=True, slots=True)
class Rejected:
    """The master refuses this stream; it is closed after this message."""

    code: RejectCode
    message: Text
    proof: Token = b""  # that the master knows the ticket that the agent presented


MasterMessage = (
    Welcome
    | StartRound
    | StopRound
    | StartProbe
    | SaveStacks
    | JournalCopy
    | Waiting
    | JobEnded
    | Rejected
    | JudgeCommits
    | DataAnswer
    | WriteState
    | AskNode
)
