"""The status of a job: what people read, and the record that the operator keeps in it.

Whoever may write to the status may write anything. A record that makes no sense counts as none; the replicas
that are there are then taken over.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from datetime import datetime, timezone
from typing import Any, TypeGuard

from elasticrun.core.fleet.replicas import (
    Amounts,
    Bounds,
    Condition,
    Count,
    Decision,
    Live,
    Record,
    Result,
    ScalePhase,
    Scaling,
    Shape,
    Tally,
    Verdict,
)
from elasticrun.core.fleet.roles import MOST_ROLES, tally_of, with_tally
from elasticrun.core.fleet.story import ADMITTED, WAITING
from elasticrun.core.fleet.training import (
    FASTEST,
    FRESH,
    MOST_SIZES,
    Shown,
    Speed,
    Training,
    freshness,
    with_speed,
)
from elasticrun.platforms.kubernetes.names import MOST_REPLICAS
from elasticrun.platforms.kubernetes.quantity import to_quantity
from elasticrun.platforms.kubernetes.values import dict_of, list_of

_MOST = 1 << 31
_MOST_AMOUNT = 1 << 60


def record_of(status: Mapping[str, Any]) -> Record:
    """The record that is kept in a status."""
    try:
        return _record(status["fleet"])
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError):
        return Record()


def pods_version_of(status: Mapping[str, Any]) -> object:
    """The version of the pods of which a record has seen those that it has."""
    return status.get("podsVersion")


def _record(kept: Mapping[str, Any]) -> Record:
    live = tuple(
        Live(_count(it["index"]), int(it["slot"]), it["seen"] is True, str(it.get("role") or ""))
        for it in kept["live"]
    )
    next_index, indices = _count(kept["nextIndex"]), [each.index for each in live]
    if indices != sorted(set(indices)) or any(index >= next_index for index in indices):
        raise ValueError("its indices make no sense")
    verdict = kept["verdict"]
    record = Record(
        next_index=next_index,
        shape=_shape(kept["shape"]),
        live=live,
        drained_at=_time(kept["drainedAt"]),
        avoided=tuple(map(str, kept["avoided"])),
        verdict=Verdict(verdict) if verdict else None,
        why=str(kept["why"]),
        since=float(kept["since"]),
        scaling=_scaling(kept["scaling"]),
        results=tuple(
            Result(str(it["key"]), ScalePhase(it["phase"]), str(it["text"])) for it in kept["results"]
        ),
        tallies=_tallies(kept.get("roles") or []),
    )
    return with_tally(record, _tally("", kept))


def _tallies(kept: Sequence[Mapping[str, Any]]) -> tuple[Tally, ...]:
    """Missing in the records of earlier versions."""
    found = tuple(_tally(str(it["name"]), it) for it in kept)
    if len(kept) > MOST_ROLES or len({it.role for it in found} - {""}) < len(found):
        raise ValueError("its roles make no sense")
    return found


def _tally(role: str, kept: Mapping[str, Any]) -> Tally:
    """What is kept of a role, or of the whole job. Earlier versions kept nothing that was measured."""
    return Tally(
        role=role,
        failures=_count(kept["failures"]),
        streak=_count(kept["streak"]),
        failed_at=_time(kept["failedAt"]),
        losses=_count(kept["losses"]),
        lost_at=_time(kept["lostAt"]),
        memory=max(0, int(kept["memory"])),
        halted=str(kept["halted"]),
        base=_count(kept["base"]),
        offset=int(kept["offset"]),
        requests=_amounts(kept.get("requests")),
        peak=_amounts(kept.get("peak")),
        unsized=str(kept.get("unsized") or ""),
    )


def _shape(kept: Sequence[Any]) -> Shape | None:
    """Bounds that a job may have: whatever else is read, there are never more replicas than these say."""
    if not kept:
        return None
    low, high, slots = map(_count, kept[:3])
    roles = tuple(Bounds(str(name), _count(least), _count(most)) for name, least, most in kept[3:])
    are_sums = low == sum(it.least for it in roles) and high == sum(it.most for it in roles)
    are_named = len({it.role for it in roles} - {""}) == len(roles) <= MOST_ROLES
    if not (low <= high <= MOST_REPLICAS and slots <= low and (are_sums or not roles) and are_named):
        raise ValueError("its bounds make no sense")
    if any(it.least > it.most for it in roles):
        raise ValueError("the bounds of a role make no sense")
    return Shape(low, high, slots, roles)


def _scaling(kept: Sequence[Any]) -> Scaling | None:
    if not kept:
        return None
    key, target, grows, before, until, *role = kept  # without a role in the records of earlier versions
    return Scaling(str(key), _count(target), grows is True, int(before), float(until), *map(str, role))


def _amounts(kept: Sequence[Any] | None) -> Amounts:
    """Missing in the records of earlier versions."""
    return Amounts(*(max(0, min(int(each), _MOST_AMOUNT)) for each in kept or ()))


def _count(value: object) -> int:
    if not isinstance(value, int) or not 0 <= value < _MOST:
        raise ValueError(f"{value!r} is no count")
    return value


def _time(value: Any) -> float | None:
    return float(value) if value else None


def status_of(
    decision: Decision, generation: int, before: Mapping[str, Any], now: float, shown: Shown | None = None
) -> dict[str, Any]:
    """The status that shows a decision, and keeps its record.

    ``shown``: of the training; None: what is there stays.
    """
    known = before.get("conditions")
    conditions = known if isinstance(known, list) else []
    kept = [it for it in conditions if isinstance(it, dict) and it.get("type") == FRESH and shown is None]
    wanted = decision.conditions if shown is None else (*decision.conditions, freshness(shown))
    training = None if shown is None else shown.training
    speed = None if shown is None or decision.roles else shown.speed  # its nodes would be of all roles
    return {
        **({} if training is None else {"training": _told(training)}),
        **({} if speed is None else {"speeds": _with(before, speed)}),
        "phase": decision.phase,
        "running": decision.running,
        "wanted": decision.wanted,
        "roles": [_told_of(it, decision.record) for it in decision.roles] or None,
        "held": decision.held,
        **({"share": None} if decision.held is None else {}),  # it is of a time when the cluster was shared
        "message": _message(decision) or None,  # a merge then leaves it out
        "observedGeneration": generation,
        "conditions": [*_conditions(wanted, conditions, now), *kept[:1]],
        "sizing": _sizing(tally_of(decision.record, "")),
        "fleet": _kept(decision.record),
    }


def speeds_of(status: Mapping[str, Any]) -> tuple[Speed, ...]:
    """How fast a job was with so many nodes; what makes no sense is left out."""
    found = map(_read, list_of(status.get("speeds"))[:MOST_SIZES])
    return tuple(speed for speed in found if speed is not None)


def _read(told: object) -> Speed | None:
    """A whole number may be too large for a float, and true is a number too."""
    nodes, workers, rate = map(dict_of(told).get, ("nodes", "workers", "stepRate"))
    if not _is_count(nodes, MOST_REPLICAS) or not _is_count(workers, _MOST):
        return None
    if not isinstance(rate, int | float) or rate is True or not 0 < rate < FASTEST:
        return None
    return Speed(nodes, workers, float(rate))


def _is_count(value: object, most: int) -> TypeGuard[int]:
    return type(value) is int and 0 < value <= most


def _written(speed: Speed) -> dict[str, Any]:
    return {"nodes": speed.nodes, "workers": speed.workers, "stepRate": speed.rate}


def _with(before: Mapping[str, Any], speed: Speed) -> list[dict[str, Any]]:
    """The speeds that are kept; one that would not be read again is not."""
    known = speeds_of(before)
    found = known if _read(_written(speed)) is None else with_speed(known, speed)
    return [_written(each) for each in found]


def _told_of(count: Count, record: Record) -> dict[str, Any]:
    """A role: how many pods of it run, how many failed, and what new ones request."""
    tally = tally_of(record, count.role)
    # A merge replaces a list as it is: there null would be a value, which the schema does not allow.
    sizing = {key: value for key, value in (_sizing(tally) or {}).items() if value is not None}
    told = {"name": count.role, "running": count.running, "wanted": count.wanted, "failures": tally.failures}
    return {**told, **({"sizing": sizing} if sizing else {})}


def _told(training: Training) -> dict[str, Any]:
    """What a master tells; null is what is not known, and a merge leaves it out."""
    return {
        "phase": training.phase,
        "round": training.round if training.round >= 0 else None,
        "nodes": training.nodes,
        "workers": training.workers,
        "restarts": training.restarts,
        "goodput": training.goodput,
        "cause": training.cause or None,
    }


def _sizing(tally: Tally) -> dict[str, Any] | None:
    """What new pods of a role request, and from which usage that was chosen."""
    requests, peak = tally.requests, tally.peak
    if requests == Amounts() and not tally.unsized:
        return None
    return {
        "memory": to_quantity(requests.memory) if requests.memory else None,
        "cpu": f"{requests.cpu}m" if requests.cpu else None,
        "peakMemory": to_quantity(peak.memory) if requests.memory else None,
        "peakCpu": f"{peak.cpu}m" if requests.cpu else None,
        "withdrawn": tally.unsized or None,
    }


def round_told(status: Mapping[str, Any]) -> int | None:
    """The round that a status shows."""
    training = status.get("training")
    number = training.get("round") if isinstance(training, dict) else None
    return number if isinstance(number, int) else None


def shows(before: Mapping[str, Any], status: Mapping[str, Any]) -> bool:
    """Whether nothing has to be written: what another version has added to the record outlives each merge."""
    if "fleet" in status and record_of(before) != record_of(status):
        return False
    return all(_is_shown(before.get(key), value) for key, value in status.items() if key != "fleet")


def _is_shown(before: object, value: object) -> bool:
    if isinstance(value, dict):
        old = before if isinstance(before, dict) else {}
        return all(old.get(key) == part for key, part in value.items())
    return before == value


def _message(decision: Decision) -> str:
    """The one sentence that matters most."""
    first = ("Complete", "Failed", "Hindered", "Available")
    held = {each.kind: each.text for each in decision.conditions if each.holds}
    waits = {each.text for each in decision.conditions if each.kind == ADMITTED and not each.holds}
    words = waits if decision.phase == WAITING else {decision.record.why}
    return next((held[kind] for kind in first if kind in held), next(iter(words), ""))


def invalid_status(why: str, generation: int, before: Mapping[str, Any], now: float) -> dict[str, Any]:
    """The status of a job that cannot be kept as it is written; the record stays."""
    conditions = before.get("conditions")
    invalid = (Condition("Hindered", True, "Invalid", why),)
    others = [it for it in conditions if it.get("type") != "Hindered"] if isinstance(conditions, list) else []
    return {
        "message": why,
        "observedGeneration": generation,
        "conditions": [*others, *_conditions(invalid, conditions or [], now)],
    }


def _conditions(wanted: Sequence[Condition], before: Sequence[Any], now: float) -> list[dict[str, str]]:
    known = {it.get("type"): it for it in before if isinstance(it, dict)}
    moment = datetime.fromtimestamp(now, timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
    found = []
    for each in wanted:
        status, old = str(each.holds), known.get(each.kind, {})
        since = old.get("lastTransitionTime") if old.get("status") == status else None
        shown = {
            "type": each.kind,
            "status": status,
            "reason": each.reason,
            "lastTransitionTime": since or moment,
        }
        found.append(shown | ({"message": each.text} if each.text else {}))
    return found


def _kept(record: Record) -> dict[str, Any]:
    shape = record.shape
    return {
        "nextIndex": record.next_index,
        "shape": [shape.min_replicas, shape.max_replicas, shape.slots, *_bounds(shape)] if shape else [],
        "live": [
            {"index": it.index, "slot": it.slot, "seen": it.seen, **({"role": it.role} if it.role else {})}
            for it in record.live
        ],
        **_kept_tally(tally_of(record, "")),
        "drainedAt": record.drained_at or 0.0,
        "avoided": list(record.avoided),
        "verdict": record.verdict.value if record.verdict else "",
        "why": record.why,
        "since": record.since,
        "scaling": _kept_scaling(record.scaling),
        "roles": [{"name": tally.role, **_kept_tally(tally)} for tally in record.tallies],
        "results": [{"key": it.key, "phase": it.phase.value, "text": it.text} for it in record.results],
    }


def _bounds(shape: Shape) -> list[list[Any]]:
    return [[bounds.role, bounds.least, bounds.most] for bounds in shape.roles]


def _kept_tally(tally: Tally) -> dict[str, Any]:
    return {
        "failures": tally.failures,
        "streak": tally.streak,
        "failedAt": tally.failed_at or 0.0,
        "losses": tally.losses,
        "lostAt": tally.lost_at or 0.0,
        "memory": tally.memory,
        "halted": tally.halted,
        "base": tally.base,
        "offset": tally.offset,
        "requests": [tally.requests.memory, tally.requests.cpu],
        "peak": [tally.peak.memory, tally.peak.cpu],
        "unsized": tally.unsized,
    }


def _kept_scaling(scaling: Scaling | None) -> list[Any]:
    """As a list: of an object, a merge would leave what is not named."""
    return [] if scaling is None else [getattr(scaling, field.name) for field in fields(scaling)]
