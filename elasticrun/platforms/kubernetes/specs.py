"""What a job asks for, as its ``spec`` says it, in the words of ``core/fleet``.

The schema of the API server may be another one, so nothing is taken for granted. Nothing of it raises but
``SpecError``, for a job that cannot be kept as it is written.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from elasticrun.config import TaskRole
from elasticrun.core.fleet.notices import default_grace
from elasticrun.core.fleet.replicas import Amounts, Bounds, CleanPolicy, Role, Shape, Wish
from elasticrun.core.fleet.roles import MOST_ROLES
from elasticrun.core.fleet.sizing import DEFAULT_CAPS
from elasticrun.core.tensorflow.cluster import impossible
from elasticrun.platforms.kubernetes.names import LONGEST_ROLE, MOST_REPLICAS, ROLE_PATTERN
from elasticrun.platforms.kubernetes.quantity import cpu_of, memory_of
from elasticrun.platforms.kubernetes.values import DEEPEST, dict_of, is_deep, limit_of, list_of, words_of

#: So many replicas have a name of their own, at which a master may listen: one may then be lost.
MOST_SLOTS = 3
#: How a container says that saved steps go to a storage.
_STORAGE = ("--state-storage", "--state_storage"), "PET_STATE_STORAGE"
#: Roles by which a job with several is one of TensorFlow: a worker alone may be of any framework.
_OF_TENSORFLOW = frozenset(role.value for role in TaskRole if role is not TaskRole.WORKER)


class SpecError(ValueError):
    """The job cannot be kept as it is written; the text says why."""


def role_of(job: Mapping[str, Any], name: str = "") -> dict[str, Any]:
    """A role of the job; "" is the only one. Raises SpecError."""
    roles = _roles(job)
    if name:
        roles = [role for role in roles if role.get("name") == name]
    if len(roles) != 1:
        what = f"there is no role {name} any more" if name else "there are several roles now"
        raise SpecError(f"{what}: suspend and resume the job, so that all pods start with the same roles")
    return roles[0]


def _roles(job: Mapping[str, Any]) -> list[dict[str, Any]]:
    roles = list_of(dict_of(job.get("spec")).get("roles"))
    if not 0 < len(roles) <= MOST_ROLES:
        raise SpecError(f"spec.roles has {len(roles)} roles; give one role, or up to {MOST_ROLES}")
    return [dict_of(role) for role in roles]


def is_tensorflow(names: Iterable[str]) -> bool:
    """Whether the roles of a job with several are those of a TensorFlow cluster, as their names say."""
    return not _OF_TENSORFLOW.isdisjoint(names)


def wish_of(job: Mapping[str, Any]) -> Wish:
    """What a job asks for. Raises SpecError."""
    spec, roles = dict_of(job.get("spec")), _roles(job)
    if roles[0].get("minReplicas") == 0:
        raise SpecError("minReplicas of the first role is 0; give 1 or more, as its pods run the master")
    try:
        clean = CleanPolicy(spec.get("cleanPodPolicy", CleanPolicy.RUNNING.value))
    except ValueError as error:
        raise SpecError(str(error)) from None
    suspended = spec.get("suspend") is True
    if len(roles) == 1:
        name = str(roles[0].get("name") or "")[:LONGEST_ROLE]
        first, bounds, grace = _role(roles[0], name)
        shape = Shape(bounds.least, bounds.most, min(MOST_SLOTS, bounds.least))
        amounts = first.memory, first.max_memory, clean, grace, first.caps
        return Wish(shape, first.wanted, suspended, first.max_failures, *amounts, name=name)
    read = [_named(role) for role in roles]
    shape = _shape([each for _, each, _ in read])
    return Wish(
        shape,
        sum(role.wanted for role, _, _ in read),
        suspended,
        max_failures=max(role.max_failures for role, _, _ in read),
        clean=clean,
        grace=max(each for _, _, each in read),
        roles=tuple(role for role, _, _ in read),
    )


def _named(role: Mapping[str, Any]) -> tuple[Role, Bounds, float]:
    """The same as ``_role``; what cannot be is told of this role."""
    name = _name(role)
    try:
        return _role(role, name)
    except SpecError as error:
        raise SpecError(f"role {name}: {error}") from None


def _name(role: Mapping[str, Any]) -> str:
    name = role.get("name")
    if not isinstance(name, str) or len(name) > LONGEST_ROLE or not re.fullmatch(ROLE_PATTERN, name):
        raise SpecError(f"{words_of(repr(name))} is no name of a role; give each role a name such as worker")
    return name


def _shape(roles: Sequence[Bounds]) -> Shape:
    """The bounds of a job with several roles."""
    counts = {each.role: each.most for each in roles}
    if len(counts) < len(roles):
        raise SpecError(f"two roles have the same name: {', '.join(each.role for each in roles)}")
    low, high = sum(each.least for each in roles), sum(counts.values())
    if high > MOST_REPLICAS:
        raise SpecError(f"maxReplicas of all roles is {high}, which is more than {MOST_REPLICAS}")
    if is_tensorflow(counts):
        tasks = {role.value: role for role in TaskRole}
        if strange := [name for name in counts if name not in tasks]:
            what = f"role {strange[0]} is none of TensorFlow, but others are"
            raise SpecError(f"{what}; name each one chief, worker, ps or evaluator")
        least = {each.role: each.least for each in roles}
        for field, numbers in (("minReplicas", least), ("maxReplicas", counts)):
            if fault := impossible({tasks[name]: count for name, count in numbers.items() if count}):
                raise SpecError(f"with {field} the roles make no TensorFlow cluster: {fault}")
    return Shape(low, high, min(MOST_SLOTS, low), tuple(roles))


def _role(role: Mapping[str, Any], name: str) -> tuple[Role, Bounds, float]:
    """What is asked of a role, how many pods it has, and their grace. Raises SpecError."""
    low, high = _whole(role, "minReplicas", 1), _whole(role, "maxReplicas", 1)
    if low > high:
        raise SpecError(f"minReplicas is {low}, which is more than maxReplicas, {high}")
    if high > MOST_REPLICAS:
        raise SpecError(f"maxReplicas is {high}, which is more than {MOST_REPLICAS}")
    wanted = _whole(role, "replicas", high)
    if not low <= wanted <= high:
        raise SpecError(f"replicas is {wanted}, which is not within {low} and {high}")
    spec_of_pod = dict_of(dict_of(role.get("template")).get("spec"))
    containers, grace = (
        list_of(spec_of_pod.get("containers")),
        spec_of_pod.get("terminationGracePeriodSeconds"),
    )
    if not containers:
        raise SpecError("the template has no container")
    if is_deep(role["template"]):
        raise SpecError(f"the template is nested more than {DEEPEST} levels deep")
    try:
        memory, most = limit_of(dict_of(containers[0])), role.get("maxMemory")
        max_memory = 0 if most is None else memory_of(most)
        caps = _caps(spec_of_pod, max_memory, role.get("maxCpu"))
    except ValueError as error:
        raise SpecError(str(error)) from None
    asked = Role(name, wanted, _whole(role, "restartLimit", 10), memory, max_memory, caps)
    seconds = grace if isinstance(grace, int) else float(grace_of(dict_of(containers[0])))
    return asked, Bounds(name, low, high), seconds


def grace_of(container: Mapping[str, Any]) -> int:
    """Seconds for a pod to end, if its template does not say how many; by what its first container runs."""
    options, variable = _STORAGE
    words = [str(word) for part in ("command", "args") for word in list_of(container.get(part))]
    names = [dict_of(each).get("name") for each in list_of(container.get("env"))]
    return default_grace(variable in names or any(option in word for word in words for option in options))


def _whole(role: Mapping[str, Any], key: str, default: int) -> int:
    value = role.get(key, default)
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise SpecError(f"{key} is {value!r}, which is no number")
    return value


def _caps(pod: Mapping[str, Any], max_memory: int, max_cpu: object) -> Amounts:
    """How far requests may go that are measured: of what the template neither requests nor limits.

    It may do so for the pod as a whole, too.
    """
    holders = (
        dict_of(pod.get("resources")),
        dict_of(dict_of(list_of(pod.get("containers"))[0]).get("resources")),
    )
    given = {key for each in holders for part in ("requests", "limits") for key in dict_of(each.get(part))}
    cpu = DEFAULT_CAPS.cpu if max_cpu is None else cpu_of(max_cpu)
    return Amounts(
        0 if "memory" in given else max_memory or DEFAULT_CAPS.memory, 0 if "cpu" in given else cpu
    )
