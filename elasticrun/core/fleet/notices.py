"""The contract of preemption: what each way to take a replica away is taken for, and what it is owed.

Theory. Whoever takes a replica away means the host, never the job. So all rows have much in common, which is
therefore no column: the others form a smaller world at once, in the agents and replicas that they have; no
restart is spent and nothing counts as a failure; and another replica takes the place, so that the world grows
again when there is room. Rows differ in how the notice is told, in whether there is time to save, and in when
the other replica is started. The reasons are the words of the API server of Kubernetes; what tells other
platforms' notices maps to the same causes.

``fates.py`` and the adapters read this table, and the manual shows it.
"""

from __future__ import annotations

from enum import Enum

from elasticrun.core.fleet.replicas import Cause
from elasticrun.dataclass import dataclass
from elasticrun.errors import ExitCode

#: Seconds between SIGTERM and SIGKILL if the template says nothing: elastic-run gives its workers 30 of them,
#: and if saved steps go to a storage, the newest one has 60 to get there.
GRACE, GRACE_OF_STORAGE = 45, 105


class Notice(Enum):
    """How a replica is taken away, in words for the manual."""

    DELETED = "a pod is deleted: by somebody, or by a scheduler that reclaims its room (Volcano, KAI, Kueue)"
    DRAINED = "its host is drained: the Eviction API, which a PodDisruptionBudget may hold back"
    TAINTED = "its host gets a taint `NoExecute`"
    OUTRANKED = "the scheduler makes room for a pod of higher priority"
    SHUT_DOWN = "its host shuts down, as the spot market wants it back"
    ANNOUNCED = "the file of `--preemption-file` appears"
    SQUEEZED = "its host runs low on memory or disk"
    LOST = "its host is lost"
    SUSPENDED = "the whole job: `suspend`"
    TOO_FEW = "so many pods that fewer than `minReplicas` are left"


class Next(Enum):
    """When another replica takes the place, in words for the manual."""

    ENDED = "once this one has ended"
    GRACE = "after the grace of a pod: perhaps all were told to leave"
    FORGOTTEN = "once the cluster has removed the pod, or 30 seconds after its grace"
    RESUMED = "when the job is resumed"


@dataclass(frozen=True, slots=True)
class Terms:
    """One row."""

    notice: Notice
    saves: bool  # SIGTERM comes first, and the grace; else the last state that was saved has to do
    next: Next = Next.ENDED
    cause: Cause | None = None  # what it is taken for; None: not told of a single replica
    reasons: tuple[str, ...] = ()  # by which a platform tells it
    code: ExitCode | None = None  # with which the agent tells it


CONTRACT = (
    Terms(Notice.DELETED, True, cause=Cause.DELETED),
    Terms(Notice.DRAINED, True, cause=Cause.DELETED, reasons=("EvictionByEvictionAPI",)),
    Terms(Notice.TAINTED, True, cause=Cause.PREEMPTED, reasons=("DeletionByTaintManager",)),
    Terms(
        Notice.OUTRANKED,
        True,
        cause=Cause.PREEMPTED,
        reasons=("PreemptionByScheduler", "Preempting", "Preempted"),
    ),
    Terms(Notice.SHUT_DOWN, True, cause=Cause.PREEMPTED, reasons=("Terminated", "Shutdown", "NodeShutdown")),
    Terms(Notice.ANNOUNCED, True, Next.GRACE, Cause.EXITED, code=ExitCode.DRAINED),
    Terms(Notice.SQUEEZED, False, cause=Cause.EVICTED, reasons=("Evicted", "TerminationByKubelet")),
    Terms(Notice.LOST, False, Next.FORGOTTEN, cause=Cause.HOST_LOST, reasons=("NodeLost", "DeletionByPodGC")),
    Terms(Notice.SUSPENDED, True, Next.RESUMED),
    Terms(Notice.TOO_FEW, True),
)

_CAUSES = {reason: terms.cause for terms in CONTRACT for reason in terms.reasons}
#: What the platform did, and what no job has to pay for.
FREE_CAUSES = frozenset(terms.cause for terms in CONTRACT if terms.cause and terms.code is None)
#: With which an agent ends that was told to leave.
LEAVING_CODES = frozenset(terms.code for terms in CONTRACT if terms.code is not None)


def cause_of(reason: object) -> Cause | None:
    """What a platform's reason for an end means; None if it is no notice."""
    return _CAUSES.get(str(reason))


def default_grace(has_storage: bool) -> int:
    """Seconds for a replica to end, if nobody says how many; ``has_storage``: saved steps go to a storage."""
    return GRACE_OF_STORAGE if has_storage else GRACE
