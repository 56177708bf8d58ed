"""The shape of a TensorFlow cluster: its roles, where its tasks run, and its ``TF_CONFIG``.

There are two shapes. In a *served* cluster parameter servers hold the variables: one chief runs the loop and
has workers compute its steps (ParameterServerStrategy). In a *mirrored* one every worker holds all variables,
and the chief, or worker 0 where there is none, is a worker that also saves (MultiWorkerMirroredStrategy; one
task alone is such a cluster too). Beside either, one evaluator may read the checkpoints; nobody speaks to it,
so it has no address.

The invariant of a numbering: within each role the indexes are exactly 0..n-1, counted over the nodes in the
order of their ranks and on each node by local rank, and ``cluster[role][index]`` is where that task serves.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from elasticrun.config import Endpoint, TaskRole
from elasticrun.core.protocol.tasks import MAX_CLUSTER, Cluster, Task

#: What TensorFlow reads: the environment variable that has the JSON text of ``tf_config``.
CONFIG_VARIABLE = "TF_CONFIG"
#: A node's address, the roles of its tasks by local rank, and the ports that it holds free for them.
Offer = tuple[str, Sequence[TaskRole], Sequence[int]]

#: Roles of which a cluster has one task at most.
SINGLE = frozenset({TaskRole.CHIEF, TaskRole.EVALUATOR})
#: Roles that, in a cluster with parameter servers, serve until the chief is done and never end by themselves.
SERVERS = frozenset({TaskRole.WORKER, TaskRole.PS})


def count_roles(roles: Iterable[TaskRole]) -> dict[TaskRole, int]:
    """How many tasks each role has; roles without a task are left out."""
    listed = list(roles)
    return {role: listed.count(role) for role in TaskRole if role in listed}


def expand(counts: Mapping[TaskRole, int]) -> tuple[TaskRole, ...]:
    """The roles of so many tasks by local rank: chief, workers, parameter servers, evaluator.

    The chief comes first so that it has rank 0: a program that reads torchrun's variables finds the same
    first task as TensorFlow.
    """
    return tuple(role for role in TaskRole for _ in range(counts.get(role, 0)))


def describe_counts(counts: Mapping[TaskRole, int]) -> str:
    """The counts as a user writes them: ``chief=1,worker=2``; "" if there are none."""
    return ",".join(f"{role.value}={counts[role]}" for role in TaskRole if counts.get(role))


def impossible(counts: Mapping[TaskRole, int]) -> str:
    """Why these roles make no cluster, in one sentence that also says what to do; "" if they make one.

    A missing role counts as 0.
    """
    given = describe_counts(counts)
    if any(number < 0 for number in counts.values()):
        return f"{given} has a negative count; give 1 or more, or leave the role out"
    if sum(counts.values()) > MAX_CLUSTER:
        return f"{given} is more than the {MAX_CLUSTER} tasks of a cluster; give fewer"
    for role, number in counts.items():
        if role in SINGLE and number > 1:
            return f"{role.value}={number}, but a cluster has one {role.value} at most; give {role.value}=1"
    if missing := _missing(counts):
        why = f"lacks the {_and(missing)} that a ps serves" if counts.get(TaskRole.PS) else "trains nothing"
        return f"{given or 'no role at all'} {why}; give for example {describe_counts({**counts, **missing})}"
    return ""


def _missing(counts: Mapping[TaskRole, int]) -> dict[TaskRole, int]:
    """The fewest tasks to add so that these counts make a cluster."""
    chiefs, workers = counts.get(TaskRole.CHIEF, 0), counts.get(TaskRole.WORKER, 0)
    if not counts.get(TaskRole.PS):
        return {} if chiefs or workers else {TaskRole.WORKER: 1}
    return {role: 1 for role, number in ((TaskRole.CHIEF, chiefs), (TaskRole.WORKER, workers)) if not number}


def _and(roles: Iterable[TaskRole]) -> str:
    return " and the ".join(role.value for role in roles)


def is_served(cluster: Cluster) -> bool:
    """Whether parameter servers hold the variables."""
    return any(role is TaskRole.PS for role, _ in cluster)


def leader(roles: Iterable[TaskRole]) -> TaskRole:
    """The role whose task 0 ends the job when it ends."""
    return TaskRole.CHIEF if TaskRole.CHIEF in roles else TaskRole.WORKER


def ports_needed(roles: Iterable[TaskRole]) -> int:
    """How many ports the tasks of these roles need."""
    return sum(role is not TaskRole.EVALUATOR for role in roles)


def number_tasks(offers: Sequence[Offer]) -> tuple[tuple[tuple[Task, ...], ...], Cluster]:
    """The tasks of each node, by local rank, and where all of them serve.

    ``offers`` are those of the nodes in the order of their ranks. A node's first port goes to the first of
    its tasks that serves, and so on. Raises ValueError if a node offers too few.
    """
    served: dict[TaskRole, list[str]] = {role: [] for role in TaskRole if role is not TaskRole.EVALUATOR}
    evaluators = 0
    nodes = []
    for address, roles, ports in offers:
        if len(ports) < (needed := ports_needed(roles)):
            raise ValueError(f"{address} offers {len(ports)} ports, but its tasks need {needed}")
        free = iter(ports)
        tasks = []
        for local_rank, role in enumerate(roles):
            if role is TaskRole.EVALUATOR:
                tasks.append(Task(local_rank, role, evaluators))
                evaluators += 1
                continue
            port = next(free)
            tasks.append(Task(local_rank, role, len(served[role]), port=port))
            served[role].append(str(Endpoint(address, port)))
        nodes.append(tuple(tasks))
    return tuple(nodes), tuple((role, tuple(places)) for role, places in served.items() if places)


def tf_config(cluster: Cluster, task: Task) -> dict[str, object]:
    """What a task finds in ``TF_CONFIG``, before it is written as JSON."""
    return {
        "cluster": {role.value: list(places) for role, places in cluster if places},
        "task": {"type": task.role.value, "index": task.index},
        "rpc_layer": "grpc",
    }
