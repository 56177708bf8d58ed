"""Values as JSON and back, driven by their own type annotations.

Serves the journal and the stream of a node that is alone. A record is readable by eye. One whose shape no
longer fits the code is refused, and the error shows what does not fit; so is a number outside of the range
that its annotation names, and a list that is too long.
"""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Callable, Iterable, Mapping
from enum import Enum
from functools import cache, partial
from typing import Any, TypeVar, cast

from elasticrun.core.protocol.bounds import Length, Range

T = TypeVar("T")

_PLAIN = frozenset({str, int, float, bool, types.NoneType})
#: Former names of fields, so that journals of earlier versions can be read.
_FORMER_NAMES = {"seats": "votes", "roll": "members", "life": "attempt"}
#: Fields that records of earlier versions lack; each has a default.
_LATER = frozenset(
    {
        *("holdings", "restore", "inlet", "copied", "stored", "leaving"),
        *("state_copies", "state_storage", "state_storage_every", "state_keep", "state_keep_for"),
        *("state_flush_timeout", "join_command"),
    }
)


class RecordError(ValueError):
    """A record does not have the shape its type asks for."""


def to_json(value: Any) -> Any:
    """A frozen dataclass, enum, tuple or scalar as what ``json.dumps`` takes."""
    convert = _converter(value.__class__)
    return value if convert is None else convert(value)


@cache
def _converter(kind: type) -> Callable[[Any], Any] | None:
    """The function that turns values of exactly this type into JSON; None for those that are JSON already.

    Cached, as it is called for each event of a job.
    """
    if dataclasses.is_dataclass(kind):
        return partial(_dump_fields, tuple(field.name for field in dataclasses.fields(kind)))
    if issubclass(kind, Enum):
        return _dump_enum
    if issubclass(kind, tuple):
        return _dump_tuple
    return bytes.hex if issubclass(kind, bytes) else None


def _dump_fields(names: tuple[str, ...], value: object) -> dict[str, Any]:
    dumped = {}
    for name in names:
        item = getattr(value, name)
        kind = item.__class__
        convert = None if kind in _PLAIN else _converter(kind)
        dumped[name] = item if convert is None else convert(item)
    return dumped


def _dump_enum(value: Enum) -> Any:
    return value.value


def _dump_tuple(value: tuple[object, ...]) -> list[Any]:
    return [to_json(item) for item in value]


def fitted(value: T) -> T:
    """The same value, with each number clipped to the range that its annotation names."""
    if isinstance(value, tuple):
        return typing.cast("T", tuple(map(fitted, value)))
    if not dataclasses.is_dataclass(value) or isinstance(value, type):
        return value
    changes = {}
    for name, ranges in _ranges(type(value)).items():
        before = after = getattr(value, name)
        for allowed in ranges if before is not None else ():
            after = allowed.clip(after)
        after = fitted(after)
        if after is not before:
            changes[name] = after
    return typing.cast("T", dataclasses.replace(value, **changes)) if changes else value


@cache
def _ranges(kind: type) -> dict[str, tuple[Any, ...]]:
    """The fields that are numbers with a range, or may have such numbers inside."""
    return {name: _ranges_of(hint) for name, hint in _fields(kind).items()}


def _ranges_of(hint: Any) -> tuple[Any, ...]:
    return tuple(limit for limit in _limits_of(hint) if isinstance(limit, Range))


@cache
def _fields(kind: type) -> dict[str, Any]:
    hints = typing.get_type_hints(kind, include_extras=True)
    return {field.name: hints[field.name] for field in dataclasses.fields(kind)}


def prepare(kinds: Iterable[type]) -> None:
    """Look at these types, and at all inside of them, now: for a process whose forks use them."""
    left: list[Any] = [*kinds, tuple]
    seen = set[Any]()
    while left:
        kind = left.pop()
        if kind in seen:
            continue
        seen.add(kind)
        _loader(kind)
        left += _parts(kind)
        if isinstance(kind, type) and not typing.get_args(kind):
            _converter(kind)
        if dataclasses.is_dataclass(kind) and isinstance(kind, type):
            _ranges(kind)
            left += _fields(kind).values()


def _parts(hint: Any) -> list[Any]:
    """The types of which an annotation is made, without what it says beside them."""
    parts = typing.get_args(hint)
    if typing.get_origin(hint) is typing.Annotated:
        return [parts[0]]
    return [part for part in parts if part is not ...]


def from_json(kind: type[T], data: Any) -> T:
    """The value of type ``kind`` that ``to_json`` turned into ``data``.

    Raises:
        RecordError: ``data`` does not fit ``kind``.
    """
    found: T = _loader(cast("Any", kind))(data)
    return found


@cache
def _loader(kind: Any) -> Callable[[Any], Any]:
    """The function that reads values of a type, which may be an annotation."""
    if dataclasses.is_dataclass(kind) and isinstance(kind, type):
        return partial(_load_dataclass, kind, _fields(kind))
    if isinstance(kind, type) and issubclass(kind, Enum):
        return partial(_load_enum, kind)
    origin = typing.get_origin(kind)
    if origin is typing.Annotated:
        ranges = tuple(limit for limit in kind.__metadata__ if isinstance(limit, Range))
        load = _loader(kind.__origin__)
        if typing.get_origin(kind.__origin__) is tuple:
            lengths = [limit for limit in kind.__metadata__ if isinstance(limit, Length)]
            return partial(_load_measured, load, lengths[0]) if lengths else load
        return partial(_load_ranged, load, ranges) if ranges else load
    if origin is tuple:
        return partial(_load_tuple, typing.get_args(kind))
    if origin in (types.UnionType, typing.Union):
        return partial(_load_optional, _loader(typing.get_args(kind)[0]))
    if kind is bytes:
        return lambda data: bytes.fromhex(_expect(str, data))
    if kind is float:
        return lambda data: float(_expect(int | float, data))
    return partial(_expect, kind)


def _load_dataclass(kind: type, hints: Mapping[str, Any], data: Any) -> Any:
    values: Mapping[str, Any] = _expect(dict, data)
    if values.keys() != hints.keys():
        values = {name if name in hints else _FORMER_NAMES.get(name, name): values[name] for name in values}
    if not values.keys() <= hints.keys() or hints.keys() - values.keys() - _LATER:
        raise RecordError(f"{kind.__name__} has the fields {sorted(hints)}, not {sorted(values)}")
    return kind(**{name: _loader(hint)(values[name]) for name, hint in hints.items() if name in values})


def _load_optional(load: Callable[[Any], Any], data: Any) -> Any:
    return None if data is None else load(data)


def _load_ranged(load: Callable[[Any], Any], ranges: tuple[Range[Any], ...], data: Any) -> Any:
    value = load(data)
    for allowed in ranges:
        if value not in allowed:
            raise RecordError(f"{value!r} is not between {allowed.low} and {allowed.high}")
    return value


def _load_measured(load: Callable[[Any], Any], allowed: Length, data: Any) -> Any:
    """A list, measured before its entries are made: that may take a while."""
    if fault := allowed.fault(_expect(list, data)):
        raise RecordError(f"a list {fault}")
    return load(data)


def _load_tuple(kinds: tuple[Any, ...], data: Any) -> tuple[Any, ...]:
    entries: list[Any] = _expect(list, data)
    if kinds[-1] is ...:
        load = _loader(kinds[0])
        return tuple([load(entry) for entry in entries])
    if len(kinds) != len(entries):
        raise RecordError(f"{data!r} has {len(entries)} parts, not {len(kinds)}")
    return tuple(_loader(kind)(entry) for kind, entry in zip(kinds, entries, strict=True))


def _load_enum(kind: type[Enum], data: Any) -> Enum:
    try:
        return kind(data)
    except ValueError:
        raise RecordError(f"{data!r} is no {kind.__name__}") from None


def _expect(kind: Any, data: Any) -> Any:
    if not isinstance(data, kind) or (kind is int and isinstance(data, bool)):
        raise RecordError(f"{data!r} is no {getattr(kind, '__name__', kind)}")
    return data


def misfit(value: Any) -> str:
    """Which limit of its annotations a value from ``from_json`` exceeds, as a sentence; "" if it fits all."""
    if isinstance(value, tuple):
        return next((fault for each in value if (fault := misfit(each))), "")
    if not dataclasses.is_dataclass(value) or isinstance(value, type):
        return ""
    for name, limits in _limits(type(value)).items():
        item = getattr(value, name)
        if item is None:
            continue
        for limit in limits:
            if fault := limit.fault(item):
                return f"{name} {fault}"
        if fault := misfit(item):
            return f"{name}.{fault}"
    return ""


@cache
def _limits(kind: type) -> dict[str, tuple[Any, ...]]:
    return {name: _limits_of(hint) for name, hint in _fields(kind).items()}


def _limits_of(hint: Any) -> tuple[Any, ...]:
    if typing.get_origin(hint) in (types.UnionType, typing.Union):
        hint = typing.get_args(hint)[0]
    found = hint.__metadata__ if typing.get_origin(hint) is typing.Annotated else ()
    return tuple(limit for limit in found if hasattr(limit, "fault"))
