"""What the tasks of a TensorFlow job do: they lead, serve, die and are scaled."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import TYPE_CHECKING

from elasticrun.config import TaskRole
from elasticrun.core.protocol import orders
from elasticrun.core.protocol.messages import AgentPhase, FailureKind
from elasticrun.core.tensorflow.cluster import SERVERS, is_served, leader
from elasticrun.sim.draw import draw_fault, draw_network
from elasticrun.sim.scenario import (
    Fault,
    MasterCrash,
    Memory,
    NodeSpec,
    PortTaken,
    ScaleRole,
    Scenario,
    TaskDies,
    WorkerFails,
    ends,
)

if TYPE_CHECKING:
    from elasticrun.sim.node import SimAgent
    from elasticrun.sim.simulator import Simulator
    from elasticrun.sim.workers import Group
    from elasticrun.sim.world import World

CHIEF, WORKER, PS, EVALUATOR = TaskRole
CALM = 60.0  # seconds without a fault after which every task must run
ENDING = 30.0  # seconds within which a job must end after its leader
Born = tuple[int, str, int]  # a round, a node and a local rank


class TfJob:
    """The tasks of one simulated job."""

    def __init__(self, sim: Simulator) -> None:
        self.sim = sim
        self.kernel = sim.kernel
        self.deaths = 0  # ends of tasks, of any kind
        self.born: dict[Born, int] = {}  # the newest attempt that was started
        self.ended: dict[Born, int] = {}  # the newest attempt that has ended
        if any(spec.roles for spec in sim.scenario.nodes):
            quiet = max([0.0, *map(ends, sim.scenario.faults)])
            if sim.scenario.quiet_from >= quiet + CALM:
                self.kernel.at(sim.scenario.quiet_from - 0.5, self._look)

    def _look(self) -> None:
        if self.sim.master.up:
            self.sim.rules.tasks.all_that_is_wanted_runs(self.sim.master.machine)

    # -- work

    def work(self, world: World) -> None:
        """Begin the work: the tasks of all nodes are up."""
        for agent in world.started.values():
            group = agent.workers.group
            if group is not None and group.round == world.number:
                for local_rank in list(group.alive):
                    self.note_start(agent, group, local_rank, group.attempts[local_rank])
                    self.task_started(agent, group, local_rank, group.attempts[local_rank])

    def task_started(self, agent: SimAgent, group: Group, local_rank: int, attempt: int) -> None:
        """A task is up: unless it serves, it ends with 0 when its work is done."""
        world = self.sim.rules.world_of(agent.name, group.assignment)
        if world is None or len(world.started) < len(world.assignments):
            return
        task = group.tasks[local_rank]
        if is_served(group.assignment.cluster) and task.role in SERVERS:
            return
        scenario = self.sim.scenario
        at = max(self.kernel.now + scenario.work, scenario.quiet_from)
        at += scenario.spread * self.kernel.random()
        self.kernel.at(at, agent.workers.end, group, local_rank, 0, FailureKind.EXIT, None, attempt)

    def note_start(self, agent: SimAgent, group: Group, local_rank: int, attempt: int) -> None:
        """Note the start of an attempt."""
        self.born[group.round, agent.name, local_rank] = attempt

    def task_ended(self, agent: SimAgent, group: Group, local_rank: int, code: int) -> None:
        """Note the end of an attempt; the loss of a ps may end the chief."""
        task, world = group.tasks[local_rank], self.sim.rules.world_of(agent.name, group.assignment)
        self.ended[group.round, agent.name, local_rank] = group.attempts[local_rank]
        self.deaths += 1
        assert world is not None
        world.genuine = True
        cluster = group.assignment.cluster
        if code == 0 and task.index == 0 and task.role is leader(role for role, _ in cluster):
            world.led = True
            if not agent.over and agent.machine.state.phase is AgentPhase.RUNNING:  # else nobody hears of it
                self.kernel.after(ENDING, self._must_have_ended, group.round)
        elif task.role is PS and self.kernel.random() < 0.8:
            self._break_off(f"{agent.machine.state.info.address}:{task.port}", group.round)

    def _must_have_ended(self, round_: int) -> None:
        master = self.sim.master
        if master.up and self.kernel.now > self.sim.scenario.quiet_from + ENDING:
            self.sim.rules.tasks.the_leader_has_ended_the_job(master.machine, round_)

    def _break_off(self, server: str, round_: int) -> None:
        """A chief that knows a server which is gone fails soon."""
        found = self._find(CHIEF, 0, round_)
        if found is None:
            return
        agent, local_rank = found
        group = agent.workers.group
        assert group is not None
        if server in dict(group.known[local_rank])[PS]:
            attempt, after = group.attempts[local_rank], 0.01 + self.kernel.random()
            self.kernel.after(after, agent.workers.end, group, local_rank, 1, FailureKind.EXIT, None, attempt)

    def is_heard(self, group: Group, local_rank: int | None = None) -> bool:
        """Whether peers wait in vain for the lost workers of a node, or for this one."""
        cluster = group.assignment.cluster
        if local_rank is not None and cluster and group.tasks[local_rank].role is EVALUATOR:
            return False
        return not is_served(cluster)

    def _find(self, role: TaskRole, index: int, round_: int) -> tuple[SimAgent, int] | None:
        for agent in self.sim.agents:
            group = agent.workers.group
            if group is None or agent.over or group.round != round_:
                continue
            for local_rank in group.alive:
                task = group.tasks.get(local_rank)
                if task is not None and (task.role, task.index) == (role, index):
                    return agent, local_rank
        return None

    def told(self, agent: SimAgent) -> dict[int, int]:
        """The attempts of its tasks that a node was last told, by local rank."""
        assignment = agent.machine.state.assignment
        return {task.local_rank: task.attempt for task in assignment.tasks} if assignment is not None else {}

    # -- faults

    def happen(self, fault: TaskDies | ScaleRole) -> None:
        """Carry out a fault."""
        match fault:
            case ScaleRole(_, role, count):
                self.sim.master.handle(orders.ScaleRole(role, count))
            case TaskDies(_, role, index, exit_code):
                found = self._find(role, index, self.sim.master.machine.state.round)
                if found is not None:
                    agent, local_rank = found
                    group = agent.workers.group
                    assert group is not None
                    is_end = exit_code == 0 and not is_served(group.assignment.cluster)
                    code = 1 if is_end else exit_code
                    agent.workers.end(group, local_rank, code, FailureKind.EXIT)


def tf_node(name: str, *roles: TaskRole, joins: float = 0.0) -> NodeSpec:
    """A node whose tasks have these roles."""
    return NodeSpec(name, joins=joins, local_world_size=len(roles), roles=roles)


SHAPES: tuple[tuple[tuple[TaskRole, ...], ...], ...] = (
    ((CHIEF, WORKER, WORKER, PS, PS),),
    ((CHIEF, PS), (WORKER, PS), (WORKER, EVALUATOR)),
    ((PS,), (PS,), (CHIEF, EVALUATOR), (WORKER, WORKER)),
    ((WORKER, WORKER, EVALUATOR), (WORKER,)),
    ((CHIEF,), (WORKER,), (WORKER,)),
)


def generate_tf(seed: int) -> Scenario:
    """The scenario of a seed: tasks die and roles are scaled, beside other faults."""
    rng = random.Random(f"tensorflow {seed}")
    shape = rng.choice(SHAPES)
    nodes = tuple(
        tf_node(f"n{number}", *roles, joins=round(rng.uniform(0.0, 0.5), 2))
        for number, roles in enumerate(shape)
    )
    last = rng.choice((10.0, 30.0, 60.0))
    faults: list[Fault] = [_task_fault(rng, last) for _ in range(rng.randint(1, 8))]
    names = [spec.name for spec in nodes]
    others = [each for _ in range(rng.choice((0, 0, 1, 4))) for each in draw_fault(rng, names, last)]
    faults += [_kept(each) for each in others if not isinstance(each, PortTaken)]
    faults.sort(key=lambda fault: fault.at)
    return Scenario(
        seed=seed,
        nodes=nodes,
        min_nodes=len(nodes),
        max_nodes=len(nodes),
        max_restarts=rng.choice((0, 3, 20, 20)),
        last_call=0.0,
        work=round(rng.uniform(0.5, 6.0), 2),
        quiet_from=round(max([last, *map(ends, faults)]) + CALM, 2),
        spread=rng.choice((0.2, 3.0)),
        network=draw_network(rng),
        faults=tuple(faults),
    )


def _kept(fault: Fault) -> Fault:
    """Let no master lose its journal: the wanted attempts would be lost, and the rules need them."""
    if isinstance(fault, MasterCrash) and fault.memory is Memory.LOST:
        return replace(fault, memory=Memory.KEPT)
    return fault


def _task_fault(rng: random.Random, last: float) -> Fault:
    at = round(rng.uniform(1.0, last), 2)
    role = rng.choice((CHIEF, WORKER, WORKER, PS, PS, EVALUATOR))
    if rng.random() < 0.3:
        return ScaleRole(at, rng.choice((PS, PS, WORKER)), rng.randint(1, 4))
    if rng.random() < 0.1:
        return WorkerFails(at, f"n{rng.randint(0, 3)}")
    index = rng.randint(0, 2) if role in SERVERS else 0
    code = rng.choice((1, -9, -9, 42)) if role not in SERVERS else rng.choice((1, -9, -9, 0))
    return TaskDies(at, role, index, code)
