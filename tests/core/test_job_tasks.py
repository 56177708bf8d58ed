"""What the master decides about single tasks of a TensorFlow job while its round runs."""

from __future__ import annotations

from dataclasses import replace

import pytest

from elasticrun.config import Action, FailureClass, Policy, PolicyRule, TaskRole
from elasticrun.core.job.events import Detached, Ended, Left, MasterStarted, Reported
from elasticrun.core.job.tasks import SERVING_TIME, TOGETHER
from elasticrun.core.protocol.messages import (
    AgentPhase,
    Evidence,
    Failure,
    FailureKind,
    JobEnded,
    Outcome,
    RejectCode,
    Rejected,
    Stall,
    StartRound,
    StopRound,
    Waiting,
)
from elasticrun.core.protocol.orders import DrainNode
from elasticrun.core.protocol.status import JobPhase
from elasticrun.core.protocol.tasks import TaskReport
from elasticrun.core.recovery.budget import StopCause
from elasticrun.core.tensorflow.role_recovery import SERVES
from tests.core.tf_build import CHIEF, EVALUATOR, MIRRORED, PS, SERVED, WORKER, TfJob, died, tasks_of

READY, RUNNING, FINISHED = AgentPhase.READY, AgentPhase.RUNNING, AgentPhase.FINISHED
FAILED, STOPPING = AgentPhase.FAILED, AgentPhase.STOPPING
#: Where each task of SERVED sits.
CHIEF_0, PS_0, WORKER_0, PS_1, EVALUATOR_0 = ("a", 0), ("a", 1), ("b", 0), ("b", 1), ("c", 0)
TRACEBACK = 'Traceback (most recent call last):\n  File "t.py", line 1, in <module>\n'
BAD_MEMORY = TRACEBACK + "RuntimeError: uncorrectable ECC error encountered"
#: Every failure that comes soon is paced.
PATIENT = Policy(fast_failures_free=0, backoff_first=5.0)


def test_all_tasks_of_a_cluster_hear_the_tag_of_the_job() -> None:
    given = job(tag="drawn").machine.state.current.assignments
    assert {each.tag for each in given.values()} == {"drawn"}


def job(**config: object) -> TfJob:
    return TfJob(SERVED, **{"spare": 2} | config).run()  # type: ignore[arg-type]


# -- a task is lost


@pytest.mark.parametrize(
    ("task", "code", "raised", "told"),
    [
        (WORKER_0, -9, {"worker 0": 1}, {"b"}),
        (WORKER_0, 0, {"worker 0": 1}, {"b"}),
        (PS_1, -9, {"chief 0": 1, "ps 1": 1}, {"a", "b"}),
        (PS_0, 0, {"chief 0": 1, "ps 0": 1}, {"a"}),
        (CHIEF_0, 1, {"chief 0": 1}, {"a"}),
        (EVALUATOR_0, 1, {"evaluator 0": 1}, {"c"}),
        (EVALUATOR_0, 0, {}, set()),
    ],
)
def test_a_lost_task_is_restarted_with_what_it_takes_along(
    task: tuple[str, int], code: int, raised: dict[str, int], told: set[str]
) -> None:
    case = job()
    case.lose(*task, died(*task, code) if code else None)
    assert (case.raised(), case.heard()) == (raised, told)
    assert (case.phase(), case.machine.state.round) == (JobPhase.RUNNING, 0)
    assert case.machine.state.budget.used == bool(raised)


def test_a_loss_is_charged_and_told_once() -> None:
    case = job()
    case.kill(*WORKER_0)
    assert case.decided() == (
        "round 0 goes on without worker 0: rank 0 (local rank 0, pid 1, b) was killed by signal 9;"
        " restart 1 of 3"
    )
    case.say("b")
    assert (case.decided(), case.heard()) == ("", set())
    case.obey("b")
    case.kill(*WORKER_0)
    assert case.raised() == {"worker 0": 2}
    assert case.machine.state.budget.used == 2


def test_the_assignment_that_is_told_anew_is_that_of_the_same_round() -> None:
    case = job()
    before = case.machine.state.current.assignments
    case.kill(*PS_1)
    (start,) = case.told("b", StartRound)
    assert start.reason == "ps 1 ended; restart 1 of 3"
    expected = replace(before["b"], tasks=start.assignment.tasks, restart_count=1)
    assert start.assignment == expected
    assert [task.attempt for task in start.assignment.tasks] == [0, 1]


def test_losses_that_are_heard_of_moments_apart_are_charged_once() -> None:
    """As when the kernel kills two tasks for their memory: the chief's end may be told first."""
    case = job()
    case.kill(*CHIEF_0)
    case.pass_time(TOGETHER / 2)
    case.kill(*PS_1)
    assert case.raised() == {"chief 0": 2, "ps 1": 1}
    assert case.machine.state.budget.used == 1
    assert "goes on without chief 0: " in case.decided()
    assert "; ps 1: " in case.decided()
    assert "; restart 1 of 3" in case.decided()
    case.run()
    assert case.raised() == {"chief 0": 2, "ps 1": 1}


@pytest.mark.parametrize(("first", "then"), [(WORKER_0, WORKER_0), (PS_1, CHIEF_0)])
def test_what_was_started_again_is_lost_for_another_reason(
    first: tuple[str, int], then: tuple[str, int]
) -> None:
    case = job()
    case.kill(*first)
    case.run()
    case.kill(*then)
    assert case.machine.state.budget.used == 2


def test_losses_far_apart_are_two() -> None:
    case = job()
    case.kill(*WORKER_0)
    case.pass_time(TOGETHER)
    case.kill(*CHIEF_0)
    assert case.machine.state.budget.used == 2


def test_a_loss_that_adds_to_one_that_was_free_is_charged() -> None:
    case = job()
    case.lose(*CHIEF_0, died(*CHIEF_0, 42))
    assert case.machine.state.budget.used == 0
    case.kill(*WORKER_0)
    assert case.machine.state.budget.used == 1


def test_losses_of_one_report_are_charged_once() -> None:
    case = job()
    case.tasks["b"] = tuple(TaskReport(rank, 0, True, died("b", rank, -9)) for rank in (0, 1))
    case.say("b")
    assert case.raised() == {"chief 0": 1, "worker 0": 1, "ps 1": 1}
    assert case.machine.state.budget.used == 1


@pytest.mark.parametrize("code", [1, 42, -15])
def test_a_chief_that_ends_because_its_parameter_server_is_gone_is_no_second_loss(code: int) -> None:
    case = job()
    case.kill(*PS_1)
    case.lose(*CHIEF_0, died(*CHIEF_0, code))
    assert case.raised() == {"chief 0": 1, "ps 1": 1}
    assert case.machine.state.budget.used == 1
    case.run()
    assert case.raised() == {"chief 0": 1, "ps 1": 1}


def test_what_was_lost_while_the_master_was_away_is_charged_once() -> None:
    case = job(reattach_timeout=8.0)
    case.do(MasterStarted(2))
    for task in (CHIEF_0, PS_1):
        case.tasks[task[0]] = tuple(
            replace(report, ended=True, failure=died(*task)) if report.local_rank == task[1] else report
            for report in case.tasks[task[0]]
        )
    for node in "ab":
        case.attach(node, RUNNING, 0, roles=SERVED[node])
        assert case.raised() == {}, "more may have been lost"
    case.attach("c", RUNNING, 0, roles=SERVED["c"])
    assert case.raised() == {"chief 0": 1, "ps 1": 1}
    assert case.machine.state.budget.used == 1


def test_who_comes_back_late_hears_what_is_wanted_by_then() -> None:
    case = job()
    case.kill(*PS_1)
    for node in "abc":
        case.attach(node, RUNNING, 0, epoch=1, roles=SERVED[node])
        (start,) = case.told(node, StartRound)
        assert start.assignment == case.machine.state.current.assignments[node]
    assert case.raised() == {"chief 0": 1, "ps 1": 1}


def test_without_parameter_servers_a_lost_worker_ends_the_round() -> None:
    case = TfJob(MIRRORED).run()
    case.tasks["b"] = (TaskReport(0, 0, True, died("b", 0)),)
    case.report("b", FAILED, 0, died("b", 0))
    assert case.phase() is JobPhase.STOPPING
    assert case.raised() == {}
    case.all_report("ab", READY, 0)
    assert (case.phase(), case.machine.state.round) == (JobPhase.RUNNING, 1)
    assert case.machine.state.budget.used == 1


def test_an_evaluator_is_lost_alone_beside_mirrored_workers_as_well() -> None:
    case = TfJob(MIRRORED).run()
    case.kill("a", 1)
    assert case.raised() == {"evaluator 0": 1}
    assert case.heard() == {"a"}
    assert case.phase() is JobPhase.RUNNING


# -- what a restart costs


def test_a_spent_budget_ends_the_job_in_good_order() -> None:
    case = job(max_restarts=1)
    case.kill(*WORKER_0)
    case.obey("b")
    case.pass_time(TOGETHER)
    case.kill(*PS_1)
    assert case.phase() is JobPhase.STOPPING
    assert case.told("a", StopRound)
    assert case.raised() == {"worker 0": 1}
    case.all_report("abc", READY, 0)
    (ended,) = case.of(Ended)
    assert ended.outcome is Outcome.FAILED
    assert ended.reason == (
        "ps 1: rank 1 (local rank 1, pid 1, b) was killed by signal 9; all 1 restarts are used"
    )
    (told,) = case.told("a", JobEnded)
    assert told.failures == (died(*PS_1, -9),)


def test_without_restarts_the_first_loss_ends_the_job() -> None:
    case = job(max_restarts=0)
    case.lose(*WORKER_0, None)
    assert case.phase() is JobPhase.STOPPING
    case.all_report("abc", READY, 0)
    assert case.of(Ended) == [
        Ended(Outcome.FAILED, f"worker 0: {SERVES}; no restart allowed (--max-restarts 0)")
    ]


def test_a_saved_state_is_free_but_paced() -> None:
    case = job(max_restarts=0, policy=PATIENT)
    case.lose(*CHIEF_0, died(*CHIEF_0, 42, step=-1))
    assert case.raised() == {}
    assert "the next one starts in 5 s" in case.decided()
    assert "free: state saved" in case.decided()
    case.pass_time(4.9)
    assert case.raised() == {}
    case.pass_time(0.1)
    assert case.raised() == {"chief 0": 1}
    assert case.machine.state.budget.used == 0
    case.obey("a")
    case.pass_time(1000.0)
    case.lose(*CHIEF_0, died(*CHIEF_0, 42))
    assert case.raised() == {"chief 0": 2}


def test_a_mirrored_worker_that_has_saved_its_state_is_free() -> None:
    case = TfJob(MIRRORED, max_restarts=0).run()
    case.report("b", FAILED, 0, died("b", 0, 42))
    case.report("a", FAILED, 0, died("a", 0, 1))
    assert case.machine.state.current.stop == (StopCause.SAVED, died("b", 0, 42).summary)
    case.all_report("ab", READY, 0)
    assert (case.machine.state.round, case.machine.state.budget.used) == (1, 0)


def test_a_mirrored_workers_echo_is_excused_if_another_one_has_saved_its_state() -> None:
    case = TfJob(MIRRORED, max_restarts=0, policy=PATIENT).run()
    case.report("a", FAILED, 0, died("a", 0, 1, step=-1))
    case.report("b", FAILED, 0, died("b", 0, 42, step=-1))
    case.all_report("ab", READY, 0)
    assert case.phase() is JobPhase.GATHERING, "it failed fast"
    case.pass_time(5.0)
    assert (case.machine.state.round, case.machine.state.budget.used) == (1, 0)


def test_a_status_of_42_means_nothing_in_another_job() -> None:
    case = TfJob({"a": (), "b": ()}).run()
    case.report("a", FAILED, 0, died("a", 0, 42))
    assert case.machine.state.current.stop == (StopCause.WORKER_FAILED, died("a", 0, 42).summary)


def test_what_is_lost_while_another_one_waits_comes_at_no_further_cost() -> None:
    case = job(policy=PATIENT)
    case.lose(*PS_1, died(*PS_1, step=-1))
    case.pass_time(2.0)
    case.lose(*CHIEF_0, died(*CHIEF_0))
    case.lose(*WORKER_0, died(*WORKER_0))
    assert case.raised() == {}
    case.pass_time(3.0)
    assert case.raised() == {"chief 0": 1, "worker 0": 1, "ps 1": 1}
    assert case.machine.state.budget.used == 1


def test_a_chief_that_ends_with_0_during_the_wait_is_not_restarted() -> None:
    case = job(policy=PATIENT)
    case.lose(*PS_1, died(*PS_1, step=-1))
    case.lose(*CHIEF_0, None)
    case.pass_time(5.0)
    assert case.raised() == {}
    case.pass_time(55.0)
    assert case.phase() is JobPhase.SUCCEEDED


def test_a_change_of_size_during_the_wait_leaves_nothing_to_restart() -> None:
    case = job(policy=PATIENT)
    case.lose(*PS_1, died(*PS_1, step=-1))
    case.scale(PS, 1)
    assert case.raised() == {"chief 0": 1}
    case.pass_time(5.0)
    assert (case.raised(), case.heard()) == ({"chief 0": 1}, set())
    assert case.machine.state.current.start_reason == "scaled ps: 2 -> 1"
    case.run()
    assert case.attempts == {"chief 0": 1, "ps 0": 0, "worker 0": 0, "evaluator 0": 0}
    case.say("b")
    assert case.phase() is JobPhase.RUNNING


def test_a_round_that_stops_during_the_wait_forgets_it() -> None:
    case = job(policy=PATIENT)
    case.lose(*WORKER_0, died(*WORKER_0, step=-1))
    case.do(Detached(case.sessions["c"], "gone"))
    assert case.phase() is JobPhase.STOPPING
    case.pass_time(5.0)
    assert case.raised() == {}


def test_the_same_error_again_ends_the_job() -> None:
    case = job(policy=Policy(same_error_rounds=2))
    text = TRACEBACK + "ValueError: no"
    case.lose(*CHIEF_0, died(*CHIEF_0, traceback=text))
    case.obey("a")
    case.lose(*CHIEF_0, died(*CHIEF_0, traceback=text))
    assert case.phase() is JobPhase.STOPPING
    case.all_report("abc", READY, 0)
    (ended,) = case.of(Ended)
    assert ended.outcome is Outcome.REPEATED_ERROR
    assert "2 rounds in a row failed at step 7 with the same error" in ended.reason


@pytest.mark.parametrize("action", [Action.LEAVE, Action.RECHECK, Action.GIVE_UP])
def test_the_policy_decides(action: Action) -> None:
    case = job(policy=Policy(rules=(PolicyRule(FailureClass.HARDWARE, action),)))
    case.lose(*WORKER_0, died(*WORKER_0, traceback=BAD_MEMORY))
    if action is Action.LEAVE:
        assert "b" not in case.machine.state.members.nodes
        assert case.machine.state.current.stop is not None
        assert case.machine.state.current.stop[0] is StopCause.MEMBER_LEFT
        case.all_report("ac", READY, 0)
        assert (case.phase(), case.machine.state.budget.used) == (JobPhase.GATHERING, 0)
    elif action is Action.RECHECK:
        assert case.raised() == {"worker 0": 1}
        assert case.machine.state.health.suspects == {"b"}
        assert "check the node, then restart, before the next round" in case.decided()
    else:
        case.all_report("abc", READY, 0)
        assert case.phase() is JobPhase.FAILED


def test_a_failure_of_what_nodes_do_together_makes_all_of_them_suspects() -> None:
    case = job()
    case.lose(*CHIEF_0, died(*CHIEF_0, traceback=TRACEBACK + "RuntimeError: Connection closed by peer"))
    assert case.raised() == {"chief 0": 1}
    assert case.machine.state.health.suspects == {"a", "b", "c"}


def test_an_evaluator_whose_node_has_to_leave_when_its_workers_are_done() -> None:
    policy = Policy(rules=(PolicyRule(FailureClass.HARDWARE, Action.LEAVE),))
    case = TfJob(MIRRORED, policy=policy).run()
    case.tasks["a"] = (TaskReport(0, 0), TaskReport(1, 0, True, died("a", 1, traceback=BAD_MEMORY)))
    case.report("a", FINISHED, 0)
    assert "a" not in case.machine.state.members.nodes
    case.say("b")
    assert case.machine.state.budget.used == 0


def test_a_failure_in_the_name_of_another_node_is_the_fault_of_who_tells_it() -> None:
    policy = Policy(rules=(PolicyRule(FailureClass.HARDWARE, Action.LEAVE),))
    for name in ("nobody", "a"):
        case = job(policy=policy)
        case.lose(*WORKER_0, died(name, 0, traceback=BAD_MEMORY))
        assert WORKER_0[0] not in case.machine.state.members.nodes
        assert "a" in case.machine.state.members.nodes
        assert not case.machine.state.health.suspects


# -- the end


def test_the_end_of_the_chief_ends_the_job() -> None:
    case = TfJob({"a": (CHIEF, PS), "b": (WORKER,)}).run()
    case.lose("a", 0, None)
    assert case.of(Ended) == [Ended(Outcome.SUCCEEDED, "the leading task of round 0 ended with 0")]
    assert case.told("b", JobEnded)


def test_an_evaluator_has_some_time_to_end_after_the_chief() -> None:
    case = job(finish_timeout=25.0)
    case.lose(*CHIEF_0, None)
    case.pass_time(10.0)
    text = "chief 0 has ended with 0; waiting for evaluator 0 to end, at most 25 s (--tf-finish-timeout)"
    assert [waiting.text for waiting in case.told("c", Waiting)] == [text]
    case.pass_time(14.9)
    assert case.phase() is JobPhase.RUNNING
    case.pass_time(0.1)
    assert case.phase() is JobPhase.SUCCEEDED
    assert "evaluator 0 did not end within 25 s" in case.told("a", Waiting)[0].text


def test_an_evaluator_that_ends_in_time_ends_the_job() -> None:
    case = job()
    case.lose(*CHIEF_0, None)
    case.lose(*EVALUATOR_0, None)
    assert case.phase() is JobPhase.SUCCEEDED


def test_nothing_is_restarted_after_the_chiefs_end() -> None:
    case = job()
    case.lose(*CHIEF_0, None)
    for task in (WORKER_0, PS_1, EVALUATOR_0):
        case.kill(*task)
        assert case.raised() == {}
    assert (case.phase(), case.machine.state.budget.used) == (JobPhase.SUCCEEDED, 0)


def test_a_further_life_of_an_evaluator_has_its_time_as_well() -> None:
    case = job()
    case.kill(*EVALUATOR_0)
    case.obey("c")
    case.lose(*CHIEF_0, None)
    assert case.phase() is JobPhase.RUNNING
    case.lose(*EVALUATOR_0, None)
    assert case.phase() is JobPhase.SUCCEEDED


def test_a_chief_that_ends_with_0_while_it_is_being_restarted_has_ended_the_job() -> None:
    case = job()
    case.kill(*PS_1)
    case.lose(*CHIEF_0, None)
    case.lose(*EVALUATOR_0, None)
    assert case.phase() is JobPhase.SUCCEEDED


def test_the_end_of_worker_0_leaves_mirrored_workers_some_time() -> None:
    case = TfJob({"a": (WORKER,), "b": (WORKER, WORKER)}).run()
    case.tasks["a"] = (TaskReport(0, 0, True),)
    case.report("a", FINISHED, 0)
    assert case.phase() is JobPhase.RUNNING
    case.lose("b", 0, None)
    assert case.phase() is JobPhase.RUNNING
    case.pass_time(60)
    assert case.phase() is JobPhase.SUCCEEDED


def test_a_worker_that_fails_after_the_end_of_worker_0_harms_nobody() -> None:
    case = TfJob({"a": (WORKER,), "b": (WORKER,)}, max_restarts=0).run()
    case.lose("a", 0, None)
    case.report("b", FAILED, 0, died("b", 0))
    assert case.phase() is JobPhase.SUCCEEDED


def test_a_chief_that_ended_before_it_heard_of_the_stop_has_ended_the_job() -> None:
    case = job()
    case.do(DrainNode("c", "an order"))
    assert case.phase() is JobPhase.STOPPING
    case.lose(*CHIEF_0, None)
    assert case.phase() is JobPhase.SUCCEEDED


def test_a_node_lost_while_the_evaluator_ends_is_no_reason_to_go_on() -> None:
    case = job()
    case.lose(*CHIEF_0, None)
    case.do(Detached(case.sessions["b"], "gone"))
    assert case.phase() is JobPhase.SUCCEEDED


# -- a round that stops in good order


def test_servers_are_told_to_stop_when_the_chief_has_saved_its_state() -> None:
    case = job()
    case.do(DrainNode("c", "an order"))
    assert [stop.drain for stop in case.told("a", StopRound)] == [True]
    assert not case.told("b", StopRound)
    case.attach("b", RUNNING, 0, epoch=1, roles=SERVED["b"])
    assert case.told("b", StartRound), "it serves"
    case.report("a", STOPPING, 0)
    assert not case.told("b", StopRound)
    case.report("a", READY, 0)
    assert [stop.drain for stop in case.told("b", StopRound)] == [False]
    case.report("b", READY, 0)
    case.report("c", READY, 0)
    assert case.phase() is JobPhase.GATHERING


def test_a_server_that_leaves_is_told_when_the_chief_has_saved_its_state() -> None:
    case = job()
    leave(case, "b", STOPPING)
    assert [stop.drain for stop in case.told("a", StopRound)] == [True]
    assert not case.told("b", StopRound)
    assert not case.told("c", StopRound)
    case.report("a", READY, 0)
    assert [stop.drain for node in "bc" for stop in case.told(node, StopRound)] == [False, False]
    leave(case, "b", READY)
    case.report("c", READY, 0)
    assert case.phase() is JobPhase.GATHERING
    farewell = Rejected(RejectCode.DRAINED, "leaving: its pod is deleted")
    assert [drop.farewell for drop in case.drops()] == [farewell]


def leave(case: TfJob, node: str, phase: AgentPhase) -> None:
    """A node that is taken away tells how far it is."""
    case.do(Reported(case.sessions[node], replace(case.status(node, phase, 0), leaving="its pod is deleted")))


def test_servers_outlast_a_chief_that_leaves() -> None:
    case = job()
    leave(case, "a", STOPPING)
    assert not case.told("b", StopRound)
    leave(case, "a", READY)
    assert [stop.drain for node in "bc" for stop in case.told(node, StopRound)] == [False, False]


def test_servers_of_a_chief_that_left_serve_for_some_time() -> None:
    case = job()
    case.do(Left(case.sessions["a"], "it says no more"))
    assert not case.told("b", StopRound)
    case.pass_time(SERVING_TIME)
    assert case.told("b", StopRound)
    assert case.told("c", StopRound)


def test_servers_do_not_outlast_a_chief_that_is_lost_while_it_saves() -> None:
    case = job()
    case.do(DrainNode("c", "an order"))
    case.do(Detached(case.sessions["a"], "gone"))
    assert case.told("b", StopRound)


@pytest.mark.parametrize("node", ["b", "c"])
def test_where_a_node_is_lost_nobody_can_save(node: str) -> None:
    case = job()
    case.do(Detached(case.sessions[node], "gone"))
    other = {"b": "c", "c": "b"}[node]
    assert case.told("a", StopRound)
    assert [stop.drain for stop in case.told(other, StopRound)] == [False]


def test_mirrored_workers_are_told_to_stop_together() -> None:
    case = TfJob({"a": (WORKER,), "b": (WORKER,), "c": (WORKER,)}).run()
    case.do(DrainNode("c", "an order"))
    assert [stop.drain for node in "ab" for stop in case.told(node, StopRound)] == [True, True]


# -- another number of servers


def test_more_servers_are_started_at_once_and_the_chief_anew() -> None:
    case = job()
    case.scale(PS, 3)
    assert case.attempts == {"chief 0": 1, "ps 0": 0, "ps 2": 0, "worker 0": 0, "ps 1": 0, "evaluator 0": 0}
    assert case.heard() == {"a", "b", "c"}
    assert case.decided() == "scaled ps: 2 -> 3; the chief saves its state and starts again, the others go on"
    case.lose(*CHIEF_0, died(*CHIEF_0, 42))
    case.run()
    assert case.attempts["chief 0"] == 1
    assert case.machine.state.budget.used == 0


def test_fewer_servers_end_when_the_next_chief_runs() -> None:
    case = job()
    case.scale(PS, 1)
    assert case.attempts == {"chief 0": 1, "ps 0": 0, "worker 0": 0, "ps 1": 0, "evaluator 0": 0}
    case.say("a")
    assert "ps 1" in case.attempts
    case.obey("a")
    assert "ps 1" not in case.attempts
    assert case.heard() == {"b"}
    (start,) = case.told("b", StartRound)
    assert [task.role for task in start.assignment.tasks] == [WORKER]
    assert dict(start.assignment.cluster)[PS] == ("a.net:8002",)
    case.scale(PS, 2)
    assert case.attempts["ps 1"] == 0
    assert case.attempts["chief 0"] == 2


def test_a_server_that_is_about_to_go_is_not_mourned() -> None:
    case = job()
    case.scale(PS, 1)
    case.kill(*PS_1)
    assert case.raised() == {"chief 0": 1}
    assert case.machine.state.budget.used == 0
    case.obey("a")
    assert "ps 1" not in case.attempts


def test_a_lost_server_that_is_then_taken_away_is_forgotten() -> None:
    case = job(policy=PATIENT)
    case.lose(*PS_1, died(*PS_1, step=-1))
    case.scale(PS, 1)
    case.obey("a")
    case.pass_time(10.0)
    case.say("b")
    assert case.attempts == {"chief 0": 1, "ps 0": 0, "worker 0": 0, "evaluator 0": 0}
    assert case.machine.state.budget.used == 1


def test_a_chief_that_fails_at_once_in_its_new_life_takes_nobody_away() -> None:
    case = job()
    case.scale(PS, 1)
    case.tasks["a"] = (TaskReport(0, 1, True, died(*CHIEF_0)), TaskReport(1, 0))
    case.say("a")
    assert case.attempts["chief 0"] == 2
    assert "ps 1" in case.attempts
    case.obey("a")
    assert "ps 1" not in case.attempts


def test_two_changes_in_a_row() -> None:
    case = job()
    case.scale(PS, 3)
    case.scale(WORKER, 2)
    case.scale(PS, 2)
    assert case.attempts["chief 0"] == 3
    case.run()
    assert case.attempts == {
        "chief 0": 3,
        "ps 0": 0,
        "worker 0": 0,
        "worker 1": 0,
        "ps 1": 0,
        "evaluator 0": 0,
    }


@pytest.mark.parametrize(
    ("role", "count"), [(CHIEF, 2), (EVALUATOR, 2), (WORKER, 0), (PS, 2), (PS, 99), (PS, -1)]
)
def test_an_order_that_cannot_be_obeyed_changes_nothing(role: TaskRole, count: int) -> None:
    case = job()
    case.scale(role, count)
    assert case.decided().startswith(f"not scaled to {role.value}={count}: ")
    assert (case.raised(), case.heard()) == ({}, set())


def test_no_order_changes_mirrored_workers() -> None:
    case = TfJob(MIRRORED).run()
    case.scale(WORKER, 3)
    assert case.raised() == {}
    assert len(case.attempts) == 3


def test_a_node_that_is_lost_while_its_servers_are_about_to_go_ends_the_round() -> None:
    case = job()
    case.scale(PS, 1)
    case.do(Detached(case.sessions["b"], "gone"))
    assert case.phase() is JobPhase.STOPPING
    case.all_report("ac", READY, 0)
    assert case.phase() is JobPhase.GATHERING
    case.arrive({"b": SERVED["b"]})
    assert (case.phase(), case.machine.state.round) == (JobPhase.RUNNING, 1)
    assert set(case.attempts) == {"chief 0", "ps 0", "worker 0", "evaluator 0"}
    assert case.raised() == {}


def lose_c(case: TfJob) -> None:
    """The evaluator's node is lost, another one comes in its place: a new round."""
    case.do(Detached(case.sessions["c"], "gone"))
    case.tasks = {}
    case.all_report("ab", READY, case.machine.state.round)
    case.arrive({"c": SERVED["c"]}, spare=2)
    assert case.phase() is JobPhase.RUNNING


@pytest.mark.parametrize("count", [1, 3, 5])
def test_a_number_that_was_ordered_is_that_of_later_rounds_too(count: int) -> None:
    case = job()
    case.scale(PS, count)
    case.run()
    lose_c(case)
    assert tasks_of(case.machine).count(PS) == count
    assert case.raised() == {}
    assert len(dict(case.machine.state.current.assignments["a"].cluster)[PS]) == count
    case.run()
    assert "ps 1" in case.attempts or count == 1


def test_an_order_for_other_nodes_is_forgotten() -> None:
    case = job()
    case.scale(PS, 3)
    case.run()
    assert tasks_of(case.machine).count(PS) == 3
    case.do(Detached(case.sessions["b"], "gone"))
    case.tasks = {}
    case.all_report("ac", READY, 0)
    case.arrive({"d": (WORKER,)})
    assert tasks_of(case.machine).count(PS) == 1


def test_an_order_that_cannot_be_repeated_is_said_so_and_as_many_start_as_can() -> None:
    case = job()
    case.scale(PS, 6)
    assert tasks_of(case.machine).count(PS) == 6
    case.ports |= {"a": (8001, 8002, 8003), "b": (8001, 8002, 8003, 8004)}
    lose_c(case)
    lack = "ps=5 instead of ps=6, as the nodes hold too few free ports; order it again when the round runs"
    assert lack in case.decided()
    assert [message.text for name in "ab" for message in case.told(name, Waiting)] == [lack, lack]
    assert tasks_of(case.machine).count(PS) == 5


# -- who makes a cluster


def test_nodes_that_make_no_cluster_wait_and_are_told_why() -> None:
    case = TfJob({"a": (PS,), "b": (CHIEF,)})
    assert case.phase() is JobPhase.GATHERING
    assert "chief=1,ps=1 lacks the worker" in case.machine.state.obstacle
    case.pass_time(case.machine.state.config.join_timeout)
    (ended,) = case.of(Ended)
    assert ended.outcome is Outcome.TIMED_OUT
    assert "lacks the worker" in ended.reason


def test_a_job_that_had_parameter_servers_does_not_go_on_without_any() -> None:
    case = TfJob({"a": (CHIEF, WORKER), "b": (PS,)}, min_nodes=2, max_nodes=2).run()
    assert case.phase() is JobPhase.RUNNING
    case.machine.state.limits = replace(case.machine.state.limits, min_nodes=1)
    case.do(Detached(case.sessions["b"], "gone"))
    case.tasks = {}
    case.report("a", READY, 0)
    assert case.phase() is JobPhase.GATHERING
    assert case.machine.state.obstacle.startswith("no node brings a parameter server any more")
    case.arrive({"c": (PS,)})
    assert (case.phase(), case.machine.state.round) == (JobPhase.RUNNING, 1)


def test_a_node_whose_ports_come_later_is_waited_for() -> None:
    case = TfJob({"a": (CHIEF, WORKER, PS)}, spare=-1)
    assert case.machine.state.obstacle == "a has no ports left for its tasks"
    case.ports["a"] = (8001, 8002, 8003)
    case.report("a", READY, -1)
    assert case.phase() is JobPhase.RUNNING


def test_a_node_that_would_make_a_second_chief_does_not_disturb_those_who_train() -> None:
    case = TfJob({"a": (CHIEF, WORKER, PS)}, max_nodes=3).run()
    case.arrive({"b": (CHIEF,)})
    assert (case.phase(), case.machine.state.round) == (JobPhase.RUNNING, 0)
    case.arrive({"c": (WORKER,)})
    assert (case.phase(), case.machine.state.round) == (JobPhase.RUNNING, 0)
    case.do(DrainNode("b", "an order"))
    assert case.phase() is JobPhase.STOPPING, "the other one can join"


@pytest.mark.parametrize("extra", [(CHIEF,), (), (EVALUATOR, EVALUATOR)])
@pytest.mark.parametrize("largest", [2, 3, 4])
def test_a_node_that_fits_nobody_is_passed_over(extra: tuple[TaskRole, ...], largest: int) -> None:
    case = TfJob({"a": (CHIEF, PS), "b": (WORKER,)}, min_nodes=2, max_nodes=largest).run()
    case.arrive({"c": extra, "d": (WORKER,)})
    assert case.machine.state.round == 0
    case.do(Detached(case.sessions["b"], "gone"))
    case.tasks = {}
    case.report("a", READY, 0)
    assert (case.phase(), case.machine.state.round) == (JobPhase.RUNNING, 1)
    assert tuple(case.machine.state.current.assignments) == ("a", "d")
    assert case.machine.state.obstacle == ""


def test_a_spare_chief_takes_over() -> None:
    case = TfJob({"a": (CHIEF,), "b": (WORKER, PS)}, min_nodes=2, max_nodes=3).run()
    case.arrive({"c": (CHIEF,)})
    case.do(Detached(case.sessions["a"], "gone"))
    case.tasks = {}
    case.report("b", READY, 0)
    assert (case.phase(), case.machine.state.round) == (JobPhase.RUNNING, 1)
    assert set(case.machine.state.current.assignments) == {"b", "c"}


def test_a_round_that_stops_goes_on_without_a_node_that_does_not_fit() -> None:
    case = TfJob({"a": (WORKER,), "b": (WORKER,)}, min_nodes=2, max_nodes=4).run()
    case.arrive({"c": (EVALUATOR, EVALUATOR)})
    assert case.machine.state.round == 0
    case.report("a", FAILED, 0, died("a", 0))
    case.tasks = {}
    case.all_report("ab", READY, 0)
    assert case.machine.state.round == 1
    assert tuple(case.machine.state.current.assignments) == ("a", "b")
    assert "2 nodes fit together; the nodes' roles make no TensorFlow cluster" in case.decided()
    case.run()
    assert case.phase() is JobPhase.RUNNING, "and it does not stop for that node again"


def test_a_node_of_a_tensorflow_job_does_not_join_another_one() -> None:
    case = TfJob({"a": (), "b": ()}, min_nodes=2, max_nodes=3).run()
    case.arrive({"c": (WORKER,)})
    assert case.machine.state.round == 0
    case.report("a", FAILED, 0, died("a", 0))
    case.all_report("ab", READY, 0)
    assert tuple(case.machine.state.current.assignments) == ("a", "b")
    assert not case.machine.state.current.tasks


# -- hangs


def stall(case: TfJob, node: str) -> None:
    said = replace(
        case.status(node, RUNNING, 0), stall=Stall(0, 0, 7, 9.0, 3.0, False, evidence=Evidence.TIMEOUT)
    )
    case.do(Reported(case.sessions[node], said))


def test_a_chief_that_hangs_stops_the_round_whatever_the_servers_nodes_say() -> None:
    case = job()
    stall(case, "a")
    assert case.phase() is JobPhase.STOPPING
    assert "rank 0 (local rank 0, a) made no step" in case.decided()


def test_mirrored_workers_hang_only_together() -> None:
    case = TfJob({"a": (WORKER,), "b": (WORKER,), "c": (EVALUATOR,)}).run()
    stall(case, "a")
    assert case.phase() is JobPhase.RUNNING
    stall(case, "b")
    assert case.phase() is JobPhase.STOPPING


def test_a_chief_that_hangs_no_more_stops_nothing() -> None:
    case = TfJob(MIRRORED).run()
    stall(case, "a")
    case.say("a")
    stall(case, "b")
    assert case.phase() is JobPhase.RUNNING


def test_a_failure_to_start_is_a_loss() -> None:
    case = job()
    spawn = Failure("b", "b", 2, 0, "default", 0, FailureKind.SPAWN, 1, "no such file")
    case.lose(*WORKER_0, spawn)
    assert case.raised() == {"worker 0": 1}


def test_an_order_whose_tasks_cannot_be_started_is_withdrawn() -> None:
    case = job(max_restarts=0)
    case.scale(PS, 4)
    case.run()
    given = tasks_of(case.machine).wanted.items()
    third, fourth = (
        (node, rank)
        for index in (2, 3)
        for node, own in given
        for rank, task in own.items()
        if (task.role, task.index) == (PS, index)
    )
    case.lose(*fourth, died(*fourth, kind=FailureKind.SPAWN, message="too many open files"))
    assert tasks_of(case.machine).count(PS) == 3
    assert case.told("a", Waiting)[-1].text.startswith("ps=3 again, as ps 3: ")
    case.run()
    assert (case.phase(), case.machine.state.budget.used) == (JobPhase.RUNNING, 0)
    case.kill(*third)
    assert case.phase() is JobPhase.STOPPING, "one that ran is lost like any other"
