"""Hangs, errors that come back, and what operators and the platform ask for."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

from elasticrun.core.protocol.messages import FailureKind
from elasticrun.core.protocol.orders import DrainNode, SaveAllStacks, ScaleJob
from elasticrun.sim.ills import (
    AskStacks,
    Bug,
    Drain,
    FallsIll,
    Hang,
    Ill,
    LinkBreaks,
    Ordered,
    Preempt,
    Scale,
)
from elasticrun.sim.node import SimAgent
from elasticrun.sim.workers import Group
from elasticrun.sim.world import World

if TYPE_CHECKING:
    from elasticrun.sim.simulator import Simulator

AGAIN = 4.0  # seconds between two reports of a stall
TRACEBACK = 'Traceback (most recent call last):\n  File "train.py", line 3, in <module>\n    train()\n'


class Mishaps:
    """Carries out these faults in one simulated job."""

    def __init__(self, sim: Simulator) -> None:
        self.sim = sim
        self.kernel = sim.kernel
        self.drained: set[str] = set()  # names of nodes that an operator has drained
        self._bugs: dict[str, Bug] = {}  # by node: what its next rounds will raise

    def happen(self, ill: Ill) -> None:
        """Carry out a mishap."""
        match ill:
            case FallsIll() | LinkBreaks():
                self.sim.clinic.inflict(ill)
            case Hang():
                self._hang(ill)
            case Bug(_, node):
                self._bugs[node] = ill
                agent = self.sim.newest(node)
                if agent is not None and agent.workers.group is not None:
                    self.start(agent, agent.workers.group)
            case Drain(_, node):
                self.drained.add(node)
                self.sim.master.handle(DrainNode(node, "an order"))
            case Scale(_, low, high):
                self.sim.rules.allow(low, high)
                self.sim.master.handle(ScaleJob(low, high))
            case Preempt(_, node):
                agent = self.sim.newest(node)
                if agent is not None:
                    agent.preempt()
            case AskStacks():
                self.sim.master.handle(SaveAllStacks())
            case Ordered(_, order):
                self.sim.master.handle(order)

    # -- errors

    def start(self, agent: SimAgent, group: Group) -> None:
        """Raise the node's next error, if it has one, in workers that are up."""
        bug = self._bugs.get(agent.name)
        if bug is not None and bug.times:
            self._bugs[agent.name] = replace(bug, times=bug.times - 1)
            self.kernel.after(0.1 + self.kernel.random(), self._raise, agent, group, bug)

    def _raise(self, agent: SimAgent, group: Group, bug: Bug) -> None:
        world = self.sim.rules.world_of(agent.name, group.assignment)
        if group is agent.workers.group and group.alive and world is not None:
            world.genuine = True
            world.errors.add((bug.text, bug.step))
            told = {"message": bug.text, "traceback": TRACEBACK + bug.text, "step": bug.step}
            agent.workers.end(group, next(iter(group.alive)), 1, FailureKind.EXIT, told)

    # -- hangs

    def _hang(self, hang: Hang) -> None:
        agent = self.sim.newest(hang.node)
        if agent is None or agent.workers.group is None:
            return
        world = self.sim.rules.world_of(agent.name, agent.workers.group.assignment)
        if world is None or len(world.started) < len(world.assignments):
            return
        agents = [agent] if hang.alone else list(world.started.values())
        for each in agents:
            group = each.workers.group
            if group is not None and group.assignment == world.assignments[each.name] and not group.waits:
                group.waits, group.hangs, group.waits_since = True, each is agent, self.kernel.now
                world.waits.setdefault(each.name, []).append((self.kernel.now, math.inf))
                self.kernel.after(1 + 3 * self.kernel.random(), self._stall, world, each, group)
                if hang.until is not None:
                    self.kernel.at(hang.until, self._go_on, world, each, group)

    def _stall(self, world: World, agent: SimAgent, group: Group) -> None:
        if group is agent.workers.group and group.waits and group.alive:
            agent.workers.stalls(group, AGAIN)
            self.kernel.after(AGAIN, self._stall, world, agent, group)

    def _go_on(self, world: World, agent: SimAgent, group: Group) -> None:
        group.waits = False
        since, _ = world.waits[agent.name].pop()
        world.waits[agent.name].append((since, self.kernel.now))
        if group is agent.workers.group and group.alive:
            agent.workers.stalls(group, 0.0)
