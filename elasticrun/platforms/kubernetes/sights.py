"""What objects of the API server say of a job's pods and operations, in the words of ``core/fleet``.

Whatever is read here may have been written by anybody who may write to the namespace. Nothing of it raises.
What the job itself says is read in ``specs.py``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from ipaddress import ip_address
from typing import Any

from elasticrun.core.fleet.notices import cause_of
from elasticrun.core.fleet.replicas import ENDED, Cause, Operation, Phase, Seen
from elasticrun.platforms.kubernetes.names import (
    INDEX_LABEL,
    LONGEST_ROLE,
    ROLE_LABEL,
    SIZED,
    SLOT_LABEL,
    pod_name,
)
from elasticrun.platforms.kubernetes.specs import MOST_SLOTS
from elasticrun.platforms.kubernetes.values import (
    dict_of,
    limit_or_none,
    list_of,
    moment_of,
    number_of,
    words_of,
)

_KILLED = 128 + 9
#: Phases of a pod of which no container runs.
_OVER = ("Succeeded", "Failed")
_MOST = 1 << 20
#: How the scheduler says that hosts have less than is requested of what is measured.
_LACKS = ("Insufficient memory", "Insufficient cpu")
#: Why a container waits that nobody has to be told of.
_USUAL_WAITS = frozenset({"", "ContainerCreating", "PodInitializing"})


def operation_of(body: Mapping[str, Any], kind: str) -> Operation | None:
    """The operation that an object of this kind asks for; None if it has ended, or names nothing."""
    metadata, spec, status = (dict_of(body.get(part)) for part in ("metadata", "spec", "status"))
    ended = {phase.value for phase in ENDED}
    uid, count, timeout = metadata.get("uid"), spec.get("count"), spec.get("timeoutSeconds")
    if not isinstance(uid, str) or status.get("phase") in ended:
        return None
    count = count if isinstance(count, int) and 0 < count < _MOST else 0
    prefix = f"{spec.get('jobName')}-"
    names = [str(name) for name in list_of(spec.get("podNames"))] if kind == "ScaleIn" else []
    indices = tuple(number_of(name.removeprefix(prefix)) if name.startswith(prefix) else -1 for name in names)
    return Operation(
        key=uid,
        more=count if kind == "ScaleOut" else 0 if indices else -count,
        indices=indices,
        timeout=float(timeout) if isinstance(timeout, int) and timeout > 0 else Operation(uid).timeout,
        role=words_of(spec.get("role"))[: LONGEST_ROLE + 1],  # so that none is cut to a name that there is
    )


def seen_of(pods: Iterable[Mapping[str, Any]], name: str, uid: str) -> tuple[Seen, ...]:
    """What pods show of the replicas of the job with this name and uid.

    A pod of another name is a copy that somebody made, labels and all: its index is that of the original.
    """
    found = ((pod, _seen(pod)) for pod in pods if owner_of(pod) == uid)
    return tuple(
        each
        for pod, each in found
        if each is not None and pod["metadata"].get("name") == pod_name(name, each.index)
    )


def addresses_of(pods: Iterable[Mapping[str, Any]], uid: str) -> tuple[str, ...]:
    """The addresses of a job's running pods that may have its master, in the order of their slots."""
    found: list[tuple[int, str]] = []
    for pod in pods:
        slot = number_of(dict_of(dict_of(pod.get("metadata")).get("labels")).get(SLOT_LABEL))
        status, address = dict_of(pod.get("status")), _address(dict_of(pod.get("status")).get("podIP"))
        if owner_of(pod) == uid and slot >= 0 and address and status.get("phase") == "Running":
            found.append((slot, address))
    return tuple(address for _, address in sorted(found)[: 2 * MOST_SLOTS])


def _address(text: object) -> str:
    """The address; "" if it is none. What looks like a name is not looked up."""
    try:
        return str(ip_address(text)) if isinstance(text, str) else ""
    except ValueError:
        return ""


def owner_of(pod: Mapping[str, Any]) -> str:
    """The uid of what a pod belongs to; "" if that is nothing."""
    owners = list_of(dict_of(pod.get("metadata")).get("ownerReferences"))
    return next((str(dict_of(it).get("uid")) for it in owners if dict_of(it).get("controller") is True), "")


def _seen(pod: Mapping[str, Any]) -> Seen | None:
    metadata, status, spec = (dict_of(pod.get(part)) for part in ("metadata", "status", "spec"))
    labels = dict_of(metadata.get("labels"))
    index = number_of(labels.get(INDEX_LABEL))
    containers = list_of(spec.get("containers"))
    if index < 0 or not containers:
        return None
    state = _state(status, str(dict_of(containers[0]).get("name")))
    ended = dict_of(state.get("terminated"))
    phase = _phase(status, state, ended)
    code = ended.get("exitCode")
    return Seen(
        index=index,
        phase=phase,
        slot=number_of(labels.get(SLOT_LABEL)),
        exit_code=code if isinstance(code, int) and phase is Phase.ENDED else None,
        cause=_cause(status, ended, metadata, phase),
        host=str(spec.get("nodeName") or ""),
        memory=limit_or_none(dict_of(containers[0])),
        leaves_by=moment_of(metadata.get("deletionTimestamp")),
        trouble=_trouble(status, state) if phase is Phase.PENDING else "",
        is_homeless=phase is Phase.PENDING
        and SIZED in dict_of(metadata.get("annotations"))
        and any(lack in str(_placing(status).get("message")) for lack in _LACKS),
        words=words_of(ended.get("message") or status.get("message")) if phase is Phase.ENDED else "",
        lingers=phase is Phase.ENDED and status.get("phase") not in _OVER,
        role=str(labels.get(ROLE_LABEL) or ""),
    )


def _state(status: Mapping[str, Any], container: str) -> dict[str, Any]:
    """The state of the container that runs elastic-run; those beside it do not matter."""
    for each in map(dict_of, list_of(status.get("containerStatuses"))):
        if each.get("name") == container:
            return dict_of(each.get("state"))
    return {}


def _phase(status: Mapping[str, Any], state: Mapping[str, Any], ended: Mapping[str, Any]) -> Phase:
    if status.get("phase") in _OVER or ended:
        return Phase.ENDED
    return Phase.RUNNING if "running" in state else Phase.PENDING


def _cause(
    status: Mapping[str, Any], ended: Mapping[str, Any], metadata: Mapping[str, Any], phase: Phase
) -> Cause:
    # Where a process in the container was killed earlier, and the agent has ended since, its code says more.
    if ended.get("reason") == "OOMKilled" and ended.get("exitCode") == _KILLED:
        return Cause.OUT_OF_MEMORY
    if (cause := cause_of(status.get("reason"))) is not None:
        return cause
    for condition in map(dict_of, list_of(status.get("conditions"))):
        if condition.get("type") == "DisruptionTarget" and condition.get("status") == "True":
            return cause_of(condition.get("reason")) or Cause.DELETED
    if phase is Phase.ENDED and not ended:
        return Cause.NOT_STARTED if status.get("phase") == "Failed" else Cause.EXITED
    return Cause.DELETED if metadata.get("deletionTimestamp") and not ended else Cause.EXITED


def _trouble(status: Mapping[str, Any], state: Mapping[str, Any]) -> str:
    waiting = dict_of(state.get("waiting"))
    if (reason := str(waiting.get("reason") or "")) not in _USUAL_WAITS:
        return words_of(f"{reason}: {waiting.get('message') or 'no more is known'}")
    if placing := _placing(status):
        return words_of(f"{placing.get('reason')}: {placing.get('message') or 'no more is known'}")
    return ""


def _placing(status: Mapping[str, Any]) -> dict[str, Any]:
    """The condition that says why a pod has no host; {} if none does."""
    for condition in map(dict_of, list_of(status.get("conditions"))):
        if condition.get("type") == "PodScheduled" and condition.get("status") == "False":
            return condition
    return {}
