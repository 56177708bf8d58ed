"""One job under faults, from a scenario to its end or to the first rule that does not hold."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from elasticrun.config import JobConfig
from elasticrun.core.job.events import OUTCOMES, JobEffect, JobEvent
from elasticrun.core.protocol.messages import FailureKind, Outcome
from elasticrun.core.protocol.status import JobPhase
from elasticrun.dataclass import dataclass
from elasticrun.sim.clinic import Clinic
from elasticrun.sim.durability import Durability
from elasticrun.sim.faults import Faults
from elasticrun.sim.fingerprint import fingerprint, replay_gives_the_same
from elasticrun.sim.invariants import Rules
from elasticrun.sim.kernel import Kernel, Violation
from elasticrun.sim.link import SimLink
from elasticrun.sim.master import SAVING, Saving, SimMaster
from elasticrun.sim.mishaps import Mishaps
from elasticrun.sim.node import SimAgent
from elasticrun.sim.probes import Probes
from elasticrun.sim.saves import Saves
from elasticrun.sim.scenario import NodeSpec, Scenario, StorageSpec, ends
from elasticrun.sim.storage import SimStorage
from elasticrun.sim.tf_job import TfJob
from elasticrun.sim.workers import Group
from elasticrun.sim.world import World, place

SETTLE = 120.0  # seconds of quiet within which a world forms, if enough nodes are there
PATIENCE = 400.0  # seconds of quiet, plus join_timeout and the spread, within which all agents have ended
PROBES = 3
COLLECTIVE_TIMEOUT = 600.0  # seconds after which a worker that nobody stops gives up on lost peers
WAITING = (JobPhase.GATHERING, JobPhase.CHECKING)
#: Called for each event that a master handles, with the time on its clock and the effects.
Observer = Callable[[float, JobEvent, Sequence[JobEffect]], None]


@dataclass(frozen=True, slots=True)
class Result:
    """The result of a run."""

    outcome: Outcome | None  # None: all agents left before there was one
    ended_at: float
    steps: int
    rounds: int
    used: int
    trace: tuple[str, ...] = ()


class Simulator:
    """The world of one scenario."""

    settle = SETTLE

    def __init__(self, scenario: Scenario, trace: bool = False, saving: Saving = SAVING) -> None:
        self.scenario = scenario
        storage = scenario.storage or StorageSpec()
        self.saving = saving
        self.kernel = Kernel(scenario.seed, trace)
        self.agents: list[SimAgent] = []
        self.outcomes: set[Outcome] = set()  # of masters that have since lost their journal
        self.observers: list[Observer] = []
        self.specs = {spec.name: spec for spec in scenario.nodes}
        self.rules = self._make_rules()
        self.config = JobConfig(
            job_id="job",
            min_nodes=scenario.min_nodes,
            max_nodes=scenario.max_nodes,
            node_unit=scenario.node_unit,
            max_restarts=scenario.max_restarts,
            last_call_timeout=scenario.last_call,
            join_timeout=scenario.join_timeout,
            heartbeat_interval=5.0,
            heartbeat_timeout=15.0,
            reattach_timeout=8.0,
            endpoints=max(1, len(scenario.hosts)),
            health=scenario.health,
            policy=scenario.policy,
            cautious=scenario.cautious,
            state_storage=None if scenario.storage is None else "the storage",
            state_storage_every=storage.every,
            state_flush_timeout=storage.flush,
        )
        self.clinic = Clinic(self)
        self.mishaps = Mishaps(self)
        self.tf = TfJob(self)
        self.storage = SimStorage(self)
        self.saves = Saves(self)
        self.durability = Durability(self)
        self._make_masters()
        self.faults = self._make_faults()
        self.probes = Probes(self)
        self._incarnations: dict[str, int] = {}
        self.ports_to_take = 0  # how many of the next stores find their port taken
        self._last_end = max(
            [scenario.quiet_from, *(spec.joins for spec in scenario.nodes), *map(ends, scenario.faults)]
        )
        for spec in scenario.nodes:
            self.kernel.at(spec.joins, self.spawn, spec)
        for fault in scenario.faults:
            self.kernel.at(fault.at, self.faults.inflict, fault)
        for _ in range(PROBES if scenario.deep else 0):
            self.kernel.at(self.kernel.random() * (self._last_end + 5), self.probes.probe)
        self.kernel.at(self._last_end + self.settle + scenario.patience, self._settled)

    def _make_rules(self) -> Rules:
        return Rules(self)

    def _make_masters(self) -> None:
        self.master = SimMaster(self, self.config)
        self.kernel.at(0.0, self.master.start)

    def _make_faults(self) -> Faults:
        return Faults(self)

    # -- running

    def run(self) -> Result:
        """Run to the end. Raises Violation if a rule does not hold."""
        case, kernel = self.scenario, self.kernel
        bound = self._last_end + case.join_timeout + case.spread + PATIENCE + case.patience
        while not self._over():
            if not kernel.step() or kernel.now > bound:
                left = [agent.incarnation for agent in self.agents if not agent.over]
                raise Violation(
                    "everybody leaves", f"{left} at {kernel.now:g}, {self.master.machine.state.phase}"
                )
        machine = self.master.machine
        if self.master.up and case.deep:
            replay_gives_the_same(
                fingerprint(machine.state), self.saving.replay(self.config, self.master.journal)
            )
        outcome = OUTCOMES.get(machine.state.phase)
        trace = tuple(kernel.lines or ())
        return Result(
            outcome, kernel.now, kernel.steps, machine.state.round + 1, machine.state.budget.used, trace
        )

    def _over(self) -> bool:
        if self.kernel.now < self._last_end and not self.master.machine.state.ended:
            return False
        return len(self.agents) >= len(self.specs) and all(agent.over for agent in self.agents)

    # -- judging

    @property
    def is_quiet(self) -> bool:
        """Whether nothing happens to the job any more."""
        return self.kernel.now > self._last_end

    def healthy(self) -> int:
        """How many nodes could be members of a world."""
        state = self.master.machine.state
        out = state.health.doubtful.keys() | state.cordoned.keys()
        well = [agent for agent in self.agents if not agent.over and agent.machine.state.departure is None]
        return len({agent.name for agent in well} - out)  # of a name's agents one is a member

    def _settled(self) -> None:
        """Rule 4: some time after the last fault, a world has formed if enough nodes are healthy."""
        machine = self.master.machine
        self.durability.settled(machine)
        if machine.state.phase in WAITING and self.healthy() >= machine.state.limits.smallest:
            raise Violation(
                "a world forms", f"{self.healthy()} healthy nodes, none {SETTLE:g} s after faults"
            )

    def judge_timeout(self) -> None:
        """Check a timeout of the job: fine until SETTLE after the last fault, or with too few nodes."""
        few = self.healthy() < self.master.machine.state.limits.smallest
        if not few and self.kernel.now > self._last_end + SETTLE:
            raise Violation("a job with enough nodes does not time out", f"{self.healthy()} healthy nodes")

    # -- workers

    def group_started(self, agent: SimAgent, group: Group) -> None:
        """Note that a node's workers are up; work starts once those of all members are."""
        world = self.rules.world_of(agent.name, group.assignment)
        assert world is not None
        world.started[agent.name] = agent
        if group.assignment.group_rank == 0 and self.ports_to_take:
            self.ports_to_take -= 1
            world.clash = True
            agent.workers.end(group, 0, 98, FailureKind.PORT_TAKEN)
        elif len(world.started) == len(world.assignments):
            world.complete_at = self.kernel.now
            if group.assignment.cluster:
                self.tf.work(world)
            else:
                self._work(world)
                self.saves.start(world)
        self.mishaps.start(agent, group)

    def _work(self, world: World) -> None:
        kernel, scenario = self.kernel, self.scenario
        start = max(kernel.now + scenario.work, scenario.quiet_from)
        for name, agent in world.started.items():
            if agent.workers.group is not None and agent.workers.group.round == world.number:
                for local_rank in agent.workers.group.alive:
                    at = start + scenario.spread * kernel.random()
                    kernel.at(at, self._succeed, world, name, agent.workers.group, local_rank)

    def _succeed(self, world: World, name: str, group: Group, local_rank: int) -> None:
        agent = world.started[name]
        if group.waits and group is agent.workers.group:
            self.kernel.after(1.0, self._succeed, world, name, group, local_rank)
        elif group is agent.workers.group and local_rank in group.alive:
            world.done[name] = world.done.get(name, 0) + 1
            agent.workers.end(group, local_rank, 0, FailureKind.EXIT)

    def echo(self, name: str, group: Group) -> None:
        """A worker is gone: its peers see their connections break soon, or wait until they give up."""
        world = self.rules.world_of(name, group.assignment)
        assert world is not None
        for agent in world.started.values():
            peer = agent.workers.group
            if peer is None or peer is group or peer.echoed:
                continue
            if place(peer.assignment) != place(world.assignments[agent.name]):
                continue
            peer.echoed = True
            if not peer.alive:
                continue
            sees = self.kernel.random() < 0.6
            delay = 0.01 + 3 * self.kernel.random() if sees else COLLECTIVE_TIMEOUT
            self.kernel.after(delay, agent.workers.end, peer, next(iter(peer.alive)), 1, FailureKind.EXIT)

    # -- nodes

    def spawn(self, spec: NodeSpec) -> None:
        number = self._incarnations[spec.name] = self._incarnations.get(spec.name, 0) + 1
        self.agents.append(SimAgent(self, spec, number))

    def make_link(self, agent: SimAgent) -> SimLink:
        """The link by which an agent finds its master."""
        return SimLink(agent)

    def newest(self, name: str) -> SimAgent | None:
        """The newest live incarnation of a node, or None."""
        return next((a for a in reversed(self.agents) if a.name == name and not a.over), None)
