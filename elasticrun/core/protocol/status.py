"""A job's status for an operator: as values, and in words for ``elastic-ctl status``."""

from collections.abc import Iterable, Iterator
from enum import Enum
from typing import Annotated

from elasticrun.config import TaskRole
from elasticrun.core.protocol.amounts import percent
from elasticrun.core.protocol.bounds import (
    COUNTED_ROUNDS,
    MAX_MESSAGE_BYTES,
    RATES,
    SECONDS,
    STEPS,
    Counted,
    Distinct,
    Label,
    Length,
    Name,
    Sentence,
    Text,
)
from elasticrun.core.protocol.commits import CommitId
from elasticrun.core.protocol.messages import AgentPhase
from elasticrun.core.protocol.plain import one_line
from elasticrun.core.protocol.round_progress import MAX_PEAKS, NodeFigures, RolePeak, UsagePeak
from elasticrun.core.protocol.tasks import MAX_TASKS
from elasticrun.core.protocol.usage import RoleUsage, TaskUsage, by_role, in_words
from elasticrun.dataclass import dataclass

#: Bytes that the nodes of a status may take together; the rest of the message is for its other fields.
ROOM = MAX_MESSAGE_BYTES - (128 << 10)
#: Most bytes that a node, or a task, takes besides its texts.
_BESIDE = 96


class JobPhase(Enum):
    """Where the job stands."""

    GATHERING = "gathering"  # no round runs; waiting for enough ready nodes
    CHECKING = "checking"  # no round runs; nodes are being checked before the next one
    RUNNING = "running"  # a round runs
    STOPPING = "stopping"  # the members were told to stop; waiting for the last one
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    TIMED_OUT = "timed out"
    HOPELESS = "hopeless"  # failed, and no restart would change that
    UNHEALTHY = "unhealthy"
    STOPPED = "stopped"  # by an operator


@dataclass(frozen=True, slots=True)
class TaskStatus:
    """One task of a TensorFlow job."""

    role: TaskRole
    index: Counted  # within the role
    attempt: Counted  # which one is wanted; it grows when this task alone is restarted
    state: Sentence  # how that attempt fares, in words
    address: Label = ""  # HOST:PORT at which it serves; "": at none
    usage: TaskUsage | None = None  # None: nothing was heard of it


def mark_of(round_: int, phase: JobPhase, world: int, workers: int, restarts: int, stranded: int) -> str:
    """The ``mark`` of a status with these facts."""
    return f"{round_}:{phase.value}:{world}:{workers}:{restarts}:{stranded}"


@dataclass(frozen=True, slots=True)
class NodeStatus:
    """One node of a job."""

    name: Name
    rank: Counted | None  # in the world of this round; None: a spare
    phase: AgentPhase  # what its agent does, as last reported
    attached: bool = True  # False: its agent has gone away, and may come back
    doubt: Sentence = ""  # why the health check distrusts it; "": it does not
    tasks: Annotated[tuple[TaskStatus, ...], Length(MAX_TASKS)] = ()
    figures: NodeFigures | None = None  # None: not known
    cordoned: Sentence = ""  # why an operator keeps it out of new worlds; "": nobody does


@dataclass(frozen=True, slots=True)
class ScaleEnd:
    """How a scale operation ended."""

    order: Counted  # its number in the life of the job, from 1
    reached: bool
    reason: Text


@dataclass(frozen=True, slots=True)
class JobStatus:
    """A job's phase, limits and nodes."""

    job_id: Label
    phase: JobPhase
    round: Annotated[int, COUNTED_ROUNDS]  # the newest; -1: there was none
    min_nodes: Counted
    max_nodes: Counted
    restarts_used: Counted  # those earned back do not count
    max_restarts: Counted
    waiting_for: Text = ""  # who is there and who is missing, while too few are; in words
    # Members first, in the order of their ranks; then spares.
    nodes: Annotated[tuple[NodeStatus, ...], Length(MAX_MESSAGE_BYTES)] = ()
    unlisted: Counted = 0  # how many nodes did not fit into the message
    saved: CommitId | None = None  # the newest saved state that all is here of
    safe: CommitId | None = None  # the newest that a lost host does not take away
    durable: CommitId | None = None  # the newest in the storage
    # Where the time went, see core/accounting/summary.py; None: not known, as nobody reports steps.
    goodput: Annotated[float, RATES] | None = None  # of all nodes' time, the share that was new steps
    ettr: Annotated[float, RATES] | None = None  # of the job's time
    steps_rate: Annotated[float, RATES] | None = None  # steps per second, of late
    step: Annotated[int, STEPS] | None = None  # the last one that this round is known to have done
    uptime: Annotated[float, SECONDS] = 0.0  # of the job, as far as its master knows
    scaling: Text = ""  # the scale operation that is not over yet, in words
    scaled: ScaleEnd | None = None  # how the last one ended
    world: Counted = 0  # nodes of the newest round
    workers: Counted = 0  # of the newest round
    cause: Sentence = ""  # why the last round that stopped did; "": none has, or it is not known

    peak: UsagePeak | None = None  # None: nothing was measured
    stranded: Counted = 0  # nodes that are here, if the job cannot go on without others of the last world
    # The same of the nodes of each role, as far as some have told: a task's role, else what --role says.
    role_peaks: Annotated[tuple[RolePeak, ...], Length(MAX_PEAKS), Distinct("role")] = ()

    @property
    def mark(self) -> str:
        """Changes with what whoever only wants to know how the job is has to hear at once."""
        return mark_of(self.round, self.phase, self.world, self.workers, self.restarts_used, self.stranded)


def fitting(nodes: Iterable[NodeStatus]) -> Iterator[NodeStatus]:
    """The first of these nodes, as many as fit into one message."""
    room = ROOM
    for node in nodes:
        room -= _size(node)
        if room < 0:
            return
        yield node


def _size(node: NodeStatus) -> int:
    gpus = [gpu.name for gpu in node.figures.gpus] if node.figures is not None else []
    texts = [
        node.name,
        node.doubt,
        node.cordoned,
        *gpus,
        *(text for task in node.tasks for text in (task.state, task.address)),
    ]
    parts = 1 + len(node.tasks) + (node.figures is not None) + len(gpus)
    return _BESIDE * parts + sum(len(text.encode(errors="surrogatepass")) for text in texts)


def status_in_words(status: JobStatus) -> str:
    """A line about the job, then one for each node.

    In a TensorFlow job each task has a line below its node, and each role has one at the end, with what
    they use.
    """
    count = len(status.nodes) + status.unlisted
    restarts = f"{status.restarts_used} of {status.max_restarts} restarts used"
    lines = [
        f"job {status.job_id!r}: {status.phase.value}, round {status.round}, {count} nodes of"
        f" {status.min_nodes}:{status.max_nodes}, {restarts}"
    ]
    if status.waiting_for:
        lines.append(status.waiting_for)
    if status.goodput is not None and status.ettr is not None:
        lines.append(f"  goodput {percent(status.goodput)}, ETTR {percent(status.ettr)}{_steps(status)}")
    if status.cause:
        lines.append(f"  the last round ended: {status.cause}")
    if status.scaling:
        lines.append(f"  {status.scaling}")
    if saved := _saved(status):
        lines.append(f"  saved: {saved}")
    for node in status.nodes:
        lines += [_node(node, status.phase), *map(_task, node.tasks)]
    if status.unlisted:
        lines.append(f"  and {status.unlisted} more nodes")
    tasks = [task for node in status.nodes for task in node.tasks]
    roles = by_role((task.role, task.usage) for task in tasks if task.usage is not None)
    return "\n".join(map(one_line, [*lines, *map(_role, roles)]))


def _steps(status: JobStatus) -> str:
    """How far the round is."""
    rate = "" if status.steps_rate is None else f" ({status.steps_rate:.3g} steps/s)"
    return "" if status.step is None else f", step {status.step}{rate}"


def _saved(status: JobStatus) -> str:
    """The newest saved states, and what each of them survives."""
    places = (
        (status.saved, "in memory"),
        (status.safe, "on several hosts"),
        (status.durable, "in the storage"),
    )
    return ", ".join(f"{commit} {place}" for commit, place in places if commit is not None)


def _node(node: NodeStatus, phase: JobPhase) -> str:
    outside = "waiting" if phase in (JobPhase.GATHERING, JobPhase.CHECKING) else "spare"
    place = outside if node.rank is None else f"node {node.rank}"
    here = "" if node.attached else ", not attached"
    notes = f"{f', {node.doubt}' if node.doubt else ''}{f', {node.cordoned}' if node.cordoned else ''}"
    return f"  {node.name}: {place}, {node.phase.value}{here}{notes}{_figures(node.figures)}"


def _figures(figures: NodeFigures | None) -> str:
    """What the node's workers use."""
    if figures is None:
        return ""
    busy = "" if figures.gpu_busy is None else f", GPUs {100 * figures.gpu_busy:.0f} %"
    room = f"{figures.memory / 2**30:.1f} of {figures.memory_limit / 2**30:.1f} GiB"
    return f"; {figures.cpu:.1f} of {figures.cpus} cores, {room}{busy}"


def _task(task: TaskStatus) -> str:
    place = f" at {task.address}" if task.address else ""
    words = f"; {in_words(task.usage)}" if task.usage is not None else ""
    return f"    {task.role.value} {task.index}{place}: attempt {task.attempt}, {task.state}{words}"


def _role(usage: RoleUsage) -> str:
    tasks = f"{usage.tasks} task{'s' if usage.tasks > 1 else ''}"
    return f"  {usage.role.value}, {tasks}: {in_words(usage)}"
