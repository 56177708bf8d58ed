"""Absurd numbers are refused as the fault of who tells them, and the job goes on."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from elasticrun.config import Action, FailureClass, Policy, PolicyRule
from elasticrun.core.health import checkup
from elasticrun.core.job.events import Attached, Drop, Left, MasterStarted, Reported
from elasticrun.core.membership import nodes as membership
from elasticrun.core.membership.quorum import MAX_NAMED_WORLDS, Quorum
from elasticrun.core.protocol.bounds import STEPS, TIMESTAMPS, WINDOW, Horizon
from elasticrun.core.protocol.messages import (
    AgentPhase,
    AgentStatus,
    Hello,
    ProbeReport,
    RejectCode,
    Rejected,
    StartRound,
    Vote,
    World,
)
from elasticrun.core.protocol.status import JobPhase
from elasticrun.core.protocol.tasks import TaskReport
from tests.core.build import Job, failure, info, running


def test_a_number_that_a_program_wrote_is_clipped() -> None:
    assert [STEPS.clip(step) for step in (-9, 7, 2**63)] == [-1, 7, 2**53]
    assert TIMESTAMPS.clip(math.nan) == TIMESTAMPS.clip(-math.inf) == 0.0
    assert math.nan not in TIMESTAMPS


def test_a_master_follows_what_failovers_may_have_added_and_no_more() -> None:
    horizon = Horizon.above(5, -1, 0)
    assert horizon.refuses(epoch=5 + WINDOW, round=-1 + WINDOW, check=WINDOW) == ""
    assert f"epoch {6 + WINDOW} is absurd" in horizon.refuses(epoch=6 + WINDOW)
    assert Horizon.above(2**53, 0, 0).epoch <= 2**53 - WINDOW, "there is always room to count on"


ABSURD = [
    AgentStatus(1, AgentPhase.READY, round=2**40),
    AgentStatus(1, AgentPhase.READY, probe=ProbeReport(2**40)),
    AgentStatus(1, AgentPhase.READY, round=1, votes=(Vote(World(1, 2**40, 1), None),)),
]


@pytest.mark.parametrize("status", ABSURD)
def test_an_absurd_hello_is_refused_and_nothing_is_learnt_from_it(status: AgentStatus) -> None:
    job = running("ab")
    job.do(Attached(9, Hello("job", "1", info("x"), status)))
    (drop,) = job.drops()
    assert drop.session == 9
    assert drop.farewell is not None and drop.farewell.code is RejectCode.IMPLAUSIBLE
    assert (job.phase(), job.machine.state.newest, job.machine.state.probes) == (JobPhase.RUNNING, 0, 0)
    assert "x" not in job.machine.state.members.nodes


def test_absurd_epochs_do_not_add_up() -> None:
    job = Job()
    for session in range(1, 20):
        status = AgentStatus(1, AgentPhase.PREPARING)
        epoch = job.machine.state.epoch + WINDOW - 1
        job.do(Attached(session, Hello("job", "1", info(f"x{session}"), status, epoch)))
    assert job.machine.state.epoch <= 2 * WINDOW
    job.do(MasterStarted(job.machine.state.epoch + 1))
    assert job.attach("a", epoch=job.machine.state.epoch) and not job.drops(), (
        "whoever followed is let in again"
    )


def test_a_member_that_reports_an_absurd_round_is_lost_and_the_others_go_on() -> None:
    job = running("ab", min_nodes=1, max_nodes=2)
    status = AgentStatus(9, AgentPhase.RUNNING, round=2**40)
    job.do(Reported(job.sessions["b"], status))
    (drop,) = job.drops()
    assert drop.farewell == Rejected(RejectCode.IMPLAUSIBLE, drop.farewell.message if drop.farewell else "")
    job.report("a", AgentPhase.READY, 0)
    (start,) = job.told("a", StartRound)
    assert (start.assignment.round, start.assignment.restart_count) == (1, 0)


def test_who_follows_beyond_the_limit_is_believed() -> None:
    """A liar went as far as it may; the next round is beyond, and its members have done nothing wrong."""
    job = running("ab", min_nodes=1, max_nodes=3)
    job.do(Attached(9, Hello("job", "1", info("x"), AgentStatus(1, AgentPhase.PREPARING, WINDOW - 1))))
    job.report("b", AgentPhase.READY, 0)
    job.report("a", AgentPhase.READY, 0)
    (start,) = job.told("a", StartRound)
    assert start.assignment.round == WINDOW
    job.all_report("ab", AgentPhase.RUNNING, WINDOW)
    assert not job.drops()
    job.attach("a", AgentPhase.RUNNING, WINDOW, epoch=1)
    assert not [drop for drop in job.drops() if drop.farewell is not None]


@pytest.mark.parametrize("in_task", [False, True])
def test_an_agent_speaks_of_failures_on_its_own_node_only(in_task: bool) -> None:
    job = running("ab", policy=Policy(rules=(PolicyRule(FailureClass.UNKNOWN, Action.LEAVE),)))
    found = failure("a")
    tasks = (TaskReport(0, 0, True, found),) if in_task else ()
    status = AgentStatus(9, AgentPhase.FAILED, 0, () if in_task else (found,), tasks=tasks)
    job.do(Reported(job.sessions["b"], status))
    (drop,) = job.drops()
    assert drop.session == job.sessions["b"]
    assert drop.farewell is not None and "b tells of failures on other nodes" in drop.farewell.message
    assert "a" in job.machine.state.members.nodes


def test_who_comes_and_goes_for_ever_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(membership, "REMEMBERED", 10)
    job = running("ab", min_nodes=1, max_nodes=2)
    for number in range(200):
        job.attach(f"x{number}", AgentPhase.PREPARING)
        job.do(Left(job.sessions[f"x{number}"], "bye"))
    for life in range(1, 50):
        job.attach("y", AgentPhase.PREPARING, life=life)
    members = job.machine.state.members
    assert len(members._latest) < 30 and len(members._retired) <= 10
    assert members.has_met(info("a")) and members.has_met(info("b"))
    job.attach("y", AgentPhase.PREPARING, life=48)
    assert job.drops(), "the newest are remembered"


def test_hosts_of_suspects_and_rolls_of_worlds_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkup, "MAX_HOSTS", 5)
    book = checkup.HealthBook(suspects={f"x{number}" for number in range(99)})
    for number in range(99):
        book.forget(f"x{number}", f"host{number}")
    assert len(book.hosts) == 5
    quorum = Quorum(2)
    for number in range(400):
        quorum.hear((Vote(World(1, number, 2), World(0, 0, 2), ("a", "b")),))
    assert len(quorum._members_of) == MAX_NAMED_WORLDS


@pytest.mark.parametrize("members", [("a.1", "b.1", "x.1"), ("liar.1", "a.1"), ("liar.1", "liar.1", "a.1")])
def test_a_vote_in_a_world_that_names_others_is_no_vote(members: tuple[str, ...]) -> None:
    """Else a node could say of others that they were members of a world that it makes up."""
    job = Job(min_nodes=9, max_nodes=9, endpoints=2)
    liar = job.hello("liar", AgentPhase.READY, 7, -1, 1)
    votes = (Vote(World(7, 1, 3), None, members),)
    told = replace(liar, status=replace(liar.status, votes=votes))
    (drop,) = [effect for effect in job.do(Attached(1, told)) if isinstance(effect, Drop)]
    assert drop.farewell is not None and drop.farewell.code is RejectCode.IMPLAUSIBLE
    assert job.machine.state.quorum.base is None
    honest = replace(votes[0], members=("liar.1", "a.1", "b.1"))
    job.do(Attached(2, replace(told, status=replace(told.status, votes=(honest,)))))
    assert job.machine.state.quorum.base == World(7, 1, 3)
