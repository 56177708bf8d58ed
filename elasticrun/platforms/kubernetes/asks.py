"""What an ElasticJob asks of a cluster that is shared, and what it was granted: values only.

What a pod takes is kept with the share: another template of a job whose pods are there changes nothing for
the jobs beside it. It counts once none of its pods is there.

Nothing that is read here raises. A job that cannot be kept as it is written asks for nothing more, and keeps
what it has: nobody removes its pods. Where a status does not tell the role of a pod that still ends, the pod
counts as one of those that take most: so never too little is counted as held.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from elasticrun.core.cluster.curve import Batch
from elasticrun.core.cluster.jobs import LEAST_PRIORITY, MOST_PRIORITY
from elasticrun.core.cluster.sharing import Ask, Granted, Limit, Stage
from elasticrun.core.fleet.replicas import CleanPolicy, Record, Shape, Share, Verdict, Wish
from elasticrun.core.fleet.roles import MOST_ROLES, bounds_of, elastic_of, names_of, tally_of
from elasticrun.core.fleet.scaling import wanted_of
from elasticrun.platforms.kubernetes.names import MOST_REPLICAS
from elasticrun.platforms.kubernetes.quantity import units_of
from elasticrun.platforms.kubernetes.specs import SpecError, role_of, wish_of
from elasticrun.platforms.kubernetes.statuses import record_of, speeds_of
from elasticrun.platforms.kubernetes.values import dict_of, list_of, moment_of, words_of

_SHOWN = 200
_MOST_TRIES = 64
_MOST_UNITS = 1 << 60
_LATEST = 1e12  # a time


def share_of(status: Mapping[str, Any]) -> Share:
    """The share that is kept in a status."""
    granted = _granted(status)
    return Share() if granted is None else Share(granted.nodes, granted.why)


def kept(granted: Granted, ask: Ask) -> dict[str, Any]:
    """How the share of a job is kept; a merge replaces each of its parts."""
    limit = granted.limit
    pods = {"kind": ask.kind, "units": [[role, units] for role, units in ask.pods]}
    words = {"nodes": limit.nodes, "until": limit.until, "tries": limit.tries, "reason": limit.why}
    return {"nodes": granted.nodes, "reason": granted.why, "at": granted.at, "limit": words, "pods": pods}


def ask_of(body: Mapping[str, Any], kinds: Sequence[str]) -> Ask | None:
    """What a job asks for; None: it is going, or nobody has looked at it yet.

    ``kinds``: what is shared. A job takes of the first one that the pods of its elastic role request.
    """
    metadata, status = dict_of(body.get("metadata")), dict_of(body.get("status"))
    record = record_of(status)
    held = _whole(status.get("held"))
    if held is None:  # so far nothing was shared
        held = len(record.live) or None
    if metadata.get("deletionTimestamp") or held is None:
        return None
    name = f"{metadata.get('namespace')}/{metadata.get('name')}"
    known = _known(status, kinds) if record.live else None
    try:
        wish = wish_of(body)
        shape = record.shape or wish.shape
        is_known = known is not None and known[1].keys() >= set(names_of(shape))
        kind, takes = known if known is not None and is_known else _takes(body, shape, kinds)
        takes = {role: takes[role] for role in names_of(shape)}
    except SpecError:
        kind, most = _most(body, kinds) if known is None else (known[0], max(known[1].values()))
        pods = () if known is None else tuple(known[1].items())
        return Ask(name, 1, 1, kind, most, stage=Stage.FIXED, held=held * most, pods=pods)
    elastic = elastic_of(shape)
    wanted = {role: wanted_of(wish, shape, record, role) for role in takes}
    live = {role: min(_live(record, role), bounds_of(shape, role).most) for role in takes}
    ending = max(0, min(held, shape.max_replicas) - sum(live.values()))
    since, hindrance = _hindrance(status)
    return Ask(
        name,
        max(1, bounds_of(shape, elastic).least),
        max(1, wanted[elastic]),
        kind,
        takes[elastic],
        sum(wanted[role] * takes[role] for role in takes if role != elastic),
        _priority(dict_of(body.get("spec")).get("priority")),
        moment_of(metadata.get("creationTimestamp")) or 0.0,
        _stage(wish, record),
        _granted(status),
        live=live[elastic] or min(1, sum(live.values())),
        held=sum(live[role] * takes[role] for role in takes) + ending * max(takes.values()),
        running=_running(status, shape, record),
        hindered=since,
        hindrance=hindrance,
        is_asked=record.scaling is not None and record.scaling.grows and record.scaling.role == elastic,
        pods=tuple(takes.items()),
        measured=() if shape.roles else _measured(body, status),
    )


def _measured(body: Mapping[str, Any], status: Mapping[str, Any]) -> tuple[tuple[int, float], ...]:
    """How much it did with so many nodes, if its user has said what a step does."""
    said = dict_of(body.get("spec")).get("batch")
    batch = next((each for each in Batch if each.value == said), None)
    if batch is None:
        return ()
    return tuple((it.nodes, batch.done(it.rate, it.workers)) for it in speeds_of(status))


def _known(status: Mapping[str, Any], kinds: Sequence[str]) -> tuple[str, dict[str, int]] | None:
    """What ``_takes`` has found when the job got its share; None: that is not known."""
    pods = dict_of(dict_of(status.get("share")).get("pods"))
    kind, given = pods.get("kind"), list_of(pods.get("units"))[:MOST_ROLES]
    try:
        units = {str(role): int(count) for role, count in given}
    except (TypeError, ValueError, OverflowError):
        return None
    is_sound = bool(units) and all(0 <= count <= _MOST_UNITS for count in units.values())
    return (str(kind), units) if is_sound and kind in ("", *kinds) else None


def _takes(body: Mapping[str, Any], shape: Shape, kinds: Sequence[str]) -> tuple[str, dict[str, int]]:
    """Which kind a job takes, and how many units of it a pod of each role does. Raises SpecError."""
    templates = {role: role_of(body, role)["template"] for role in names_of(shape)}
    first = templates[elastic_of(shape)], *templates.values()
    kind = next((kind for kind, units in (takes_of(each, kinds) for each in first) if units), "")
    return kind, {role: takes_of(each, [kind] if kind else [])[1] for role, each in templates.items()}


def _most(body: Mapping[str, Any], kinds: Sequence[str]) -> tuple[str, int]:
    """The same of a job that makes no sense, of its largest pod."""
    roles = map(dict_of, list_of(dict_of(body.get("spec")).get("roles"))[:MOST_ROLES])
    templates = [dict_of(role.get("template")) for role in roles]
    found = [_takes_or_none(each, [kind]) for kind in kinds for each in templates]
    first = next((kind for kind, units in found if units), "")
    return first, max((units for kind, units in found if kind == first), default=0)


def takes_of(template: Mapping[str, Any], kinds: Sequence[str]) -> tuple[str, int]:
    """Which kind a pod takes, and how many units of it; "", 0: none of these. Raises SpecError."""
    try:
        found = ((kind, _requested(dict_of(template.get("spec")), kind)) for kind in kinds)
        return next(((kind, units) for kind, units in found if units), ("", 0))
    except ValueError as error:
        raise SpecError(str(error)) from None


def _takes_or_none(template: Mapping[str, Any], kinds: Sequence[str]) -> tuple[str, int]:
    try:
        return takes_of(template, kinds)
    except SpecError:
        return "", 0


def _live(record: Record, role: str) -> int:
    return sum(each.role == role for each in record.live)


def _running(status: Mapping[str, Any], shape: Shape, record: Record) -> int:
    """How many nodes run; none as long as a role is not there without which they do nothing.

    A role that is given up for good is not waited for. An elastic one that may be absent counts as one node.
    """
    if not shape.roles:
        return _whole(status.get("running")) or 0
    told = map(dict_of, list_of(status.get("roles"))[:MOST_ROLES])
    counts = {str(it.get("name")): _whole(it.get("running")) or 0 for it in told}
    elastic = elastic_of(shape)
    for bounds in shape.roles:
        is_given_up = bool(tally_of(record, bounds.role).halted)
        if bounds.role != elastic and counts.get(bounds.role, 0) < bounds.least and not is_given_up:
            return 0
    return max(counts.get(elastic, 0), 0 if bounds_of(shape, elastic).least else 1)


def _requested(pod: Mapping[str, Any], kind: str) -> int:
    """As the scheduler counts: what runs together, or the largest of what runs before it."""
    if units := _of_holder(pod, kind):
        return units
    beside, largest = 0, 0
    for container in map(dict_of, list_of(pod.get("initContainers"))):
        units = _of_holder(container, kind)
        largest = max(largest, beside + units)
        if container.get("restartPolicy") == "Always":
            beside += units
    together = sum(_of_holder(dict_of(container), kind) for container in list_of(pod.get("containers")))
    return max(largest, beside + together)


def _of_holder(holder: Mapping[str, Any], kind: str) -> int:
    """The request of a container, or of a pod as a whole; a limit without a request is one."""
    resources = dict_of(holder.get("resources"))
    given = {**dict_of(resources.get("limits")), **dict_of(resources.get("requests"))}
    return units_of(kind, given[kind]) if kind in given else 0


def _stage(wish: Wish, record: Record) -> Stage:
    if record.verdict not in (None, Verdict.AGAIN):
        stays = wish.clean is CleanPolicy.NONE and not record.live
        return Stage.FIXED if stays else Stage.OVER
    return Stage.SUSPENDED if wish.suspended else Stage.ACTIVE


def _hindrance(status: Mapping[str, Any]) -> tuple[float | None, str]:
    """Since when pods that are meant to run do not, and why."""
    for condition in map(dict_of, list_of(status.get("conditions"))):
        if condition.get("type") == "Hindered" and condition.get("status") == "True":
            return moment_of(condition.get("lastTransitionTime")), words_of(condition.get("message"))[:_SHOWN]
    return None, ""


def _granted(status: Mapping[str, Any]) -> Granted | None:
    share = dict_of(status.get("share"))
    nodes, limit = _whole(share.get("nodes")), dict_of(share.get("limit"))
    if nodes is None:
        return None
    limited = Limit(
        _whole(limit.get("nodes")) or 0,
        _time(limit.get("until")),
        min(_whole(limit.get("tries")) or 0, _MOST_TRIES),
        words_of(limit.get("reason"))[:_SHOWN],
    )
    return Granted(nodes, words_of(share.get("reason"))[:_SHOWN], _time(share.get("at")), limited)


def _whole(value: object) -> int | None:
    """A number of nodes that a job may have; None: it is none."""
    return value if type(value) is int and 0 <= value <= MOST_REPLICAS else None


def _priority(value: object) -> int:
    return max(LEAST_PRIORITY, min(value, MOST_PRIORITY)) if type(value) is int else 0


def _time(value: object) -> float:
    return float(value) if isinstance(value, int | float) and 0 < value < _LATEST else 0.0
