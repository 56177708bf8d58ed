"""Probes, stalls, votes and leaving with grace, as the agent's machine decides them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from elasticrun.core.agent.desired import Desired
from elasticrun.core.agent.events import (
    AgentTick,
    Directed,
    DumpStacks,
    GroupGone,
    HoldingsChanged,
    LinkDown,
    LinkUp,
    PassJudgement,
    Preempted,
    ProbeEnded,
    RunProbe,
    SignalWorkers,
    StallSeen,
    StopSignal,
    SweepWorkers,
    Transmit,
    WorkerFinished,
)
from elasticrun.core.protocol.commits import Part
from elasticrun.core.protocol.messages import (
    AgentPhase,
    AgentStatus,
    CommitId,
    Evidence,
    Holding,
    JudgeCommits,
    Leave,
    ProbeGroup,
    ProbeReport,
    Proposal,
    RejectCode,
    Rejected,
    Report,
    SaveStacks,
    Stall,
    StartProbe,
    StartRound,
    StopRound,
    Vote,
    World,
)
from elasticrun.errors import ExitCode
from tests.core.build import Agent, ready_agent, start

READY, RUNNING, CHECKING, STOPPING = (
    AgentPhase.READY,
    AgentPhase.RUNNING,
    AgentPhase.CHECKING,
    AgentPhase.STOPPING,
)
PROBE = StartProbe(1, 1, 5, (), 0, 30.0)
FINE = ProbeReport(5, "", 1e12)


def status(agent: Agent) -> AgentStatus:
    """What the agent told last."""
    reports = [message for message in agent.sent() if isinstance(message, Report)]
    return reports[-1].status


def running_agent() -> Agent:
    agent = ready_agent(drain_signal=10)
    agent.do(Directed(start(0)))
    return agent


# -- probes


def test_the_time_of_a_probe_may_end_while_what_it_left_behind_is_swept() -> None:
    agent = ready_agent()
    agent.do(Directed(PROBE))
    agent.now = 29.0
    agent.do(ProbeEnded(FINE))
    agent.now = 31.0
    agent.do(AgentTick(), GroupGone(-1, 7002))
    assert status(agent).probe == FINE


def test_a_probe_runs_and_its_report_comes_with_readiness() -> None:
    agent = ready_agent()
    agent.do(Directed(PROBE))
    assert agent.of(RunProbe) == [RunProbe(PROBE, -1)]
    assert agent.reported() == [CHECKING]
    agent.do(ProbeEnded(FINE))
    assert agent.of(SweepWorkers)
    agent.do(GroupGone(-1, 7002))
    assert (status(agent).phase, status(agent).probe, status(agent).store_port) == (READY, FINE, 7002)


def test_the_same_probe_runs_once() -> None:
    agent = ready_agent()
    agent.do(Directed(PROBE), ProbeEnded(FINE), GroupGone(-1, 7002))
    agent.do(LinkUp(1), Directed(replace(PROBE, sequence=2)))
    assert not agent.of(RunProbe)
    agent.do(Directed(replace(PROBE, sequence=3, check=6)))
    assert agent.of(RunProbe)


def test_a_probe_that_is_asked_for_again_while_it_runs_goes_on() -> None:
    agent = ready_agent()
    agent.do(Directed(PROBE), Directed(replace(PROBE, sequence=2)))
    assert not agent.of(SweepWorkers)


def test_a_probe_that_does_not_end_is_stopped() -> None:
    agent = ready_agent()
    agent.do(Directed(PROBE))
    agent.now += 31.0
    agent.do(AgentTick())
    assert agent.of(SweepWorkers)
    agent.do(ProbeEnded(FINE), GroupGone(-1, 7002))
    probe = status(agent).probe
    assert probe is not None and probe.error == "the probe did not end within 30 s"


@pytest.mark.parametrize("event", [Directed(StopRound(1, 2, 0, "why")), StopSignal(15)])
def test_a_probe_that_nobody_wants_any_more_is_stopped(event: Directed | StopSignal) -> None:
    agent = ready_agent()
    agent.do(Directed(PROBE), event)
    assert agent.of(SweepWorkers)
    agent.do(LinkUp(1))  # whatever happens next, it is swept once
    assert not agent.of(SweepWorkers)
    agent.do(GroupGone(-1, 7002))
    if isinstance(event, StopSignal):
        assert agent.finish.exit_status == 143
    else:
        assert status(agent).probe is None, "that says nothing about the node"
        agent.do(Directed(replace(PROBE, sequence=3)))
        assert agent.of(RunProbe)


def test_a_probe_that_ends_while_it_is_being_stopped_says_nothing_either() -> None:
    agent = ready_agent()
    agent.do(Directed(PROBE), Directed(StopRound(1, 2, 0, "why")))
    assert not agent.do(ProbeEnded(replace(FINE, error="the probe was killed")))
    agent.do(GroupGone(-1, 7002))
    assert (status(agent).phase, status(agent).probe) == (READY, None)


def test_what_is_left_of_a_probe_is_gone_only_after_a_sweep() -> None:
    agent = ready_agent()
    agent.do(Directed(PROBE))
    assert not agent.do(GroupGone(-1, 7002)), "that was of what ran before"
    assert agent.machine.state.phase is CHECKING


def test_a_probe_of_the_same_number_with_others_is_another_probe() -> None:
    agent = ready_agent()
    agent.do(Directed(PROBE))
    agent.do(Directed(replace(PROBE, epoch=2, groups=(ProbeGroup(0, 0, ("a", "b"), "a.net", 7001),))))
    assert agent.of(SweepWorkers)


def test_what_another_probe_found_is_no_answer() -> None:
    agent = ready_agent()
    agent.do(ProbeEnded(FINE))
    agent.do(Directed(PROBE), ProbeEnded(replace(FINE, check=4)))
    assert agent.machine.state.phase is CHECKING and not agent.of(SweepWorkers)


def test_a_round_starts_after_a_probe() -> None:
    agent = ready_agent()
    agent.do(Directed(PROBE), ProbeEnded(FINE), GroupGone(-1, 7002), Directed(start(0, sequence=2)))
    assert agent.machine.state.phase is RUNNING


# -- stalls

STALL = Stall(0, 0, 7, 12.0, 10.0, True)


def test_a_stall_is_reported_and_its_end() -> None:
    agent = running_agent()
    stall = Stall(0, 0, 7, 12.0, 10.0, False)
    agent.do(StallSeen(0, stall))
    assert status(agent).stall == stall
    agent.do(StallSeen(0, None))
    assert status(agent).stall is None


def test_a_stall_of_another_round_or_of_no_round_is_nothing() -> None:
    agent = running_agent()
    stall = Stall(0, 0, 7, 12.0, 10.0, False)
    assert not agent.do(StallSeen(1, stall))
    agent.do(StallSeen(0, stall), StopSignal(15))
    assert not agent.do(StallSeen(0, stall))
    agent.do(WorkerFinished(0, 0), WorkerFinished(0, 1))


def test_workers_that_hang_are_not_kept_for_a_master_that_is_gone() -> None:
    agent = running_agent()
    agent.do(LinkDown("silent"))
    agent.now += 61.0
    agent.do(AgentTick())
    assert agent.machine.state.phase is RUNNING
    agent.do(StallSeen(0, STALL))
    agent.now += 61.0
    agent.do(AgentTick())
    assert agent.machine.state.phase is RUNNING, "it may be work"
    works = [agent.machine.works]
    agent.do(StallSeen(0, replace(STALL, evidence=Evidence.TIMEOUT)))
    assert [*works, agent.machine.works] == [True, False]
    agent.now += 61.0
    agent.do(AgentTick())
    assert agent.machine.state.phase is STOPPING
    agent.do(WorkerFinished(0, 0), WorkerFinished(0, 1), GroupGone(0, 7002))
    assert agent.finish.exit_status == ExitCode.MASTER_LOST
    assert "no steps" in agent.finish.reason


@pytest.mark.parametrize(("evidence", "is_swept"), [(Evidence.NONE, False), (Evidence.TIMEOUT, True)])
def test_workers_that_hang_get_less_time_to_end(evidence: Evidence, is_swept: bool) -> None:
    agent = running_agent()
    stall = replace(STALL, evidence=evidence)
    agent.do(StallSeen(0, stall), Directed(StopRound(1, 2, 0, "a hang")))
    agent.now += 3.1
    agent.do(AgentTick())
    assert bool(agent.of(SweepWorkers)) is is_swept


def test_what_was_true_of_a_stall_is_not_told_again_on_a_new_stream() -> None:
    agent = running_agent()
    agent.do(StallSeen(0, STALL), LinkDown("reset"))
    assert agent.machine.state.stall == STALL
    assert agent.greet().status.stall is None
    agent.do(LinkUp(1))
    assert not agent.of(Transmit), "nothing has changed since"
    agent.do(StallSeen(0, STALL))
    assert status(agent).stall == STALL, "the watch has looked again"


def test_what_is_held_is_reported_and_told_again_to_a_new_master() -> None:
    agent = ready_agent()
    agent.do(Directed(start(0)))
    held = (Holding(CommitId(0, 5), 1, (Part(0),)),)
    agent.do(HoldingsChanged(held))
    (report,) = agent.sent()
    assert isinstance(report, Report)
    assert report.status.holdings == held
    assert agent.greet().status.holdings == held


def test_only_a_verdict_on_the_round_that_runs_counts() -> None:
    agent = ready_agent()
    agent.do(Directed(start(3, epoch=2)))
    kept, void = CommitId(3, 5), CommitId(3, 4)
    verdict = JudgeCommits(2, 3, kept, void)
    assert agent.do(Directed(verdict)) == [PassJudgement(verdict)]
    assert not agent.do(Directed(JudgeCommits(1, 3, kept, void))), "of a master that was replaced"
    assert not agent.do(Directed(JudgeCommits(2, 2, kept, void))), "of the round before"


def test_a_verdict_that_comes_after_a_newer_one_does_not_count() -> None:
    agent = ready_agent()
    agent.do(Directed(start(3, epoch=2)))
    kept = CommitId(3, 5)
    for number, epoch, counts in ((4, 2, True), (4, 2, True), (3, 2, False), (5, 2, True), (1, 3, True)):
        verdict = JudgeCommits(epoch, 3, kept, number=number)
        assert agent.do(Directed(verdict)) == ([PassJudgement(verdict)] if counts else [])


def test_stacks_are_saved_while_workers_run() -> None:
    agent = running_agent()
    agent.do(Directed(SaveStacks(1)))
    assert agent.of(DumpStacks)
    assert not ready_agent().do(Directed(SaveStacks(1)))


# -- leaving with grace


def test_workers_hear_of_a_node_that_leaves_by_a_signal_of_their_own() -> None:
    agent = running_agent()
    agent.do(Directed(StopRound(1, 2, 0, "b left", drain=True)))
    assert agent.of(SignalWorkers) == [SignalWorkers(10, drain=True)]


def test_workers_of_another_stop_get_sigterm() -> None:
    agent = running_agent()
    agent.do(Directed(StopRound(1, 2, 0, "b failed")))
    assert agent.of(SignalWorkers) == [SignalWorkers(15)]


@pytest.mark.parametrize(("signum", "drains"), [(15, True), (2, False)])
def test_the_leaving_node_passes_its_signal_on(signum: int, drains: bool) -> None:
    agent = running_agent()
    agent.do(StopSignal(signum))
    assert agent.of(SignalWorkers) == [SignalWorkers(signum, drains)]


def test_a_preemption_notice_is_a_leave_with_its_own_exit_code() -> None:
    agent = running_agent()
    agent.do(Preempted("the platform says so"))
    assert agent.of(SignalWorkers) == [SignalWorkers(15, drain=True)]
    assert [message.reason for message in agent.sent() if isinstance(message, Leave)] == [
        "the platform says so"
    ]
    agent.do(WorkerFinished(0, 0), WorkerFinished(0, 1), GroupGone(0, 7002))
    assert agent.finish.exit_status == ExitCode.DRAINED


def test_a_drained_node_lets_its_workers_save_their_state() -> None:
    agent = running_agent()
    agent.do(Directed(Rejected(RejectCode.DRAINED, "drained: maintenance")))
    assert agent.of(SignalWorkers) == [SignalWorkers(15, drain=True)]


# -- votes


def proposal(round_: int, base: World | None = None, prior: World | None = None) -> Proposal:
    return Proposal(World(round_, 1, 3), base, prior)


def told(round_: int, sequence: int, proposal: Proposal) -> Directed:
    return Directed(StartRound(1, sequence, replace(start(round_).assignment, proposal=proposal), "because"))


def test_no_votes_are_kept_for_a_single_endpoint() -> None:
    assert status(running_agent()).votes == ()


def test_workers_that_start_are_a_vote() -> None:
    agent = ready_agent()
    agent.do(told(0, 1, proposal(0)))
    assert status(agent).votes == (Vote(World(0, 1, 3), None),)


def test_an_assignment_whose_master_missed_our_newest_vote_is_refused() -> None:
    agent = ready_agent()
    agent.do(told(0, 1, proposal(0)))
    agent.do(told(3, 2, proposal(3, base=World(1, 1, 3), prior=World(1, 1, 3))))
    assert agent.machine.state.phase is AgentPhase.RUNNING, "what runs goes on"
    assert status(agent).votes == (Vote(World(0, 1, 3), None),), "and the master hears why"


def test_that_its_world_has_started_everywhere_is_remembered() -> None:
    agent = ready_agent()
    agent.do(told(0, 1, proposal(0)))
    agent.do(told(0, 2, proposal(0, base=World(0, 1, 3))))
    assert agent.machine.state.phase is AgentPhase.RUNNING
    assert agent.machine.hello().status.votes == (Vote(World(0, 1, 3), World(0, 1, 3)),)


def test_that_is_news_to_a_master_that_takes_over_with_a_copy_of_the_journal() -> None:
    """It may know this node's last report, but not the one by which the world became complete."""
    agent = ready_agent()
    agent.do(told(0, 1, proposal(0)))
    reported = status(agent).sequence
    agent.do(told(0, 2, proposal(0, base=World(0, 1, 3))))
    assert agent.machine.hello().status.sequence > reported


def test_a_directive_counts_once() -> None:
    desired = Desired().after(PROBE)
    assert desired is not None and desired.probe == PROBE
    assert desired.after(PROBE) is None
    assert desired.after(replace(PROBE, epoch=0, sequence=9)) is None
