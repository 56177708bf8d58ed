"""A job whose master may move: several listed hosts, networks that fall apart, hosts that lose power.

What must never happen is that two masters act for one job. That means, and is checked as:

- *Exclusive*: at no time do two worlds each have the workers of all their members running. Only such a world
  can make a step.
- *Chain*: of all worlds that ever had their workers started everywhere, in the order of their rounds, each
  has a quorum of the members (incarnations) of the one before it.
- *Identity*: no two masters form the same world, and nobody starts a world that was not formed.
- *Stranded*: once a master says that others are lacking, and all agents that live are with it, no world
  trains any more. So a platform loses nothing if it has the job begin again (``core/fleet/decide.py``). Half
  of a world is left out, as a host may come back with its journal here; a pod does not.

Live: some time after the last fault, if the voters suffice, all nodes are done.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from typing import Any

from elasticrun.core.agent.events import Finish
from elasticrun.core.job.describe import stranded
from elasticrun.core.job.events import JobEffect
from elasticrun.core.job.machine import JobMachine
from elasticrun.core.membership.quorum import longest_stay
from elasticrun.core.protocol.messages import Assignment, FailureKind, Outcome
from elasticrun.core.protocol.messages import World as WorldId
from elasticrun.core.protocol.status import JobPhase
from elasticrun.errors import ExitCode
from elasticrun.sim.faults import Faults
from elasticrun.sim.fingerprint import fingerprint, replay_gives_the_same
from elasticrun.sim.host_faults import HostFaults, HostNetwork
from elasticrun.sim.hosts import HostLink, HostMaster
from elasticrun.sim.invariants import (
    Rules,
    directives_are_consistent,
    facts_fit_the_phase,
)
from elasticrun.sim.kernel import Violation, require
from elasticrun.sim.link import SimLink
from elasticrun.sim.master import SAVING, Journal, Saving, SimMaster
from elasticrun.sim.node import SimAgent
from elasticrun.sim.scenario import Scenario
from elasticrun.sim.simulator import PATIENCE, Result, Simulator
from elasticrun.sim.workers import Group
from elasticrun.sim.world import World, ranks_are_exact, size_is_within_limits, store_belongs_to_rank_0

PEERLESS = 100.0  # seconds after which a worker gives up on peers that never come


class Formed(World):
    """A world, its members' incarnations, and which of them have started."""

    def __init__(self, id_: WorldId, machine: JobMachine) -> None:
        super().__init__(machine.state.round, 0, machine.state.current)
        self.id = id_
        nodes = machine.state.members.nodes
        self.members = {name: nodes[name].info.incarnation for name in self.assignments}
        self.takers: dict[str, SimAgent] = {}  # the members that have started, by name

    @property
    def is_complete(self) -> bool:
        """Whether every member has started its workers at some time."""
        return len(self.takers) == len(self.assignments)

    @property
    def can_train(self) -> bool:
        """Whether the workers of all members run now."""
        return self.is_complete and all(
            agent.workers.group is not None and agent.workers.group.round == self.number and not agent.crashed
            for agent in self.takers.values()
        )


def success_is_just(scenario: Scenario, world: Formed) -> None:
    """A job that succeeded has had every worker of its last world end with 0."""
    specs = {spec.name: spec.local_world_size for spec in scenario.nodes}
    missing = [name for name in world.assignments if world.done.get(name, 0) != specs[name]]
    require("success means that everybody finished", not missing, f"{missing} did not")


def chain_holds(formed: Iterable[Formed], new: Formed, endpoints: int) -> None:
    """Each complete world has a quorum of the complete world before it; ``new`` has just become complete."""
    complete = [world for world in formed if world.is_complete]
    rounds = [world.number for world in complete]
    require("complete worlds have rounds of their own", len(set(rounds)) == len(rounds), str(rounds))
    complete.sort(key=lambda world: world.number)
    for old, young in itertools.pairwise(complete):
        if new in (old, young):
            _follows(old, young, endpoints)


def _follows(old: Formed, young: Formed, endpoints: int) -> None:
    common = len(set(old.members.values()) & set(young.members.values()))
    is_same_host = (old.id.epoch - young.id.epoch) % endpoints == 0
    enough = 2 * common > len(old.assignments) - is_same_host
    require("each world has a quorum of the last", enough, f"{old.members} -> {young.members}")


class ChainRules(Rules):
    """Watches one simulated job with any number of masters."""

    def __init__(self, sim: Failover) -> None:
        super().__init__(sim)
        self.failover = sim
        self.formed: dict[WorldId, Formed] = {}
        self._watched: dict[int, Any] = {}  # by master's position
        self.are_stranded = False  # all that lived, at some moment

    # -- masters

    def resume(self, machine: JobMachine) -> None:
        """Nothing to do: names of worlds are compared in ``after_master``."""

    def after_master(self, master: SimMaster, effects: list[JobEffect]) -> None:
        """Check every rule about one master."""
        assert isinstance(master, HostMaster)
        machine = master.machine
        self.sim.saves.after_master(machine, effects)
        self.sim.durability.after_master(machine, effects)
        directives_are_consistent(machine, effects)
        given = machine.state.current.assignments
        proposal = next(iter(given.values())).proposal if given else None
        if proposal is not None and proposal.world not in self.formed:
            world = Formed(proposal.world, machine)
            require("a new world is new", machine.state.phase is not JobPhase.GATHERING, str(proposal))
            require("its number is its own", proposal.world.round == machine.state.round, str(proposal))
            owner = proposal.world.epoch % machine.state.config.endpoints
            require("its epoch is its master's", owner == master.position, str(proposal))
            ranks_are_exact(self.sim.specs, world)
            self.sim.saves.world_formed(world, machine)
            self.sim.durability.world_formed(world, machine, effects)
            size_is_within_limits(self.limits, world)
            store_belongs_to_rank_0(self.owners, world)
            self.formed[proposal.world] = world
        elif proposal is not None and machine.state.current is not self._watched.get(master.position):
            members = {name: each.group_rank for name, each in given.items()}
            known = {name: each.group_rank for name, each in self.formed[proposal.world].assignments.items()}
            require("no two worlds have one name", members == known, str(proposal))
        self._watched[master.position] = machine.state.current
        facts_fit_the_phase(machine)
        self.joins.nobody_is_held_back_for_ever(machine)
        if machine.state.phase is JobPhase.SUCCEEDED and proposal is not None:
            success_is_just(self.scenario, self.formed[proposal.world])
        state = machine.state
        if stranded(state) and state.quorum.is_lost(state.candidates.here, lambda _: True):
            here = {node.info.incarnation for node in state.members.nodes.values()}
            self.are_stranded |= here >= {agent.incarnation for agent in self.sim.agents if not agent.over}

    # -- agents

    def world_of(self, name: str, assignment: Assignment) -> World | None:
        """The world in which ``name`` was given this assignment."""
        assert assignment.proposal is not None
        world = self.formed.get(assignment.proposal.world)
        return world if world is not None and name in world.assignments else None

    def before_start(self, agent: SimAgent, assignment: Assignment) -> None:
        """Check every rule about a start of workers."""
        world = self.world_of(agent.name, assignment)
        assert isinstance(world, Formed), f"{agent.incarnation}: {assignment} was never formed"
        require("no agent runs two rounds", agent.workers.group is None, agent.incarnation)
        is_its_own = world.members[agent.name] == agent.incarnation
        require("an assignment is its member's", is_its_own, agent.incarnation)
        require("an assignment is started once", agent.name not in world.takers, agent.incarnation)
        world.takers[agent.name] = agent
        if world.is_complete:
            chain_holds(self.formed.values(), world, self.sim.config.endpoints)

    def after_agent(self, agent: SimAgent, effects: list[Any]) -> None:
        """Check every rule about one agent, and that one world at most can train."""
        super().after_agent(agent, effects)
        group = agent.workers.group
        if effects and group is not None:
            able = [world.id for world in self.formed.values() if world.can_train]
            require("one world at most can train", len(able) < 2, str(able))
            require("who is stranded trains no more", not (able and self.are_stranded), str(able))

    # -- the way out

    def _search_was_in_vain(self, agent: SimAgent) -> None:
        """Check that a node which gave up its search was idle for long enough."""
        scenario = self.scenario
        waited = self.sim.kernel.now - agent.workers.idle_since
        enough = waited > max(scenario.join_timeout, longest_stay(len(scenario.hosts)))
        require("who goes has waited", enough, f"{agent.incarnation}: {waited:g} s")
        self.failover.outcomes.add(Outcome.TIMED_OUT)
        self.failover.judge_timeout()

    def exit_status_is_right(self, agent: SimAgent, finish: Finish) -> None:
        status, who = finish.exit_status, f"{agent.incarnation}: {finish}"
        if status == ExitCode.MASTER_LOST:
            require("the master was away", agent.link.waited_for_a_master(), who)
        elif status == ExitCode.RENDEZVOUS_TIMEOUT and finish.outcome is None:
            self._search_was_in_vain(agent)
        elif finish.outcome is None and status not in (ExitCode.MASTER_UNREACHABLE, ExitCode.SUPERSEDED):
            fault = (
                agent.workers.unkillable if status == ExitCode.NODE_FAULT else status - 128 in agent.signalled
            )
            require("it was told to stop", fault, who)
        if finish.outcome is not None:
            self.failover.outcomes.add(finish.outcome)
            if finish.outcome is Outcome.TIMED_OUT:
                self.failover.judge_timeout()
        if status != ExitCode.NODE_FAULT:
            require("no worker is left behind", agent.workers.group is None, who)


class Failover(Simulator):
    """The world of one scenario with several listed hosts."""

    settle = 240.0  # masters that wait for one another's nodes have to step down first
    rules: ChainRules
    masters: list[HostMaster]

    def _make_rules(self) -> Rules:
        self.kept: Journal = []  # entries of all journals; a copy's line is an index into it
        self.network = HostNetwork(self.scenario.hosts)
        return ChainRules(self)

    def _make_masters(self) -> None:
        self.masters = [HostMaster(self, self.config, index) for index in range(self.config.endpoints)]
        self.master = self.masters[0]

    def _make_faults(self) -> Faults:
        return HostFaults(self)

    def make_link(self, agent: SimAgent) -> SimLink:
        """The link by which an agent finds its master."""
        return HostLink(self, agent)

    def group_started(self, agent: SimAgent, group: Group) -> None:
        """Note that a node's workers are up; they give up if their peers do not come within PEERLESS."""
        super().group_started(agent, group)
        self.kernel.after(PEERLESS, self._give_up, agent, group)

    def _give_up(self, agent: SimAgent, group: Group) -> None:
        world = self.rules.world_of(agent.name, group.assignment)
        assert isinstance(world, Formed)
        if not world.is_complete and group.alive:
            agent.workers.end(group, next(iter(group.alive)), 1, FailureKind.EXIT)

    # -- the disks

    def keep(self, entry: Any) -> int:
        """Store a journal entry for copies; returns its number."""
        self.kept.append(entry)
        return len(self.kept) - 1

    # -- running

    def run(self) -> Result:
        """Run to the end. Raises Violation if a rule does not hold."""
        bound = self._last_end + 6 * self.scenario.join_timeout + self.scenario.spread + PATIENCE
        kernel = self.kernel
        while not self._over():
            if not kernel.step() or kernel.now > bound:
                left = [agent.incarnation for agent in self.agents if not agent.over]
                raise Violation("everybody leaves", f"{left} at {kernel.now:g}")
        for master in self.masters:
            if master.up:
                replay_gives_the_same(
                    fingerprint(master.machine.state), self.saving.replay(self.config, master.journal)
                )
        outcome = Outcome.SUCCEEDED if Outcome.SUCCEEDED in self.outcomes else None
        outcome = outcome or next(iter(sorted(self.outcomes, key=lambda each: each.value)), None)
        used = max(master.machine.state.budget.used for master in self.masters)
        rounds, trace = len(self.rules.formed), tuple(kernel.lines or ())
        return Result(outcome, kernel.now, kernel.steps, rounds, used, trace)

    def _over(self) -> bool:
        if self.kernel.now < self._last_end and not self.outcomes:
            return False
        return len(self.agents) >= len(self.specs) and all(agent.over for agent in self.agents)

    # -- judging

    def _settled(self) -> None:
        """Rule 4: long after the last fault a world can train, unless none can be expected."""
        why = self.why_not()
        if not why and not self.outcomes and not any(world.can_train for world in self.rules.formed.values()):
            raise Violation("a world forms", f"none long after faults, although {self.healthy()} are there")

    def judge_timeout(self) -> None:
        """Check nothing: any timeout is accepted here."""

    def why_not(self) -> str:
        """Why no world can be expected; "" if one can."""
        well = {a.incarnation: a for a in self.agents if not a.over and a.machine.state.departure is None}
        if len(well) < -(-self.scenario.min_nodes // self.scenario.node_unit) * self.scenario.node_unit:
            return "too few nodes"
        positions = {a.link.position for a in well.values()} - {-1}
        if not positions:
            return "no listed host is left"
        worlds = sorted(self.rules.formed.values(), key=lambda world: world.number)
        first = next((number for number, world in enumerate(worlds) if world.is_complete), len(worlds))
        if first == len(worlds):
            return "the job has not begun"
        newest = max(number for number, world in enumerate(worlds) if world.is_complete)
        for world in worlds[newest:]:
            left = [name for name, life in world.members.items() if life in well]
            takers = [name for name in left if name in world.takers]
            matters = world.is_complete or takers == left != []
            if matters and 2 * len(left) <= len(world.assignments):
                return "voters are lost"
        return ""


def simulator(scenario: Scenario, trace: bool = False, saving: Saving = SAVING) -> Simulator:
    """The simulator that fits a scenario."""
    kind = Failover if scenario.hosts else Simulator
    return kind(scenario, trace, saving)
