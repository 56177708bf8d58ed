"""A node that is taken away stays until what it holds is elsewhere: for a bounded time, and with a master."""

from __future__ import annotations

import pytest

from elasticrun.core.agent.events import (
    AgentEvent,
    AgentTick,
    Broken,
    Directed,
    Finish,
    GroupGone,
    HoldingsChanged,
    LinkDown,
    Preempted,
    SignalWorkers,
    StartWorkers,
    StopSignal,
    Store,
    SweepWorkers,
    WorkerFinished,
)
from elasticrun.core.protocol.commits import CommitId, Holding, Part
from elasticrun.core.protocol.messages import (
    AgentPhase,
    JobEnded,
    Leave,
    Outcome,
    RejectCode,
    Rejected,
    Report,
    StartProbe,
    StopRound,
    StoreOrder,
    StoreReport,
    WriteState,
)
from elasticrun.core.protocol.storing import StoreStage
from elasticrun.errors import ExitCode
from tests.core.build import Agent, ready_agent, start

STEP = CommitId(0, 5)
HELD = (Holding(STEP, 1, (Part(0),)),)
FLUSH = 60.0
DRAINED = Directed(Rejected(RejectCode.DRAINED, "leaving"))


def saving_agent(flush_timeout: float = FLUSH, held: tuple[Holding, ...] = HELD) -> Agent:
    """Runs round 0, and holds what its workers have saved."""
    agent = ready_agent(flush_timeout=flush_timeout)
    agent.do(Directed(start(0)), HoldingsChanged(held))
    return agent


def lingering_agent() -> Agent:
    """Was told to stop, and has stopped its workers."""
    agent = saving_agent()
    agent.do(StopSignal(15))
    agent.do(WorkerFinished(0, 0), WorkerFinished(0, 1))
    assert agent.of(SweepWorkers)
    agent.do(GroupGone(0, 7002))
    return agent


def leaving(agent: Agent) -> list[str]:
    """What it has just told of why it leaves."""
    return [message.status.leaving for message in agent.sent() if isinstance(message, Report)]


def farewells(agent: Agent) -> list[Leave]:
    return [message for message in agent.sent() if isinstance(message, Leave)]


@pytest.mark.parametrize(
    ("event", "reason"),
    [(StopSignal(15), "stopped by signal 15"), (Preempted("maintenance"), "maintenance")],
)
def test_it_tells_why_it_leaves_stops_its_workers_and_stays(event: AgentEvent, reason: str) -> None:
    agent = saving_agent()
    agent.do(event)
    assert leaving(agent) == [reason, reason], "and again as it stops"
    assert not farewells(agent)
    [signalled] = agent.of(SignalWorkers)
    assert signalled.drain
    agent.do(WorkerFinished(0, 0), WorkerFinished(0, 1), GroupGone(0, 7002))
    assert leaving(agent) == [reason]
    assert agent.reported() == [AgentPhase.READY]
    assert not agent.of(Finish)


def test_it_goes_once_the_master_lets_it() -> None:
    agent = lingering_agent()
    agent.do(DRAINED)
    assert agent.finish.exit_status == 128 + 15
    assert agent.machine.next_deadline() is None


def test_it_goes_with_the_job() -> None:
    agent = lingering_agent()
    agent.do(Directed(JobEnded(1, 9, Outcome.FAILED, "because")))
    assert agent.finish.exit_status == 128 + 15, "what was decided first stands"


def test_it_goes_when_the_time_is_over() -> None:
    agent = lingering_agent()
    agent.now += FLUSH - 0.1
    agent.do(AgentTick())
    assert not agent.said
    agent.now += 0.1
    agent.do(AgentTick())
    assert farewells(agent)
    assert agent.finish.exit_status == 128 + 15


@pytest.mark.parametrize("event", [LinkDown("reset"), StopSignal(15), Broken(ExitCode.NODE_FAULT, "lost")])
def test_it_goes_without_a_master_or_when_told_again_or_broken(event: AgentEvent) -> None:
    agent = lingering_agent()
    agent.do(event)
    assert agent.of(Finish)


def test_being_told_again_also_kills_its_workers() -> None:
    agent = saving_agent()
    agent.do(StopSignal(15))
    agent.do(StopSignal(15))
    assert agent.of(SweepWorkers)
    assert farewells(agent)
    agent.do(GroupGone(0, 7002))
    assert agent.of(Finish)


BEFORE = {
    "platform": Preempted("maintenance"),
    "master": DRAINED,
    "end": Directed(JobEnded(1, 9, Outcome.FAILED, "because")),
    "exclusion": Directed(Rejected(RejectCode.EXCLUDED, "too slow")),
    "trouble": Broken(ExitCode.NODE_FAULT, "lost"),
}


@pytest.mark.parametrize("before", BEFORE.values(), ids=BEFORE)
def test_the_first_signal_takes_no_grace_away_whatever_came_before(before: AgentEvent) -> None:
    agent = saving_agent()
    agent.do(before)
    agent.heard()
    agent.now += 4.04
    agent.do(StopSignal(15))
    assert agent.heard() == ["stopping 2 workers (up to 26 s; a second signal kills them)"]
    assert not agent.of(SweepWorkers)
    agent.do(StopSignal(15))
    assert agent.of(SweepWorkers)
    agent.do(GroupGone(0, 7002))
    assert agent.finish.exit_status != 128 + 15, "what was decided first stands"


def test_nor_does_it_end_the_wait_for_what_the_node_holds() -> None:
    agent = saving_agent()
    agent.do(Preempted("maintenance"), WorkerFinished(0, 0), WorkerFinished(0, 1), GroupGone(0, 7002))
    agent.heard()
    agent.now += 1.5
    agent.do(StopSignal(15))
    assert agent.heard() == [
        "waiting until what this node holds is elsewhere (up to 58.5 s; a second signal ends that)"
    ]
    assert not farewells(agent)
    agent.do(StopSignal(15))
    assert agent.finish.exit_status == ExitCode.DRAINED


def test_a_signal_to_a_node_whose_round_has_stopped_tells_of_that_wait() -> None:
    agent = saving_agent()
    agent.do(Directed(StopRound(1, 2, 0, "why")), WorkerFinished(0, 0), WorkerFinished(0, 1))
    agent.do(GroupGone(0, 7002))
    agent.heard()
    agent.do(StopSignal(15))
    (told,) = agent.heard()
    assert told.startswith("waiting until what this node holds is elsewhere (up to 60 s; ")


def test_workers_that_survive_sigkill_do_not_keep_it() -> None:
    agent = saving_agent()
    agent.do(StopSignal(15), StopSignal(15))
    agent.now += 30.0
    agent.do(AgentTick())
    assert "still alive 30 s after SIGKILL" in agent.finish.reason


def test_it_starts_nothing_any_more_and_hears_of_stops() -> None:
    agent = lingering_agent()
    agent.do(Directed(start(1, sequence=5)))
    assert not agent.of(StartWorkers)
    agent.do(Directed(StartProbe(1, 6, 1, (), 1, 30.0)))
    assert not agent.said
    agent.do(Directed(StopRound(1, 7, 3, "because")))
    [status] = [message.status for message in agent.sent() if isinstance(message, Report)]
    assert (status.round, status.leaving) == (3, "stopped by signal 15")


def test_its_time_begins_when_its_workers_have_stopped() -> None:
    agent = saving_agent()
    agent.do(StopSignal(15))
    agent.now += 20.0
    agent.do(WorkerFinished(0, 0), WorkerFinished(0, 1), GroupGone(0, 7002))
    assert agent.machine.next_deadline() == 20.0 + FLUSH
    agent.now += 5.0
    agent.do(HoldingsChanged(HELD))
    assert agent.machine.next_deadline() == 20.0 + FLUSH


def test_its_workers_may_save_for_the_first_time_as_they_stop() -> None:
    agent = saving_agent(held=())
    agent.do(StopSignal(15))
    assert leaving(agent) == ["stopped by signal 15"] * 2
    agent.do(HoldingsChanged(HELD), WorkerFinished(0, 0), WorkerFinished(0, 1), GroupGone(0, 7002))
    assert not farewells(agent)
    agent.do(DRAINED)
    assert agent.of(Finish)


def test_if_they_save_nothing_it_goes_with_them() -> None:
    agent = saving_agent(held=())
    agent.do(StopSignal(15), WorkerFinished(0, 0), WorkerFinished(0, 1))
    assert not farewells(agent)
    agent.do(GroupGone(0, 7002))
    assert farewells(agent)
    assert agent.finish.exit_status == 128 + 15


@pytest.mark.parametrize("how", ["no storage", "nothing to save", "interrupted", "no master"])
def test_else_it_says_farewell_at_once(how: str) -> None:
    agent = saving_agent(0.0 if how == "no storage" else FLUSH, () if how == "nothing to save" else HELD)
    if how == "nothing to save":
        agent.do(WorkerFinished(0, 0), WorkerFinished(0, 1))
    if how == "no master":
        agent.do(LinkDown("reset"))
    agent.do(StopSignal(2 if how == "interrupted" else 15))
    assert farewells(agent)
    assert not leaving(agent)


# -- orders for the storage


def test_orders_are_handed_on_unless_their_master_was_replaced() -> None:
    agent = ready_agent()
    agent.do(Directed(start(3, epoch=2)))
    order = StoreOrder(1, "run7", STEP)
    assert agent.do(Directed(WriteState(2, order))) == [Store(order)]
    assert agent.do(Directed(WriteState(2))) == [Store(None)]
    assert not agent.do(Directed(WriteState(1, order)))


def test_how_an_order_fares_is_in_each_status() -> None:
    agent = saving_agent()
    report = StoreReport(1, "run7", StoreStage.WRITING)
    agent.do(HoldingsChanged(HELD, None, None, report))
    [told] = agent.sent()
    assert isinstance(told, Report)
    assert told.status.stored == report
