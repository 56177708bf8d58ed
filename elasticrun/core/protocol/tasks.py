"""The tasks of a TensorFlow job, as values that agents and the master exchange.

A round places every *task*: a role and an index within it, at an address that stays the same for the whole
round. What may change within a round is which *attempt* of a task runs. The master raises the wanted attempt
of a task to have it restarted alone, and says the whole assignment again; an agent compares the attempts
wanted with those it runs. So a partial restart is level-triggered like everything else: a directive that is
lost, doubled or late changes nothing, because attempts only grow.
"""

from typing import Annotated

from elasticrun.config import TaskRole
from elasticrun.core.protocol.bounds import LIVES, PORTS, RANKS, Counted, Distinct, Length, Served
from elasticrun.core.protocol.failure import Failure
from elasticrun.dataclass import dataclass

#: The most tasks of a TensorFlow cluster on one node, those that were taken away included.
MAX_TASKS = 256
#: The most ports that one status offers to tasks.
MAX_PORTS = 256
#: The most tasks of a whole TensorFlow cluster.
MAX_CLUSTER = 4096

#: Where each task of a TensorFlow cluster serves, as host:port by index, for each role.
Cluster = Annotated[
    tuple[tuple[TaskRole, Annotated[tuple[Served, ...], Length(MAX_CLUSTER)]], ...], Length(len(TaskRole))
]


@dataclass(frozen=True, slots=True)
class Task:
    """One task of a TensorFlow cluster, as its node is told."""

    local_rank: Counted  # never reused in a round, not even after its task was taken away
    role: TaskRole
    index: Counted  # within the role
    attempt: Counted = 0  # which one is wanted; it grows when this task, not the whole round, is restarted
    port: Annotated[int, PORTS] = 0  # where it serves; 0 for a task that is no part of the cluster
    saves: bool = False  # the attempt before this one gets the whole grace to save its state


@dataclass(frozen=True, slots=True)
class TaskReport:
    """How the newest attempt of a task fares."""

    local_rank: Annotated[int, RANKS]
    attempt: Annotated[int, LIVES]
    ended: bool = False
    failure: Failure | None = None  # None: it runs, or ended with 0


Tasks = Annotated[tuple[Task, ...], Length(MAX_TASKS), Distinct("local_rank")]
TaskReports = Annotated[tuple[TaskReport, ...], Length(MAX_TASKS), Distinct("local_rank")]


def misfit_of(cluster: Cluster) -> str:
    """What is wrong with a cluster as a whole, without the subject; "" if nothing is."""
    roles = [role.value for role, _ in cluster]
    if len(set(roles)) < len(roles):
        return f"must name each role once, got {roles}"
    total = sum(len(addresses) for _, addresses in cluster)
    return f"must have at most {MAX_CLUSTER} tasks, got {total}" if total > MAX_CLUSTER else ""
