"""Random scenarios: a seed decides which nodes come, and what happens to them."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

from elasticrun.sim.ills import Drain, Ill, Preempt, Scale, draw_health, draw_ills, draw_orders, draw_policy
from elasticrun.sim.scenario import (
    NEVER,
    NO_CHECKS,
    AgentCrash,
    AgentStarts,
    Cut,
    Direction,
    Fault,
    Freeze,
    HostCrash,
    ImportsAnew,
    MasterCrash,
    Memory,
    Network,
    NodeSpec,
    PortTaken,
    Reset,
    Scenario,
    Split,
    Stop,
    StorageSpec,
    Stubborn,
    Unkillable,
    WorkerFails,
    ends,
)


def generate(seed: int, nodes: int) -> Scenario:
    """The scenario of a seed: of four, one has several hosts and two have ills; half import, half save."""
    base = _plain(seed, nodes)
    if seed % 4 in (1, 2):
        base = _with_orders(seed, _with_ills(seed, base))
    rng = random.Random(f"imports {seed}")
    base = _with_imports(rng, base) if rng.random() < 0.5 else base
    rng = random.Random(f"steps {seed}")
    if rng.random() >= 0.5:
        return base
    return _with_storage(seed, replace(base, step=round(rng.uniform(0.2, 2.0), 2)))


def _with_storage(seed: int, base: Scenario) -> Scenario:
    """Of three jobs that save, one has a storage. Where writers hang, jobs may outlast them."""
    rng = random.Random(f"storage {seed}")
    return _with_storage_of(rng, base) if rng.random() < 1 / 3 else base


def _with_storage_of(rng: random.Random, base: Scenario) -> Scenario:
    hangs = rng.choice((0.0, 0.0, 0.0, 0.1, 0.3))
    spec = StorageSpec(
        every=rng.choice((1.0, 5.0, 20.0)),
        flush=rng.choice((60.0, 60.0, 20.0, 5.0, 0.0)),
        slowest=rng.choice((0.1, 0.5, 0.5, 5.0)),
        fails=rng.choice((0.0, 0.0, 0.1, 0.4)),
        hangs=hangs,
        undying=rng.choice((0.0, 0.5)) if hangs else 0.0,
        crashes=rng.choice((0.0, 0.0, 0.1)),
        away=tuple(_away(rng, base.quiet_from or 10.0) for _ in range(rng.choice((0, 0, 0, 1, 2)))),
    )
    if hangs and base.quiet_from and rng.random() < 0.5:
        quiet_from = round(base.quiet_from + rng.uniform(100.0, 200.0), 2)
        base = replace(base, quiet_from=quiet_from, step=max(2.0, base.step))
    return replace(base, storage=spec)


def _away(rng: random.Random, last: float) -> tuple[float, float]:
    gone = rng.uniform(1.0, last + 10.0)
    return round(gone, 2), round(gone + rng.choice((2.0, 20.0, 200.0)) * rng.random(), 2)


def generate_shrinking(seed: int, nodes: int) -> Scenario:
    """A job that saves its state, and that nodes leave again and again, as ordered or as platforms ask."""
    base = _plain(4 * seed, nodes)  # of those with one host
    rng = random.Random(f"shrinking {seed}")
    names = [spec.name for spec in base.nodes]
    last = rng.choice((5.0, 15.0, 40.0))
    leaves = [_leave(rng, names, base.node_unit, last) for _ in range(rng.randint(1, 4))]
    faults = sorted((*(base.faults if rng.random() < 0.6 else ()), *leaves), key=lambda fault: fault.at)
    shrinking = replace(
        base,
        faults=tuple(faults),
        quiet_from=round(max([last, *(spec.joins for spec in base.nodes), *map(ends, faults)]), 2),
        step=round(rng.uniform(0.2, 2.0), 2),
        work=round(rng.uniform(3.0, 20.0), 2),
        min_nodes=base.node_unit,
    )
    return _with_storage(seed, shrinking)


def generate_ending(seed: int, nodes: int) -> Scenario:
    """A job with a storage that ends without success: workers fail, or all nodes leave, or too many."""
    base = _plain(4 * seed, nodes)  # of those with one host
    rng = random.Random(f"ending {seed}")
    names = [spec.name for spec in base.nodes]
    at, kind, restarts = rng.uniform(5.0, 40.0), rng.randrange(3), rng.choice((0, 1))
    ending: list[Fault] = [
        WorkerFails(round(at + 5.0 * number, 2), rng.choice(names)) for number in range(4 * (kind == 0))
    ]
    for name in rng.sample(names, rng.randint(1, len(names)) if kind == 1 else len(names)) if kind else ():
        when = round(at + rng.choice((0.5, 5.0)) * rng.random(), 2)
        ending.append(Preempt(when, name) if rng.random() < 0.5 else Stop(when, name, 15))
    faults = sorted((*(base.faults if rng.random() < 0.3 else ()), *ending), key=lambda fault: fault.at)
    last = round(max([at, *(spec.joins for spec in base.nodes), *map(ends, faults)]) + 5.0, 2)
    ended = replace(
        base,
        faults=tuple(faults),
        step=round(rng.uniform(0.2, 2.0), 2),
        work=10.0,
        quiet_from=last,
        max_restarts=restarts,
        join_timeout=30.0,
        min_nodes=base.max_nodes if kind == 1 else base.min_nodes,
    )
    return _with_storage_of(rng, ended)


def _leave(rng: random.Random, names: Sequence[str], unit: int, last: float) -> Ill:
    at, kind = round(rng.uniform(1.0, last), 2), rng.randrange(5)
    if kind <= 2:
        high = max(unit, rng.randint(1, len(names)) // unit * unit)
        return Scale(at, rng.randint(1, high), high)
    return (Drain if kind == 3 else Preempt)(at, rng.choice(names))


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
    faults = [fault for _ in range(count_of_faults) for fault in draw_fault(rng, names, last_fault)]
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
        network=Network(2.0, 0.2, 0.3, 0.7) if storm and rng.random() < 0.5 else draw_network(rng),
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
    early = [each for _ in range(rng.choice((0, 0, 1, 3))) for each in draw_fault(rng, names, 6.0)]
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


def _with_orders(seed: int, base: Scenario) -> Scenario:
    """In one of three jobs with ills an operator steers; nodes that were waited for may come."""
    rng = random.Random(f"orders {seed}")
    if rng.random() >= 1 / 3:
        return base
    orders = draw_orders(rng, [spec.name for spec in base.nodes], base.node_unit, max(5.0, base.quiet_from))
    last = max([base.quiet_from, *map(ends, orders)])
    least = -(-base.min_nodes // base.node_unit) * base.node_unit
    return replace(
        base,
        faults=tuple(sorted((*base.faults, *orders), key=lambda fault: fault.at)),
        max_nodes=rng.choice((base.max_nodes, max(least, base.max_nodes - base.node_unit))),
        quiet_from=round(last + rng.choice((0.0, 20.0)), 2),
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
    faults += [each for _ in range(rng.randint(0, 4)) for each in draw_fault(rng, names, last)]
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
    """Whether a fault restarts a listed host's agent or wipes a disk: see ``core/membership/quorum.py``."""
    if isinstance(fault, MasterCrash):
        return fault.memory is Memory.LOST
    return isinstance(fault, AgentCrash | AgentStarts | Stop) and fault.node in hosts


def draw_network(rng: random.Random) -> Network:
    """A fast or slow network; half of them are hostile."""
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


def draw_fault(rng: random.Random, names: list[str], last: float) -> Sequence[Fault]:
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
