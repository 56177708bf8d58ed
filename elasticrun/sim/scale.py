"""What thousands of nodes cost the master: its real machine, over a network that is a list.

The nodes are minimal fakes: they obey, and report each phase that an agent reports, in an order that is drawn
anew in each wave. So nearly all of the time is the machine's. It is measured around the calls of the
machine: each event, and the next deadline, as in the master's loop. Messages are built, but neither encoded
nor journaled. Memory is the whole process's, fake nodes included.

The simulator's rules are sums over all nodes. They are checked once at the end of each stage.
"""

from __future__ import annotations

import gc
import random
import time
from collections.abc import Iterator
from multiprocessing import get_context
from pathlib import Path

from elasticrun.config import HealthCheckMode, HealthConfig, JobConfig
from elasticrun.core.job.events import Attached, Detached, JobEvent, MasterStarted, Reported, Send
from elasticrun.core.job.machine import JobMachine
from elasticrun.core.protocol.messages import (
    AgentPhase,
    AgentStatus,
    Assignment,
    Failure,
    FailureKind,
    GroupReport,
    Hello,
    MasterMessage,
    NodeInfo,
    ProbeReport,
    StartProbe,
    StartRound,
    StopRound,
)
from elasticrun.core.protocol.status import JobPhase
from elasticrun.dataclass import dataclass
from elasticrun.sim.count_rules import counts_are_exact
from elasticrun.sim.kernel import require

#: From this many nodes on, ``scripts/simulate --nodes N`` measures one job instead of trying seeds.
LARGE = 65
#: Seconds of the master's clock between two events; none of its deadlines passes.
TICK = 1e-5
#: The master process sets Python's collector so; its defaults made a third of the extra cost of many nodes.
COLLECTOR = (50_000, 20, 20)
FINE = GroupReport("", 1e9, 1e-4, "gloo")


@dataclass(frozen=True, slots=True)
class Stage:
    """What one stage cost."""

    name: str
    events: int
    seconds: float  # of one core


@dataclass(frozen=True, slots=True)
class Cost:
    """What a job cost."""

    nodes: int
    is_checked: bool
    stages: tuple[Stage, ...]
    empty: int  # bytes of resident memory before the job began
    peak: int  # bytes of resident memory, at most


class FakeNode:
    """Says what an agent says, and does nothing."""

    def __init__(self, number: int) -> None:
        self.name = f"node-{number:05}"
        self.session = number + 1
        self.info = NodeInfo(self.name, f"{self.name}.1", f"host-{number:05}", f"10.0.0.{number}", 8, pid=100)
        self.status = AgentStatus(0, AgentPhase.PREPARING)
        self.assignment: Assignment | None = None
        self.probe: ProbeReport | None = None

    def hello(self) -> Attached:
        return Attached(self.session, Hello("job", "1", self.info, self.status))

    def is_now(self, phase: AgentPhase, round_: int, *failures: Failure) -> Reported:
        port = 20000 + self.session if phase is AgentPhase.READY else 0
        self.status = AgentStatus(self.status.sequence + 1, phase, round_, failures, port, self.probe)
        return Reported(self.session, self.status)

    def obey(self, message: MasterMessage) -> Iterator[JobEvent]:
        """Obey a message; yields what the node says then."""
        round_ = self.status.round
        match message:
            case StartRound(_, _, assignment):
                self.assignment = assignment
                yield self.is_now(AgentPhase.RUNNING, assignment.round)
            case StopRound() if self.assignment is not None:
                self.assignment = None
                yield self.is_now(AgentPhase.STOPPING, round_)
                yield self.is_now(AgentPhase.READY, round_)
            case StartProbe(check=check, groups=groups):
                yield self.is_now(AgentPhase.CHECKING, round_)
                self.probe = ProbeReport(check, "", 1e12, (FINE,) * len(groups), "torch/cpu")
                yield self.is_now(AgentPhase.READY, round_)

    def fail(self) -> Reported:
        assert self.assignment is not None
        rank = self.assignment.first_rank
        found = Failure(self.name, self.info.host, rank, 0, "default", 1, FailureKind.EXIT, 1, "boom", step=7)
        return self.is_now(AgentPhase.FAILED, self.status.round, found)


class Crowd:
    """A job of many nodes; one more than it needs, so that one may be lost."""

    def __init__(self, nodes: int, is_checked: bool, seed: int = 0) -> None:
        mode = HealthCheckMode.AUTO if is_checked else HealthCheckMode.OFF
        health = HealthConfig(mode=mode)
        self.machine = JobMachine(JobConfig("job", nodes - 1, nodes, max_restarts=3, health=health))
        self.nodes = {number + 1: FakeNode(number) for number in range(nodes)}  # by session
        self.stages: list[Stage] = []
        self._rng = random.Random(seed)
        self._soon: list[JobEvent] = []
        self._now = 0.0
        self._events, self._seconds = 0, 0.0
        self._feed(MasterStarted(1))

    def run(self) -> tuple[Stage, ...]:
        """All stages, one after the other."""
        nodes = list(self.nodes.values())
        self._soon += [node.hello() for node in nodes]
        self._waves(1)
        self._soon += [node.is_now(AgentPhase.READY, -1) for node in nodes]
        self._stage("first world", 0)
        self._soon.append(nodes[len(nodes) // 2].fail())
        self._stage("after a failed worker", 1)
        lost = nodes[len(nodes) // 3]
        del self.nodes[lost.session]
        self._soon.append(Detached(lost.session, "reset"))
        self._stage("after a lost node", 2)
        return tuple(self.stages)

    def _stage(self, name: str, round_: int) -> None:
        self._waves()
        self._holds(round_)
        self.stages.append(Stage(name, self._events, self._seconds))
        self._events, self._seconds = 0, 0.0

    def _waves(self, limit: int = 100) -> None:
        """Feed what the nodes have to say, then their answers, until nobody says anything."""
        for _ in range(limit):
            wave, self._soon = self._soon, []
            self._rng.shuffle(wave)
            wave.sort(key=_sequence)  # events of one node stay in order
            for event in wave:
                self._feed(event)
            if not self._soon:
                return

    def _feed(self, event: JobEvent) -> None:
        self._now += TICK
        begin = time.process_time()
        effects = self.machine.handle(event, self._now)
        self.machine.next_deadline()
        self._seconds += time.process_time() - begin
        self._events += 1
        for effect in effects:
            if isinstance(effect, Send) and effect.session in self.nodes:
                self._soon.extend(self.nodes[effect.session].obey(effect.message))

    def _holds(self, round_: int) -> None:
        """Check every rule that is a sum over all nodes."""
        machine, given = self.machine, self.machine.state.current.assignments
        require(
            "the round runs",
            (machine.state.phase, machine.state.round) == (JobPhase.RUNNING, round_),
            str(machine.state.phase),
        )
        require("everybody is in it", len(given) == len(self.nodes), f"{len(given)} nodes")
        require(
            "everybody runs it",
            machine.state.current.is_committed,
            f"{len(machine.state.current.accepted)} nodes",
        )
        told = {node.name: node.assignment for node in self.nodes.values()}
        require("everybody knows its assignment", told == given, "somebody does not")
        for rank, each in enumerate(given.values()):
            found = (each.group_rank, each.first_rank, each.group_world_size, each.world_size)
            require("ranks are 0..n-1", found == (rank, 8 * rank, len(given), 8 * len(given)), str(each))
        counts_are_exact(machine)


def _sequence(event: JobEvent) -> int:
    return event.status.sequence if isinstance(event, Reported) else 0


def cost_of(nodes: int, is_checked: bool) -> Cost:
    """Run one job. Needs a process of its own: changes its collector, and reads its peak of memory."""
    gc.freeze()
    gc.set_threshold(*COLLECTOR)
    empty = _memory("VmRSS")
    stages = Crowd(nodes, is_checked).run()
    return Cost(nodes, is_checked, stages, empty, _memory("VmHWM"))


def _memory(what: str) -> int:
    """A field of this process's memory, in bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    found = dict(line.split(":", 1) for line in lines)
    return int(found[what].split()[0]) * 1024


def costs_of(sizes: list[int]) -> Iterator[Cost]:
    """Run jobs of these sizes, without and with a health check, each in a process of its own."""
    with get_context("spawn").Pool(1, maxtasksperchild=1) as fresh:
        for nodes in sizes:
            for is_checked in (False, True):
                yield fresh.apply(cost_of, (nodes, is_checked))


def describe(cost: Cost) -> str:
    """The costs of one job, a line for each stage."""
    how = "with" if cost.is_checked else "without"
    lines = [f"{cost.nodes} nodes, {how} a health check"]
    for stage in cost.stages:
        each, one = 1e6 * stage.seconds / cost.nodes, 1e6 * stage.seconds / stage.events
        lines.append(
            f"  {stage.name:23}{stage.seconds:8.3f} s of one core,"
            f" {each:6.1f} us a node, {one:5.1f} us an event ({stage.events})"
        )
    lines.append(f"  memory: {_mb(cost.peak)} MB at most, {_mb(cost.empty)} MB of it before the job began")
    return "\n".join(lines)


def curve(costs: list[Cost]) -> str:
    """A table of microseconds per node; they stay flat if an event costs the same among more nodes."""
    lines = ["us a node   check" + "".join(f"{stage.name:>23}" for stage in costs[0].stages) + "    peak MB"]
    for cost in costs:
        row = f"{cost.nodes:9}{'yes' if cost.is_checked else 'no':>8}"
        row += "".join(f"{1e6 * stage.seconds / cost.nodes:23.1f}" for stage in cost.stages)
        lines.append(f"{row}{_mb(cost.peak):11}")
    return "\n".join(lines)


def _mb(size: int) -> int:
    return round(size / 1e6)


def sizes_up_to(nodes: int) -> list[int]:
    """The sizes of a curve."""
    return [nodes // 10, nodes // 5, nodes // 2, nodes]


def run_large(nodes: int, is_curve: bool) -> int:
    """Measure, and print what was found."""
    costs = []
    for cost in costs_of(sizes_up_to(nodes) if is_curve else [nodes]):
        costs.append(cost)
        if cost.nodes == nodes:
            print(describe(cost), flush=True)
    if is_curve:
        print(curve(sorted(costs, key=lambda cost: (cost.is_checked, cost.nodes))))
    return 0
