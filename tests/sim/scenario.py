"""What happens to a job, as data: a scenario is a literal that can be pasted into regressions.py."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum

from elasticrun.config import HealthConfig, Policy, TaskRole
from tests.sim.ills import Hang, Ill, draw_health, draw_ills, draw_policy

NO_CHECKS = HealthConfig()
NEVER = 1000.0  # seconds that an import takes which hangs, and of which the agent does not say so
USUAL = Policy()


@dataclass(frozen=True, slots=True)
class NodeSpec:
    """One node of the job; its agent starts at ``joins`` (virtual seconds) and could start workers later."""

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
    """Seconds a message takes at most, and how likely each kind of hostility is."""

    delay: float = 0.01
    duplicate: float = 0.0
    reorder: float = 0.0
    late: float = 0.0  # a message of a broken stream arrives nevertheless, some time later


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
    """A running worker ends with ``exit_code``; nothing if none runs."""

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
    """A new incarnation starts under the name; one that lives is killed, and may be missed only later."""

    at: float
    node: str


@dataclass(frozen=True, slots=True)
class Stop:
    """The launcher receives a signal."""

    at: float
    node: str
    signum: int = 15


@dataclass(frozen=True, slots=True)
class Cut:
    """The network between the node and the master swallows messages until ``until``."""

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
    """The node's warm parent is replaced: workers that started within so many seconds would wait for it."""

    at: float
    node: str
    seconds: float


@dataclass(frozen=True, slots=True)
class MasterCrash:
    """The master dies and another one takes up the job ``down_for`` seconds later."""

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
    quiet_from: float = 0.0  # no worker ends with 0 before; no fault happens after
    spread: float = 0.5  # seconds between the first and the last worker to finish
    network: Network = Network()
    faults: tuple[Fault, ...] = ()
    hosts: tuple[
        str, ...
    ] = ()  # nodes whose hosts are listed as endpoints; none: a master that always returns
    health: HealthConfig = NO_CHECKS
    policy: Policy = USUAL
    cautious: bool = False  # a job without a token


def generate(seed: int, nodes: int) -> Scenario:
    """The scenario of a seed: every fourth has several listed hosts, two of four have ills, half import."""
    base = _plain(seed, nodes)
    if seed % 4 in (1, 2):
        base = _with_ills(seed, base)
    rng = random.Random(f"imports {seed}")
    return _with_imports(rng, base) if rng.random() < 0.5 else base


def _plain(seed: int, nodes: int) -> Scenario:
    rng = random.Random(seed)
    if seed % 4 == 3 and nodes > 1:
        return _with_hosts(seed, rng, nodes)
    unit = rng.choice((1, 1, 1, 2))
    count = max(nodes, unit)
    largest = rng.choice((count, rng.randint(unit, count))) // unit * unit
    smallest = rng.choice((largest, rng.randint(1, largest), rng.randint(1, largest)))
    last_fault = rng.choice((5.0, 15.0, 40.0))
    specs = _nodes(rng, count, last_fault)
    names = [spec.name for spec in specs]
    storm = rng.random() < 0.1
    count_of_faults = rng.randint(10, 25) if storm else rng.randint(0, 7)
    faults = [fault for _ in range(count_of_faults) for fault in _fault(rng, names, last_fault)]
    faults.sort(key=lambda fault: fault.at)
    quiet_from = max([last_fault, *(spec.joins for spec in specs), *map(ends, faults)])
    return Scenario(
        seed=seed,
        nodes=specs,
        min_nodes=smallest,
        max_nodes=largest,
        node_unit=unit,
        max_restarts=rng.choice((0, 1, 3, 10)),
        last_call=rng.choice((0.0, 0.5, 2.0)),
        join_timeout=rng.choice((30.0, 600.0, 600.0)),
        work=round(rng.uniform(0.5, 6.0), 2),
        quiet_from=rng.choice((round(quiet_from, 2), round(quiet_from, 2), 0.0)),
        spread=rng.choice((0.2, 3.0, 20.0)),
        network=Network(2.0, 0.2, 0.3, 0.7) if storm and rng.random() < 0.5 else _network(rng),
        faults=tuple(faults),
    )


def _with_imports(rng: random.Random, base: Scenario) -> Scenario:
    """Nodes import before they could start, and some of them come while others train."""
    late, last = rng.choice((0.0, 0.3, 0.6)), base.quiet_from or 10.0
    group = round(rng.uniform(0.0, last), 2)  # some are started together
    nodes = []
    for spec in base.nodes:
        joins = spec.joins
        if rng.random() < late:
            joins = round(rng.choice((rng.uniform(0.0, last), group + rng.random())), 2)
        imports = rng.choice((0.0, *(rng.uniform(0.2, 4.0) for _ in range(6)), rng.choice((20.0, NEVER))))
        nodes.append(replace(spec, joins=joins, imports=round(imports, 2)))
    smallest = rng.choice((base.min_nodes, base.node_unit))
    anew = [_imports_anew(rng, rng.choice(nodes).name, last) for _ in range(rng.choice((0, 0, 0, 3)))]
    faults = sorted((*base.faults, *anew), key=lambda fault: fault.at)
    return replace(base, nodes=tuple(nodes), min_nodes=smallest, faults=tuple(faults))


def _imports_anew(rng: random.Random, node: str, last: float) -> ImportsAnew:
    return ImportsAnew(round(rng.uniform(0.0, last), 2), node, round(rng.uniform(0.2, 4.0), 2))


def _with_ills(seed: int, base: Scenario) -> Scenario:
    """Health checks, what they find, and other faults, more of them while nodes are checked."""
    rng = random.Random(f"ills {seed}")
    names = [spec.name for spec in base.nodes]
    last = rng.choice((5.0, 15.0, 40.0))
    ills = draw_ills(rng, names, base.node_unit, last)
    early = [each for _ in range(rng.choice((0, 0, 1, 3))) for each in _fault(rng, names, 6.0)]
    kept = base.faults if rng.random() < 0.6 else ()
    faults = sorted((*kept, *ills, *early), key=lambda fault: fault.at)
    quiet_from = max([last, *(spec.joins for spec in base.nodes), *map(ends, faults)])
    return replace(
        base,
        faults=tuple(faults),
        health=draw_health(rng),
        policy=draw_policy(rng),
        min_nodes=rng.choice((base.min_nodes, base.node_unit, base.node_unit)),
        quiet_from=round(quiet_from, 2),
    )


def _with_hosts(seed: int, rng: random.Random, nodes: int) -> Scenario:
    """Hosts are lost and the network falls apart; at most one listed host forgets what it knew."""
    base = _plain(seed - 1, nodes)
    names = [spec.name for spec in base.nodes]
    hosts = tuple(rng.sample(names, rng.choice((2, 2, 3)) if nodes > 2 else 2))
    last = rng.choice((15.0, 40.0, 80.0))
    faults = [_split(rng, names, last) for _ in range(rng.randint(0, 4))]
    if rng.random() < 0.8:
        at = round(rng.uniform(0.5, last), 2)
        back = rng.choice((None, round(at + rng.uniform(0.5, 30.0), 2)))
        faults.append(HostCrash(at, hosts[0], back, rng.random() < 0.5))
    faults += [each for _ in range(rng.randint(0, 4)) for each in _fault(rng, names, last)]
    faults = [fault for fault in faults if not _forgets(fault, hosts[1:])]
    hosts = tuple(rng.sample(hosts, len(hosts)))
    faults.sort(key=lambda fault: fault.at)
    return replace(
        base,
        seed=seed,
        faults=tuple(faults),
        hosts=hosts,
        min_nodes=rng.choice((base.min_nodes, base.node_unit, base.node_unit)),
        max_restarts=rng.choice((3, 10)),
        join_timeout=rng.choice((30.0, 150.0)),
        quiet_from=round(max([last, *(spec.joins for spec in base.nodes), *map(ends, faults)]), 2),
        health=draw_health(other) if (other := random.Random(f"health {seed}")).random() < 0.3 else NO_CHECKS,
    )


def _split(rng: random.Random, names: list[str], last: float) -> Fault:
    at = round(rng.uniform(0.2, last), 2)
    sides: tuple[list[str], ...] = ([], []) if rng.random() < 0.8 else ([], [], [])
    for name in names:
        rng.choice(sides).append(name)
    until = round(at + rng.choice((1.0, 8.0, 30.0)) * rng.uniform(0.5, 1.5), 2)
    return Split(at, tuple(map(tuple, sides)), until)


def _forgets(fault: Fault, hosts: tuple[str, ...]) -> bool:
    """Faults that restart the agent of a listed host, or wipe its disk: see ``core/quorum.py``."""
    if isinstance(fault, MasterCrash):
        return fault.memory is Memory.LOST
    return isinstance(fault, AgentCrash | AgentStarts | Stop) and fault.node in hosts


def ends(fault: Fault) -> float:
    """When a fault is over."""
    if isinstance(fault, Cut | Freeze | Split):
        return fault.until
    if isinstance(fault, HostCrash):
        return fault.back or fault.at
    if isinstance(fault, Hang):
        return fault.until or fault.at
    return fault.at + fault.down_for if isinstance(fault, MasterCrash) else fault.at


def _network(rng: random.Random) -> Network:
    delay = rng.choice((0.002, 0.05, 0.5))
    if rng.random() < 0.5:
        return Network(delay)
    return Network(delay, rng.choice((0.0, 0.1)), rng.choice((0.0, 0.2)), rng.choice((0.0, 0.5)))


def _nodes(rng: random.Random, count: int, last: float) -> tuple[NodeSpec, ...]:
    order = rng.choice(("arrival", "arrival", "given", "some"))
    mixed = rng.random() < 0.3
    late = rng.choice((0.0, 0.0, 0.2))
    return tuple(
        NodeSpec(
            name=f"n{number}",
            joins=round(rng.uniform(0, last) if rng.random() < late else rng.uniform(0, 0.5), 2),
            prepares=round(rng.uniform(0.01, 1.0), 2),
            local_world_size=rng.randint(1, 4) if mixed else 1,
            role=rng.choice(("trainer", "evaluator")) if mixed else "default",
            node_rank=_given_rank(rng, order, count - 1 - number),
        )
        for number in range(count)
    )


def _given_rank(rng: random.Random, order: str, rank: int) -> int | None:
    return rank if order == "given" or (order == "some" and rng.random() < 0.4) else None


def _fault(rng: random.Random, names: list[str], last: float) -> Sequence[Fault]:
    """One fault, or one with its remedy."""
    at, node = round(rng.uniform(0.2, last), 2), rng.choice(names)
    until = round(at + rng.choice((0.5, 3.0, 12.0, 40.0)) * rng.uniform(0.5, 1.0), 2)
    kind = rng.randrange(14)
    if kind <= 2:
        return [WorkerFails(at, node, rng.choice((1, 1, -9)))]
    if kind == 3:
        return [PortTaken(at)]
    if kind <= 5:
        back = round(at + rng.choice((0.0, 0.5, 10.0)), 2)
        return [AgentCrash(at, node)] + ([AgentStarts(back, node)] if rng.random() < 0.7 else [])
    if kind == 6:
        return [Stop(at, node, rng.choice((2, 15)))] + (
            [AgentStarts(until, node)] if rng.random() < 0.7 else []
        )
    if kind == 7:
        return [Cut(at, node, until, rng.choice(list(Direction)))]
    if kind == 8:
        return [Reset(at, node)]
    if kind == 9:
        return [Freeze(at, node, until)]
    if kind == 10:
        return [Stubborn(at, node)] if rng.random() < 0.7 else [Unkillable(at, node)]
    if kind == 11:
        return [AgentStarts(at, node)]
    down_for = rng.choice((0.1, 1.0, 6.0))
    return [MasterCrash(at, down_for, rng.choice([*Memory, Memory.KEPT]))]
