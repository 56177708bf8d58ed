"""What ``elastic-ctl`` asks of a running job, as values.

An order that comes to the job's port is obeyed only with a proof that the sender knows the token, so a job
without one obeys nobody there. On the master's host its own user needs none (``rpc/nearby.py``).
"""

from typing import Annotated, get_args

from elasticrun.config import TaskRole
from elasticrun.core.protocol.bounds import (
    MAX_REPLY,
    NODES,
    NODES_OR_NONE,
    Keep,
    Label,
    Length,
    Name,
    Range,
    Text,
    Token,
)
from elasticrun.core.protocol.questions import Found, Question
from elasticrun.core.protocol.questions import ListRanks as ListRanks
from elasticrun.core.protocol.questions import ReadLog as ReadLog
from elasticrun.core.protocol.questions import ShowStacks as ShowStacks
from elasticrun.core.protocol.status import JobStatus
from elasticrun.core.protocol.tasks import MAX_CLUSTER
from elasticrun.dataclass import dataclass

#: The longest wait for an answer, in seconds, and the most lines in one, and characters in a line.
MAX_WAIT = 25.0
MAX_LINES = 1000
MAX_LINE = 1 << 16
#: Bytes of an answer to ``AwaitStatus``: of a status without nodes, and of its texts.
MAX_BRIEF = 1 << 17
Line = Annotated[str, Length(MAX_LINE)]
#: The most nodes that one order names, and the longest wait for nodes that come, in seconds.
MAX_NAMED = 64
MAX_SCALE_WAIT = 7 * 24 * 3600.0


@dataclass(frozen=True, slots=True)
class ControlHello:
    """An operator's first message."""

    job_id: Label
    version: Name
    nonce: Token = b""
    proof: Token = b""


@dataclass(frozen=True, slots=True)
class ShowStatus:
    """Ask for the job's status."""


@dataclass(frozen=True, slots=True)
class AwaitStatus:
    """Ask for the job's status without its nodes, once its ``mark`` is another one.

    So the answer has the same size however many nodes there are.
    """

    after: Label  # the ``mark`` of the answer before; "": answer at once
    wait: Annotated[float, Range(0.0, MAX_WAIT)]  # seconds until an answer with the same


@dataclass(frozen=True, slots=True)
class WatchEvents:
    """Ask for what was added to the event log; the answer waits until there is something."""

    after: Label  # the ``upto`` of the answer before; "": from the oldest entry that the master has in memory
    wait: Annotated[float, Range(0.0, MAX_WAIT)]  # seconds until an empty answer


@dataclass(frozen=True, slots=True)
class Watched:
    """Lines of the event log, in order."""

    upto: Label
    lines: Annotated[tuple[Line, ...], Length(MAX_LINES)] = ()  # JSON, as in the file
    missed: bool = False  # there were others in between, which are in the file only
    more: bool = False  # there are more already: ask again


@dataclass(frozen=True, slots=True)
class DrainNode:
    """Let a node leave with grace."""

    node: Name
    reason: Text


@dataclass(frozen=True, slots=True)
class ScaleJob:
    """Run with another number of nodes."""

    min_nodes: Annotated[int, NODES]
    max_nodes: Annotated[int, NODES]

    def contradiction(self) -> str:
        """A contradiction between the two numbers, as a sentence; "" if there is none."""
        low, high = self.min_nodes, self.max_nodes
        return "" if low <= high else f"max_nodes must be {low} or more, got {high}"


@dataclass(frozen=True, slots=True)
class ScaleRole:
    """Run another number of a TensorFlow job's parameter servers, or of the workers that they serve."""

    role: TaskRole
    count: Annotated[int, Range(1, MAX_CLUSTER)]


@dataclass(frozen=True, slots=True)
class SaveAllStacks:
    """Have every node save the stacks of its workers."""


@dataclass(frozen=True, slots=True)
class RestartRound:
    """Stop the workers of the round and start them again, from the newest saved state."""

    reason: Text


@dataclass(frozen=True, slots=True)
class ScaleIn:
    """Run with fewer nodes: those named leave, or as many as the master chooses."""

    reason: Text
    count: Annotated[int, NODES_OR_NONE] = 0  # 0: the nodes are named
    nodes: Annotated[tuple[Name, ...], Length(MAX_NAMED)] = ()

    def contradiction(self) -> str:
        """A contradiction between the fields, as a sentence; "" if there is none."""
        if bool(self.count) is bool(self.nodes):
            return "give either a count of nodes or their names"
        return ""


@dataclass(frozen=True, slots=True)
class ScaleOut:
    """Run with so many nodes more, once they come; if they do not come in time, nothing changes."""

    count: Annotated[int, NODES]
    timeout: Annotated[float, Range(0.0, MAX_SCALE_WAIT)]  # seconds


@dataclass(frozen=True, slots=True)
class CordonNode:
    """Choose a node for no new world; it stays attached."""

    node: Name
    reason: Text


@dataclass(frozen=True, slots=True)
class UncordonNode:
    """Let a node be chosen again."""

    node: Name


@dataclass(frozen=True, slots=True)
class CheckNodes:
    """Stop the round with grace, and check the health of all nodes before the next one."""

    reason: Text


@dataclass(frozen=True, slots=True)
class StopJob:
    """End the job with grace."""

    reason: Text


@dataclass(frozen=True, slots=True)
class CancelScale:
    """Wait no more for the nodes of a ``ScaleOut``; the bounds are as before."""

    reason: Text


#: Requests that change something or need nodes: the job's machine decides on them.
Order = (
    DrainNode
    | ScaleJob
    | ScaleRole
    | SaveAllStacks
    | RestartRound
    | ScaleIn
    | ScaleOut
    | CordonNode
    | UncordonNode
    | CheckNodes
    | StopJob
    | CancelScale
)
ORDERS: tuple[type[Order], ...] = get_args(Order)
ControlRequest = ShowStatus | AwaitStatus | WatchEvents | Question | Order


@dataclass(frozen=True, slots=True)
class ControlReply:
    """Answer to a request."""

    ok: bool
    text: Annotated[str, Length(MAX_REPLY, keep=Keep.HEAD)]
    proof: Token = b""  # that the master knows the job's token
    status: JobStatus | None = None  # if that was asked for
    watched: Watched | None = None  # if that was asked for
    found: Found | None = None  # if a node was asked for something
