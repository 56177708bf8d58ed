"""The agent's machine: what it decides, told as effects."""

from __future__ import annotations

from dataclasses import replace

import pytest

from elasticrun.core.agent.departure import Departure
from elasticrun.core.agent.echoes import PATIENCE
from elasticrun.core.agent.events import (
    AgentEvent,
    AgentTick,
    Broken,
    Directed,
    Finish,
    GroupGone,
    ImportsSeen,
    Level,
    LinkDown,
    LinkUp,
    Prepared,
    Say,
    SignalWorkers,
    StartWorkers,
    StopSignal,
    StoreLost,
    SweepWorkers,
    WorkerFailed,
    WorkerFinished,
)
from elasticrun.core.protocol.messages import (
    MAX_FAILURES,
    AgentPhase,
    Assignment,
    FailureKind,
    JobEnded,
    Leave,
    Outcome,
    RejectCode,
    Rejected,
    Report,
    StopRound,
    Waiting,
    Welcome,
)
from elasticrun.core.recovery.own_failures import Stopping
from elasticrun.errors import ExitCode
from tests.core.build import Agent, failure, ready_agent, start

#: After the launcher's SIGTERM.
TOLD = Stopping(frozenset({15}), 1.0)
READY, RUNNING, FINISHED = AgentPhase.READY, AgentPhase.RUNNING, AgentPhase.FINISHED
FAILED, STOPPING, PREPARING = AgentPhase.FAILED, AgentPhase.STOPPING, AgentPhase.PREPARING


def running_agent(round_: int = 0, **terms: float) -> Agent:
    agent = ready_agent(**terms)
    agent.do(Directed(start(round_)))
    return agent


def stop(round_: int, sequence: int = 2, epoch: int = 1) -> Directed:
    return Directed(StopRound(epoch, sequence, round_, "because"))


def ended(outcome: Outcome, sequence: int = 2) -> Directed:
    return Directed(JobEnded(1, sequence, outcome, "because", (failure(),)))


# -- a round from its start to its end


def test_hello_carries_everything() -> None:
    agent = Agent()
    hello = agent.machine.hello()
    assert (hello.job_id, hello.version, hello.epoch) == ("job", "1", -1)
    assert (hello.status.phase, hello.status.round, hello.status.store_port) == (PREPARING, -1, 0)
    agent.do(Prepared(7001), LinkUp(3))
    assert agent.heard() == []  # the first link is no news
    hello = agent.machine.hello()
    assert (hello.epoch, hello.status.phase, hello.status.store_port) == (3, READY, 7001)


def test_what_changed_before_welcome_is_reported_on_welcome() -> None:
    agent = running_agent()
    agent.do(LinkDown("reset"))
    hello = agent.greet()
    agent.do(WorkerFinished(0, 0), WorkerFinished(0, 1), LinkUp(1))
    [report] = agent.sent()
    assert isinstance(report, Report)
    assert report.status.phase is FINISHED
    assert report.status.sequence > hello.status.sequence


def warming(agent: Agent) -> list[bool]:
    return [message.status.warming for message in agent.sent() if isinstance(message, Report)]


def test_a_change_of_what_a_start_would_wait_for_is_reported_while_ready() -> None:
    agent = Agent()
    agent.do(ImportsSeen(True))
    assert not agent.sent(), "it could not start in any case"
    assert not agent.machine.hello().status.warming
    agent.do(Prepared(7001))
    assert warming(agent) == [True]
    assert agent.machine.hello().status.warming
    agent.do(ImportsSeen(True))
    assert not agent.sent()
    agent.do(ImportsSeen(False))
    assert (agent.reported(), warming(agent)) == ([READY], [False])


def test_a_node_whose_workers_have_run_is_waited_for() -> None:
    agent = Agent()
    agent.do(ImportsSeen(True), Prepared(7001), LinkUp(1), Directed(start(0)))
    assert (agent.reported(), warming(agent)) == ([RUNNING], [False])
    agent.do(ImportsSeen(False))
    assert not agent.sent()
    agent.do(stop(0), GroupGone(0, 7002))
    agent.do(ImportsSeen(True))
    assert not agent.sent()
    assert not agent.machine.hello().status.warming


def test_a_round_is_started_once() -> None:
    agent = ready_agent()
    agent.do(Directed(start(0)))
    assert agent.of(StartWorkers) == [StartWorkers(start(0).assignment)]
    assert agent.reported() == [RUNNING]
    assert agent.of(Say)[0].level is Level.INFO
    assert agent.machine.state.assignment == start(0).assignment
    assert agent.heard()[0] == "round 0: node 0 of 1, ranks 0-1 of 2 (restart 0 of 3; because)"
    assert agent.do(Directed(start(0))) == []
    assert agent.do(Directed(start(0, sequence=5))) == []
    assert agent.do(AgentTick()) == []


def test_workers_that_all_end_with_0_finish_the_round() -> None:
    agent = running_agent()
    assert agent.do(WorkerFinished(0, 1)) == []
    agent.do(WorkerFinished(0, 0))
    assert agent.reported() == [FINISHED]
    assert agent.do(WorkerFinished(0, 0)) == []
    agent.do(ended(Outcome.SUCCEEDED))
    assert agent.of(SweepWorkers) == [SweepWorkers(0, spares_detached=True)]
    agent.do(GroupGone(0, 7002))
    assert agent.finish == Finish(ExitCode.OK, "because", Outcome.SUCCEEDED, (failure(),))
    assert agent.do(AgentTick()) == []
    assert agent.machine.next_deadline() is None


def test_a_failure_stops_the_group_at_once_and_is_reported_until_the_next_round() -> None:
    agent = running_agent()
    agent.do(WorkerFailed(0, failure()))
    assert agent.reported() == [FAILED]
    assert agent.heard() == [failure().summary]
    assert agent.of(SignalWorkers) == [SignalWorkers(15)]
    agent.do(WorkerFailed(0, failure(rank=1), TOLD))  # a sibling: wrong local rank, nobody's fault
    agent.do(WorkerFinished(0, 1))
    assert agent.of(SweepWorkers) == [SweepWorkers(0)]
    assert agent.do(stop(0)) == []  # is being done
    agent.do(GroupGone(0, 7002))
    [report] = agent.sent()
    assert isinstance(report, Report)
    assert (report.status.phase, report.status.store_port) == (READY, 7002)
    assert report.status.failures == (failure(),)
    agent.do(Directed(start(1, sequence=3)))
    assert agent.of(StartWorkers)[0].assignment.round == 1
    assert agent.of(Say)[0].level is Level.WARNING
    assert agent.machine.state.failures == ()


def test_the_failure_of_the_only_worker_left_sweeps_at_once() -> None:
    agent = running_agent()
    agent.do(WorkerFinished(0, 1))
    agent.do(WorkerFailed(0, failure()))
    assert agent.of(SignalWorkers) == []
    assert agent.of(SweepWorkers) == [SweepWorkers(0)]


def test_who_failed_of_its_own_while_the_group_stopped_is_reported() -> None:
    agent = running_agent()
    agent.do(WorkerFailed(0, failure()))
    agent.do(WorkerFailed(0, failure(rank=1, code=-9), TOLD))
    assert agent.heard() == [failure(rank=1, code=-9).summary]
    assert agent.reported() == [FAILED]
    agent.do(WorkerFinished(0, 1))
    agent.do(GroupGone(0, 7002))
    [report] = agent.sent()
    assert isinstance(report, Report)
    assert [told.exit_code for told in report.status.failures] == [1, -9]
    agent.do(WorkerFailed(0, failure(rank=1, code=-11), TOLD))
    assert len(agent.machine.state.failures) == 2, "what comes after the end of the group is too late"


def echo(rank: int = 0) -> WorkerFailed:
    text = 'Traceback (most recent call last):\n  File "a.py", line 1, in <module>\nRuntimeError: '
    lost = replace(failure(rank=rank), stderr_tail=f"{text}Connection closed by peer\n", local_rank=rank)
    return WorkerFailed(0, lost)


def test_a_lost_connection_waits_for_who_is_to_blame_for_it() -> None:
    agent = running_agent()
    assert agent.do(echo()) == []
    cause = replace(failure(rank=1), local_rank=1)
    agent.do(WorkerFailed(0, cause))
    assert agent.heard() == [cause.summary, echo().failure.summary]
    assert set(agent.reported()) == {FAILED}
    assert agent.of(SweepWorkers) == [SweepWorkers(0)]
    assert {told.rank for told in agent.machine.state.failures} == {0, 1}
    agent.do(GroupGone(0, 7002))
    assert agent.machine.next_deadline() is None


def test_a_lost_connection_waits_for_a_moment_and_for_nobody_who_is_gone() -> None:
    agent = running_agent()
    agent.do(echo())
    assert agent.machine.next_deadline() == PATIENCE
    agent.now = PATIENCE
    agent.do(AgentTick())
    assert agent.reported() == [FAILED]
    assert agent.of(SignalWorkers) == [SignalWorkers(15)]
    for last in (echo(1), WorkerFinished(0, 1)):
        agent = running_agent()
        agent.do(echo(), last)
        assert agent.reported()[-1] is FAILED
        assert agent.of(SweepWorkers) == [SweepWorkers(0)]
        assert agent.machine.state.failures[0] == echo().failure


def test_a_rank_that_is_alone_on_its_node_waits_for_the_others() -> None:
    agent = running_agent()
    world = Assignment(1, 0, 2, 0, 4, 0, 4, "a.net", 7001, 0, 3)
    agent.do(WorkerFinished(0, 0), WorkerFinished(0, 1), Directed(replace(start(1, 2), assignment=world)))
    agent.do(GroupGone(0, 7002))
    both = [replace(echo(rank), round=1) for rank in (0, 1)]
    agent.do(*both)
    assert agent.machine.state.phase is RUNNING
    agent.do(stop(1, sequence=3))
    assert agent.of(SweepWorkers) == [SweepWorkers(1)]
    assert agent.machine.state.failures == tuple(event.failure for event in both)


@pytest.mark.parametrize("ends", [stop(0), StopSignal(15)], ids=["the master", "a signal"])
def test_a_lost_connection_keeps_no_round_that_has_to_end(ends: AgentEvent) -> None:
    agent = running_agent()
    agent.do(echo(), ends)
    assert [sent.signum for sent in agent.of(SignalWorkers)] == [15]
    assert echo().failure.summary in agent.heard()
    agent.do(WorkerFailed(0, replace(failure(rank=1, code=-15), local_rank=1), TOLD))
    assert agent.of(SweepWorkers)
    assert agent.machine.state.failures == (echo().failure,)


def test_what_is_not_kept_of_many_failures_is_not_reported_either() -> None:
    """Each report has the texts of all that are kept, and the master counts the bytes of an agent."""
    agent = running_agent()
    agent.do(WorkerFailed(0, failure()))
    for rank in range(1, 64):
        agent.do(WorkerFailed(0, failure(rank=rank, code=-9), TOLD))
        assert agent.reported() == ([FAILED] if rank < MAX_FAILURES else [])
        assert agent.heard() == [failure(rank=rank, code=-9).summary]


def test_exits_of_workers_that_we_stop_are_no_failures() -> None:
    agent = running_agent()
    agent.do(stop(0))
    assert agent.reported() == [STOPPING]
    assert agent.heard() == ["round 0 stops: because"]
    agent.do(WorkerFailed(0, failure(), TOLD), WorkerFinished(0, 1))
    assert agent.of(SweepWorkers) == [SweepWorkers(0)]
    agent.do(GroupGone(0, 7002))
    assert (agent.machine.state.failures, agent.machine.state.phase) == ((), READY)


def test_what_is_said_of_another_round_is_ignored() -> None:
    agent = running_agent(3)
    for event in (WorkerFailed(2, failure()), WorkerFinished(2, 0), GroupGone(2, 1), GroupGone(3, 1)):
        assert agent.do(event) == []
    agent.do(stop(3))
    assert agent.do(GroupGone(2, 1)) == []


def test_a_start_supersedes_what_runs() -> None:
    agent = running_agent()
    agent.do(Directed(start(1, sequence=2)))
    assert agent.of(SignalWorkers) == [SignalWorkers(15)]
    agent.do(WorkerFinished(0, 0), WorkerFinished(0, 1), GroupGone(0, 7002))
    assert agent.of(StartWorkers)[0].assignment.round == 1


def test_failures_are_kept_in_bounds() -> None:
    agent = running_agent()
    assert MAX_FAILURES > 1
    agent.do(WorkerFailed(0, failure()))
    assert len(agent.machine.state.failures) == 1


def test_workers_that_ignore_the_signal_are_killed() -> None:
    agent = running_agent(shutdown_timeout=3.0, kill_timeout=4.0)
    agent.do(stop(0))
    assert agent.machine.next_deadline() == 3.0
    agent.now = 3.0
    agent.do(AgentTick())
    assert agent.of(SweepWorkers) == [SweepWorkers(0)]
    assert agent.heard() == ["killing the workers that are still alive 3 s after the stop signal (2)"]
    assert agent.do(WorkerFinished(0, 0), WorkerFinished(0, 1)) == []
    agent.do(GroupGone(0, 7002))
    assert agent.machine.next_deadline() is None


def test_a_group_that_is_gone_before_it_was_swept_leaves_no_deadline_behind() -> None:
    agent = running_agent()
    agent.do(stop(0), GroupGone(0, 7002))
    assert agent.machine.next_deadline() is None
    assert agent.machine.group.alive == set()


def test_failures_are_forgotten_with_their_round() -> None:
    agent = running_agent()
    agent.do(WorkerFailed(0, failure()), WorkerFinished(0, 1), GroupGone(0, 7002))
    assert agent.machine.state.failures == (failure(),)
    agent.do(stop(4))
    assert agent.machine.hello().status.failures == ()


def test_workers_that_survive_sigkill_end_the_node() -> None:
    agent = running_agent(shutdown_timeout=3.0, kill_timeout=4.0)
    agent.do(stop(0))
    for agent.now in (3.0, 7.0):
        agent.do(AgentTick())
    assert agent.finish.exit_status == ExitCode.NODE_FAULT
    assert agent.machine.state.departure == Departure(agent.finish, is_farewell=True)
    assert isinstance(agent.sent()[0], Leave)
    assert agent.do(GroupGone(0, 7002)) == []


def test_an_agent_that_was_frozen_hears_first_what_happened() -> None:
    agent = running_agent(shutdown_timeout=3.0, kill_timeout=4.0)
    agent.do(stop(0), WorkerFinished(0, 0), WorkerFinished(0, 1))
    agent.now = 50.0
    agent.do(GroupGone(0, 7002))
    assert agent.reported() == [READY]
    assert agent.do(AgentTick()) == []


# -- directives


def test_a_stop_of_a_round_that_never_started_is_acknowledged() -> None:
    agent = ready_agent()
    agent.do(stop(4))
    [report] = agent.sent()
    assert isinstance(report, Report)
    assert (report.status.phase, report.status.round) == (READY, 4)
    assert agent.heard() == []
    assert agent.do(Directed(start(4, sequence=3))) == []
    assert agent.do(stop(3, sequence=4)) == []


def test_a_stop_before_it_is_prepared_is_remembered() -> None:
    agent = Agent()
    agent.do(LinkUp(1), stop(4))
    agent.do(Prepared(7001))
    assert agent.machine.state.round == 4


def test_a_round_that_was_told_to_stop_never_starts() -> None:
    agent = running_agent(0)
    agent.do(stop(5), Directed(start(4, sequence=3)))
    agent.do(WorkerFinished(0, 0), WorkerFinished(0, 1), GroupGone(0, 7002))
    assert agent.of(StartWorkers) == []
    assert agent.machine.state.round == 5


def test_a_stop_takes_back_a_start_that_waits() -> None:
    agent = running_agent(0)
    agent.do(Directed(start(2, sequence=2)), stop(1, sequence=3))
    agent.do(WorkerFinished(0, 0), WorkerFinished(0, 1), GroupGone(0, 7002))
    assert agent.of(StartWorkers) == []
    assert agent.machine.state.round == 1


def test_stop_of_an_earlier_round_stops_nothing() -> None:
    agent = running_agent(3)
    assert agent.do(stop(2)) == []


@pytest.mark.parametrize("sequence", [1, 0])
def test_directives_that_are_not_newer_are_dropped(sequence: int) -> None:
    agent = running_agent()
    assert agent.do(stop(0, sequence)) == []
    assert agent.do(ended(Outcome.FAILED, sequence)) == []
    assert agent.do(Directed(start(1, sequence))) == []


def test_directives_of_an_earlier_epoch_are_dropped_even_if_the_new_one_said_nothing_yet() -> None:
    agent = running_agent()
    agent.do(LinkDown("reset"), LinkUp(2))
    assert agent.do(stop(0, sequence=99, epoch=1)) == []
    assert agent.do(Directed(Waiting(1, "late"))) == []
    agent.do(Directed(Waiting(2, "one is missing")))
    assert agent.heard() == ["one is missing"]
    assert agent.do(Directed(Welcome(2, 1.0))) == []
    agent.do(stop(0, sequence=1, epoch=3))
    assert agent.machine.state.desired.epoch == 3
    assert agent.reported() == [STOPPING]


@pytest.mark.parametrize(
    ("outcome", "status"),
    [
        (Outcome.SUCCEEDED, ExitCode.OK),
        (Outcome.FAILED, ExitCode.JOB_FAILED),
        (Outcome.TIMED_OUT, ExitCode.RENDEZVOUS_TIMEOUT),
    ],
)
def test_the_end_of_the_job_gives_the_exit_status(outcome: Outcome, status: ExitCode) -> None:
    agent = ready_agent()
    agent.do(ended(outcome))
    assert (agent.finish.exit_status, agent.finish.outcome) == (status, outcome)


@pytest.mark.parametrize("code", list(RejectCode))
def test_a_rejected_agent_stops_its_workers_and_goes(code: RejectCode) -> None:
    agent = running_agent()
    agent.do(Directed(Rejected(code, "no")))
    assert agent.reported() == [STOPPING]
    agent.do(WorkerFinished(0, 0), WorkerFinished(0, 1), GroupGone(0, 7002))
    assert (agent.finish.reason, agent.finish.outcome) == ("no", None)
    broken = {RejectCode.MALFORMED, RejectCode.OUT_OF_ORDER, RejectCode.OVERSIZED}
    broken.add(RejectCode.IMPLAUSIBLE)
    other = {RejectCode.NAME_IN_USE: ExitCode.SUPERSEDED, RejectCode.MISFIT: ExitCode.WRONG_JOB}
    other |= dict.fromkeys(broken, ExitCode.PROTOCOL)
    expected = other[code] if code in other else ExitCode[code.name]
    assert agent.finish.exit_status == expected


def spare_end(other: str, outcome: Outcome = Outcome.SUCCEEDED) -> Directed:
    return Directed(JobEnded(1, 2, outcome, "because", other_program=other))


def test_a_spare_says_that_it_never_ran_its_script() -> None:
    agent = ready_agent()
    agent.do(spare_end(""))
    assert (agent.finish.exit_status, agent.finish.is_spare) == (ExitCode.OK, True)
    assert agent.finish.reason.startswith(
        "the job succeeded; this node was a spare, so its program never ran here"
    )


def test_a_spare_is_no_success_of_another_script() -> None:
    agent = ready_agent()
    agent.do(spare_end("'/a.py'"))
    assert (agent.finish.exit_status, agent.finish.is_spare) == (ExitCode.WRONG_JOB, True)
    assert "the job ran '/a.py'; its program never ran" in agent.finish.reason
    agent = ready_agent()
    agent.do(spare_end("'/a.py'", Outcome.FAILED))
    assert (agent.finish.exit_status, agent.finish.is_spare) == (ExitCode.JOB_FAILED, False)


def test_who_has_worked_is_no_spare() -> None:
    agent = running_agent()
    agent.do(WorkerFinished(0, 0), WorkerFinished(0, 1), spare_end("'/a.py'"), GroupGone(0, 7002))
    assert (agent.finish.exit_status, agent.finish.is_spare) == (ExitCode.OK, False)


# -- signals


def test_a_signal_is_passed_on_and_the_master_is_told_first() -> None:
    agent = running_agent(shutdown_timeout=20.0, kill_timeout=30.0)
    agent.do(StopSignal(2))
    assert [type(message) for message in agent.sent()] == [Leave]
    assert agent.machine.hello().status.phase is STOPPING
    assert agent.of(SignalWorkers) == [SignalWorkers(2)]
    agent.do(StopSignal(2))
    assert agent.heard() == ["asked to stop again: killing the workers now"]
    assert agent.of(SweepWorkers) == [SweepWorkers(0)]
    assert agent.do(StopSignal(2)) == []
    assert agent.do(Broken(10, "no disk")) == []
    assert agent.machine.next_deadline() == 30.0
    agent.now = 15.0
    agent.do(GroupGone(0, 7002))
    assert (agent.finish.exit_status, agent.finish.reason) == (130, "stopped by signal 2")


def test_a_leave_that_was_not_heard_is_repeated() -> None:
    agent = running_agent()
    agent.do(LinkDown("reset"), StopSignal(15), LinkUp(1))
    assert [type(message) for message in agent.sent()] == [Leave]


@pytest.mark.parametrize("prepared", [True, False])
def test_a_signal_to_an_idle_agent_ends_it_at_once(prepared: bool) -> None:
    agent = ready_agent() if prepared else Agent()
    agent.do(StopSignal(15))
    assert agent.finish.exit_status == 143


def test_a_signal_while_a_start_is_on_its_way_wins() -> None:
    agent = running_agent()
    agent.do(StopSignal(15), Directed(start(1, sequence=2)))
    agent.do(WorkerFinished(0, 0), WorkerFinished(0, 1), GroupGone(0, 7002))
    assert agent.of(StartWorkers) == []
    assert agent.finish.exit_status == 143


def test_a_signal_to_an_agent_whose_group_ends_already_waits_for_that() -> None:
    agent = running_agent()
    agent.do(WorkerFailed(0, failure()), StopSignal(15))
    assert [type(message) for message in agent.sent()] == [Leave]
    agent.do(WorkerFinished(0, 1), GroupGone(0, 7002))
    assert agent.finish.exit_status == 143


def test_what_was_decided_first_stands() -> None:
    agent = running_agent()
    agent.do(
        StopSignal(15), ended(Outcome.FAILED), Directed(Rejected(RejectCode.SUPERSEDED, "")), Broken(9, "")
    )
    agent.do(WorkerFinished(0, 0), WorkerFinished(0, 1), GroupGone(0, 7002))
    assert agent.finish.exit_status == 143


def test_a_broken_launcher_stops_its_workers_and_says_why() -> None:
    agent = running_agent()
    agent.do(Broken(10, "no disk"))
    assert isinstance(agent.sent()[0], Leave)
    agent.do(WorkerFinished(0, 0), WorkerFinished(0, 1), GroupGone(0, 7002))
    assert (agent.finish.exit_status, agent.finish.reason) == (10, "no disk")


# -- the master goes away


def test_workers_go_on_without_a_master() -> None:
    agent = running_agent(master_timeout=60.0)
    agent.do(LinkDown("reset"))
    assert agent.heard() == ["lost the master (reset); the workers go on"]
    for agent.now in (60.0, 120.0):
        agent.do(AgentTick())
        assert agent.heard() == ["no master for 60 s; the workers go on"]
    agent.do(LinkUp(2))
    assert agent.heard() == ["the master is back (epoch 2)"]
    assert agent.machine.next_deadline() is None


@pytest.mark.parametrize("prepared", [True, False])
def test_an_idle_agent_gives_up_on_its_master(prepared: bool) -> None:
    agent = ready_agent(master_timeout=60.0) if prepared else Agent(master_timeout=60.0)
    agent.do(LinkDown("reset"))
    assert agent.heard() == ["lost the master (reset)"]
    agent.now = 40.0
    agent.do(LinkDown("refused"))  # another attempt failed: that is no reason to wait longer
    agent.now = 60.0
    agent.do(AgentTick())
    assert agent.finish.exit_status == ExitCode.MASTER_LOST


def test_an_agent_that_finished_gives_up_on_its_master() -> None:
    agent = running_agent(master_timeout=60.0)
    agent.do(WorkerFinished(0, 0), WorkerFinished(0, 1), LinkDown("reset"))
    agent.now = 60.0
    agent.do(AgentTick())
    assert agent.of(SweepWorkers)
    agent.do(GroupGone(0, 7002))
    assert agent.finish.exit_status == ExitCode.MASTER_LOST


def test_an_agent_that_leaves_does_not_complain_about_the_master() -> None:
    agent = running_agent()
    agent.do(StopSignal(15), LinkDown("closed"))
    assert agent.heard() == []


STORE = replace(failure(), kind=FailureKind.STORE_LOST, message="killed by SIGKILL (9)", exit_code=-9)


def test_a_lost_store_stops_the_round_at_once() -> None:
    agent = running_agent()
    agent.do(StoreLost(0, STORE))
    assert agent.reported() == [FAILED]
    assert agent.of(SignalWorkers) == [SignalWorkers(15)]
    assert agent.heard() == [STORE.summary]
    assert "the workers' store" in STORE.summary
    assert agent.machine.state.failures == (STORE,)
    assert agent.do(StoreLost(0, STORE)) == []


def test_a_store_that_is_lost_after_the_own_workers_have_finished_may_be_needed_by_others() -> None:
    agent = running_agent()
    agent.do(WorkerFinished(0, 0), WorkerFinished(0, 1))
    agent.do(StoreLost(0, STORE))
    assert agent.reported()[-1] is FAILED
    assert agent.of(SweepWorkers) == [SweepWorkers(0)]


def test_the_store_of_a_round_that_is_over_matters_to_nobody() -> None:
    agent = ready_agent()
    assert agent.do(StoreLost(0, STORE)) == []
    agent = running_agent()
    assert agent.do(StoreLost(7, STORE)) == []


def test_a_node_offers_to_serve_the_store_while_it_is_ready() -> None:
    agent = Agent()
    agent.do(Prepared(7001, hosts_store=True), LinkUp(1))
    assert agent.machine.hello().status.hosts_store
    agent.do(Directed(start(0)))
    assert not agent.machine.hello().status.hosts_store
    agent.do(stop(0), GroupGone(0, 7002))
    assert not agent.machine.hello().status.hosts_store
