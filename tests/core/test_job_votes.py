"""The job's machine where several hosts may become the master's: who begins, who leads, who steps down."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from elasticrun.core.job.describe import describe, describe_briefly, mark_now
from elasticrun.core.job.events import Attached, Detached, MasterStarted, Reported, StepDown
from elasticrun.core.membership.quorum import FOUNDING_PATIENCE, with_vote
from elasticrun.core.protocol.messages import (
    AgentPhase,
    AgentStatus,
    Hello,
    JobEnded,
    Outcome,
    StartRound,
    StopRound,
    Trust,
    Vote,
    Waiting,
    Welcome,
    World,
)
from elasticrun.core.protocol.status import JobPhase
from tests.core.build import Job, info

READY, RUNNING = AgentPhase.READY, AgentPhase.RUNNING
FIRST = World(0, 2, 3)


class Host(Job):
    """The master on one of two listed hosts; a and b are those hosts' nodes."""

    def __init__(self, epoch: int = 2, **config: Any) -> None:
        super().__init__(epoch, **({"min_nodes": 1, "max_nodes": 3, "endpoints": 2} | config))
        self.epoch = epoch
        self.votes: dict[str, tuple[Vote, ...]] = {}

    def come(self, node: str, phase: AgentPhase = READY, round_: int = -1) -> None:
        """A node attaches with the votes it has."""
        self._newest += 1
        self.sessions[node] = self._newest
        who = info(node, position={"a": 0, "b": 1}.get(node, -1))
        epoch = max([vote.world.epoch for vote in self.votes.get(node, ())], default=-1)
        status = self.seen(node, phase, round_)
        self.do(Attached(self._newest, Hello("job", "1", who, status, epoch, trust=Trust.RETURNING)))

    def say(self, node: str, phase: AgentPhase, round_: int) -> None:
        self.do(Reported(self.sessions[node], self.seen(node, phase, round_)))

    def seen(self, node: str, phase: AgentPhase, round_: int) -> AgentStatus:
        return replace(self.status(node, phase, round_), votes=self.votes.get(node, ()))

    def take(self, node: str) -> None:
        """A node votes for the world that it is offered."""
        assignment = self.machine.state.current.assignments[node]
        self.votes[node] = with_vote(self.votes.get(node, ()), assignment.proposal)
        self.say(node, RUNNING, assignment.round)


def begun() -> Host:
    """Round 0 runs on a, b and c."""
    job = Host(last_call_timeout=1.0)
    for node in "abc":
        job.come(node)
    for node in "abc":
        job.take(node)
    return job


def successor(**config: Any) -> Host:
    """The second host's master, which knows nothing, and the votes of the nodes of round 0."""
    job = Host(epoch=3, **config)
    job.votes = {node: (Vote(FIRST, None, ("a.1", "b.1", "c.1")),) for node in "abc"}
    return job


def test_the_job_begins_when_all_listed_hosts_are_here() -> None:
    job = Host()
    job.come("a")
    job.come("c")
    assert job.phase() is JobPhase.GATHERING
    job.pass_time(10.0)
    assert "missing: number 2" in job.told("c", Waiting)[0].text
    job.come("b", AgentPhase.PREPARING)
    assert job.phase() is JobPhase.GATHERING
    job.say("b", READY, -1)
    assert job.phase() is JobPhase.RUNNING


def test_whoever_is_here_hears_that_the_job_begins() -> None:
    job = Host(max_nodes=1)
    job.come("a")
    job.come("b")
    assert job.told("a", StartRound)
    assert job.told("b", StopRound)[0].round == 0


def test_a_host_that_waits_too_long_for_the_others_lets_its_agents_look_elsewhere() -> None:
    job = Host()
    job.come("a")
    job.pass_time(FOUNDING_PATIENCE)
    assert job.of(StepDown)
    assert [drop.session for drop in job.drops()] == [job.sessions["a"]]


def test_a_world_that_started_everywhere_is_told_so() -> None:
    job = begun()
    assert not job.told("a", StartRound), "the first world needs nobody to say so"
    job.say("c", AgentPhase.FAILED, 0)
    for node in "abc":
        job.say(node, READY, 0)
    assert job.machine.state.round == 1
    proposal = job.machine.state.current.assignments["a"].proposal
    assert proposal is not None
    assert (proposal.base, proposal.prior) == (FIRST, FIRST)
    for node in "abc":
        job.take(node)
    told = job.told("a", StartRound)[0].assignment.proposal
    assert told is not None
    assert told.base == told.world == proposal.world


def test_that_a_world_was_complete_is_noted_while_it_stops_as_well() -> None:
    job = begun()
    job.say("c", AgentPhase.FAILED, 0)
    for node in "abc":
        job.say(node, READY, 0)
    job.take("a")
    job.take("b")
    job.say("a", AgentPhase.FAILED, 1)
    job.do(Reported(job.sessions["a"], replace(job.seen("a", READY, 1))))
    assert job.machine.state.phase is JobPhase.STOPPING
    job.take("c")
    assert job.machine.state.quorum.base == World(1, 2, 3)
    assert not job.told("a", StartRound)


def test_a_member_that_followed_another_master_is_lost_for_the_round() -> None:
    job = begun()
    job.votes["c"] = (*job.votes["c"], Vote(World(0, 3, 2), None))
    job.say("c", RUNNING, 0)
    assert "c followed another master" in job.machine.state.current.stop_reason


def test_a_successor_leads_with_more_than_half_of_the_last_world() -> None:
    job = successor()
    job.come("b", READY, 0)
    assert job.phase() is JobPhase.GATHERING
    job.come("c", READY, 0)
    assert job.phase() is JobPhase.RUNNING
    assert job.machine.state.round == 1
    assert job.machine.state.epoch % 2 == 1


def test_a_successor_without_votes_tells_why_and_steps_down() -> None:
    job = successor()
    job.come("b", READY, 0)
    job.pass_time(10.0)
    assert "1 of 3 nodes of the last world is here" in job.told("b", Waiting)[0].text
    job.pass_time(job.machine.state.quorum.patience)
    reasons = [down.reason for down in job.of(StepDown)]
    assert ["1 of 3 nodes" in reason for reason in reasons] == [True]
    assert job.machine.state.members.nodes == {}


def test_who_is_here_is_counted_while_others_of_the_last_world_are_lacking() -> None:
    job = successor()
    job.come("b", READY, 0)
    job.come("x")
    told, mark = describe_briefly(job.machine.state), mark_now(job.machine.state)
    assert (told.stranded, told.mark) == (2, mark)
    job.come("y")
    assert mark_now(job.machine.state) != mark
    job.do(MasterStarted(5))
    assert describe(job.machine.state).stranded == 0, "they are about to come back"
    for node in "bxy":
        job.come(node, READY, 0)
    assert describe(job.machine.state).stranded == 3
    job.come("c", READY, 0)
    assert (job.phase(), describe(job.machine.state).stranded) == (JobPhase.RUNNING, 0)


def test_half_of_the_last_world_is_lost_without_the_node_whose_master_formed_it() -> None:
    def stranded(*nodes: str) -> int:
        job = successor()
        world = World(0, 2, 4)
        job.votes = {node: (Vote(world, None, ("a.1", "b.1", "c.1", "d.1")),) for node in "abcd"}
        for node in nodes:
            job.come(node, READY, 0)
        return describe(job.machine.state).stranded

    assert (stranded("b"), stranded("b", "c"), stranded("a", "b"), stranded("a")) == (1, 2, 0, 1)
    assert stranded("b", "c", "d") == 0


def test_nobody_is_stranded_where_the_job_has_not_begun() -> None:
    job = Host()
    job.come("a")
    job.come("c")
    assert describe(job.machine.state).stranded == 0


def test_the_wait_for_votes_ends_some_time_whatever_masters_come_and_go() -> None:
    job = successor(join_timeout=20.0)
    for _ in range(4):
        job.come("b", READY, 0)
        job.pass_time(8.0)
        job.epoch += 2
        job.do(MasterStarted(job.epoch))
        if job.machine.state.ended:
            break
    assert job.machine.state.phase is JobPhase.TIMED_OUT
    job.come("b", READY, 0)
    assert job.told("b", JobEnded)[0].outcome is Outcome.TIMED_OUT


def test_a_successor_that_knows_nothing_does_not_welcome_a_node_that_knows_nothing() -> None:
    job = successor()
    job.come("x")
    assert [drop.session for drop in job.drops()] == [job.sessions["x"]]
    assert not job.told("x", Welcome)
    job.come("b", READY, 0)
    job.come("x")
    assert job.told("x", Welcome)


def test_members_of_the_last_world_come_first_even_if_others_came_before() -> None:
    job = successor(max_nodes=2)
    job.come("b", RUNNING, 0)
    job.come("x")
    job.come("y")
    job.come("c", READY, 0)
    job.say("b", READY, 0)
    assert sorted(job.machine.state.current.assignments) == ["b", "c"]


def test_epochs_stay_the_endpoints_own() -> None:
    job = successor()
    job.votes["b"] = (*job.votes["b"], Vote(World(4, 8, 1), FIRST))
    job.come("b", READY, 4)
    assert job.machine.state.epoch == 9


def test_a_node_that_is_held_back_is_called_if_there_are_too_few_votes() -> None:
    """It has none itself; but whatever forms then need not wait for it once more."""
    job = begun()
    job.join("d")
    assert "d" in job.machine.state.held
    for node in "ab":
        job.do(Detached(job.sessions[node], "reset"))
    job.say("c", READY, 0)
    assert "1 of 3 nodes of the last world is here" in job.machine.state.obstacle
    assert set(job.machine.state.ready) == {"c", "d"}


def test_nothing_is_kept_of_the_members_of_old_worlds() -> None:
    job = begun()
    job.come("d")
    for round_ in range(5):
        for node in "abc":
            job.say(node, READY, round_)
        assert job.machine.state.round == round_ + 1
        for node in "abc":
            job.take(node)
    assert job.machine.state.quorum.base == World(5, 2, 3)
    counted = {*job.machine.state.candidates.able._by_members, *job.machine.state.candidates.here._by_members}
    assert {world.round for world in counted} <= {4, 5}
