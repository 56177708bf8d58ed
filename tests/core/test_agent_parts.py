"""The parts of the agent's machine: their table, and that each of them sees its own invariant broken."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from elasticrun.core.agent.departure import Departure
from elasticrun.core.agent.echoes import ECHO
from elasticrun.core.agent.events import (
    ENDING,
    IDLE,
    STOPPABLE,
    AgentTrigger,
    Directed,
    Finish,
    GroupGone,
    LinkDown,
    SignalWorkers,
    StopSignal,
    SweepWorkers,
    WorkerFailed,
    WorkerFinished,
)
from elasticrun.core.agent.group import GRACE
from elasticrun.core.agent.machine import TRANSITIONS
from elasticrun.core.agent.probe import PROBE
from elasticrun.core.agent.scope import WholeWorld
from elasticrun.core.agent.state import AgentState, Offer
from elasticrun.core.agent.tasks import SingleTasks
from elasticrun.core.protocol.messages import AgentPhase, StartProbe, Vote, World
from tests.core.build import Agent, failure, ready_agent, start
from tests.core.test_agent_tasks import served


def test_the_sets_of_phases_are_those_of_the_table() -> None:
    assert {begin for begin, told in TRANSITIONS if told is AgentTrigger.TOLD_TO_STOP} == STOPPABLE
    gone = {begin for begin, told in TRANSITIONS if told is AgentTrigger.GROUP_GONE}
    assert gone == ENDING | {AgentPhase.CHECKING}
    assert IDLE | gone | STOPPABLE == set(AgentPhase)
    assert {end for _, end in TRANSITIONS.items()} == set(AgentPhase) - {AgentPhase.PREPARING}


def test_a_round_of_torch_passes_through_no_code_for_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    def unexpected(*_: object) -> None:
        raise AssertionError("this round has no tasks")

    for name, member in vars(SingleTasks).items():
        if callable(member):
            monkeypatch.setattr(SingleTasks, name, unexpected)
    agent = running()
    assert isinstance(agent.machine.state.scope, WholeWorld)
    agent.do(WorkerFinished(0, 1), WorkerFailed(0, failure()))
    assert agent.of(SweepWorkers)
    agent.do(GroupGone(0, 7002), Directed(start(1, sequence=2)), StopSignal(2))
    assert agent.of(SignalWorkers)
    agent.do(WorkerFinished(1, 0), WorkerFinished(1, 1), GroupGone(1, 7003))
    assert agent.of(Finish)


def test_a_whole_world_knows_no_times_of_single_workers() -> None:
    with pytest.raises(AssertionError, match="nobody set it"):
        WholeWorld().expire("it", 0.0)


# -- invariants


def running() -> Agent:
    agent = ready_agent()
    agent.do(Directed(start(0)))
    return agent


def stopping() -> Agent:
    agent = running()
    agent.do(WorkerFailed(0, failure()))
    return agent


def echoing() -> Agent:
    agent = running()
    lost = "Traceback (most recent call last):\nRuntimeError: Connection closed by peer\n"
    agent.do(WorkerFailed(0, replace(failure(), stderr_tail=lost)))
    return agent


def checking() -> Agent:
    agent = ready_agent()
    agent.do(Directed(StartProbe(1, 1, 5, (), 0, 30.0)))
    return agent


def lost() -> Agent:
    agent = ready_agent()
    agent.do(LinkDown("reset"))
    return agent


def change(**changes: object) -> Callable[[Agent], None]:
    """The state says something else."""

    def apply(agent: Agent) -> None:
        for name, value in changes.items():
            assert name in AgentState.__slots__
            setattr(agent.machine.state, name, value)

    return apply


def desire(**changes: object) -> Callable[[Agent], None]:
    """Something else is desired."""
    return lambda agent: change(desired=replace(agent.machine.state.desired, **changes))(agent)  # type: ignore[arg-type]


def vote_twice(agent: Agent) -> None:
    agent.machine.state.votes = (Vote(World(0, 1, 3), None),) * 2


def sweep(agent: Agent) -> None:
    agent.machine.group.sweep()
    agent.machine._outbox.drain()


def keep_servers(agent: Agent) -> None:
    agent.machine.group._keeps_servers = True


def hear_from_master(agent: Agent) -> None:
    agent.machine.state.search = replace(agent.machine.state.search, lost_at=None)


BROKEN: dict[str, tuple[Callable[[], Agent], Callable[[Agent], None]]] = {
    "effects were not taken": (ready_agent, lambda agent: agent.machine._outbox.warn("something")),
    "a status is older": (running, change(sequence=0)),
    "is later than epoch": (running, desire(epoch=0)),
    "are wanted at once": (checking, desire(round=start(0))),
    "two votes for one world": (running, vote_twice),
    "a master that is here is waited for": (lost, hear_from_master),
    "no port to offer": (ready_agent, change(offer=Offer())),
    "the end of the group is not bounded": (
        stopping,
        lambda agent: agent.machine._timers.cancel(GRACE),
    ),
    "nobody is waited for": (stopping, lambda agent: agent.machine.group.alive.clear()),
    "a probe has no grace": (checking, lambda agent: agent.machine._timers.set(GRACE, 1.0)),
    "is not told to end": (running, lambda agent: agent.machine._timers.set(GRACE, 1.0)),
    "are kept for nobody": (ready_agent, keep_servers),
    "with workers": (ready_agent, lambda agent: agent.machine.group.alive.add(0)),
    "without a worker": (running, lambda agent: agent.machine.group.alive.clear()),
    "are alive, but": (served, lambda agent: agent.machine.group.alive.clear()),
    "and its round goes on": (running, change(failures=(failure(),))),
    "nothing says why": (stopping, change(failures=())),
    "kept back and its timer": (running, lambda agent: agent.machine._timers.set(ECHO, 1.0)),
    "kept back for nothing": (echoing, change(phase=AgentPhase.STOPPING)),
    "a probe and its timer": (checking, lambda agent: agent.machine._timers.cancel(PROBE)),
    "a probe runs in": (checking, change(phase=AgentPhase.READY)),
    "a probe runs, or": (checking, sweep),
    "that nobody assigned": (running, change(assignment=None)),
    "another round than": (running, change(round=1)),
    "should have made way": (running, desire(stop_through=0)),
    "waits to be started": (ready_agent, desire(round=start(0))),
    "waits to be acknowledged": (ready_agent, desire(stop_through=0)),
    "nothing keeps it": (ready_agent, change(departure=Departure.stopped(2))),
    "were not told": (running, change(departure=Departure.stopped(2))),
}


@pytest.mark.parametrize("why", BROKEN)
def test_a_part_sees_that_its_invariant_is_broken(why: str) -> None:
    make, break_it = BROKEN[why]
    agent = make()
    agent.machine.check()
    break_it(agent)
    with pytest.raises(AssertionError, match=why):
        agent.machine.check()
