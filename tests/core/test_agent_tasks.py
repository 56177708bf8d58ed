"""The tasks of a TensorFlow job on one node: which attempt of each runs, and what becomes of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from elasticrun.config import TaskRole
from elasticrun.core.agent.events import (
    AgentEvent,
    AgentTerms,
    AgentTick,
    Directed,
    Finish,
    GroupGone,
    LinkDown,
    LinkUp,
    PortsOffered,
    Prepared,
    SignalTask,
    SignalWorkers,
    StartTask,
    StartWorkers,
    StopSignal,
    SweepWorkers,
    WorkerFailed,
    WorkerFinished,
)
from elasticrun.core.agent.group import HUNG_GRACE
from elasticrun.core.agent.machine import AgentMachine
from elasticrun.core.agent.tasks import SHORT_MESSAGE
from elasticrun.core.protocol.messages import (
    MAX_FAILURES,
    AgentPhase,
    AgentStatus,
    Assignment,
    Failure,
    JobEnded,
    Leave,
    Outcome,
    Report,
    StartRound,
    StopRound,
)
from elasticrun.core.protocol.tasks import Cluster, Task, TaskReport
from elasticrun.core.recovery.own_failures import Stopping
from elasticrun.errors import ExitCode
from elasticrun.sim.fingerprint import difference, fingerprint
from tests.core.build import Agent, info
from tests.core.tf_build import CHIEF, EVALUATOR, PS, WORKER, died

READY, RUNNING, FINISHED = AgentPhase.READY, AgentPhase.RUNNING, AgentPhase.FINISHED
FAILED, STOPPING = AgentPhase.FAILED, AgentPhase.STOPPING
SERVED: Cluster = ((CHIEF, ("a.net:8001",)), (WORKER, ("a.net:8002",)), (PS, ("a.net:8003",)))
MIRRORED: Cluster = ((WORKER, ("a.net:8001", "a.net:8002")),)
CHIEF_0, WORKER_0, PS_0 = (
    Task(rank, role, 0, port=8001 + rank) for rank, role in enumerate((CHIEF, WORKER, PS))
)
#: The local ranks of those.
CHIEF_RANK, WORKER_RANK, PS_RANK = 0, 1, 2
TERM, KILL = 15, 9


class TfAgent(Agent):
    """An agent whose node runs the tasks given; the master can want others."""

    def __init__(self, tasks: Sequence[Task], cluster: Cluster = SERVED, **terms: Any) -> None:
        super().__init__()
        who = info("a", local_world_size=len(tasks), roles=tuple(task.role for task in tasks))
        self.machine = AgentMachine("job", "1", who, AgentTerms(**terms))
        self.cluster = cluster
        self.tasks = {task.local_rank: task for task in tasks}
        self.sequence = 0
        self.do(Prepared(7001, (8001, 8002, 8003)), LinkUp(1))

    def want(self, *tasks: Task, round_: int = 0) -> None:
        """The master says the assignment, with these tasks as they are to be from now on."""
        self.tasks |= {task.local_rank: task for task in tasks}
        self.sequence += 1
        self.do(Directed(self.start(round_)))

    def start(self, round_: int = 0) -> StartRound:
        tasks = tuple(self.tasks.values())
        base = Assignment(round_, 0, 1, 0, len(tasks), 0, len(tasks), "a.net", 7001, 0, 3)
        return StartRound(1, self.sequence, replace(base, tasks=tasks, cluster=self.cluster), "because")

    def raise_attempts(self, *local_ranks: int, saves: bool = False) -> None:
        tasks = [self.tasks[rank] for rank in local_ranks]
        self.want(*(replace(task, attempt=task.attempt + 1, saves=saves) for task in tasks))

    def drop(self, *local_ranks: int) -> None:
        for rank in local_ranks:
            del self.tasks[rank]
        self.want()

    def die(self, local_rank: int, code: int = 1, told: int = 0) -> None:
        """A task ends, perhaps after the launcher sent it a signal."""
        stopping, attempt = Stopping(frozenset({told} if told else ()), 1.0), self.newest(local_rank)
        if code:
            self.do(WorkerFailed(0, died("a", local_rank, code), stopping, attempt))
        else:
            self.do(WorkerFinished(0, local_rank, attempt))

    def newest(self, local_rank: int) -> int:
        """The newest attempt at a task that was started."""
        return {report.local_rank: report.attempt for report in self.status().tasks}[local_rank]

    def pass_time(self, seconds: float) -> None:
        self.now += seconds
        self.do(AgentTick())

    def status(self) -> AgentStatus:
        return self.machine.hello().status

    def attempts(self) -> dict[int, int]:
        """The newest attempt of each task; those that have ended are negative, from -1 on."""
        return {r.local_rank: -1 - r.attempt if r.ended else r.attempt for r in self.status().tasks}

    def done(self) -> list[object]:
        """What the newest event led to for single tasks: local ranks that started, or were signalled."""
        return [
            effect.local_rank if isinstance(effect, StartTask) else (effect.local_rank, effect.signum)
            for effect in self.said
            if isinstance(effect, StartTask | SignalTask)
        ]


def served(**terms: Any) -> TfAgent:
    agent = TfAgent([CHIEF_0, WORKER_0, PS_0], **terms)
    agent.want()
    return agent


def mirrored() -> TfAgent:
    first, second = Task(0, WORKER, 0, port=8001), Task(1, WORKER, 1, port=8002)
    agent = TfAgent([first, second, Task(2, EVALUATOR, 0)], MIRRORED)
    agent.want()
    return agent


# -- attempts


def test_a_round_starts_with_all_of_its_tasks() -> None:
    agent = TfAgent([replace(CHIEF_0, attempt=2), PS_0])
    assert agent.status().ports == (8001, 8002, 8003)
    agent.want()
    assert agent.of(StartWorkers) == [StartWorkers(agent.start().assignment)]
    assert (agent.done(), agent.attempts()) == ([], {0: 2, 2: 0})
    assert agent.machine.group.alive == {0, 2}


def test_the_same_assignment_again_changes_nothing() -> None:
    agent = served()
    agent.want()
    assert agent.said == []


@pytest.mark.parametrize("code", [0, 1, -9])
def test_a_task_that_ends_is_reported_and_the_others_go_on(code: int) -> None:
    agent = served()
    agent.die(WORKER_RANK, code)
    failure = died("a", WORKER_RANK, code) if code else None
    (report,) = agent.sent()
    assert isinstance(report, Report)
    assert (report.status.phase, report.status.failures) == (RUNNING, ())
    assert report.status.tasks[WORKER_RANK] == TaskReport(WORKER_RANK, 0, True, failure)
    assert (agent.done(), agent.heard()) == ([], [failure.summary] if failure else [])


def test_a_task_that_has_ended_starts_its_next_life_when_it_is_wanted() -> None:
    agent = served()
    agent.die(WORKER_RANK)
    agent.want()
    assert agent.done() == []
    agent.raise_attempts(WORKER_RANK)
    assert agent.of(StartTask) == [StartTask(agent.start().assignment, WORKER_RANK)]
    assert agent.heard() == ["worker 0 (attempt 1) starts: because"]
    assert agent.reported() == [RUNNING]
    assert agent.attempts() == {0: 0, 1: 1, 2: 0}
    assert agent.machine.group.alive == {0, 1, 2}


def test_a_life_starts_only_when_the_one_before_has_ended() -> None:
    agent = served()
    agent.raise_attempts(CHIEF_RANK)
    assert (agent.done(), agent.sent()) == ([(CHIEF_RANK, TERM)], [])
    agent.raise_attempts(CHIEF_RANK)
    assert agent.done() == [], "it is told once"
    agent.die(CHIEF_RANK, -15)
    assert agent.done() == [CHIEF_RANK]
    assert agent.attempts() == {0: 2, 1: 0, 2: 0}, "the attempt in between was never needed"
    assert not [report for report in agent.status().tasks if report.failure], "it was told to end"


def test_an_older_life_is_not_started() -> None:
    agent = served()
    agent.raise_attempts(WORKER_RANK)
    agent.die(WORKER_RANK)
    agent.want(WORKER_0)
    assert agent.done() == []
    agent.die(WORKER_RANK)
    assert agent.done() == []
    assert agent.attempts()[WORKER_RANK] == -2


def test_who_does_not_end_in_time_is_killed() -> None:
    agent = served(shutdown_timeout=30.0, kill_timeout=30.0)
    agent.raise_attempts(CHIEF_RANK)
    agent.pass_time(HUNG_GRACE - 0.1)
    assert agent.said == []
    agent.pass_time(0.1)
    assert agent.done() == [(CHIEF_RANK, KILL)]
    agent.raise_attempts(CHIEF_RANK)
    assert agent.done() == []
    agent.die(CHIEF_RANK, -9)
    assert agent.done() == [CHIEF_RANK]
    agent.pass_time(1000.0)
    assert agent.said == []


def test_who_saves_has_all_the_time_that_a_stop_has() -> None:
    agent = served(shutdown_timeout=30.0)
    agent.raise_attempts(CHIEF_RANK, saves=True)
    agent.pass_time(29.9)
    agent.raise_attempts(CHIEF_RANK, saves=True)
    assert agent.done() == []
    agent.pass_time(0.1)
    assert agent.done() == [(CHIEF_RANK, KILL)]


def test_who_can_save_no_more_loses_that_time() -> None:
    agent = served(shutdown_timeout=30.0)
    agent.raise_attempts(CHIEF_RANK, saves=True)
    agent.pass_time(10.0)
    agent.raise_attempts(CHIEF_RANK, PS_RANK)
    assert agent.done() == [(PS_RANK, TERM)]
    agent.pass_time(HUNG_GRACE)
    assert agent.done() == [(CHIEF_RANK, KILL), (PS_RANK, KILL)]


def test_who_was_told_to_go_at_once_is_given_no_more_time() -> None:
    agent = served(shutdown_timeout=30.0)
    agent.raise_attempts(CHIEF_RANK)
    agent.raise_attempts(CHIEF_RANK, saves=True)
    agent.pass_time(HUNG_GRACE)
    assert agent.done() == [(CHIEF_RANK, KILL)]
    agent.raise_attempts(CHIEF_RANK)
    agent.die(CHIEF_RANK, -9)
    assert agent.attempts()[CHIEF_RANK] == 3


def test_no_grace_is_longer_than_that_of_a_stop() -> None:
    agent = served(shutdown_timeout=1.0)
    agent.raise_attempts(CHIEF_RANK)
    agent.pass_time(1.0)
    assert agent.done() == [(CHIEF_RANK, KILL)]


# -- tasks that come and go


def test_a_task_that_is_added_starts_at_once() -> None:
    agent = served()
    agent.cluster = (*SERVED[:2], (PS, ("a.net:8003", "a.net:8004")))
    agent.want(Task(3, PS, 1, port=8004))
    assert agent.of(StartTask) == [StartTask(agent.start().assignment, 3)]
    assert agent.attempts() == {0: 0, 1: 0, 2: 0, 3: 0}
    agent.die(3)
    assert agent.attempts()[3] == -1
    assert agent.status().phase is RUNNING


@pytest.mark.parametrize("code", [0, 1, -15])
def test_a_task_that_is_taken_away_ends_without_a_failure(code: int) -> None:
    agent = served()
    agent.drop(PS_RANK)
    assert agent.done() == [(PS_RANK, TERM)]
    agent.die(PS_RANK, code)
    assert agent.reported() == [RUNNING]
    assert agent.heard() == []
    assert agent.attempts() == {0: 0, 1: 0}


def test_a_task_that_is_taken_away_after_it_ended_is_forgotten() -> None:
    agent = served()
    agent.die(PS_RANK)
    agent.drop(PS_RANK)
    assert (agent.done(), agent.attempts()) == ([], {0: 0, 1: 0})
    assert agent.reported() == [RUNNING]


def test_a_node_whose_last_task_is_taken_away_can_be_given_another_one() -> None:
    agent = TfAgent([PS_0])
    agent.want()
    agent.drop(PS_RANK)
    agent.die(PS_RANK, -15)
    assert (agent.attempts(), agent.status().phase) == ({}, RUNNING)
    agent.want(Task(3, PS, 1, port=8004))
    assert (agent.done(), agent.attempts()) == ([3], {3: 0})
    agent.drop(3)
    agent.die(3, -15)
    agent.do(Directed(StopRound(1, 99, 0, "because")))
    assert agent.of(SweepWorkers) == [SweepWorkers(0)]


def test_a_node_that_begins_without_a_task_runs_nothing_until_it_is_given_one() -> None:
    agent = TfAgent([PS_0])
    agent.tasks = {}
    agent.want()
    assert agent.of(StartWorkers)
    assert (agent.status().phase, agent.machine.group.alive) == (RUNNING, set())
    agent.want(Task(1, PS, 1, port=8004))
    assert (agent.done(), agent.machine.group.alive) == ([1], {1})


def test_ports_that_are_free_while_tasks_run_are_reported() -> None:
    agent = served()
    agent.do(PortsOffered((8009,)))
    (report,) = agent.sent()
    assert isinstance(report, Report)
    assert report.status.ports == (8009,)
    agent.do(Directed(StopRound(1, 99, 0, "because")), GroupGone(0, 7002, (8004, 8005)))
    assert agent.status().ports == (8004, 8005)


# -- the whole group


def test_a_stop_ends_all_and_what_was_under_way() -> None:
    agent = served()
    agent.raise_attempts(CHIEF_RANK)
    agent.do(Directed(StopRound(1, 99, 0, "because")))
    assert agent.of(SignalWorkers) == [SignalWorkers(TERM, spared=frozenset({WORKER_RANK, PS_RANK}))]
    agent.pass_time(HUNG_GRACE)
    assert agent.done() == []
    agent.die(CHIEF_RANK, -15)
    assert agent.of(SignalWorkers) == [SignalWorkers(TERM)], "servers are the last"
    for rank in (WORKER_RANK, PS_RANK):
        assert agent.of(SweepWorkers) == []
        agent.die(rank, -15)
        assert agent.done() == []
    assert agent.of(SweepWorkers) == [SweepWorkers(0)]
    agent.do(GroupGone(0, 7002))
    assert agent.reported() == [READY]
    assert agent.attempts() == {0: 0, 1: 0, 2: 0}, "how they fared until then"


def test_a_stop_of_a_round_whose_tasks_have_all_ended_is_swept_at_once() -> None:
    agent = served()
    for rank in (CHIEF_RANK, WORKER_RANK, PS_RANK):
        agent.die(rank, 0)
    assert agent.status().phase is RUNNING, "the master decides what follows"
    agent.do(Directed(StopRound(1, 99, 0, "because")))
    assert agent.of(SweepWorkers) == [SweepWorkers(0)]


def test_the_next_round_begins_anew() -> None:
    agent = served()
    agent.raise_attempts(CHIEF_RANK)
    agent.do(Directed(StopRound(1, 99, 0, "because")), GroupGone(0, 7002))
    agent.sequence = 100
    agent.tasks = {0: CHIEF_0, 1: WORKER_0, 2: PS_0}
    agent.want(round_=1)
    assert agent.attempts() == {0: 0, 1: 0, 2: 0}
    agent.pass_time(HUNG_GRACE)
    assert agent.said == []
    assert agent.status().round == 1


def test_nothing_is_told_of_tasks_of_a_round_before_the_last() -> None:
    agent = served()
    agent.die(CHIEF_RANK, 0)
    agent.do(Directed(StopRound(1, 98, 0, "because")), GroupGone(0, 7002))
    agent.do(Directed(StopRound(1, 99, 1, "a round that never began here")))
    assert (agent.status().round, agent.status().tasks) == (1, ())


def test_a_task_that_no_signal_ends_makes_its_node_leave_in_good_order() -> None:
    agent = served(shutdown_timeout=30.0, kill_timeout=30.0)
    agent.raise_attempts(CHIEF_RANK)
    agent.raise_attempts(PS_RANK)
    agent.pass_time(HUNG_GRACE)
    assert agent.done() == [(CHIEF_RANK, KILL), (PS_RANK, KILL)]
    agent.pass_time(30.0)
    assert [type(message) for message in agent.sent()] == [Leave]
    others = [SignalWorkers(TERM, spared=frozenset({WORKER_RANK, PS_RANK}))]
    assert agent.of(SignalWorkers) == others, "others are told to end as well"
    assert not agent.of(Finish)
    agent.pass_time(30.0)
    assert agent.of(SweepWorkers)
    agent.pass_time(30.0)
    assert agent.finish.exit_status == ExitCode.NODE_FAULT


def test_a_launcher_that_is_told_to_stop_starts_no_life() -> None:
    agent = served()
    agent.raise_attempts(CHIEF_RANK)
    agent.do(StopSignal(TERM))
    agent.die(CHIEF_RANK, -15)
    assert agent.done() == []


def test_the_end_of_the_job_ends_all_tasks() -> None:
    agent = served()
    agent.die(CHIEF_RANK, 0)
    agent.do(Directed(JobEnded(1, 99, Outcome.SUCCEEDED, "done")))
    assert agent.of(SignalWorkers)
    agent.die(WORKER_RANK, -15)
    agent.die(PS_RANK, -15)
    agent.do(GroupGone(0, 7002))
    assert agent.finish.exit_status == ExitCode.OK


def test_servers_are_told_to_end_once_everybody_else_has() -> None:
    agent = served(shutdown_timeout=30.0)
    agent.do(Directed(StopRound(1, 99, 0, "because")))
    servers = frozenset({WORKER_RANK, PS_RANK})
    assert agent.of(SignalWorkers) == [SignalWorkers(TERM, spared=servers)]
    agent.die(WORKER_RANK, -9)
    assert len(agent.heard()) == 1, "nobody had told it to end"
    agent.die(CHIEF_RANK, 42, told=TERM)
    assert agent.of(SignalWorkers) == [SignalWorkers(TERM)]
    agent.pass_time(HUNG_GRACE)
    assert (agent.of(SweepWorkers), agent.heard()) == ([SweepWorkers(0)], [])


def test_a_node_of_servers_stops_them_at_once_when_its_round_stops() -> None:
    agent = TfAgent([PS_0], shutdown_timeout=30.0)
    agent.want()
    agent.do(Directed(StopRound(1, 99, 0, "because")))
    assert agent.of(SignalWorkers) == [SignalWorkers(TERM)]
    agent.pass_time(HUNG_GRACE)
    assert (agent.of(SweepWorkers), agent.heard()) == ([SweepWorkers(0)], [])


def test_a_node_that_leaves_keeps_its_servers_until_its_round_has_stopped() -> None:
    agent = leaving_server()
    report = agent.sent()[-1]
    assert isinstance(report, Report), "no farewell: else nobody would tell it"
    assert report.status.leaving == "stopped by signal 15"
    agent.want()  # the chief saves
    agent.pass_time(HUNG_GRACE)
    assert (agent.done(), agent.of(SignalWorkers), agent.of(SweepWorkers)) == ([], [], [])
    agent.do(Directed(StopRound(1, 98, 0, "because")))
    assert agent.of(SignalWorkers) == [SignalWorkers(TERM)]
    agent.do(Directed(StopRound(1, 99, 0, "because")))
    assert agent.of(SignalWorkers) == [], "they are told once"
    agent.die(PS_RANK, told=TERM)
    agent.do(GroupGone(0, 7002))
    assert any(isinstance(message, Leave) for message in agent.sent())
    assert agent.finish.exit_status == 128 + TERM


def test_a_node_that_leaves_keeps_its_servers_for_others_of_its_own() -> None:
    agent = leaving_server(Task(3, EVALUATOR, 0))
    agent.do(Directed(StopRound(1, 99, 0, "because")))
    assert agent.of(SignalWorkers) == []
    agent.die(3, told=TERM)
    assert agent.of(SignalWorkers) == [SignalWorkers(TERM)]


def test_a_node_that_leaves_keeps_its_servers_for_the_grace_at_most() -> None:
    agent = leaving_server()
    agent.pass_time(29.0)
    assert agent.of(SweepWorkers) == []
    agent.pass_time(1.0)
    assert agent.of(SweepWorkers) == [SweepWorkers(0)]
    agent.do(Directed(StopRound(1, 99, 0, "because")))
    assert agent.of(SignalWorkers) == [], "they are killed already"


def test_a_node_that_leaves_needs_no_master_to_know_that_its_own_chief_has_saved() -> None:
    agent = leaving_server(CHIEF_0)
    agent.do(LinkDown("the master leaves, too"))
    agent.die(CHIEF_RANK, told=TERM)
    assert agent.of(SignalWorkers) == [SignalWorkers(TERM)]


def test_a_node_that_leaves_keeps_its_servers_if_a_master_takes_it_for_a_new_one() -> None:
    """As after its stream broke: then it is a member of no round, and all that it runs has to stop."""
    agent = leaving_server()
    agent.do(LinkDown("a cable"), LinkUp(1), Directed(StopRound(1, 99, 0, "not part of the newest round")))
    assert agent.of(SignalWorkers) == []
    agent.pass_time(30.0)
    assert agent.of(SweepWorkers) == [SweepWorkers(0)]


def test_a_node_that_leaves_keeps_no_servers_for_a_job_that_has_ended() -> None:
    agent = leaving_server()
    agent.do(Directed(JobEnded(1, 99, Outcome.SUCCEEDED, "the chief ended with 0")))
    assert agent.of(SignalWorkers) == [SignalWorkers(TERM)]


def leaving_server(*more: Task) -> TfAgent:
    """Runs a parameter server, and perhaps more, and was told to stop by its platform."""
    agent = TfAgent([PS_0, *more], shutdown_timeout=30.0)
    agent.want()
    agent.do(StopSignal(TERM))
    assert agent.of(SignalWorkers) == [SignalWorkers(TERM, True, frozenset({PS_RANK}))]
    return agent


# -- without parameter servers


def test_a_mirrored_worker_that_fails_takes_its_group_along() -> None:
    agent = mirrored()
    agent.die(0)
    assert agent.reported() == [FAILED]
    assert agent.status().failures == (died("a", 0),)
    assert agent.status().tasks[0] == TaskReport(0, 0, True, died("a", 0))
    assert agent.of(SignalWorkers) == [SignalWorkers(TERM)]
    agent.die(2, told=TERM)
    agent.die(1, told=TERM)
    assert agent.of(SweepWorkers)
    assert agent.status().failures == (died("a", 0),)


def test_the_end_of_a_mirrored_worker_is_told_at_once() -> None:
    agent = mirrored()
    agent.die(0, 0)
    assert agent.reported() == [RUNNING]
    assert agent.status().tasks[0] == TaskReport(0, 0, True)
    agent.die(2)
    assert agent.status().tasks[2] == TaskReport(2, 0, True, died("a", 2))
    agent.raise_attempts(2)
    assert agent.done() == [2]
    agent.die(2, 0)
    agent.die(1, 0)
    assert agent.reported()[0] is FINISHED
    agent.raise_attempts(2)
    assert agent.done() == [], "nothing is restarted on a node that is done"


def test_what_is_said_of_an_attempt_that_does_not_run_is_not_heard() -> None:
    agent = served()
    agent.die(WORKER_RANK)
    ended = fingerprint(agent.machine)
    late: list[AgentEvent] = [WorkerFailed(0, died("a", WORKER_RANK, -9)), WorkerFinished(0, WORKER_RANK)]
    agent.do(*late)
    assert difference(ended, fingerprint(agent.machine)) == "", "it has ended already"
    agent.raise_attempts(WORKER_RANK)
    again = fingerprint(agent.machine)
    agent.do(*late)
    assert difference(again, fingerprint(agent.machine)) == "", "another one runs"
    agent.do(WorkerFinished(0, 9), WorkerFailed(0, died("a", 9)))
    assert difference(again, fingerprint(agent.machine)) == "", "there is no such task"
    agent.die(WORKER_RANK)
    assert agent.attempts()[WORKER_RANK] == -2


# -- what is told


def test_the_first_few_failures_are_told_in_full() -> None:
    ranks = range(MAX_FAILURES + 2)
    agent = TfAgent([Task(rank, WORKER, rank, port=8001 + rank) for rank in ranks])
    agent.want()
    for rank in ranks:
        agent.do(WorkerFailed(0, died("a", rank, message="x" * 1000, traceback="y", stderr_tail="z")))
    told = [report.failure for report in agent.status().tasks]
    assert all(isinstance(failure, Failure) for failure in told)
    lengths = [(len(f.message), f.traceback, f.stderr_tail) for f in told if f is not None]
    assert lengths == [(1000, "y", "z")] * MAX_FAILURES + [(SHORT_MESSAGE, "", "")] * 2


@pytest.mark.parametrize("role", TaskRole)
def test_every_role_of_a_served_cluster_is_lost_alone(role: TaskRole) -> None:
    agent = TfAgent([replace(WORKER_0, local_rank=0, role=role), PS_0])
    agent.want()
    agent.die(0)
    assert agent.status().phase is RUNNING


def test_a_stop_of_an_earlier_round_leaves_what_is_wanted_as_it_was() -> None:
    agent = served()
    agent.raise_attempts(CHIEF_RANK)
    agent.do(Directed(StopRound(1, 99, -1, "because")))
    agent.die(CHIEF_RANK, -15)
    assert agent.done() == [CHIEF_RANK]
    assert agent.heard() == ["chief 0 (attempt 1) starts: because"]
