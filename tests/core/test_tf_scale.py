"""Orders for another number of tasks: which are refused, what others promise, and how the job looks then."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from elasticrun.config import TaskRole
from elasticrun.core.job.events import Decided
from elasticrun.core.job.tasks import SingleTasks
from elasticrun.core.protocol.messages import AgentPhase, StartRound
from elasticrun.core.protocol.orders import ScaleRole
from elasticrun.core.protocol.status import JobPhase
from elasticrun.core.protocol.tasks import TaskReport
from elasticrun.core.protocol.usage import TaskUsage
from elasticrun.core.tensorflow import round_tasks
from elasticrun.core.tensorflow import scale as tf_scale
from elasticrun.core.tensorflow.scale import scale_promise
from tests.core.build import Job, described, failure
from tests.core.tf_build import CHIEF, EVALUATOR, MIRRORED, PS, SERVED, TORCH, WORKER, Roles, TfJob, tasks_of


@pytest.mark.parametrize("role", [CHIEF, EVALUATOR])
def test_a_role_of_one_is_not_scaled(role: TaskRole) -> None:
    refusal = TfJob(SERVED).run().refusal(role, 1)
    assert refusal == (
        f"a cluster has one {role.value} at most; only the numbers of worker and ps can be changed"
    )


@pytest.mark.parametrize("role", [WORKER, PS])
def test_none_is_not_enough(role: TaskRole) -> None:
    refusal = TfJob(SERVED).run().refusal(role, 0)
    assert refusal == f"{role.value}=0 is not possible: the chief needs at least one; give 1 or more"


def test_a_job_that_does_not_run_is_not_scaled() -> None:
    job = TfJob({"a": (CHIEF, WORKER, PS)})
    assert job.phase() is JobPhase.RUNNING
    job.report("a", AgentPhase.FAILED, 0, failure())
    assert job.refusal(PS, 2) == (
        "the job is stopping, so there is nothing to change; order it again when a round runs"
    )


@pytest.mark.parametrize(
    ("roles", "words"),
    [
        (TORCH, "this is no TensorFlow job; change its number of nodes"),
        (MIRRORED, "the job has no parameter servers, and its workers train in step; change its number"),
    ],
)
def test_a_job_without_parameter_servers_is_scaled_by_nodes(roles: Roles, words: str) -> None:
    for role in (WORKER, PS):
        assert TfJob(roles).run().refusal(role, 3).startswith(words)


def test_what_is_so_already_is_no_change() -> None:
    assert TfJob(SERVED).run().refusal(PS, 2) == "the job has ps=2 already; give another number"


def test_after_the_chief_nothing_is_scaled() -> None:
    job = TfJob(SERVED).run()
    job.tasks["a"] = (TaskReport(0, 0, ended=True), TaskReport(1, 0))
    job.report("a", AgentPhase.RUNNING, 0)
    assert job.phase() is JobPhase.RUNNING, "the evaluator has some time to end"
    assert job.refusal(PS, 3).startswith("the chief has ended")


def test_there_are_only_so_many_tasks_in_a_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tf_scale, "MAX_CLUSTER", 5)
    job = TfJob(SERVED).run()
    assert job.refusal(PS, 3) == ""
    assert job.refusal(PS, 4) == "a cluster has at most 5 tasks: give at most ps=3"


def test_the_ports_of_nodes_with_the_role_are_the_room_for_more(monkeypatch: pytest.MonkeyPatch) -> None:
    job = TfJob(SERVED, spare=2).run()
    assert (job.refusal(PS, 6), job.refusal(WORKER, 3)) == ("", "")
    assert job.refusal(PS, 7) == "the nodes hold free ports for 4 more of ps: give at most ps=6"
    assert job.refusal(WORKER, 4).endswith("for 2 more of worker: give at most worker=3")
    monkeypatch.setattr(round_tasks, "MAX_TASKS", 3)
    assert job.refusal(PS, 5).endswith("give at most ps=4"), "nor is a node told of more than a message holds"


def test_a_lost_node_offers_no_ports() -> None:
    job = TfJob(SERVED, spare=2).run()
    job.machine.state.members.remove("b")
    assert job.refusal(WORKER, 2).startswith(
        "the nodes hold no free port for another worker: give at most worker=1"
    )


@pytest.mark.parametrize(
    ("role", "count", "promise"),
    [
        (PS, 3, "ps: 2 -> 3: ps 2 starts now, the chief saves its state and starts again; all others go on"),
        (
            PS,
            4,
            "ps: 2 -> 4: ps 2 to 3 start now, the chief saves its state and starts again; all others go on",
        ),
        (PS, 1, "ps: 2 -> 1: the chief saves its state and starts again, then ps 1 ends; all others go on"),
        (WORKER, 3, "worker: 1 -> 3: worker 1 to 2 start now, the chief saves its state and starts again;"),
    ],
)
def test_what_an_order_promises_is_what_it_does(role: TaskRole, count: int, promise: str) -> None:
    job = TfJob(SERVED, spare=2).run()
    tasks = tasks_of(job.machine)
    assert scale_promise(tasks, role, count).startswith(promise)
    assert job.refusal(role, count) == ""
    job.do(ScaleRole(role, count))
    assert any(said.text.startswith(f"scaled {role.value}: ") for said in job.of(Decided))
    assert job.refusal(role, count).startswith(f"the job has {role.value}={count} already")
    (told,) = job.told("a", StartRound)
    assert len(dict(told.assignment.cluster)[role]) == count


def shown(job: Job) -> list[str]:
    """The lines about tasks in what an operator is shown."""
    return [line.strip() for line in described(job.machine).splitlines() if line.startswith("    ")]


def test_the_tasks_of_a_job_are_shown_with_their_attempts() -> None:
    job = TfJob(SERVED).run()
    assert shown(job) == [
        "chief 0 at a.net:8001: attempt 0, running",
        "ps 0 at a.net:8002: attempt 0, running",
        "worker 0 at b.net:8001: attempt 0, running",
        "ps 1 at b.net:8002: attempt 0, running",
        "evaluator 0: attempt 0, running",
    ]


def test_what_tasks_use_is_shown_for_each_and_for_each_role() -> None:
    job = TfJob(SERVED).run()
    first, second = (job.machine.state.members.nodes[name].session or 0 for name in "ab")
    usages = {
        first: (TaskUsage(0, 0.5, 3 << 20, 7, 2.0, 0.25), TaskUsage(1, 0.25, 4 << 20), TaskUsage(9, 1.0)),
        second: (TaskUsage(1, 0.5, 6 << 20),),
        -1: (TaskUsage(0, 9.0),),  # of a stream that is over
    }
    *_, chief, servers = described(job.machine, usages).splitlines()
    assert chief == "  chief, 1 task: 0.50 cores, 3 MiB, step 7, 2 steps/s, 250 ms per step"
    assert servers == "  ps, 2 tasks: 0.75 cores, 10 MiB"
    lines = described(job.machine, usages).splitlines()
    assert "    ps 0 at a.net:8002: attempt 0, running; 0.25 cores, 4 MiB" in lines
    assert "    worker 0 at b.net:8001: attempt 0, running" in lines, "nothing was heard of it"
    job.tasks["a"] = (TaskReport(0, 0, True), TaskReport(1, 0))
    job.report("a", AgentPhase.RUNNING, 0)
    lines = described(job.machine, usages).splitlines()
    assert "    chief 0 at a.net:8001: attempt 0, ended with 0" in lines, "what it used is past"
    assert not any(line.startswith("  chief, ") for line in lines)


def states(job: Job) -> dict[str, str]:
    """What the operator is told of each task, by its name."""
    return {line.split(":")[0].split(" at ")[0]: line.rpartition(": ")[2] for line in shown(job)}


@pytest.mark.parametrize(
    ("reports", "state"),
    [
        ([TaskReport(0, 0)], "attempt 1, starts when attempt 0 has ended"),
        ([TaskReport(0, 0, ended=True)], "attempt 1, starting"),
        ([], "attempt 1, starting"),
        ([TaskReport(0, 1)], "attempt 1, running"),
        ([TaskReport(0, 1, ended=True)], "attempt 1, ended with 0"),
    ],
)
def test_a_life_that_is_wanted_starts_after_the_one_before(reports: Sequence[TaskReport], state: str) -> None:
    job = TfJob(SERVED, spare=2).run()
    job.do(ScaleRole(PS, 3))
    job.tasks["a"] = tuple(reports)
    job.report("a", AgentPhase.RUNNING, 0)
    assert states(job)["chief 0"] == state


def test_a_task_that_failed_is_shown_with_its_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    job = TfJob(SERVED).run()
    job.tasks["c"] = (TaskReport(0, 0, True, failure("c", code=3)),)
    monkeypatch.setattr(SingleTasks, "watch", lambda _: None)  # else it is wanted again in the same instant
    job.report("c", AgentPhase.RUNNING, 0)
    assert shown(job)[-1] == "evaluator 0: attempt 0, rank 0 (local rank 0, pid 1, c) exited with 3"


def test_what_a_node_said_of_an_earlier_round_is_not_shown() -> None:
    job = TfJob(SERVED)
    said: Any = {name: (TaskReport(0, 7),) for name in SERVED}
    job.tasks.update(said)
    for name in SERVED:
        job.report(name, AgentPhase.READY, -1)
    assert states(job)["chief 0"] == "attempt 0, starting"


def test_a_job_that_does_not_run_has_no_tasks_to_show() -> None:
    job = TfJob({"a": (CHIEF, WORKER, PS)}).run()
    assert len(shown(job)) == 3
    job.tasks["a"] = tuple(TaskReport(rank, 0, ended=True) for rank in range(3))
    job.report("a", AgentPhase.FINISHED, 0)
    assert job.phase() is JobPhase.SUCCEEDED
    assert shown(job) == []
