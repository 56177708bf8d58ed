"""What objects of the API server say of a job, in the words of ``core/fleet``.

Whatever is read here may have been written by anybody who may write to the namespace. Nothing of it raises
but ``SpecError``, for a job that cannot be kept as it is written.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime, timezone
from ipaddress import ip_address
from typing import Any

from elasticrun.core.fleet.notices import cause_of, default_grace
from elasticrun.core.fleet.replicas import (
    ENDED,
    Amounts,
    Cause,
    CleanPolicy,
    Operation,
    Phase,
    Seen,
    Shape,
    Wish,
)
from elasticrun.core.fleet.sizing import DEFAULT_CAPS
from elasticrun.core.protocol.plain import one_line
from elasticrun.platforms.kubernetes.names import INDEX_LABEL, MOST_REPLICAS, SIZED, SLOT_LABEL, pod_name
from elasticrun.platforms.kubernetes.quantity import cpu_of, memory_of

#: So many replicas have a name of their own, at which a master may listen: one may then be lost.
MOST_SLOTS = 3
#: How a container says that saved steps go to a storage.
_STORAGE = ("--state-storage", "--state_storage"), "PET_STATE_STORAGE"
_SHOWN = 200
_KILLED = 128 + 9
#: Phases of a pod of which no container runs.
_OVER = ("Succeeded", "Failed")
_MOST = 1 << 20
#: Levels of a template; whatever walks through it, or copies it, need not be ready for more. A pod has 15.
_DEEPEST = 100
#: How the scheduler says that hosts have less than is requested of what is measured.
_LACKS = ("Insufficient memory", "Insufficient cpu")
#: Why a container waits that nobody has to be told of.
_USUAL_WAITS = frozenset({"", "ContainerCreating", "PodInitializing"})


class SpecError(ValueError):
    """The job cannot be kept as it is written; the text says why."""


def role_of(job: Mapping[str, Any]) -> dict[str, Any]:
    """The job's one role."""
    roles = _list(_dict(job.get("spec")).get("roles"))
    if len(roles) != 1:
        raise SpecError("spec.roles has to have one role")
    return _dict(roles[0])


def wish_of(job: Mapping[str, Any]) -> Wish:
    """What a job asks for. Raises SpecError."""
    spec, role = _dict(job.get("spec")), role_of(job)
    low, high = max(1, _whole(role, "minReplicas", 1)), _whole(role, "maxReplicas", 1)
    if low > high:
        raise SpecError(f"minReplicas is {low}, which is more than maxReplicas, {high}")
    if high > MOST_REPLICAS:
        raise SpecError(f"maxReplicas is {high}, which is more than {MOST_REPLICAS}")
    wanted = _whole(role, "replicas", high)
    if not low <= wanted <= high:
        raise SpecError(f"replicas is {wanted}, which is not within {low} and {high}")
    spec_of_pod = _dict(_dict(role.get("template")).get("spec"))
    containers, grace = _list(spec_of_pod.get("containers")), spec_of_pod.get("terminationGracePeriodSeconds")
    if not containers:
        raise SpecError("the template has no container")
    if _is_deep(role["template"]):
        raise SpecError(f"the template is nested more than {_DEEPEST} levels deep")
    try:
        clean = CleanPolicy(spec.get("cleanPodPolicy", CleanPolicy.RUNNING.value))
        memory, most = _limit(_dict(containers[0])), role.get("maxMemory")
        max_memory = 0 if most is None else memory_of(most)
        return Wish(
            shape=Shape(low, high, min(MOST_SLOTS, low)),
            wanted=wanted,
            suspended=spec.get("suspend") is True,
            max_failures=_whole(role, "restartLimit", 10),
            memory=memory,
            max_memory=max_memory,
            clean=clean,
            grace=grace if isinstance(grace, int) else float(grace_of(_dict(containers[0]))),
            caps=_caps(spec_of_pod, max_memory, role.get("maxCpu")),
        )
    except ValueError as error:
        raise SpecError(str(error)) from None


def grace_of(container: Mapping[str, Any]) -> int:
    """Seconds for a pod to end, if its template does not say how many; by what its first container runs."""
    options, variable = _STORAGE
    words = [str(word) for part in ("command", "args") for word in _list(container.get(part))]
    names = [_dict(each).get("name") for each in _list(container.get("env"))]
    return default_grace(variable in names or any(option in word for word in words for option in options))


def operation_of(body: Mapping[str, Any], kind: str) -> Operation | None:
    """The operation that an object of this kind asks for; None if it has ended, or names nothing."""
    metadata, spec, status = (_dict(body.get(part)) for part in ("metadata", "spec", "status"))
    ended = {phase.value for phase in ENDED}
    uid, count, timeout = metadata.get("uid"), spec.get("count"), spec.get("timeoutSeconds")
    if not isinstance(uid, str) or status.get("phase") in ended:
        return None
    count = count if isinstance(count, int) and 0 < count < _MOST else 0
    prefix = f"{spec.get('jobName')}-"
    names = [str(name) for name in _list(spec.get("podNames"))] if kind == "ScaleIn" else []
    indices = tuple(_number(name.removeprefix(prefix)) if name.startswith(prefix) else -1 for name in names)
    return Operation(
        key=uid,
        more=count if kind == "ScaleOut" else 0 if indices else -count,
        indices=indices,
        timeout=float(timeout) if isinstance(timeout, int) and timeout > 0 else Operation(uid).timeout,
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
        slot = _number(_dict(_dict(pod.get("metadata")).get("labels")).get(SLOT_LABEL))
        status, address = _dict(pod.get("status")), _address(_dict(pod.get("status")).get("podIP"))
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
    owners = _list(_dict(pod.get("metadata")).get("ownerReferences"))
    return next((str(_dict(it).get("uid")) for it in owners if _dict(it).get("controller") is True), "")


def _seen(pod: Mapping[str, Any]) -> Seen | None:
    metadata, status, spec = (_dict(pod.get(part)) for part in ("metadata", "status", "spec"))
    labels = _dict(metadata.get("labels"))
    index = _number(labels.get(INDEX_LABEL))
    containers = _list(spec.get("containers"))
    if index < 0 or not containers:
        return None
    state = _state(status, str(_dict(containers[0]).get("name")))
    ended = _dict(state.get("terminated"))
    phase = _phase(status, state, ended)
    code = ended.get("exitCode")
    return Seen(
        index=index,
        phase=phase,
        slot=_number(labels.get(SLOT_LABEL)),
        exit_code=code if isinstance(code, int) and phase is Phase.ENDED else None,
        cause=_cause(status, ended, metadata, phase),
        host=str(spec.get("nodeName") or ""),
        memory=_limit_or_none(_dict(containers[0])),
        leaves_by=_moment(metadata.get("deletionTimestamp")),
        trouble=_trouble(status, state) if phase is Phase.PENDING else "",
        is_homeless=phase is Phase.PENDING
        and SIZED in _dict(metadata.get("annotations"))
        and any(lack in str(_placing(status).get("message")) for lack in _LACKS),
        words=_words(ended.get("message") or status.get("message")) if phase is Phase.ENDED else "",
        lingers=phase is Phase.ENDED and status.get("phase") not in _OVER,
    )


def _state(status: Mapping[str, Any], container: str) -> dict[str, Any]:
    """The state of the container that runs elastic-run; those beside it do not matter."""
    for each in map(_dict, _list(status.get("containerStatuses"))):
        if each.get("name") == container:
            return _dict(each.get("state"))
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
    for condition in map(_dict, _list(status.get("conditions"))):
        if condition.get("type") == "DisruptionTarget" and condition.get("status") == "True":
            return cause_of(condition.get("reason")) or Cause.DELETED
    if phase is Phase.ENDED and not ended:
        return Cause.NOT_STARTED if status.get("phase") == "Failed" else Cause.EXITED
    return Cause.DELETED if metadata.get("deletionTimestamp") and not ended else Cause.EXITED


def _trouble(status: Mapping[str, Any], state: Mapping[str, Any]) -> str:
    waiting = _dict(state.get("waiting"))
    if (reason := str(waiting.get("reason") or "")) not in _USUAL_WAITS:
        return _words(f"{reason}: {waiting.get('message') or 'no more is known'}")
    if placing := _placing(status):
        return _words(f"{placing.get('reason')}: {placing.get('message') or 'no more is known'}")
    return ""


def _placing(status: Mapping[str, Any]) -> dict[str, Any]:
    """The condition that says why a pod has no host; {} if none does."""
    for condition in map(_dict, _list(status.get("conditions"))):
        if condition.get("type") == "PodScheduled" and condition.get("status") == "False":
            return condition
    return {}


# -- values of any kind


def _dict(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


def _number(value: object) -> int:
    return int(value) if isinstance(value, str) and value.isdecimal() and len(value) < 10 else -1


def _is_deep(value: object) -> bool:
    """Whether it has too many levels; without recursion, as there may be thousands."""
    level: list[object] = [value]
    for _ in range(_DEEPEST):
        level = [
            part
            for each in level
            if isinstance(each, dict | list)
            for part in (each.values() if isinstance(each, dict) else each)
        ]
        if not level:
            return False
    return True


def _whole(role: Mapping[str, Any], key: str, default: int) -> int:
    value = role.get(key, default)
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise SpecError(f"{key} is {value!r}, which is no number")
    return value


def _caps(pod: Mapping[str, Any], max_memory: int, max_cpu: object) -> Amounts:
    """How far requests may go that are measured: of what the template neither requests nor limits.

    It may do so for the pod as a whole, too.
    """
    holders = _dict(pod.get("resources")), _dict(_dict(_list(pod.get("containers"))[0]).get("resources"))
    given = {key for each in holders for part in ("requests", "limits") for key in _dict(each.get(part))}
    cpu = DEFAULT_CAPS.cpu if max_cpu is None else cpu_of(max_cpu)
    return Amounts(
        0 if "memory" in given else max_memory or DEFAULT_CAPS.memory, 0 if "cpu" in given else cpu
    )


def _limit(container: Mapping[str, Any]) -> int:
    limits = _dict(_dict(container.get("resources")).get("limits"))
    return memory_of(limits["memory"]) if "memory" in limits else 0


def _limit_or_none(container: Mapping[str, Any]) -> int:
    try:
        return _limit(container)
    except ValueError:
        return 0


def _moment(text: object) -> float | None:
    if not isinstance(text, str):
        return None
    try:
        return datetime.strptime(text, "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=timezone.utc).timestamp()
    except ValueError:
        return 0.0


def _words(text: object) -> str:
    return one_line(str(text or "").strip())[:_SHOWN]
