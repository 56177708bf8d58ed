"""Who is rank 0 in a job without a token."""

from __future__ import annotations

from dataclasses import replace

import pytest

from elasticrun.core.job.events import Attached, Expired, MasterStarted
from elasticrun.core.job.state import HEARTBEAT
from elasticrun.core.membership.seniority import Seniority
from elasticrun.core.protocol.messages import AgentPhase, StartRound, Vote, World
from tests.core.build import Job, failure, running

READY, RUNNING = AgentPhase.READY, AgentPhase.RUNNING


def formed(job: Job, node: str) -> StartRound:
    (start,) = job.told(node, StartRound)
    return start


@pytest.mark.parametrize(("cautious", "first"), [(False, "c"), (True, "a")])
def test_a_later_node_with_rank_0_is_not_the_stores_host(cautious: bool, first: str) -> None:
    job = running("ab", min_nodes=1, max_nodes=3, cautious=cautious)
    job.attach("c", node_rank=0)
    job.pass_time(5.0)
    job.report("a", READY, 0)
    job.report("b", READY, 0)
    start = formed(job, "a")
    assert start.assignment.store_address == f"{first}.net"
    assert (start.assignment.group_rank == 0) is (first == "a")


def test_the_name_of_a_lost_member_gives_no_rank() -> None:
    job = running("ab", min_nodes=1, cautious=True)
    job.do(Expired(HEARTBEAT, "a"))
    job.report("b", READY, 0)
    assert formed(job, "b").assignment.group_rank == 0
    job.report("b", RUNNING, 1)
    job.attach("a", life=2, node_rank=0)
    job.pass_time(5.0)
    job.report("b", READY, 1)
    assert formed(job, "b").assignment.store_address == "b.net"


@pytest.mark.parametrize(("host", "first"), [("", "a"), ("c.1", "c"), ("nobody's", "a")])
def test_a_stranger_that_comes_before_the_first_round_is_not_rank_0(host: str, first: str) -> None:
    """Not even in later rounds, though all were members of the first."""
    job = Job(min_nodes=3, max_nodes=3, max_restarts=3, cautious=True)
    job.do(MasterStarted(2, host=host))
    job.attach("a")
    job.attach("stranger", node_rank=0)
    job.attach("c")
    for round_ in range(2):
        assert job.machine.state.round == round_ and job.machine.state.previous[0] == first
        for node in ("a", "stranger", "c"):
            job.report(node, RUNNING, round_)
        job.report("stranger", AgentPhase.FAILED, round_, failure("stranger"))
        for node in ("stranger", "c", "a"):
            job.report(node, READY, round_)
        job.pass_time(60.0)


def test_other_ranks_hold_as_they_were_given() -> None:
    job = Job(min_nodes=3, max_nodes=3, cautious=True)
    for node, rank in (("a", 2), ("b", 1), ("c", 0)):
        job.attach(node, node_rank=rank)
    assert job.machine.state.previous == ("a", "c", "b")


def test_a_new_member_that_outlives_the_others_is_the_oldest() -> None:
    seniority = Seniority()
    assert seniority.form(["a"], 0, {"a": "a.1"}) == ["a"]
    assert seniority.form(["c", "a"], 1, {"a": "a.1", "c": "c.1"}) == ["a", "c"]
    assert seniority.form(["d", "c"], 2, {"c": "c.1", "d": "d.1"}) == ["c", "d"]
    assert seniority.form(["e"], 3, {"e": "e.1"}) == ["e"]


def test_a_master_without_a_journal_takes_the_last_worlds_members_for_the_oldest() -> None:
    vote = Vote(World(3, 1, 2), None, ("a.1", "b.1"))
    job = Job(epoch=3, min_nodes=3, max_nodes=3, cautious=True, endpoints=2)
    for node in "cab":
        rank = 0 if node == "c" else None
        hello = job.hello(node, READY, 3 if node in "ab" else -1, -1, 1, node_rank=rank)
        status = replace(hello.status, votes=(vote,) if node in "ab" else ())
        job.sessions[node] = len(job.sessions) + 1
        job.do(Attached(job.sessions[node], replace(hello, status=status)))
    job.do(Attached(9, job.hello("c", READY, -1, -1, 1, node_rank=0)))
    job.sessions["c"] = 9
    assert formed(job, "a").assignment.group_rank == 0
