"""What an agent says of a stop and of a recovery."""

from __future__ import annotations

from dataclasses import replace

import pytest

from elasticrun.core.agent.events import (
    AgentEvent,
    Directed,
    GroupGone,
    Level,
    Say,
    StopSignal,
    StoreLost,
    WorkerFailed,
    WorkerFinished,
    WorkersStarted,
)
from elasticrun.core.agent.recovery import describe_end
from elasticrun.core.protocol.amounts import count, percent, time_text
from elasticrun.core.protocol.messages import FailureKind, StartRound, StopRound
from tests.core.build import Agent, failure, ready_agent, start

STOP = Directed(StopRound(1, 2, 0, "because"))
FAILED = WorkerFailed(0, failure())
STORE = StoreLost(0, replace(failure(), kind=FailureKind.STORE_LOST, message="killed", exit_code=-9))


def restart(round_: int, restarts: int = 1, sequence: int = 9) -> Directed:
    first: StartRound = start(round_, sequence=sequence)
    return Directed(replace(first, assignment=replace(first.assignment, restart_count=restarts)))


def interrupted(event: AgentEvent, at: float = 10.0) -> Agent:
    """An agent whose workers were interrupted by this event, and are all gone 0.4 s later."""
    agent = ready_agent()
    agent.do(Directed(start(0)), WorkersStarted(0))
    assert agent.heard() == [], "a first round is no recovery"
    agent.now = at
    agent.do(event)
    agent.now = at + 0.4
    agent.do(WorkerFinished(0, 0), WorkerFinished(0, 1), GroupGone(0, 7002))
    return agent


@pytest.mark.parametrize("event", [FAILED, STOP, STORE], ids=["failure", "order", "store"])
def test_a_recovery_says_how_long_it_took(event: AgentEvent) -> None:
    agent = interrupted(event)
    agent.do(restart(1))
    agent.now += 0.02
    agent.do(WorkersStarted(1))
    assert agent.said == [Say(Level.WARNING, "recovered in 0.4 s: 2 workers on 1 node, restart 1 of 3")]
    agent.do(WorkersStarted(1))
    assert agent.said == [], "it is told once"


def test_a_change_without_a_restart_is_no_recovery() -> None:
    agent = interrupted(STOP)
    agent.do(restart(1, restarts=0), WorkersStarted(1))
    assert agent.heard() == ["running again after 0.4 s: 2 workers on 1 node"]


def test_the_time_of_a_restart_that_failed_counts() -> None:
    agent = interrupted(FAILED)
    agent.do(restart(1))
    agent.do(WorkerFailed(1, failure()), WorkersStarted(1))
    assert agent.heard() == [], "it does not run any more"
    agent.do(WorkerFinished(1, 1), GroupGone(1, 7003), restart(2, restarts=2, sequence=10))
    agent.now = 13.0
    agent.do(WorkersStarted(1))
    assert agent.heard() == [], "news of an earlier round"
    agent.do(WorkersStarted(2))
    assert agent.heard() == ["recovered in 3.0 s: 2 workers on 1 node, restart 2 of 3"]


def test_a_lost_connection_counts_from_its_first_sign() -> None:
    lost = replace(failure(), stderr_tail="Traceback\nRuntimeError: Connection reset by peer\n")
    agent = ready_agent()
    agent.do(Directed(start(0)), WorkersStarted(0))
    agent.now = 5.0
    agent.do(WorkerFailed(0, lost))
    agent.now = 5.5
    agent.do(WorkerFailed(0, replace(failure(rank=1), local_rank=1)))
    agent.do(GroupGone(0, 7002), restart(1))
    agent.now = 6.0
    agent.do(WorkersStarted(1))
    assert agent.heard() == ["recovered in 1.0 s: 2 workers on 1 node, restart 1 of 3"]


@pytest.mark.parametrize(
    ("signum", "again"), [(2, "Ctrl-C again"), (15, "a second signal")], ids=["Ctrl-C", "SIGTERM"]
)
def test_a_signal_says_how_long_a_stop_may_take(signum: int, again: str) -> None:
    agent = ready_agent(shutdown_timeout=20.0)
    agent.do(Directed(start(0)), StopSignal(signum))
    assert agent.heard() == [f"stopping 2 workers (up to 20 s; {again} kills them)"]
    agent = ready_agent()
    agent.do(Directed(start(0)), WorkerFinished(0, 0), StopSignal(signum))
    assert agent.heard() == [f"stopping 1 worker (up to 30 s; {again} kills it)"]


def test_a_signal_where_nothing_runs_says_nothing() -> None:
    agent = ready_agent()
    agent.do(StopSignal(2))
    assert agent.heard() == []


def test_the_end() -> None:
    given = start(0).assignment
    assert describe_end(given, 0.3) == "done: 2 workers, 0.3 s"
    assert describe_end(replace(given, restart_count=1), 37.2) == "done: 2 workers, 1 restart, 37 s"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.0, "0.00 s"),
        (0.064, "0.06 s"),
        (0.0951, "0.1 s"),
        (9.94, "9.9 s"),
        (9.96, "10 s"),
        (59.4, "59 s"),
        (59.6, "1 min 0 s"),
        (245.0, "4 min 5 s"),
        (3599.6, "1 h 0 min"),
        (10_920.0, "3 h 2 min"),
    ],
)
def test_lengths_of_time(seconds: float, text: str) -> None:
    assert time_text(seconds) == text


def test_shares() -> None:
    assert (percent(0.99349), percent(0.0), percent(None)) == ("99.3 %", "0.0 %", "-")


def test_counts() -> None:
    assert (count(0, "node"), count(1, "node"), count(2, "node")) == ("0 nodes", "1 node", "2 nodes")
