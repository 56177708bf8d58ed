"""What the tasks of a TensorFlow cluster are told, next to what torchrun would tell them."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from elasticrun.agent.tasks import global_rank, log_name, program, trainers
from elasticrun.agent.workers.env import common_environment, worker_environment
from elasticrun.config import Entrypoint, EntrypointKind, TaskRole, WorkerConfig
from elasticrun.core.protocol.messages import Assignment
from elasticrun.core.protocol.tasks import Task

CHIEF, WORKER, PS, EVALUATOR = TaskRole
SCRIPT = Entrypoint(EntrypointKind.SCRIPT, "train.py")
SERVER = Entrypoint(EntrypointKind.MODULE, "elasticrun.tf.server")
CONFIG = WorkerConfig(SCRIPT, 4, roles=(CHIEF, WORKER, PS, EVALUATOR), servers=SERVER)
CLUSTER = ((CHIEF, ("a:1",)), (WORKER, ("a:2",)), (PS, ("b:9", "a:3")))
TASKS = (
    Task(0, CHIEF, 0, attempt=2, port=1),
    Task(1, WORKER, 0, port=2),
    Task(2, PS, 1, port=3),
    Task(3, EVALUATOR, 0),
)
#: The second of two nodes; its four workers are the ranks 1 to 4 of 5.
SERVED = Assignment(3, 1, 2, 1, 5, 1, 5, "a", 29500, 0, 1, tasks=TASKS, cluster=CLUSTER)
MIRRORED = replace(SERVED, tasks=(Task(0, CHIEF, 0), Task(1, WORKER, 0)), cluster=CLUSTER[:2])
TORCH = replace(SERVED, tasks=(), cluster=())


def environment(local_rank: int, assignment: Assignment = SERVED, role: str = "default") -> dict[str, str]:
    return worker_environment(replace(CONFIG, role=role), "job", assignment, local_rank, "")


def test_a_task_finds_its_cluster_and_itself() -> None:
    values = environment(2)
    assert json.loads(values["TF_CONFIG"]) == {
        "cluster": {"chief": ["a:1"], "worker": ["a:2"], "ps": ["b:9", "a:3"]},
        "task": {"type": "ps", "index": 1},
        "rpc_layer": "grpc",
    }
    assert values["ELASTICRUN_ATTEMPT"] == "0"
    assert environment(0)["ELASTICRUN_ATTEMPT"] == "2"
    plain = environment(2, TORCH)
    assert "TF_CONFIG" not in plain
    assert {**values, **plain} == {**values, "ROLE_NAME": "default", "ROLE_RANK": "3", "ROLE_WORLD_SIZE": "5"}


def test_what_the_user_wrote_into_tf_config_holds_only_without_roles() -> None:
    config = replace(CONFIG, env=(("TF_CONFIG", "{}"),))
    assert worker_environment(config, "job", TORCH, 0, "")["TF_CONFIG"] == "{}"
    assert worker_environment(config, "job", SERVED, 0, "")["TF_CONFIG"] != "{}"


@pytest.mark.parametrize(
    ("local_rank", "told"),
    [(0, ("chief", "0", "1")), (2, ("ps", "1", "2")), (3, ("evaluator", "0", "1"))],
)
def test_a_task_has_its_role_unless_the_user_named_one(local_rank: int, told: tuple[str, ...]) -> None:
    names = ("ROLE_NAME", "ROLE_RANK", "ROLE_WORLD_SIZE")
    assert tuple(environment(local_rank)[name] for name in names) == told
    named = environment(local_rank, role="mine")
    assert tuple(named[name] for name in names) == ("mine", str(1 + local_rank), "5")


def test_added_seats_are_beyond_the_world_and_never_clash() -> None:
    added = tuple(Task(local_rank, PS, local_rank, port=local_rank) for local_rank in range(4, 7))
    nodes = [
        replace(SERVED, group_rank=group, first_rank=first, role_first_rank=first, tasks=added)
        for group, first in ((0, 0), (1, 1))
    ]
    for name in ("RANK", "ROLE_RANK"):
        ranks = [int(environment(task.local_rank, node, "mine")[name]) for node in nodes for task in added]
        assert sorted(ranks) == list(range(5, 11))
    assert environment(4, nodes[0])["WORLD_SIZE"] == "5"
    assert environment(4, nodes[0])["LOCAL_RANK"] == "4"
    assert environment(4, nodes[0])["LOCAL_WORLD_SIZE"] == "4"


def test_who_runs_what() -> None:
    def runs(assignment: Assignment, config: WorkerConfig = CONFIG) -> list[Entrypoint]:
        return [program(config, task, assignment) for task in assignment.tasks]

    assert runs(SERVED) == [SCRIPT, SERVER, SERVER, SCRIPT]
    assert runs(SERVED, replace(CONFIG, servers=None)) == [SCRIPT] * 4
    assert runs(MIRRORED) == [SCRIPT] * 2
    assert program(CONFIG, None, TORCH) is SCRIPT


def test_the_workers_of_a_round() -> None:
    assert TORCH.local_ranks(3) == (0, 1, 2)
    assert replace(SERVED, tasks=(TASKS[0], TASKS[2])).local_ranks(4) == (0, 2)
    assert replace(SERVED, tasks=()).local_ranks(4) == (), "an order took its only servers away"
    assert trainers(TORCH, 3) == (0, 1, 2)
    assert trainers(SERVED, 4) == (0,)
    assert trainers(MIRRORED, 4) == (0, 1)
    assert SERVED.task(2) is TASKS[2]
    assert SERVED.task(4) is None
    assert [global_rank(SERVED, 4, local_rank) for local_rank in (0, 3, 4, 5)] == [1, 4, 6, 8]


def test_how_lines_are_marked() -> None:
    assert log_name("default", TASKS[2], 2) == ("ps", 1)
    assert log_name("mine", TASKS[2], 2) == ("mine", 2)
    assert log_name("default", None, 2) == ("default", 2)


def test_what_a_warm_parent_imports_in_knows_nothing_of_tasks() -> None:
    assert "TF_CONFIG" not in common_environment(CONFIG, 0)
