"""What an event costs does not grow with the number of nodes: no scan.

Counted in lines of core that are executed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from elasticrun.config import HealthCheckMode, HealthConfig
from elasticrun.core.job.events import (
    Beat,
    Detached,
    Expired,
    JobEffect,
    JobEvent,
    Left,
    MasterStarted,
    Reported,
    Send,
)
from elasticrun.core.membership.quorum import with_vote
from elasticrun.core.protocol.messages import (
    AgentPhase,
    AgentStatus,
    GroupReport,
    ProbeReport,
    StartProbe,
    Vote,
    World,
)
from elasticrun.core.protocol.orders import ScaleIn
from elasticrun.core.protocol.status import JobPhase
from tests.core.build import Job, failure
from tests.core.lines import lines_of

FEW, MANY = 30, 600
READY, RUNNING, FINISHED = AgentPhase.READY, AgentPhase.RUNNING, AgentPhase.FINISHED
PREPARING, CHECKING, FAILED = AgentPhase.PREPARING, AgentPhase.CHECKING, AgentPhase.FAILED
#: More lines than any event that is no decision about the whole world needs.
ENOUGH = 320


class Crowd(Job):
    """A job of many nodes, n0 and n1 on the listed hosts if there are several."""

    def __init__(self, endpoints: int, is_checked: bool, epoch: int = 0, **config: Any) -> None:
        mode = HealthCheckMode.AUTO if is_checked else HealthCheckMode.OFF
        self.votes: dict[str, tuple[Vote, ...]] = {}
        self.asked: dict[int, StartProbe] = {}  # by session
        config |= {"endpoints": endpoints, "max_restarts": 3, "health": HealthConfig(mode=mode)}
        super().__init__(epoch or endpoints, **config)

    def do(self, event: JobEvent) -> list[JobEffect]:
        for effect in super().do(event):
            if isinstance(effect, Send) and isinstance(effect.message, StartProbe):
                self.asked[effect.session] = effect.message
        return self.said

    def status(self, node: str, phase: AgentPhase, round_: int, *failures: Any) -> AgentStatus:
        return replace(super().status(node, phase, round_, *failures), votes=self.votes.get(node, ()))

    def come(self, node: str, phase: AgentPhase = READY, round_: int = -1) -> None:
        self.attach(node, phase, round_, self.machine.state.epoch, position={"n0": 0, "n1": 1}.get(node, -1))

    def come_all(self, nodes: int) -> None:
        for number in range(nodes):
            self.come(f"n{number}")

    def answer(self, node: str) -> None:
        start = self.asked.pop(self.sessions[node])
        probe = ProbeReport(start.check, "", 1e12, (GroupReport("", 1e9, 1e-4),) * len(start.groups), "torch")
        self.do(Reported(self.sessions[node], replace(self.status(node, READY, -1), probe=probe)))

    def run_all(self) -> None:
        """The nodes pass their check, and vote for the world."""
        while self.asked:
            self.answer(f"n{next(iter(self.asked)) - 1}")
        for node, given in list(self.machine.state.current.assignments.items()):
            self.votes[node] = with_vote(self.votes.get(node, ()), given.proposal)
            self.report(node, RUNNING, given.round)
        assert self.phase() is JobPhase.RUNNING


def test_nodes_that_are_slow_to_leave_cost_the_others_nothing() -> None:
    """Whether one that was scaled in is still here is asked after each event."""

    def cost(nodes: int) -> int:
        crowd = Crowd(1, False, min_nodes=2, max_nodes=nodes, state_storage="/disk", last_call_timeout=1.0)
        crowd.come_all(nodes)
        crowd.run_all()
        crowd.do(ScaleIn("night", 1))
        crowd.machine.state.round += 1  # as if another round ran while it is still here
        assert crowd.machine.state.leaving
        lines = lines_of(lambda: crowd.do(Beat(crowd.sessions["n1"])))
        assert crowd.machine.state.scaling is not None
        return lines

    assert cost(MANY) == cost(FEW)


Action = Callable[[Crowd], object]
#: What happens, one after the other, to a crowd in some state.
Story = tuple[Crowd, dict[str, Action]]
#: Makes a story of so many nodes; the rest is for Crowd.
Stage = Callable[..., Story]


def arrives(node: str, phase: AgentPhase = READY) -> Action:
    return lambda crowd: crowd.come(node, phase)


def says(node: str, phase: AgentPhase, round_: int = 0) -> Action:
    return lambda crowd: crowd.report(node, phase, round_)


def is_lost(node: str) -> Action:
    return lambda crowd: crowd.do(Detached(crowd.sessions[node], "reset"))


def leaves(node: str) -> Action:
    return lambda crowd: crowd.do(Left(crowd.sessions[node], "stopped"))


def is_silent(node: str) -> Action:
    return lambda crowd: crowd.do(Expired("heartbeat", node))


def beats(node: str) -> Action:
    return lambda crowd: crowd.do(Beat(crowd.sessions[node]))


ARRIVALS: dict[str, Action] = {
    "the arrival of a node that is ready": arrives("x"),
    "the arrival of a node that is not": arrives("y", PREPARING),
    "that it is ready": says("y", READY, -1),
    "a heartbeat": beats("x"),
    "something stale": lambda crowd: crowd.do(Beat(10**6)),
}
LOSSES: dict[str, Action] = {
    "a loss": is_lost("n5"),
    "a farewell": leaves("n6"),
    "a silence": is_silent("n7"),
}


def gathering(nodes: int, *how: Any) -> Story:
    """Too few nodes are there for the first world."""
    crowd = Crowd(*how, min_nodes=10**6, max_nodes=10**6)
    crowd.come_all(nodes)
    return crowd, ARRIVALS | LOSSES


def calling(nodes: int, *how: Any) -> Story:
    """There are enough, an odd number for worlds of pairs, but others may come."""
    crowd = Crowd(*how, min_nodes=2, max_nodes=10**6, node_unit=2, last_call_timeout=60.0)
    crowd.come_all(nodes + 1)
    return crowd, ARRIVALS | LOSSES


def checking(nodes: int, endpoints: int, _: bool) -> Story:
    crowd = Crowd(endpoints, True, min_nodes=nodes, max_nodes=nodes)
    crowd.come_all(nodes)
    for number in range(nodes // 2):
        crowd.answer(f"n{number}")
    assert crowd.phase() is JobPhase.CHECKING
    busy, lost = (f"n{number}" for number in (nodes - 1, nodes - 2))
    return crowd, {
        "that a probe began": says(busy, CHECKING, -1),
        "a probe's report": lambda crowd: crowd.answer(busy),
        "another report": says(busy, READY, -1),
        "the loss of a node that is probed": is_lost(lost),
        **ARRIVALS,
        **LOSSES,
    }


def doubting(nodes: int, endpoints: int, _: bool) -> Story:
    """Nobody knows whether the last two nodes or their link is at fault, and a world needs them."""
    crowd = Crowd(endpoints, True, min_nodes=10, max_nodes=10**6)
    crowd.come_all(9)
    crowd.machine.state.health.doubtful |= {f"n{number}": "why" for number in range(1, nodes)}
    crowd.come_all(nodes)
    assert crowd.machine.state.candidates.available == 9
    return crowd, LOSSES | {"a heartbeat": beats("n9"), "that it is not ready": says("n9", PREPARING, -1)}


def running(nodes: int, *how: Any) -> Story:
    """A round of all nodes but one runs; that one is a spare."""
    crowd = Crowd(*how, min_nodes=nodes - 1, max_nodes=nodes - 1)
    crowd.come_all(nodes)
    crowd.run_all()
    spare = f"n{nodes - 1}"
    return crowd, {
        "a report of the same": says("n5", RUNNING),
        "a report of an end": says("n5", FINISHED),
        "a heartbeat of a member": beats("n6"),
        **ARRIVALS,
        "the loss of a spare": is_lost(spare),
        "the silence of a spare": is_silent("x"),
        "the loss of a node that had finished": is_lost("n5"),
    }


def starting(nodes: int, *how: Any) -> Story:
    """The workers of the second world start."""
    crowd = stopping(nodes, *how)[0]
    for number in range(nodes):
        crowd.report(f"n{number}", READY, 0)
    assert (crowd.phase(), crowd.machine.state.round) == (JobPhase.RUNNING, 1)
    return crowd, {"that workers start": says("n5", RUNNING, 1), "that others start": says("n6", RUNNING, 1)}


def stopping(nodes: int, *how: Any) -> Story:
    crowd = running(nodes, *how)[0]
    crowd.report("n2", FAILED, 0, failure("n2"))
    assert crowd.phase() is JobPhase.STOPPING
    for number in range(nodes // 2):
        crowd.report(f"n{number}", READY, 0)
    first, second, third = (f"n{number}" for number in (nodes - 2, nodes - 3, nodes - 4))
    return crowd, {
        "that workers have stopped": says(first, READY),
        "that a worker failed": lambda crowd: crowd.report(second, FAILED, 0, failure(second)),
        "the loss of a node that is stopping": is_lost(third),
        **ARRIVALS,
        **LOSSES,
    }


def waiting(nodes: int, *how: Any) -> Story:
    """A world has stopped, and too few nodes are left for another one."""
    crowd = stopping(nodes, *how)[0]
    for number in (2, 3, 4, nodes - 1):
        is_lost(f"n{number}")(crowd)
    for number in range(5, nodes - 1):
        crowd.report(f"n{number}", READY, 0)
    assert crowd.phase() is JobPhase.GATHERING
    return crowd, LOSSES | {"an arrival": arrives("x"), "a report of the same": says("n8", READY)}


def returning(nodes: int, *how: Any) -> Story:
    """The master has restarted, and half of the nodes are back."""
    crowd = running(nodes, *how)[0]
    crowd.do(MasterStarted(crowd.machine.state.epoch + crowd.machine.state.config.endpoints))
    for number in range(nodes // 2):
        crowd.come(f"n{number}", RUNNING, 0)
    back = f"n{nodes - 2}"
    return crowd, {"that a node is back": lambda crowd: crowd.come(back, RUNNING, 0), **ARRIVALS}


def growing(nodes: int, *how: Any) -> Story:
    """A small round runs, and all the other nodes import before they can join it."""
    crowd = Crowd(*how, min_nodes=2, max_nodes=2 * nodes)
    crowd.come_all(2)
    crowd.run_all()
    for number in range(2, nodes):
        crowd.warming.add(f"n{number}")
        crowd.come(f"n{number}")
    crowd.warming.add("x")
    return crowd, {
        "an arrival": arrives("x"),
        "that a node still imports": says("n5", READY, -1),
        "that a node has imported": lambda crowd: crowd.warm_up("n6"),
        "that another one has": lambda crowd: crowd.warm_up("n7"),
        "a heartbeat": beats("n0"),
        "the loss of one that has imported": is_lost("n6"),
        "the loss of one that imports": is_lost("n8"),
        "that one takes too long": lambda crowd: crowd.do(Expired("warming")),
    }


def usurping(nodes: int, *_: Any) -> Story:
    """The second host's master has more nodes than a world takes, but most voters are elsewhere."""
    crowd = Crowd(2, False, epoch=3, min_nodes=2, max_nodes=nodes // 2)
    last = Vote(World(0, 2, 10 * nodes), None)
    crowd.votes = {f"n{number}": (last,) for number in range(nodes)}
    for number in range(nodes):
        crowd.come(f"n{number}", READY, 0)
    assert "another master" in crowd.machine.state.obstacle
    return crowd, ARRIVALS | LOSSES


STAGES: tuple[Stage, ...] = (
    gathering,
    calling,
    checking,
    doubting,
    running,
    starting,
    stopping,
    waiting,
    returning,
    growing,
    usurping,
)


def costs_of(story: Story) -> Iterator[tuple[str, int]]:
    crowd, actions = story
    phase = crowd.phase()
    for what, action in actions.items():
        yield what, lines_of(partial(action, crowd))
        assert crowd.phase() is phase, f"{what} led to a decision, which may cost more"


@pytest.mark.parametrize(("endpoints", "is_checked"), [(1, False), (1, True), (2, False), (2, True)])
@pytest.mark.parametrize("stage", STAGES)
def test_an_event_costs_the_same_for_few_nodes_and_for_many(
    stage: Stage, endpoints: int, is_checked: bool
) -> None:
    few, many = (costs_of(stage(nodes, endpoints, is_checked)) for nodes in (FEW, MANY))
    for (what, one), (_, other) in zip(few, many, strict=True):
        assert 0 < one < ENOUGH, what
        assert other <= 1.2 * one, f"{what}: {one} lines with {FEW} nodes, {other} with {MANY}"


def test_next_deadline_costs_the_same() -> None:
    found = []
    for nodes in (FEW, MANY):
        crowd, _ = running(nodes, 1, False)
        crowd.machine.next_deadline()
        crowd.now = 1.0
        crowd.do(Beat(1))
        found.append(lines_of(crowd.machine.next_deadline))
    assert found[1] <= 1.2 * found[0]
