"""The workers of a node as tasks of a TensorFlow cluster: which tasks there are, and what each is told.

A node without roles has no tasks: its workers are the local ranks 0, 1 and so on, and nothing here changes
what torchrun would tell them. With roles, ``TF_CONFIG`` comes on top of torchrun's variables.

torchrun's *role* is the same thing: workers with one purpose, numbered among themselves. So unless the user
named a role, ROLE_NAME, ROLE_RANK and ROLE_WORLD_SIZE are the task's role, its index and the number of tasks
in the role.

RANK and WORLD_SIZE describe the world at the round's beginning. A task that is added later, with a local rank
beyond the node's first ones, is not in it: the others were told the world's size already. Its RANK is at or
above WORLD_SIZE, and no two nodes give the same one.
"""

from __future__ import annotations

import json

from elasticrun.config import Entrypoint, WorkerConfig
from elasticrun.core.protocol.messages import Assignment
from elasticrun.core.protocol.ranks import global_rank as global_rank
from elasticrun.core.protocol.ranks import nth_added
from elasticrun.core.protocol.tasks import Task
from elasticrun.core.tensorflow.cluster import CONFIG_VARIABLE, SERVERS, is_served, tf_config
from elasticrun.core.tensorflow.role_recovery import makes_steps

#: Ours: which attempt of the task this is, from 0 in each round.
ATTEMPT_VARIABLE = "ELASTICRUN_ATTEMPT"
#: torchrun's role name for workers without one.
UNNAMED = "default"


def trainers(assignment: Assignment, local_world_size: int) -> tuple[int, ...]:
    """The local ranks whose steps are training steps: all, unless there are tasks."""
    if assignment.cluster:
        tasks = assignment.tasks
        return tuple(task.local_rank for task in tasks if makes_steps(assignment.cluster, task.role))
    return tuple(range(local_world_size))


def program(config: WorkerConfig, task: Task | None, assignment: Assignment) -> Entrypoint:
    """The program of a worker; in a cluster with parameter servers, they and workers may have their own."""
    serves = task is not None and task.role in SERVERS and is_served(assignment.cluster)
    return config.servers if serves and config.servers is not None else config.entrypoint


def task_environment(config: WorkerConfig, assignment: Assignment, local_rank: int) -> dict[str, str]:
    """What a task's environment needs on top of a plain worker's; empty without roles."""
    task = assignment.task(local_rank)
    if task is None:
        return {}
    return {
        CONFIG_VARIABLE: json.dumps(tf_config(assignment.cluster, task)),
        ATTEMPT_VARIABLE: str(task.attempt),
        "RANK": str(global_rank(assignment, config.local_world_size, local_rank)),
        **_role(config, assignment, task),
    }


def _role(config: WorkerConfig, assignment: Assignment, task: Task) -> dict[str, str]:
    if config.role == UNNAMED:
        places = dict(assignment.cluster).get(task.role, ())
        size = max(len(places), task.index + 1)  # the evaluator has no place there
        return {
            "ROLE_NAME": task.role.value,
            "ROLE_RANK": str(task.index),
            "ROLE_WORLD_SIZE": str(size),
        }
    beyond = task.local_rank - config.local_world_size
    if beyond < 0:
        return {}
    return {"ROLE_RANK": str(assignment.role_world_size + nth_added(assignment, beyond))}


def role_name(role: str, task: Task | None) -> str:
    """What a worker is called: its task's role unless the user named one."""
    return role if task is None or role != UNNAMED else task.role.value


def log_name(role: str, task: Task | None, local_rank: int) -> tuple[str, int]:
    """What marks a worker's lines by default: ``[ps1]``, or its role and local rank as torchrun has it."""
    if task is None or role != UNNAMED:
        return role, local_rank
    return task.role.value, task.index
