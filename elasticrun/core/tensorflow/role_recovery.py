"""Which tasks of a TensorFlow job are restarted if some of them are lost.

Two shapes of a cluster differ in how they fail. With parameter servers the tasks know one another through
the chief only: it notices a lost worker, takes it out of its schedule and takes it in again when it is back
at its address, so only that worker has to be restarted. A lost parameter server takes along variables that
only the chief can restore, and the chief ends with an error anyway: both are restarted. Without parameter
servers the world of MultiWorkerMirroredStrategy is fixed in each process, and a lost one leaves the others
in a collective that fails after a while, or never ends: all are restarted, as for torch, by a new round. An
evaluator talks to nobody in either shape.

A verdict is about a set of tasks, because several that are lost together cost one restart.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum

from elasticrun.config import TaskRole
from elasticrun.core.protocol.messages import Failure, FailureKind
from elasticrun.core.protocol.tasks import Cluster
from elasticrun.core.recovery.budget import StopCause
from elasticrun.core.tensorflow.cluster import SERVERS, is_served
from elasticrun.dataclass import dataclass

#: Exit status of a program that has saved its state and wants to be started again; that of TensorFlow's
#: PreemptionCheckpointHandler.
SAVED_STATUS = 42


class Scope(Enum):
    """What is restarted with a task that is lost."""

    ITSELF = "itself"
    WITH_CHIEF = "with the chief"
    ALL = "all"


#: By whether the cluster has parameter servers, and the role of the lost task.
SCOPES: dict[tuple[bool, TaskRole], Scope] = {
    (True, TaskRole.CHIEF): Scope.ITSELF,
    (True, TaskRole.WORKER): Scope.ITSELF,
    (True, TaskRole.PS): Scope.WITH_CHIEF,
    (True, TaskRole.EVALUATOR): Scope.ITSELF,
    (False, TaskRole.CHIEF): Scope.ALL,
    (False, TaskRole.WORKER): Scope.ALL,
    (False, TaskRole.EVALUATOR): Scope.ITSELF,
}


def makes_steps(cluster: Cluster, role: TaskRole) -> bool:
    """Whether a task of this role makes the steps of the training.

    A parameter server makes none, its workers leave the count to their chief, and an evaluator makes steps of
    its own whenever there is a checkpoint.
    """
    return role is TaskRole.CHIEF or (role is TaskRole.WORKER and not is_served(cluster))


def is_alone(cluster: Cluster, role: TaskRole) -> bool:
    """Whether a task of this role can be lost without a new round."""
    return SCOPES[is_served(cluster), role] is not Scope.ALL


#: Why a task that did not fail counts as lost.
SERVES = "ended with 0, but has to serve until the training is over"


@dataclass(frozen=True, slots=True)
class Loss:
    """A task whose newest attempt has ended before its time."""

    node: str
    local_rank: int
    role: TaskRole
    index: int
    failure: Failure | None  # None: it ended with 0

    def __str__(self) -> str:
        ending = SERVES if self.failure is None else self.failure.summary
        return f"{self.role.value} {self.index}: {ending}"


def is_loss(cluster: Cluster, role: TaskRole, failure: Failure | None) -> bool:
    """Whether this end of a task that can be lost alone is a loss; for a server, even 0 is."""
    return failure is not None or (is_served(cluster) and role in SERVERS)


def takes_chief(losses: Sequence[Loss]) -> bool:
    """Whether the chief has to be restarted with these."""
    return any(SCOPES[True, loss.role] is Scope.WITH_CHIEF for loss in losses)


def has_saved(failure: Failure) -> bool:
    """Whether a task ended because it has saved its state, which costs no restart."""
    return failure.kind is FailureKind.EXIT and failure.exit_code == SAVED_STATUS


def cause_of(losses: Sequence[Loss]) -> StopCause:
    """The cause of these losses for the restart budget: free if all of them have saved their state."""
    saved = all(loss.failure is not None and has_saved(loss.failure) for loss in losses)
    return StopCause.SAVED if saved else StopCause.WORKER_FAILED
