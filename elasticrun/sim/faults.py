"""Inflicts the faults of a scenario on a simulated job."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from elasticrun.core.protocol.messages import FailureKind
from elasticrun.sim.ills import Ill
from elasticrun.sim.node import SimAgent
from elasticrun.sim.scenario import (
    AgentCrash,
    AgentStarts,
    Cut,
    Direction,
    Fault,
    Freeze,
    HostCrash,
    ImportsAnew,
    MasterCrash,
    PortTaken,
    Reset,
    ScaleRole,
    Split,
    Stop,
    Stubborn,
    TaskDies,
    Unkillable,
    WorkerFails,
)

if TYPE_CHECKING:
    from elasticrun.sim.simulator import Simulator


class Faults:
    """Inflicts faults on one simulated job."""

    def __init__(self, sim: Simulator) -> None:
        self.sim = sim

    def inflict(self, fault: Fault) -> None:
        """Inflict a fault now."""
        self.sim.kernel.say("FAULT", str(fault))
        match fault:
            case MasterCrash(_, down_for, memory):
                self.sim.master.crash(down_for, memory)
            case PortTaken():
                self.sim.ports_to_take += 1
            case AgentStarts(_, node):
                if (old := self.sim.newest(node)) is not None:
                    old.crash()
                self.sim.spawn(replace(self.sim.specs[node], joins=fault.at))
            case TaskDies() | ScaleRole():
                self.sim.tf.happen(fault)
            case fault if isinstance(fault, Ill):
                self.sim.mishaps.happen(fault)
            case Split() | HostCrash():
                raise ValueError(f"{fault} needs listed hosts")
            case _:
                agent = self.sim.newest(fault.node)
                if agent is not None:
                    self._inflict_on(agent, fault)

    def _inflict_on(self, agent: SimAgent, fault: Fault) -> None:
        match fault:
            case WorkerFails(_, _, exit_code):
                self._fail_worker(agent, exit_code)
            case AgentCrash():
                agent.crash()
            case Stop(_, _, signum):
                agent.stop(signum)
            case Cut(_, _, until, direction):
                self._cut(agent, direction, until)
            case Reset():
                if agent.link.stream is not None:
                    agent.link.stream.break_off(
                        "reset", self.sim.kernel.random() / 10, self.sim.kernel.random() / 10
                    )
            case Freeze(_, _, until):
                agent.frozen += 1
                agent.disturbed = self.sim.kernel.now
                self.sim.kernel.at(until, agent.thaw)
            case Stubborn():
                agent.workers.stubborn = True
            case ImportsAnew(_, _, seconds):
                agent.imports(seconds)
            case Unkillable():
                agent.workers.stubborn = agent.workers.unkillable = True

    def _fail_worker(self, agent: SimAgent, exit_code: int) -> None:
        group = agent.workers.group
        if group is None or not group.alive:
            return
        world = self.sim.rules.world_of(agent.name, group.assignment)
        assert world is not None
        world.genuine = True
        victim = self.sim.kernel.rng.choice(list(group.alive))
        agent.workers.end(group, victim, exit_code, FailureKind.EXIT)

    def _cut(self, agent: SimAgent, direction: Direction, until: float) -> None:
        stream = agent.link.stream
        if stream is not None:
            stream.cut_up = stream.cut_up or direction is not Direction.TO_AGENT
            stream.cut_down = stream.cut_down or direction is not Direction.TO_MASTER
            learns = 6 * self.sim.kernel.random(), 6 * self.sim.kernel.random()
            self.sim.kernel.after(learns[0], agent.link.stream_ended, stream, "silent")
            self.sim.kernel.after(learns[1], stream.master.stream_ended, stream, "silent")
        agent.link.cuts += 1
        self.sim.kernel.at(until, self._heal, agent)

    def _heal(self, agent: SimAgent) -> None:
        agent.link.cuts -= 1
