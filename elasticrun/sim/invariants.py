"""The rules of the architecture page, one function each, checked after every event.

Facts are read from the simulated world (which workers live, which agents crashed), never from the machine
that is judged. A node *may* still run an earlier round only if the master has declared it lost, or it
left, since that round was formed; ``_lost_in`` remembers that for each incarnation.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

from elasticrun.config import Action
from elasticrun.core.agent.events import IDLE, AgentEffect, Finish, StartWorkers
from elasticrun.core.job.events import OUTCOMES, JobEffect, Send
from elasticrun.core.job.machine import JobMachine
from elasticrun.core.job.round import Round
from elasticrun.core.membership.rendezvous import WorldLimits
from elasticrun.core.protocol.messages import (
    AgentPhase,
    Assignment,
    Outcome,
    StartRound,
)
from elasticrun.core.protocol.orders import StopJob
from elasticrun.core.protocol.status import JobPhase
from elasticrun.core.recovery.budget import MAX_STORE_RETRIES, Budget, StopCause
from elasticrun.errors import ExitCode
from elasticrun.sim.count_rules import counts_are_exact
from elasticrun.sim.failure_rules import hang_is_real, the_error_came_back
from elasticrun.sim.health_rules import HealthRules
from elasticrun.sim.ills import Ordered
from elasticrun.sim.join_rules import JoinRules
from elasticrun.sim.kernel import Violation, require
from elasticrun.sim.node import SimAgent
from elasticrun.sim.order_rules import no_world_has_a_cordoned_node, operations_end_as_told, scaled_limits
from elasticrun.sim.scenario import Scenario
from elasticrun.sim.senior_rules import SeniorRules
from elasticrun.sim.task_rules import TaskRules
from elasticrun.sim.world import (
    World,
    order_is_stable,
    place,
    ranks_are_exact,
    size_is_within_limits,
    store_belongs_to_rank_0,
)

if TYPE_CHECKING:
    from elasticrun.sim.master import SimMaster
    from elasticrun.sim.simulator import Simulator

STATUS = {
    Outcome.SUCCEEDED: ExitCode.OK,
    Outcome.FAILED: ExitCode.JOB_FAILED,
    Outcome.TIMED_OUT: ExitCode.RENDEZVOUS_TIMEOUT,
    Outcome.REPEATED_ERROR: ExitCode.REPEATED_ERROR,
    Outcome.UNHEALTHY: ExitCode.UNHEALTHY,
    Outcome.STOPPED: ExitCode.DRAINED,
}


class Rules:
    """Watches one simulated job."""

    def __init__(self, sim: Simulator) -> None:
        self.sim = sim
        self.scenario: Scenario = sim.scenario
        self.limits = self._limits()
        self._ordered = {self.limits}  # limits that anybody ever asked for
        self.health = HealthRules(sim)
        self.joins = JoinRules(sim)
        self.tasks = TaskRules(sim)
        self.seniors = SeniorRules()
        self.worlds: dict[int, list[World]] = {}  # by round; several only if a master forgot
        self.newest: World | None = None
        self.generation = 0
        self.ended: JobPhase | None = None
        self._ports = itertools.count(20000)
        self.owners: dict[int, str] = {}
        self._ranks = {spec.name: spec.node_rank for spec in sim.scenario.nodes}
        self._attached: dict[str, str] = {}
        self._lost_in: dict[str, int] = {}
        self._current: Round | None = None
        self._phase = JobPhase.GATHERING
        self._round = -1
        self._epoch = 0
        self._budget = Budget(sim.scenario.max_restarts)
        self._known: dict[str, str] = {}  # name -> newest incarnation that was ever attached

    # -- bookkeeping

    def free_port(self, name: str) -> int:
        """A port that no other node and no other round was offered."""
        port = next(self._ports)
        self.owners[port] = name
        return port

    def forget(self) -> None:
        """Start over: the master has lost its journal, and is not judged by what it knew."""
        self.generation += 1
        if self.ended is not None:
            self.sim.outcomes.add(OUTCOMES[self.ended])
        self.newest = None
        self._attached, self._lost_in = {}, {}
        self._current, self._phase, self._round, self._epoch = None, JobPhase.GATHERING, -1, 0
        self._budget = Budget(self.scenario.max_restarts)
        self.ended = None
        self.limits = self._limits()
        self.health.forget()
        self.joins.forget()
        self.tasks.forget()

    def _limits(self) -> WorldLimits:
        case = self.scenario
        return WorldLimits(case.min_nodes, case.max_nodes, case.node_unit)

    def allow(self, low: int, high: int) -> None:
        """Allow the limits that an operator has ordered."""
        self._ordered.add(WorldLimits(low, high, self.scenario.node_unit))

    def resume(self, machine: JobMachine) -> None:
        """Watch the objects of a replayed machine in place of their equals."""
        if self.newest is not None:
            self.newest.current = machine.state.current
            self._current = machine.state.current
        self._budget = machine.state.budget

    def world_of(self, name: str, assignment: Assignment) -> World | None:
        """The world in which ``name`` was given this assignment."""
        for world in reversed(self.worlds.get(assignment.round, [])):
            given = world.assignments.get(name)
            if given is not None and place(given) == place(assignment):
                return world
        return None

    # -- after each event

    def after_master(self, master: SimMaster, effects: list[JobEffect]) -> None:
        """Check every rule about the master."""
        machine = master.machine
        self.sim.saves.after_master(machine, effects)
        self.sim.durability.after_master(machine, effects)
        if effects:
            self._note_losses(machine)
            directives_are_consistent(machine, effects)
        self.health.after_master(machine, effects)
        if machine.state.limits is not self.limits:
            is_ordered = machine.state.limits in self._ordered | scaled_limits(machine)
            require("limits are as ordered", is_ordered, str(machine.state.limits))
            self.limits = machine.state.limits
        if machine.state.budget != self._budget:
            self.only_failures_spend(self._budget, machine.state.budget)
            self._budget = machine.state.budget
        if machine.state.current is not self._current and machine.state.current.assignments:
            world = World(machine.state.round, self.generation, machine.state.current)
            self.one_world_per_round(world)
            ranks_are_exact(self.sim.specs, world)
            self.sim.saves.world_formed(world, machine)
            self.sim.durability.world_formed(world, machine, effects)
            size_is_within_limits(self.limits, world)
            store_belongs_to_rank_0(self.owners, world)
            self.no_member_runs_an_earlier_round(world)
            if machine.state.config.cautious:
                here = {name: node.info.incarnation for name, node in machine.state.members.nodes.items()}
                self.seniors.world_formed(list(world.assignments), here, machine.state.round, self.generation)
            else:
                order_is_stable(self._ranks, self.newest, world)
            self.health.world_formed(machine)
            no_world_has_a_cordoned_node(machine)
            self._current, self.newest = machine.state.current, world
            self.worlds.setdefault(world.number, []).append(world)
        self.numbers_only_grow(machine)
        if machine.state.phase is not self._phase:
            self._phase = machine.state.phase
            if machine.state.ended:
                self.the_end_is_just(machine)
        if self.scenario.deep:
            facts_fit_the_phase(machine)
        operations_end_as_told(machine, effects)
        self.joins.after_master(machine)
        self.tasks.after_master(machine)
        stop, newest = machine.state.current.stop, self.newest
        if stop is not None and stop[0] is StopCause.HANG and newest is not None and not newest.genuine:
            hang_is_real(self.scenario, newest)

    def after_agent(self, agent: SimAgent, effects: list[AgentEffect]) -> None:
        """Check every rule about one agent."""
        machine, group = agent.machine.state, agent.workers.group
        for index, effect in enumerate(effects):
            if isinstance(effect, Finish):
                require("finish is last", index == len(effects) - 1, str(effects))
                self.exit_status_is_right(agent, effect)
            elif isinstance(effect, StartWorkers):
                require("one start per event", machine.round == effect.assignment.round, str(effects))
        if machine.phase in IDLE and group is not None and agent.finish is None:
            raise Violation("an idle agent has no workers", f"{agent.incarnation} is {machine.phase}")
        if machine.phase is AgentPhase.RUNNING and (group is None or group.round != machine.round):
            raise Violation("a running agent runs its round", agent.incarnation)

    def _note_losses(self, machine: JobMachine) -> None:
        now = {
            name: node.info.incarnation
            for name, node in machine.state.members.nodes.items()
            if node.session is not None
        }
        known = machine.state.members.nodes
        for name, incarnation in self._attached.items():
            if name not in known or known[name].info.incarnation != incarnation:
                self._lost_in[incarnation] = machine.state.round
        for name, node in known.items():
            self._known[name] = node.info.incarnation
            if node.session is None:
                now[name] = node.info.incarnation  # not yet back, and not lost
        self._attached = now

    # -- rule 1: one world

    def one_world_per_round(self, world: World) -> None:
        require("rounds only grow", world.number > self._round, f"{world.number} after {self._round}")
        for other in self.worlds.get(world.number, []):
            require("one world per round", other.generation != world.generation, str(world.number))

    def no_member_runs_an_earlier_round(self, world: World) -> None:
        """Only nodes declared lost since then may still run an earlier round."""
        for agent in self.sim.agents:
            group = agent.workers.group
            if group is None:
                continue
            attached = self._attached.get(agent.name) == agent.incarnation
            if attached and agent.name in world.assignments:
                raise Violation("a member has no worker of an earlier round", agent.incarnation)
            self._may_run(agent, group.assignment, world.number)

    def _may_run(self, agent: SimAgent, assignment: Assignment, newest: int) -> None:
        old = self.world_of(agent.name, assignment)
        assert old is not None
        if old.generation == self.generation and old.number < newest:
            lost_in = self._lost_in.get(agent.incarnation, -1)
            text = f"{agent.incarnation} runs {old.number}, newest is {newest}, lost in {lost_in}"
            require("only a lost node runs an earlier round", lost_in >= old.number, text)

    def before_start(self, agent: SimAgent, assignment: Assignment) -> None:
        """Check every rule about a start of workers."""
        require("no agent runs two rounds", agent.workers.group is None, agent.incarnation)
        world = self.world_of(agent.name, assignment)
        if world is None:
            raise Violation("an assignment is the master's", f"{agent.incarnation}: {assignment}")
        require("an assignment is started once", agent.name not in world.claimed, agent.incarnation)
        world.claimed.add(agent.name)
        if world.generation == self.generation:
            self._may_run(agent, assignment, self.sim.master.machine.state.round)

    # -- rule 3: the budget

    def only_failures_spend(self, before: Budget, after: Budget) -> None:
        world = self.newest
        assert world is not None
        require("spent <= max", after.spent <= self.scenario.max_restarts, str(after))
        require("one round spends at most one", after.used in (before.used, before.used + 1), str(after))
        if after.used > before.used:
            clashes = world.clash and before.store_retries >= MAX_STORE_RETRIES
            require("only a failure spends", world.genuine or clashes, f"round {world.number}: {after}")

    def the_end_is_just(self, machine: JobMachine) -> None:
        self.ended = machine.state.phase
        world = self.newest
        if machine.state.phase is JobPhase.SUCCEEDED and self.scenario.health.only:
            require("nothing was asked for but a check", world is None, machine.state.end_reason)
        elif machine.state.phase is JobPhase.SUCCEEDED and machine.state.current.tasks:
            require("success means that the leader finished", world is not None and world.led, "it did not")
        elif machine.state.phase is JobPhase.SUCCEEDED:
            assert world is not None
            specs = {spec.name: spec.local_world_size for spec in self.scenario.nodes}
            missing = [name for name in world.assignments if world.done.get(name, 0) != specs[name]]
            require("success means that everybody finished", not missing, f"{missing} did not")
        elif machine.state.phase is JobPhase.FAILED:
            assert world is not None
            failed = {w.number for ws in self.worlds.values() for w in ws if w.genuine or w.clash}
            require("only failures end a job", world.genuine or world.clash, machine.state.end_reason)
            rules = self.scenario.policy.rules
            gives_up = world.genuine and any(rule.action is Action.GIVE_UP for rule in rules)
            failures = len(failed) if not machine.state.current.tasks else self.sim.tf.deaths
            enough = failures > self.scenario.max_restarts or gives_up
            require("the budget was spent", enough, f"{machine.state.end_reason}: {sorted(failed)}")
        elif machine.state.phase is JobPhase.HOPELESS:
            the_error_came_back(self, machine.state.end_reason)
        elif machine.state.phase is JobPhase.UNHEALTHY:
            self.health.unhealthy_is_just(machine)
        elif machine.state.phase is JobPhase.STOPPED:
            orders = [it.order for it in self.scenario.faults if isinstance(it, Ordered)]
            ordered = any(isinstance(order, StopJob) for order in orders)
            require("who stops was told to", ordered, machine.state.end_reason)
        else:
            self.sim.judge_timeout()

    # -- rule 4: progress; the simulator checks that a world forms

    def numbers_only_grow(self, machine: JobMachine) -> None:
        round_, epoch = machine.state.round, machine.state.epoch
        require("rounds only grow", round_ >= self._round, f"{round_} after {self._round}")
        require("epochs only grow", epoch >= self._epoch, f"{epoch} after {self._epoch}")
        self._round, self._epoch = round_, epoch

    # -- the way out

    def exit_status_is_right(self, agent: SimAgent, finish: Finish) -> None:
        status, who = finish.exit_status, f"{agent.incarnation}: {finish}"
        if finish.outcome is not None:
            require("an outcome has its status", status == STATUS[finish.outcome], who)
            known = self.sim.outcomes | ({OUTCOMES[self.ended]} if self.ended else set())
            require("the outcome is the master's", finish.outcome in known, who)
        elif status == ExitCode.MASTER_LOST:
            require("the master was away", agent.link.waited_for_a_master(), who)
        elif status == ExitCode.SUPERSEDED:
            require("a newer one took its place", self._known[agent.name] != agent.incarnation, who)
        elif status == ExitCode.EXCLUDED:
            require("it was excluded", agent.incarnation in self.health.excluded, who)
        elif status == ExitCode.DRAINED:
            asked = agent.preempted or agent.incarnation in self.health.drained
            require("it was to be drained", asked, who)
        elif status == ExitCode.NODE_FAULT:
            require("its workers cannot be killed", agent.workers.unkillable, who)
        else:
            require("it was told to stop", status - 128 in agent.signalled, who)
        if status != ExitCode.NODE_FAULT:
            require("no worker is left behind", agent.workers.group is None, who)


def directives_are_consistent(machine: JobMachine, effects: list[JobEffect]) -> None:
    """Every order to start a round is for the newest one."""
    for effect in effects:
        if isinstance(effect, Send) and isinstance(effect.message, StartRound):
            assignment = effect.message.assignment
            require("a start is for the newest round", assignment.round == machine.state.round, str(effect))


def facts_fit_the_phase(machine: JobMachine) -> None:
    """The machine's counts are exact, and the nodes that it waits for fit its phase."""
    counts_are_exact(machine)
    current = machine.state.current
    require(
        "who may run has an assignment", current.pending <= current.assignments.keys(), str(current.pending)
    )
    if machine.state.phase is JobPhase.GATHERING:
        require("gathering: nobody may run", not current.pending, str(current.pending))
    elif machine.state.phase is JobPhase.RUNNING:
        require("running: nothing stops it", current.stop is None, str(current.stop))
    elif machine.state.phase is JobPhase.STOPPING:
        waits = bool(current.pending or machine.state.ending) and current.stop is not None
        require("stopping: somebody is waited for", waits, str(current.stop))
        known = all(name in machine.state.members.nodes for name in current.pending)
        require("stopping: only known nodes are waited for", known, str(current.pending))
    for name in machine.state.ready:
        node = machine.state.members.nodes.get(name)
        require("who is ready is attached and idle", node is not None and node.ready, name)
