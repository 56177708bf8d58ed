"""What happens to a job, as data: a scenario is a literal that can be pasted into a test."""

from __future__ import annotations

from enum import Enum

from elasticrun.config import HealthConfig, Policy, TaskRole
from elasticrun.dataclass import dataclass
from elasticrun.sim.ills import Hang, Ill

NO_CHECKS = HealthConfig()
NEVER = 1000.0  # seconds that a hanging import takes; the agent does not report that it hangs
USUAL = Policy()


@dataclass(frozen=True, slots=True)
class NodeSpec:
    """One node; its agent starts at ``joins`` (virtual seconds) and is prepared ``prepares`` later."""

    name: str
    joins: float = 0.0
    prepares: float = 0.1
    imports: float = 0.0  # seconds from its start until its workers could be forked
    local_world_size: int = 1
    role: str = "default"
    node_rank: int | None = None
    roles: tuple[TaskRole, ...] = ()  # of a TensorFlow job's tasks; as many as ``local_world_size``


@dataclass(frozen=True, slots=True)
class Network:
    """How long messages take, and how likely each kind of hostility is, 0 to 1."""

    delay: float = 0.01  # seconds, at most
    duplicate: float = 0.0  # a message arrives twice
    reorder: float = 0.0  # it is overtaken by the next one
    late: float = 0.0  # a message of a broken stream arrives nevertheless, some time later


@dataclass(frozen=True, slots=True)
class StorageSpec:
    """A storage that all nodes share. Chances are those of one write: of a part, or of a commit's marker."""

    every: float = 10.0  # seconds between two commits that are written, at least
    flush: float = 60.0  # seconds that an end waits for the newest commit; 0.0: it does not
    slowest: float = 0.5  # seconds that a write takes at most
    fails: float = 0.0
    hangs: float = 0.0  # its writer ends only if it is killed
    undying: float = 0.0  # how likely one that hangs lives on for a while although it was killed
    crashes: float = 0.0  # its node is lost meanwhile, and comes back
    away: tuple[tuple[float, float], ...] = ()  # from when until when nobody can read or write it


class Direction(Enum):
    """Which way messages are lost."""

    BOTH = "both"
    TO_MASTER = "to master"
    TO_AGENT = "to agent"


class Memory(Enum):
    """What a crash of the master leaves behind."""

    KEPT = "kept"  # everything
    UNSENT = "unsent"  # the last event is in the journal, its effects were not sent
    HALF_SENT = "half sent"  # the last event is in the journal, some of its effects were sent
    TORN = "torn"  # the last event is neither in the journal nor were its effects sent
    LOST = "lost"  # no journal: a master that has forgotten the job


@dataclass(frozen=True, slots=True)
class WorkerFails:
    """A running worker ends with ``exit_code``, or by signal n if it is -n; nothing if none runs."""

    at: float
    node: str
    exit_code: int = 1


@dataclass(frozen=True, slots=True)
class TaskDies:
    """A task of a TensorFlow job ends by itself; nothing if it does not run."""

    at: float
    role: TaskRole
    index: int = 0
    exit_code: int = -9


@dataclass(frozen=True, slots=True)
class ScaleRole:
    """An operator orders another number of a TensorFlow job's tasks."""

    at: float
    role: TaskRole
    count: int


@dataclass(frozen=True, slots=True)
class PortTaken:
    """The next worker that binds the store's port finds it taken."""

    at: float


@dataclass(frozen=True, slots=True)
class AgentCrash:
    """The agent is killed with its whole tree."""

    at: float
    node: str


@dataclass(frozen=True, slots=True)
class AgentStarts:
    """A new incarnation starts under the name. A live one is killed; its loss may be noticed later."""

    at: float
    node: str


@dataclass(frozen=True, slots=True)
class Stop:
    """The launcher receives the signal ``signum``."""

    at: float
    node: str
    signum: int = 15


@dataclass(frozen=True, slots=True)
class Cut:
    """The network between the node and the master swallows messages of a ``direction`` until ``until``."""

    at: float
    node: str
    until: float
    direction: Direction = Direction.BOTH


@dataclass(frozen=True, slots=True)
class Reset:
    """The stream breaks and can be opened again at once."""

    at: float
    node: str


@dataclass(frozen=True, slots=True)
class Freeze:
    """The agent handles nothing until ``until``; its workers go on."""

    at: float
    node: str
    until: float


@dataclass(frozen=True, slots=True)
class Stubborn:
    """From now on the node's workers ignore every signal but SIGKILL."""

    at: float
    node: str


@dataclass(frozen=True, slots=True)
class Unkillable:
    """From now on the node's workers survive SIGKILL (a driver holds them in the kernel)."""

    at: float
    node: str


@dataclass(frozen=True, slots=True)
class ImportsAnew:
    """The node's warm parent is replaced: workers started in these ``seconds`` would wait for it."""

    at: float
    node: str
    seconds: float


@dataclass(frozen=True, slots=True)
class MasterCrash:
    """The master dies, and another one takes up the job ``down_for`` seconds later with this ``memory``."""

    at: float
    down_for: float = 1.0
    memory: Memory = Memory.KEPT


@dataclass(frozen=True, slots=True)
class Split:
    """Nodes of different groups, and masters on their hosts, cannot talk until ``until``."""

    at: float
    groups: tuple[tuple[str, ...], ...]
    until: float


@dataclass(frozen=True, slots=True)
class HostCrash:
    """A host loses power: its agent, and the master if it runs there. The agent starts again at ``back``."""

    at: float
    node: str
    back: float | None = None  # None: never
    keeps_disk: bool = False


Fault = (
    WorkerFails
    | TaskDies
    | ScaleRole
    | PortTaken
    | AgentCrash
    | AgentStarts
    | Stop
    | Cut
    | Reset
    | Freeze
    | Stubborn
    | Unkillable
    | ImportsAnew
    | MasterCrash
    | Split
    | HostCrash
    | Ill
)


@dataclass(frozen=True, slots=True)
class Scenario:
    """Everything that decides a run."""

    seed: int
    nodes: tuple[NodeSpec, ...]
    min_nodes: int = 1
    max_nodes: int = 1
    node_unit: int = 1
    max_restarts: int = 3
    last_call: float = 2.0
    join_timeout: float = 600.0
    work: float = 3.0  # seconds a worker needs once its world is complete
    quiet_from: float = 0.0  # no worker ends with 0 before; 0.0: at any time, also amid faults
    spread: float = 0.5  # seconds between the first and the last worker to finish
    network: Network = Network()
    faults: tuple[Fault, ...] = ()
    hosts: tuple[
        str, ...
    ] = ()  # nodes whose hosts are listed as endpoints; empty: one master that always returns
    health: HealthConfig = NO_CHECKS
    policy: Policy = USUAL
    cautious: bool = False  # a job without a token
    step: float = 0.0  # seconds after which workers save their state, again and again; 0.0: never
    storage: StorageSpec | None = None  # where saved states are written; None: nowhere
    calm: bool = False  # saves find room, are quick, and what only one node has of them is copied to another
    deep: bool = True  # also check the parts of each machine, which half of the time goes into
    patience: float = 0.0  # seconds more than usual that a world, and then the end, may take


def ends(fault: Fault) -> float:
    """When a fault is over."""
    if isinstance(fault, Cut | Freeze | Split):
        return fault.until
    if isinstance(fault, HostCrash):
        return fault.back or fault.at
    if isinstance(fault, Hang):
        return fault.until or fault.at
    return fault.at + fault.down_for if isinstance(fault, MasterCrash) else fault.at
