"""The master's machine: what it decides, told as effects."""

from __future__ import annotations

from dataclasses import replace

import pytest

from elasticrun.config import Policy
from elasticrun.core.job.attendance import REATTACH_EACH
from elasticrun.core.job.events import (
    Attached,
    Beat,
    Decided,
    Detached,
    Drop,
    Ended,
    Left,
    MasterStarted,
    Reported,
    Send,
)
from elasticrun.core.protocol.messages import (
    AgentPhase,
    AgentStatus,
    FailureKind,
    Hello,
    JobEnded,
    Outcome,
    RejectCode,
    Rejected,
    StartRound,
    StopRound,
    Trust,
    Waiting,
    Welcome,
)
from elasticrun.core.protocol.status import JobPhase
from elasticrun.sim.fingerprint import difference, fingerprint
from tests.core.build import Job, described, failure, info, message_types, running

READY, RUNNING, FINISHED = AgentPhase.READY, AgentPhase.RUNNING, AgentPhase.FINISHED
FAILED, STOPPING, PREPARING = AgentPhase.FAILED, AgentPhase.STOPPING, AgentPhase.PREPARING

# -- the first world


def test_the_world_forms_when_the_last_of_min_is_ready() -> None:
    job = Job(min_nodes=2, max_nodes=2)
    job.attach("a")
    assert message_types(job, "a") == [Welcome]
    job.attach("b", PREPARING)
    assert job.phase() == JobPhase.GATHERING
    job.report("b", READY, -1)
    first, second = job.told("a", StartRound)[0], job.told("b", StartRound)[0]
    assert (first.assignment.group_rank, second.assignment.group_rank) == (0, 1)
    assert first.assignment.store_address == second.assignment.store_address == "a.net"
    assert first.assignment.store_port == second.assignment.store_port == 7001
    assert first.reason == "2 nodes of 2:2 ready"


def test_the_first_world_waits_for_a_last_call_that_each_arrival_restarts() -> None:
    job = Job(min_nodes=1, max_nodes=3, last_call_timeout=2.0)
    job.attach("a")
    job.pass_time(1.5)
    job.attach("b")
    job.pass_time(1.0)
    job.report("a", READY, -1)  # no arrival
    job.pass_time(0.5)
    assert job.phase() == JobPhase.GATHERING
    job.pass_time(0.5)
    assert job.machine.state.previous == ("a", "b")


def test_the_last_call_ends_at_once_when_the_world_is_full() -> None:
    job = Job(min_nodes=1, max_nodes=2, last_call_timeout=2.0)
    job.attach("a")
    job.attach("b")
    assert job.machine.state.previous == ("a", "b")


def test_the_last_call_starts_anew_if_too_few_are_left() -> None:
    job = Job(min_nodes=1, max_nodes=3, last_call_timeout=2.0)
    job.attach("a")
    job.pass_time(1.0)
    job.do(Detached(1, "gone"))
    job.pass_time(5.0)
    job.attach("b")
    job.pass_time(1.9)
    assert job.phase() == JobPhase.GATHERING
    job.pass_time(0.1)
    assert job.phase() == JobPhase.RUNNING


def test_a_last_call_that_ended_while_nobody_was_back_does_not_count_for_those_who_come_later() -> None:
    job = Job(min_nodes=1, max_nodes=3, last_call_timeout=2.0, reattach_timeout=15.0)
    job.attach("a")
    job.do(MasterStarted(2))
    job.pass_time(16.0)
    assert not job.drops()
    assert not job.machine.state.members.nodes
    job.attach("b")
    assert job.phase() == JobPhase.GATHERING
    job.pass_time(2.0)
    assert job.phase() == JobPhase.RUNNING


def test_who_waits_is_told_how_a_missing_node_is_started() -> None:
    command = "elastic-run --nnodes 2 ..."
    job = Job(min_nodes=2, max_nodes=2, join_command=command, heartbeat_timeout=99.0)
    job.attach("a")
    job.pass_time(20.0)
    ends = f"; waited 20 s of at most 600 s (join_timeout); start a missing node by: {command}"
    assert job.told("a", Waiting)[-1].text.endswith(ends)
    assert command not in described(job.machine), "it is told to those who wait"
    job.attach("b")
    job.all_report("ab", RUNNING, 0)
    job.attach("c")
    job.pass_time(0.0)
    (told,) = job.told("c", Waiting)
    assert "1 spare node waits" in told.text and "waited" not in told.text


def test_who_waits_for_nodes_that_cannot_start_is_told_no_command() -> None:
    job = Job(min_nodes=2, max_nodes=2, join_command="elastic-run ...", heartbeat_timeout=99.0)
    job.attach("a")
    job.attach("b", PREPARING)
    job.pass_time(10.0)
    (told,) = job.told("a", Waiting)
    assert told.text.endswith("cannot start yet; waited 10 s of at most 600 s (join_timeout)")


def test_who_waits_is_told_every_so_often_and_at_last_that_it_was_in_vain() -> None:
    job = Job(min_nodes=2, max_nodes=2, join_timeout=25.0, heartbeat_timeout=99.0)
    job.attach("a")
    job.pass_time(10.0)
    assert job.told("a", Waiting)[0].text == (
        "1 of at least 2 nodes is here (a), 1 missing; waited 10 s of at most 25 s (join_timeout)"
    )
    job.pass_time(15.0)
    assert len(job.told("a", Waiting)) == 1
    ended = job.told("a", JobEnded)[0]
    assert (ended.outcome, job.of(Ended)[0].outcome) == (Outcome.TIMED_OUT, Outcome.TIMED_OUT)
    assert ended.reason == "gave up after 25 s: 1 of at least 2 nodes is here (a), 1 missing"
    assert job.machine.state.ended
    assert not [effect for effect in job.pass_time(1000.0) if isinstance(effect, Send)]


def test_the_notice_goes_on_although_nobody_is_there() -> None:
    job = Job(min_nodes=1, max_nodes=1)
    job.attach("a", PREPARING)
    job.do(Detached(1, "gone"))
    job.pass_time(10.0)
    job.attach("b", PREPARING)
    job.pass_time(10.0)
    assert job.told("b", Waiting)


def test_the_join_timeout_spares_a_job_that_waits_for_its_last_call() -> None:
    job = Job(min_nodes=1, max_nodes=2, join_timeout=10.0, last_call_timeout=5.0)
    job.pass_time(8.0)
    job.attach("a")
    job.pass_time(5.0)
    assert job.phase() == JobPhase.RUNNING


def test_the_join_timeout_spares_a_job_whose_nodes_are_about_to_come_back() -> None:
    job = Job(min_nodes=2, max_nodes=2, join_timeout=10.0)
    job.attach("a")
    job.pass_time(9.0)
    job.do(MasterStarted(2))
    job.attach("b", epoch=-1)
    job.pass_time(2.0)
    job.attach("a", epoch=1)
    assert job.phase() == JobPhase.RUNNING


# -- failures


def test_a_failure_stops_everybody_and_the_next_round_starts_when_the_last_one_has_stopped() -> None:
    job = running("abc", max_restarts=2)
    job.report("b", FAILED, 0, failure("b", rank=1))
    for node in "abc":
        assert job.told(node, StopRound)[0].round == 0
    assert [decided.text for decided in job.of(Decided)] == [f"round 0 stops: {failure('b', rank=1).summary}"]
    job.report("b", READY, 0, failure("b", rank=1))
    job.all_report("ac", STOPPING, 0)
    job.report("a", READY, 0)
    assert job.phase() == JobPhase.STOPPING
    job.report("c", READY, 0)
    told = job.told("a", StartRound)[0]
    start = told.assignment
    assert (start.round, start.restart_count, start.max_restarts) == (1, 1, 2)
    assert told.after == failure("b", rank=1).summary
    assert job.machine.state.previous == ("a", "b", "c")


def test_a_job_without_restarts_left_ends_when_everybody_has_stopped() -> None:
    job = running("ab")
    blame = failure("a")
    job.report("a", FAILED, 0, blame)
    job.report("a", READY, 0, blame)
    job.report("b", READY, 0, failure("b", rank=1))
    ended = job.told("a", JobEnded)[0]
    assert ended.outcome is Outcome.FAILED
    assert ended.reason == f"{blame.summary}; no restart allowed (--max-restarts 0)"
    assert ended.failures[0] == blame
    job.attach("c")
    assert job.told("c", JobEnded)[0].outcome is Outcome.FAILED


def test_a_round_that_failed_fast_is_one_however_long_its_workers_took_to_end() -> None:
    job = running("ab", max_restarts=1, heartbeat_timeout=1000.0, policy=Policy(fast_failures_free=0))
    job.report("a", FAILED, 0, failure())
    job.pass_time(60.0)
    job.all_report("ab", READY, 0)
    assert job.of(Decided)[-1].text.endswith("before the first step: the next one starts in 1 s")
    job.pass_time(0.9)
    assert job.phase() is JobPhase.GATHERING
    job.pass_time(0.1)
    assert job.phase() is JobPhase.RUNNING


def test_a_job_that_ends_does_not_promise_another_round() -> None:
    job = running("ab", max_restarts=0, policy=Policy(fast_failures_free=0))
    job.report("a", FAILED, 0, failure())
    job.all_report("ab", READY, 0)
    assert job.phase() is JobPhase.FAILED
    assert "the next one" not in job.machine.state.end_reason


def test_a_worker_that_was_killed_from_outside_is_back_at_once() -> None:
    job = running("ab", max_restarts=9)
    for number in range(5):
        job.report("a", FAILED, number, failure(code=-9))
        job.all_report("ab", READY, number)
        assert job.phase() is JobPhase.RUNNING
        job.all_report("ab", RUNNING, number + 1)


def test_the_echo_of_a_lost_node_is_free() -> None:
    job = running("ab", min_nodes=1)
    job.report("a", FAILED, 0, failure("a"))
    job.report("a", READY, 0, failure("a"))
    job.do(Detached(job.sessions["b"], "reset"))
    assert (job.machine.state.phase, job.machine.state.round, job.machine.state.budget.used) == (
        JobPhase.RUNNING,
        1,
        0,
    )


def test_users_hear_the_cause_if_an_echo_came_before_it() -> None:
    job = running("ab")
    echo = replace(
        failure("b", rank=1), stderr_tail="RuntimeError: Connection closed by peer [127.0.0.1]:4711"
    )
    job.report("b", FAILED, 0, echo)
    job.report("b", READY, 0, echo)
    job.report("a", READY, 0, failure("a", FailureKind.SIGNAL, code=-9))
    assert "the cause of the stop was: rank 0" in " ".join(told.text for told in job.told("b", Waiting))


def test_the_echo_of_a_taken_port_is_free() -> None:
    job = running("ab")
    job.report("b", FAILED, 0, failure("b", rank=1))
    job.report("b", READY, 0, failure("b", rank=1))
    job.report("a", READY, 0, failure("a", FailureKind.PORT_TAKEN, code=98))
    assert (
        job.machine.state.round,
        job.machine.state.budget.used,
        job.machine.state.budget.store_retries,
    ) == (
        1,
        0,
        1,
    )


def test_the_store_is_served_where_node_0_offers_it_and_its_loss_is_free() -> None:
    job = Job(min_nodes=2, max_nodes=2, max_restarts=0)
    for name in "ab":
        job.attach(name, PREPARING)
    for name in "ab":
        offer = replace(job.status(name, READY, -1), hosts_store=name == "a")
        job.do(Reported(job.sessions[name], offer))
    assert [job.told(name, StartRound)[0].assignment.store_hosted for name in "ab"] == [True, True]
    lost = failure("a", FailureKind.STORE_LOST, code=-9)
    job.report("a", FAILED, 0, lost)
    job.report("b", FAILED, 0, failure("b", rank=1))
    job.report("b", READY, 0, failure("b", rank=1))
    job.report("a", READY, 0, lost)  # and offers it no more
    assert (
        job.machine.state.round,
        job.machine.state.budget.used,
        job.machine.state.budget.store_retries,
    ) == (
        1,
        0,
        1,
    )
    assert not job.told("b", StartRound)[0].assignment.store_hosted


def test_a_failure_after_a_free_stop_is_an_echo() -> None:
    job = running("a", max_nodes=2)
    job.attach("b")
    assert job.told("a", StopRound)[0].reason == "b can join"
    job.report("a", FAILED, 0, failure("a"))
    job.report("a", READY, 0, failure("a"))
    assert (job.machine.state.previous, job.machine.state.budget.used) == (("a", "b"), 0)


def test_a_member_without_workers_stops_the_round_for_free() -> None:
    job = running("ab")
    job.report("a", READY, 0)
    assert job.told("b", StopRound)[0].reason == "a has no workers left"
    job.report("b", READY, 0)
    assert (job.machine.state.round, job.machine.state.budget.used) == (1, 0)


# -- nodes come and go


def test_a_lost_member_is_replaced_by_a_spare_in_its_seat() -> None:
    job = running("abc")
    job.attach("d")
    assert job.phase() == JobPhase.RUNNING
    job.do(Detached(job.sessions["b"], "reset"))
    job.all_report("ac", READY, 0)
    assert job.machine.state.previous == ("a", "d", "c")


def test_a_spare_is_told_at_once_and_again_that_the_world_is_full() -> None:
    job = running("a")
    job.attach("b")
    assert message_types(job, "b") == [Welcome, StopRound]
    job.pass_time(0.0)
    assert "the world is full" in job.told("b", Waiting)[0].text
    assert not job.told("a", Waiting)
    job.pass_time(10.0)
    assert len(job.told("b", Waiting)) == 1
    job.do(Left(job.sessions["b"], "stopped"))
    assert not [e for e in job.pass_time(20.0) if isinstance(e, Send)]


def test_a_joiner_that_cannot_make_the_world_larger_waits() -> None:
    job = running("ab", max_nodes=4, node_unit=2)
    job.attach("c")
    assert job.phase() == JobPhase.RUNNING
    job.attach("d")
    assert job.phase() == JobPhase.STOPPING


def test_a_joiner_counts_only_when_it_is_ready() -> None:
    job = running("a", max_nodes=2)
    job.attach("b", PREPARING)
    assert job.phase() == JobPhase.RUNNING
    job.report("b", READY, -1)
    assert job.phase() == JobPhase.STOPPING


def test_nobody_joins_once_a_member_has_finished() -> None:
    job = running("ab", max_nodes=3)
    job.report("a", FINISHED, 0)
    job.attach("c")
    assert job.phase() == JobPhase.RUNNING
    job.report("b", FINISHED, 0)
    assert job.told("c", JobEnded)[0].outcome is Outcome.SUCCEEDED


def test_a_joiner_during_a_stop_is_part_of_the_next_world() -> None:
    job = running("ab", max_nodes=3, max_restarts=1)
    job.report("a", FAILED, 0, failure("a"))
    job.attach("c")
    job.report("a", READY, 0, failure("a"))
    job.report("b", READY, 0)
    assert job.machine.state.previous == ("a", "b", "c")


def test_leaving_is_free_and_for_good() -> None:
    job = running("ab", min_nodes=1)
    left = job.sessions["b"]
    job.do(Left(left, "stopped by signal 15"))
    assert job.drops() == [Drop(left)]
    assert job.told("a", StopRound)[0].reason == "b left: stopped by signal 15"
    job.attach("b", STOPPING, 0, epoch=1)  # its link comes back while its workers still stop
    assert job.drops()[0].farewell is not None
    job.report("a", READY, 0)
    assert (job.machine.state.previous, job.machine.state.budget.used) == (("a",), 0)


def test_a_member_that_leaves_after_it_finished_does_not_hold_up_success() -> None:
    job = running("ab")
    job.report("a", FINISHED, 0)
    job.do(Left(job.sessions["a"], "stopped"))
    assert job.phase() == JobPhase.RUNNING
    job.report("b", FINISHED, 0)
    assert job.of(Ended)[0].outcome is Outcome.SUCCEEDED
    assert job.told("b", JobEnded)[0].failures == ()


def test_all_nodes_lost_means_gathering_again() -> None:
    job = running("ab")
    job.do(Detached(1, "reset"))
    job.do(Detached(2, "reset"))
    assert job.phase() == JobPhase.GATHERING
    job.attach("c")
    job.attach("b", life=2)
    assert job.machine.state.previous == ("b", "c")  # b has its place of before, in front of a newcomer


def test_a_round_that_everybody_finished_before_hearing_of_a_stop_is_a_success() -> None:
    job = running("ab", max_nodes=3)
    job.attach("c")
    assert job.phase() == JobPhase.STOPPING
    job.report("a", FINISHED, 0)
    job.report("b", FINISHED, 0)
    assert job.phase() == JobPhase.SUCCEEDED


def test_a_node_declared_lost_that_comes_back_with_workers_must_stop_them() -> None:
    job = running("ab", min_nodes=1)
    job.do(Detached(job.sessions["b"], "silent"))
    job.report("a", READY, 0)
    assert job.machine.state.previous == ("a",)
    job.report("a", RUNNING, 1)
    job.attach("b", RUNNING, 0, epoch=1)
    assert job.told("b", StopRound)[0].round == 1
    assert job.phase() == JobPhase.RUNNING
    job.report("b", READY, 1)
    assert job.phase() == JobPhase.STOPPING


def test_a_node_that_finished_and_comes_back_waits_for_the_others() -> None:
    job = running("ab")
    job.report("b", FINISHED, 0)
    job.do(Detached(job.sessions["b"], "reset"))
    job.attach("b", FINISHED, 0, epoch=1)
    job.report("b", READY, 0)
    assert job.phase() == JobPhase.RUNNING
    job.report("a", FINISHED, 0)
    assert job.told("b", JobEnded)[0].outcome is Outcome.SUCCEEDED


# -- liveness


def test_a_silent_agent_is_lost_and_one_that_beats_is_not() -> None:
    job = running("ab", min_nodes=1, heartbeat_timeout=30.0)
    job.pass_time(20.0)
    job.do(Beat(job.sessions["a"]))
    job.pass_time(10.0)
    assert [drop.session for drop in job.drops()] == [job.sessions["b"]]
    assert "b lost: silent for 30 s" in [decided.text for decided in job.of(Decided)]
    assert job.told("a", StopRound)


def test_a_report_is_a_sign_of_life() -> None:
    job = running("a", heartbeat_timeout=30.0)
    job.pass_time(20.0)
    job.report("a", RUNNING, 0)
    job.pass_time(20.0)
    assert job.phase() == JobPhase.RUNNING


def test_a_node_that_is_not_ready_any_more_is_no_candidate() -> None:
    job = Job(min_nodes=2, max_nodes=2)
    job.attach("a")
    job.report("a", STOPPING, -1)
    job.attach("b")
    assert job.phase() == JobPhase.GATHERING


# -- fences


def test_messages_of_a_stale_session_change_nothing() -> None:
    job = running("a")
    stale = 99
    for event in (
        Reported(stale, job.status("a", FINISHED, 0)),
        Beat(stale),
        Left(stale, ""),
        Detached(stale, ""),
    ):
        assert job.do(event) == []
    assert job.phase() == JobPhase.RUNNING


def test_a_status_that_is_not_newer_is_dropped() -> None:
    job = running("a")
    old = AgentStatus(2, FINISHED, 0)
    assert job.do(Reported(job.sessions["a"], old)) == []
    assert job.phase() == JobPhase.RUNNING


def test_a_status_of_an_earlier_round_says_nothing_about_this_one() -> None:
    job = running("a", max_restarts=1)
    job.report("a", READY, 0, failure("a"))
    assert job.machine.state.round == 1
    job.report("a", FINISHED, 0, failure("a", code=2))
    assert (job.machine.state.phase, job.machine.state.current.failures) == (JobPhase.RUNNING, [])


def test_the_newest_stream_of_an_agent_wins() -> None:
    job = running("a")
    old = job.sessions["a"]
    job.attach("a", RUNNING, 0, epoch=1)
    assert job.drops() == [Drop(old)]
    assert [m.assignment.round for m in job.told("a", StartRound)] == [0]
    assert job.do(Detached(old, "replaced")) == []
    hello = Hello("job", "1", info("a"), job.status("a", RUNNING, 0), 1, trust=Trust.RETURNING)
    assert job.do(Attached(old, hello)) == [Drop(old)]  # late; its own agent must not exit because of it


def test_a_stranger_who_takes_the_name_of_a_node_that_is_away_does_not_end_it() -> None:
    job = running("ab")
    job.do(Detached(job.sessions["b"], "reset"))
    job.trust = Trust.STRANGER
    job.attach("b", life=2)
    assert job.drops() == []
    job.trust = Trust.RETURNING
    job.attach("b", RUNNING, 0, epoch=1)
    [drop] = job.drops()
    assert isinstance(drop.farewell, Rejected)
    assert drop.farewell.code is RejectCode.NAME_IN_USE, "so it tries again, and the workers go on"
    job.do(Detached(job.sessions["b"] - 1, "the stranger is gone"))
    job.attach("b", RUNNING, 0, epoch=1)
    assert job.drops() == []


@pytest.mark.parametrize("life", [1, 2])
@pytest.mark.parametrize("trust", [Trust.STRANGER, Trust.MEMBER])
def test_a_hello_in_the_name_of_a_live_node_changes_nothing_but_is_told_so(trust: Trust, life: int) -> None:
    job = running("ab")
    before = fingerprint(job.machine.state)
    session, job.trust = job.sessions["b"], trust
    job.attach("b", life=life)
    [drop] = job.drops()
    assert drop.session == session + 1
    assert isinstance(drop.farewell, Rejected)
    assert drop.farewell.code is RejectCode.NAME_IN_USE
    assert difference(before, fingerprint(job.machine.state)) == ""


def test_after_the_end_nobodys_name_is_kept() -> None:
    job = running("ab")
    job.do(MasterStarted(2))
    job.attach("a", FINISHED, 0, epoch=1)
    job.trust = Trust.STRANGER
    job.attach("b", life=2)
    assert job.drops()[0].farewell is not None
    job.trust = Trust.RETURNING
    job.attach("b", FINISHED, 0, epoch=1)
    job.do(MasterStarted(3))
    job.trust = Trust.STRANGER
    job.attach("b", life=2)
    assert job.told("b", JobEnded)


def test_a_new_incarnation_takes_the_place_of_one_that_a_restarted_master_waits_for() -> None:
    job = running("ab")
    job.do(MasterStarted(2))
    job.trust = Trust.MEMBER
    job.attach("b", life=2)
    assert job.drops() == []
    assert job.phase() == JobPhase.STOPPING
    job.attach("b", RUNNING, 0, epoch=1, life=1)
    [drop] = job.drops()
    assert isinstance(drop.farewell, Rejected)
    assert drop.farewell.code is RejectCode.SUPERSEDED
    job.sessions["b"] -= 1
    job.report("a", READY, 0)
    assert job.machine.state.previous == ("a", "b")
    assert job.machine.state.budget.used == 0


# -- the master comes back


def test_a_restarted_master_waits_for_known_agents_and_stops_nothing() -> None:
    job = running("ab")
    job.do(MasterStarted(2))
    assert (job.machine.state.epoch, job.machine.state.phase) == (2, JobPhase.RUNNING)
    job.attach("a", RUNNING, 0, epoch=1)
    job.attach("b", RUNNING, 0, epoch=1)
    assert message_types(job, "b") == [Welcome, StartRound]
    job.pass_time(20.0)
    assert job.phase() == JobPhase.RUNNING
    assert not job.of(Drop)


def test_who_does_not_come_back_is_lost() -> None:
    job = running("ab", min_nodes=1, reattach_timeout=15.0)
    job.do(MasterStarted(2))
    job.attach("a", RUNNING, 0, epoch=1)
    job.attach("c")
    job.pass_time(15.0)
    assert job.phase() == JobPhase.RUNNING  # c may not join while it is not known who is there
    job.pass_time(2 * REATTACH_EACH)
    assert any(decided.text.startswith("b lost: not back in time") for decided in job.of(Decided))
    assert job.told("a", StopRound)


def test_the_more_nodes_are_awaited_the_longer_each_may_take() -> None:
    job = running("abcd", reattach_timeout=3.0)
    job.do(MasterStarted(2))
    assert job.machine.next_deadline() == pytest.approx(4.0 + 4 * REATTACH_EACH)
    job.pass_time(2.0)
    job.attach("a", RUNNING, 0, epoch=1)
    assert job.machine.next_deadline() == pytest.approx(6.0 + 3 * REATTACH_EACH), "who came is seen"
    job.pass_time(1.0)
    job.attach("a", RUNNING, 0, epoch=2)
    assert job.machine.next_deadline() == pytest.approx(6.0 + 3 * REATTACH_EACH), "nobody new came"
    for node in "bcd":
        job.pass_time(2.0)
        job.attach(node, RUNNING, 0, epoch=1)
    job.pass_time(20.0)
    assert job.phase() == JobPhase.RUNNING


def test_no_world_forms_while_known_nodes_are_about_to_come_back() -> None:
    job = Job(min_nodes=1, max_nodes=3, last_call_timeout=5.0, reattach_timeout=5.0)
    job.attach("a")
    job.attach("b")
    job.pass_time(4.0)
    job.do(MasterStarted(2))
    assert "master epoch 2 starts; 2 known nodes may re-attach" in [it.text for it in job.of(Decided)]
    job.attach("a", epoch=1)
    job.pass_time(4.0)
    assert job.phase() == JobPhase.GATHERING
    job.attach("b", epoch=1)
    job.pass_time(5.0)
    assert job.machine.state.previous == ("a", "b")


def test_a_restart_gives_everybody_time_whatever_their_heartbeats_were() -> None:
    job = running("a", heartbeat_timeout=30.0, reattach_timeout=15.0)
    job.pass_time(25.0)
    job.do(MasterStarted(2))
    job.pass_time(10.0)
    assert list(job.machine.state.members.nodes) == ["a"]
    job.attach("a", RUNNING, 0, epoch=1)
    assert "a re-attaches" in [decided.text for decided in job.of(Decided)]
    assert job.phase() == JobPhase.RUNNING


def test_a_new_incarnation_of_a_node_that_is_not_back_yet_replaces_it() -> None:
    job = running("ab")
    job.do(MasterStarted(2))
    job.attach("b", life=2)
    assert job.drops() == []
    assert job.phase() == JobPhase.STOPPING


def test_a_first_master_waits_for_nobody_to_come_back() -> None:
    job = Job(reattach_timeout=15.0, waiting_notice_interval=99.0)
    assert job.machine.next_deadline() == 99.0


def test_an_epoch_only_grows() -> None:
    job = Job()
    job.do(MasterStarted(1))
    assert job.machine.state.epoch == 2
    job.do(MasterStarted(9))
    assert job.machine.state.epoch == 9


@pytest.mark.parametrize(("seen", "epoch"), [(0, 1), (1, 2), (7, 8)])
def test_a_master_overtakes_one_that_it_does_not_know(seen: int, epoch: int) -> None:
    job = Job()
    job.attach("a", RUNNING, 7, epoch=seen)
    assert job.told("a", Welcome)[0].epoch == epoch
    assert job.told("a", StopRound)[0].epoch == epoch
    job.attach("a", RUNNING, 7, epoch=epoch)  # by now it is known, so that nothing is to be overtaken
    assert job.told("a", Welcome)[0].epoch == epoch


def test_a_master_that_forgot_the_job_goes_on_with_the_next_round() -> None:
    job = Job(min_nodes=2, max_nodes=2)
    job.attach("a", RUNNING, 7, epoch=3)
    job.attach("b", FINISHED, 7, epoch=3)
    assert job.told("b", StopRound)[0].round == 7
    job.all_report("ab", READY, 7)
    assert job.told("a", StartRound)[0].assignment.round == 8


def test_an_agent_of_a_later_round_does_not_blind_the_master_to_its_own() -> None:
    job = running("ab")
    job.attach("c", RUNNING, 7, epoch=5)
    assert job.told("c", StopRound)[0].round == 7
    job.all_report("ab", FINISHED, 0)
    assert job.phase() == JobPhase.SUCCEEDED


def test_a_member_that_followed_another_master_is_no_member_any_more() -> None:
    job = running("ab", max_restarts=0)
    job.attach("a", RUNNING, 4, epoch=9)
    assert job.told("a", StopRound)[0].round == 4
    assert "followed another master" in job.told("b", StopRound)[0].reason
    job.report("b", READY, 0)
    job.report("a", READY, 4)
    assert (job.machine.state.phase, job.machine.state.round, job.machine.state.budget.used) == (
        JobPhase.RUNNING,
        5,
        0,
    )


def test_a_directive_that_was_on_its_way_is_stale_after_a_reattach() -> None:
    """Start of round 0 is lost with the stream; by the time it arrives late, its stamp must be old."""
    job = Job(min_nodes=2, max_nodes=2)
    job.attach("a")
    job.attach("b")
    late = job.told("b", StartRound)[0]
    job.do(Detached(job.sessions["b"], "reset"))
    job.attach("b", READY, -1, epoch=1)
    stop = job.told("b", StopRound)[0]
    assert (stop.epoch, stop.sequence) > (late.epoch, late.sequence)
    assert stop.round == 0


def test_an_ended_job_tells_everybody_who_comes_and_forgets_who_stays_away() -> None:
    job = running("ab")
    job.all_report("ab", FINISHED, 0)
    job.do(MasterStarted(2))
    assert job.phase() == JobPhase.SUCCEEDED
    job.attach("a", FINISHED, 0, epoch=1)
    assert job.told("a", JobEnded)
    job.pass_time(15.0)
    assert list(job.machine.state.members.nodes) == ["a"]
    job.pass_time(100.0)
    assert not job.machine.state.members.nodes
    assert job.machine.next_deadline() is None


def test_after_a_restart_a_gone_agent_is_not_addressed() -> None:
    job = running("ab", max_restarts=1)
    job.do(MasterStarted(2))
    job.attach("a", FAILED, 0, epoch=1)
    job.report("a", FAILED, 0, failure("a"))
    assert [effect.session for effect in job.of(Send)] == [job.sessions["a"]]
    job.pass_time(10.0)
    job.do(MasterStarted(3))
    job.attach("x", PREPARING)
    job.pass_time(0.0)
    assert job.phase() == JobPhase.STOPPING


def test_waiting_nodes_that_are_not_back_are_not_addressed() -> None:
    job = Job(min_nodes=3, max_nodes=3, reattach_timeout=15.0)
    job.attach("a")
    job.attach("b")
    job.do(MasterStarted(2))
    job.attach("a", epoch=1)
    job.pass_time(10.0)
    assert {effect.session for effect in job.of(Send)} == {job.sessions["a"]}


def test_a_stop_that_lasts_is_told_with_those_who_are_waited_for() -> None:
    job = running("ab", max_restarts=1, heartbeat_timeout=1e6)
    job.report("a", AgentPhase.FAILED, 0, failure("a"))
    job.report("a", AgentPhase.READY, 0)
    job.pass_time(10.0)
    assert [said.text for said in job.told("a", Waiting)] == ["round 0 is being stopped; waiting for b"]
    job.report("b", AgentPhase.READY, 0)
    assert job.machine.state.round == 1
    job.pass_time(20.0)
    assert not job.told("a", Waiting)
