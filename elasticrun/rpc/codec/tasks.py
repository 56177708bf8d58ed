"""The tasks of a TensorFlow job to their messages, and back; see the package."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Literal

from elasticrun.config import TaskRole
from elasticrun.core import bounds
from elasticrun.core.protocol import MAX_FAILURES, Failure
from elasticrun.core.tasks import MAX_CLUSTER, MAX_PORTS, MAX_TASKS, Cluster, Task, TaskReport
from elasticrun.core.usage import TaskUsage
from elasticrun.errors import ProtocolError
from elasticrun.rpc import checks
from elasticrun.rpc import elastic_pb2 as pb
from elasticrun.rpc.codec.failures import abridged_to_pb, failure_in, failure_to_pb
from elasticrun.rpc.codec.parts import few, member
from elasticrun.rpc.text import clean

_NAME_OF = {role: f"TASK_ROLE_{role.name}" for role in TaskRole}
_ROLE_OF = {pb.TaskRole.Value(name): role for role, name in _NAME_OF.items()}


# To messages


def role_to_pb(role: TaskRole) -> str:
    """What a task does."""
    return _NAME_OF[role]


def reports_to_pb(reports: Iterable[TaskReport], failures: Sequence[Failure]) -> list[pb.TaskReport]:
    """How a node's tasks fare. ``failures`` are those that their status carries beside them."""
    room = MAX_FAILURES - len(failures)
    found = []
    for report in reports:
        failure = None
        if report.failure is not None:
            failure = failure_to_pb(report.failure) if room > 0 else abridged_to_pb(report.failure)
            room -= 1
        found.append(
            pb.TaskReport(local_rank=report.local_rank, life=report.life, ended=report.ended, failure=failure)
        )
    return found


def tasks_to_pb(tasks: Iterable[Task]) -> list[pb.Task]:
    """The tasks that a node is to run."""
    return [
        pb.Task(
            local_rank=task.local_rank,
            role=role_to_pb(task.role),
            index=task.index,
            life=task.life,
            port=task.port,
            saves=task.saves,
        )
        for task in tasks
    ]


def usage_to_pb(usage: Iterable[TaskUsage]) -> list[pb.TaskUsage]:
    """What a node's tasks use."""
    return [
        pb.TaskUsage(
            local_rank=task.local_rank,
            cpu=_known(task.cpu),
            memory=task.memory,
            step=None if task.step is None else min(task.step, bounds.SEQUENCES.high),
            step_rate=_known(task.step_rate),
            graph_time=_known(task.graph_time),
        )
        for task in usage
    ]


def _known(number: float | None) -> float | None:
    """None for what the receiver would refuse, too."""
    return min(number, bounds.RATES.high) if number is not None and math.isfinite(number) else None


@lru_cache(maxsize=1)
def cluster_to_pb(cluster: Cluster) -> tuple[pb.ClusterRole, ...]:
    """Where all tasks serve. Every node of a round is told the same, so it is made once."""
    return tuple(
        pb.ClusterRole(role=role_to_pb(role), addresses=map(clean, addresses)) for role, addresses in cluster
    )


# From messages


def role_in(field: str, role: int) -> TaskRole:
    """What a task does; raises ProtocolError."""
    return member(field, _ROLE_OF, role)


def roles_in(roles: Iterable[int]) -> tuple[TaskRole, ...]:
    """What a node's tasks do; raises ProtocolError."""
    return few("roles", MAX_TASKS, (role_in("roles", role) for role in roles))


def ports_in(ports: Iterable[int]) -> tuple[int, ...]:
    """The ports that a node offers to tasks; raises ProtocolError."""
    return few("ports", MAX_PORTS, (checks.integer("ports", port, 1, checks.MAX_PORT) for port in ports))


def reports_in(reports: Iterable[pb.TaskReport], failures: Sequence[Failure]) -> tuple[TaskReport, ...]:
    """How a node's tasks fare, in a status that carries ``failures`` too; raises ProtocolError."""
    first = failures[0] if failures else None
    found: list[TaskReport] = []
    for report in few("tasks", MAX_TASKS, reports):
        failure = failure_in(report.failure, first) if report.HasField("failure") else None
        first = first or failure
        found.append(
            TaskReport(
                local_rank=checks.within("task.local_rank", report.local_rank, bounds.RANKS),
                life=checks.within("task.life", report.life, bounds.LIVES),
                ended=report.ended,
                failure=failure,
            )
        )
    _distinct("tasks", "local rank", [report.local_rank for report in found])
    return tuple(found)


def usage_in(usage: Iterable[pb.TaskUsage]) -> tuple[TaskUsage, ...]:
    """What a node's tasks use; raises ProtocolError."""
    found = few("usage", MAX_TASKS, map(_usage, usage))
    _distinct("usage", "local rank", [task.local_rank for task in found])
    return found


def _usage(usage: pb.TaskUsage) -> TaskUsage:
    return TaskUsage(
        local_rank=checks.within("usage.local_rank", usage.local_rank, bounds.RANKS),
        cpu=_measure(usage, "cpu"),
        memory=checks.within("usage.memory", usage.memory, bounds.BYTES)
        if usage.HasField("memory")
        else None,
        step=checks.within("usage.step", usage.step, bounds.SEQUENCES) if usage.HasField("step") else None,
        step_rate=_measure(usage, "step_rate"),
        graph_time=_measure(usage, "graph_time"),
    )


def _measure(usage: pb.TaskUsage, name: Literal["cpu", "step_rate", "graph_time"]) -> float | None:
    return (
        checks.within(f"usage.{name}", getattr(usage, name), bounds.RATES) if usage.HasField(name) else None
    )


def tasks_in(tasks: Iterable[pb.Task]) -> tuple[Task, ...]:
    """The tasks that a node is to run; raises ProtocolError."""
    found = few("tasks", MAX_TASKS, map(_task, tasks))
    _distinct("tasks", "local rank", [task.local_rank for task in found])
    return found


def _task(task: pb.Task) -> Task:
    return Task(
        local_rank=checks.integer("task.local_rank", task.local_rank, 0),
        role=role_in("task.role", task.role),
        index=checks.integer("task.index", task.index, 0),
        life=checks.integer("task.life", task.life, 0),
        port=checks.port("task.port", task.port),
        saves=task.saves,
    )


def cluster_in(cluster: Iterable[pb.ClusterRole]) -> Cluster:
    """Where all tasks serve; raises ProtocolError."""
    groups = few("cluster", len(TaskRole), cluster)
    found = tuple((role_in("cluster.role", group.role), _addresses(group)) for group in groups)
    _distinct("cluster", "role", [role.value for role, _ in found])
    if (total := sum(len(addresses) for _, addresses in found)) > MAX_CLUSTER:
        raise ProtocolError(f"cluster must have at most {MAX_CLUSTER} tasks, got {total}")
    return found


def _addresses(group: pb.ClusterRole) -> tuple[str, ...]:
    return few("cluster.addresses", MAX_CLUSTER, map(_address, group.addresses))


def _address(address: str) -> str:
    host, _, port = checks.name("cluster.address", address).rpartition(":")
    is_number = port.isascii() and port.isdigit() and len(port) <= 5
    if not (host and is_number and 1 <= int(port) <= checks.MAX_PORT):
        raise ProtocolError(f"cluster.address must be HOST:PORT, got {address[:100]!r}")
    return address


def _distinct(field: str, what: str, values: Sequence[object]) -> None:
    if len(set(values)) < len(values):
        raise ProtocolError(
            f"{field} must each have a {what} of their own, got {values}"[: checks.MAX_SENTENCE]
        )
