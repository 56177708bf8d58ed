"""Scenarios that failed once: each is always run. ``scripts/simulate`` prints them ready to be pasted."""

from __future__ import annotations

from tests.sim.scenario import (
    AgentCrash,
    AgentStarts,
    Cut,
    Direction,
    Freeze,
    MasterCrash,
    Memory,
    Network,
    NodeSpec,
    PortTaken,
    Reset,
    Scenario,
    Stop,
    Stubborn,
    Unkillable,
    WorkerFails,
)


def _nodes(count: int) -> tuple[NodeSpec, ...]:
    return tuple(NodeSpec(f"n{number}", joins=number / 10) for number in range(count))


HOSTILE = Network(delay=0.2, duplicate=0.2, reorder=0.3, late=0.8)

REGRESSIONS: dict[str, Scenario] = {
    "a directive of the epoch before arrives after the new master's welcome": Scenario(
        seed=1,
        nodes=_nodes(4),
        max_nodes=4,
        min_nodes=2,
        quiet_from=40.0,
        network=HOSTILE,
        faults=(MasterCrash(5.0), MasterCrash(12.0, memory=Memory.HALF_SENT), Reset(9.0, "n1")),
    ),
    "expired deadlines came back with a replay": Scenario(
        seed=17,
        nodes=_nodes(8),
        min_nodes=8,
        max_nodes=8,
        quiet_from=40.0,
        faults=(
            MasterCrash(3.95),
            MasterCrash(21.17, memory=Memory.UNSENT),
            AgentCrash(29.95, "n2"),
            AgentStarts(30.45, "n2"),
        ),
    ),
    "a master without a journal meets agents of its own epoch": Scenario(
        seed=2,
        nodes=_nodes(4),
        min_nodes=4,
        max_nodes=4,
        quiet_from=30.0,
        faults=(WorkerFails(3.0, "n0"), MasterCrash(10.0, memory=Memory.LOST)),
    ),
    "a master without a journal forms a world before it hears of round 3": Scenario(
        seed=3,
        nodes=(*_nodes(4), NodeSpec("late", joins=16.0)),
        min_nodes=1,
        max_nodes=5,
        last_call=0.0,
        max_restarts=9,
        quiet_from=60.0,
        faults=(
            WorkerFails(3.0, "n0"),
            WorkerFails(8.0, "n1"),
            *(Cut(14.0, f"n{number}", 25.0) for number in range(4)),
            MasterCrash(15.0, 0.5, Memory.LOST),
        ),
    ),
    "workers finish between hello and welcome": Scenario(
        seed=4,
        nodes=_nodes(3),
        min_nodes=3,
        max_nodes=3,
        work=4.0,
        network=Network(delay=0.9),
        faults=tuple(Reset(4.0 + tenth / 5, f"n{tenth % 3}") for tenth in range(15)),
    ),
    "a signal while the master is away": Scenario(
        seed=5,
        nodes=_nodes(3),
        min_nodes=2,
        max_nodes=3,
        quiet_from=30.0,
        faults=(Stubborn(3.0, "n1"), MasterCrash(4.0, 2.0), Stop(4.5, "n1"), AgentStarts(20.0, "n1")),
    ),
    "a leaving agent's link comes back while its workers stop": Scenario(
        seed=6,
        nodes=_nodes(3),
        min_nodes=2,
        max_nodes=3,
        quiet_from=30.0,
        network=HOSTILE,
        faults=(Stubborn(3.0, "n1"), Stop(5.0, "n1", 2), Reset(5.5, "n1")),
    ),
    "a frozen agent thaws when its deadlines have passed": Scenario(
        seed=124,
        nodes=_nodes(4),
        min_nodes=2,
        max_nodes=4,
        quiet_from=60.0,
        faults=(Cut(3.0, "n2", 4.0), Freeze(3.7, "n1", 39.5), WorkerFails(9.0, "n0")),
    ),
    "an old incarnation comes back after its successor was lost": Scenario(
        seed=7,
        nodes=_nodes(3),
        min_nodes=2,
        max_nodes=3,
        quiet_from=80.0,
        faults=(Freeze(3.0, "n1", 60.0), AgentStarts(25.0, "n1"), AgentCrash(30.0, "n1")),
    ),
    "workers that cannot be killed": Scenario(
        seed=8,
        nodes=_nodes(3),
        min_nodes=2,
        max_nodes=3,
        quiet_from=40.0,
        faults=(Unkillable(2.0, "n1"), WorkerFails(4.0, "n0")),
    ),
    "the port is taken again and again": Scenario(
        seed=9,
        nodes=_nodes(2),
        min_nodes=2,
        max_nodes=2,
        max_restarts=0,
        quiet_from=5.0,
        faults=tuple(PortTaken(0.0) for _ in range(10)),
    ),
    "the port is taken once too often": Scenario(
        seed=10,
        nodes=_nodes(2),
        min_nodes=2,
        max_nodes=2,
        max_restarts=0,
        quiet_from=5.0,
        faults=tuple(PortTaken(0.0) for _ in range(11)),
    ),
    "the newest directive is lost on its way and arrives late": Scenario(
        seed=11,
        nodes=_nodes(4),
        min_nodes=2,
        max_nodes=4,
        last_call=0.0,
        quiet_from=60.0,
        max_restarts=10,
        network=Network(delay=0.5, late=1.0),
        faults=(
            *(WorkerFails(3.0 + 5 * number, f"n{number % 4}") for number in range(8)),
            *(Cut(4.0 + 5 * number, f"n{(number + 1) % 4}", 5.0 + 5 * number) for number in range(8)),
            *(Cut(4.2 + 5 * number, "n3", 4.4 + 5 * number, Direction.TO_AGENT) for number in range(8)),
        ),
    ),
}
