"""The state of a machine as a value, so that two states can be compared."""

from __future__ import annotations

import dataclasses
from typing import Any

from elasticrun.core.job.machine import JobMachine
from elasticrun.core.job.state import HEARTBEAT
from elasticrun.core.timers import Deadlines
from elasticrun.sim.kernel import require

#: Not state: the time and the effects of the last event, and counts that are made on demand.
PASSING = frozenset({"now", "events", "weighed", "_now", "_effects", "_by_members"})


def fingerprint(value: Any) -> Any:
    """What decides the behaviour of ``value``; without heartbeat deadlines, which depend on the network."""
    return _look(value, {})


def _look(value: Any, seen: dict[int, int]) -> Any:
    """``seen`` numbers the objects looked at before, as several parts may share one."""
    kind = type(value)
    if kind not in _MUTABLE:
        _MUTABLE[kind] = _names(kind)
    names = _MUTABLE[kind]
    if names is not None or hasattr(value, "__dict__"):
        if id(value) in seen:
            return seen[id(value)]
        seen[id(value)] = len(seen)
    if names is not None:
        return [(name, _look(getattr(value, name), seen)) for name in names]
    if isinstance(value, dict):
        return [(key, _look(item, seen)) for key, item in value.items()]
    if isinstance(value, list):
        return [_look(item, seen) for item in value]
    if isinstance(value, set):
        return sorted(value, key=repr)
    if isinstance(value, Deadlines):
        due: dict[Any, float] = value._due
        return sorted((repr(name), at) for name, at in due.items() if name[0] != HEARTBEAT)
    if hasattr(value, "__dict__") and kind.__module__.startswith("elasticrun.core."):
        fields = getattr(kind, "__dataclass_fields__", None)  # without cached values
        names = vars(value) if fields is None else fields
        return [(name, _look(getattr(value, name), seen)) for name in names if name not in PASSING]
    return value  # cannot change


_MUTABLE: dict[type, tuple[str, ...] | None] = {}  # the fields of dataclasses that are not frozen


def _names(kind: type) -> tuple[str, ...] | None:
    if not dataclasses.is_dataclass(kind) or vars(kind)["__hash__"] is not None:
        return None  # frozen, or no dataclass at all
    return tuple(field.name for field in dataclasses.fields(kind) if field.name not in PASSING)


def difference(one: Any, other: Any, path: str = "state") -> str:
    """Where two fingerprints differ first; empty if they do not."""
    if one == other:
        return ""
    if isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        for index, (a, b) in enumerate(zip(one, other, strict=True)):
            if a != b:
                return difference(a, b, f"{path}.{a[0] if isinstance(a, tuple) else index}")
    if isinstance(one, tuple) and isinstance(other, tuple):
        return difference(one[1], other[1], path)
    return f"{path}: {one!r} is not {other!r}"


def replay_gives_the_same(expected: Any, machine: JobMachine) -> None:
    """Rule 5: a replay of the journal gives the state that its master had."""
    found = difference(expected, fingerprint(machine.state))
    require("a replay gives the same state", not found, found)
