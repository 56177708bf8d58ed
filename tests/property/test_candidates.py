"""What the master counts, while nodes say whatever they like of their phases, votes and probes.

Honest nodes hardly ever hold votes in worlds that are in doubt, or doubt their own health; here each event is
drawn from all that a stream can carry. Schedules are drawn by seed, as in test_quorum.py.
"""

from __future__ import annotations

import random

import pytest

from elasticrun.config import HealthCheckMode, HealthConfig, JobConfig
from elasticrun.core.health.candidates import Candidates
from elasticrun.core.job.events import (
    Attached,
    Detached,
    JobEvent,
    Left,
    MasterStarted,
    Reported,
)
from elasticrun.core.job.machine import JobMachine
from elasticrun.core.membership.quorum import with_vote
from elasticrun.core.protocol.messages import (
    MAX_VOTES,
    AgentPhase,
    AgentStatus,
    GroupReport,
    Hello,
    NodeInfo,
    ProbeReport,
    Trust,
    Vote,
    World,
)
from elasticrun.core.protocol.orders import DrainNode, ScaleJob
from elasticrun.core.protocol.status import JobPhase
from elasticrun.sim.count_rules import counts_are_exact
from elasticrun.sim.kernel import Violation

NAMES = "abcdefg"
STEPS = 150
SEEDS = 120
CHUNK = 30
WORLDS = [World(round_, epoch, size) for round_ in range(4) for epoch in (2, 3) for size in (1, 3, 5)]


class Chaos:
    """One schedule. After each event the counts are exact."""

    def __init__(self, seed: int) -> None:
        self.rng = rng = random.Random(seed)
        low = rng.randint(1, 3)
        unit = rng.choice((1, 1, 2))
        config = JobConfig(
            min_nodes=low * unit,
            max_nodes=(low + rng.randint(0, 2)) * unit,
            node_unit=unit,
            max_restarts=100,
            last_call_timeout=rng.choice((0.0, 5.0)),
            endpoints=rng.choice((1, 2, 2, 2)),
            health=HealthConfig(mode=rng.choice([*HealthCheckMode, HealthCheckMode.AUTO])),
        )
        self.machine = JobMachine(config)
        self.now = 0.0
        self.session = 0
        self.sequence = 0
        self.imports = rng.choice((0.0, 0.3, 0.9))  # how often a node says that it does
        self.lies = rng.choice((0.0, 0.01, 0.01, 0.1))  # how often votes are made up
        self.lives = dict.fromkeys(NAMES, 1)
        self.phases: set[JobPhase] = set()
        self.feed(MasterStarted(rng.choice((2, 2, 3))))

    def run(self) -> set[JobPhase]:
        """The phases that were seen."""
        steps = [self.attach] * 4 + [self.report] * 16 + [self.wait, self.go, self.restart, self.order]
        for _ in range(STEPS):
            self.rng.choice(steps)()
        return self.phases

    def feed(self, event: JobEvent) -> None:
        self.machine.handle(event, self.now)
        counts_are_exact(self.machine)
        assert self.machine.check() == []
        self.phases.add(self.machine.state.phase)

    def attach(self) -> None:
        name = self.rng.choice(NAMES)
        self.lives[name] += self.rng.random() < 0.1
        self.session += 1
        position = {"a": 0, "b": 1}.get(name, -1)
        info = NodeInfo(name, f"{name}.{self.lives[name]}", name, f"{name}.net", 1, position=position)
        self.feed(
            Attached(
                self.session, Hello("job", "1", info, self.status(name), trust=self.rng.choice([*Trust]))
            )
        )

    def report(self) -> None:
        attached = [node for node in self.machine.state.members.nodes.values() if node.session is not None]
        if attached:
            node = self.rng.choice(attached)
            self.feed(Reported(node.session or 0, self.status(node.info.node)))

    def go(self) -> None:
        kind = self.rng.choice((Left, Detached))
        self.feed(kind(self.rng.randint(0, self.session), "so it is"))

    def order(self) -> None:
        unit, low = self.machine.state.limits.node_unit, self.rng.randint(1, 3)
        scale = ScaleJob(low * unit, (low + self.rng.randint(0, 2)) * unit)
        self.feed(self.rng.choice((scale, DrainNode(self.rng.choice(NAMES), "an order"))))

    def wait(self) -> None:
        self.now += self.rng.choice((0.1, 3.0, 20.0, 100.0))
        for _ in range(20):
            for event in self.machine.due(self.now):
                self.feed(event)

    def restart(self) -> None:
        if self.rng.random() < 0.1:
            self.feed(MasterStarted(self.machine.state.epoch + self.rng.choice((1, 2))))

    def status(self, name: str) -> AgentStatus:
        rng, machine = self.rng, self.machine
        self.sequence += 1
        phase = rng.choice([*AgentPhase, *[AgentPhase.READY] * 12, *[AgentPhase.RUNNING] * 4])
        round_ = rng.choice((machine.state.round, machine.state.round, -1, machine.state.newest))
        check = ProbeReport(machine.state.probes, rng.choice(("", "", "", "no")), 1.0, self.groups(name))
        probe = rng.choice((None, check, check))
        warming = rng.random() < self.imports
        return AgentStatus(self.sequence, phase, round_, (), 7000, probe, None, self.votes(name), warming)

    def groups(self, name: str) -> tuple[GroupReport, ...]:
        """It is one link, or one node, that does not work."""
        checkup = self.machine.state.checkup
        groups = checkup.step.groups_of(name) if checkup is not None else ()
        return tuple(GroupReport("no" if {"c", "d"} <= set(group) else "", 1.0, 1.0) for group in groups)

    def votes(self, name: str) -> tuple[Vote, ...]:
        """Those it has, with the one that it is offered, or any."""
        node, given = (
            self.machine.state.members.nodes.get(name),
            self.machine.state.current.assignments.get(name),
        )
        held = node.status.votes if node is not None else ()
        if self.rng.random() >= self.lies:
            return with_vote(held, given.proposal) if given is not None else held
        if self.rng.random() < 0.03:
            return tuple(Vote(World(100 + number, 2, 1), None) for number in range(MAX_VOTES))
        members = [(), (), tuple(f"{who}.1" for who in self.rng.sample(NAMES, 3))]
        worlds = self.rng.sample(WORLDS, self.rng.randint(0, 3))
        return tuple(Vote(world, None, self.rng.choice(members)) for world in worlds)


@pytest.mark.parametrize("first", range(0, SEEDS, CHUNK))
def test_what_is_counted_is_exact_whatever_is_said(first: int) -> None:
    seen = set[JobPhase]().union(*(Chaos(seed).run() for seed in range(first, first + CHUNK)))
    assert {JobPhase.GATHERING, JobPhase.CHECKING, JobPhase.RUNNING, JobPhase.STOPPING} <= seen


def test_a_vote_of_a_node_that_is_gone_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Candidates, "forget", Candidates.remove)
    with pytest.raises(Violation, match="what is kept is what is counted: voters"):
        for seed in range(CHUNK):
            Chaos(seed).run()


def test_a_node_whose_health_is_known_anew_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Candidates, "_review", lambda candidates, names: None)
    with pytest.raises(Violation, match="what is kept is what is counted: standings"):
        for seed in range(CHUNK):
            Chaos(seed).run()
