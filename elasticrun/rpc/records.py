"""Values as JSON and back, driven by their own type annotations.

Serves the journal and the stream of a node that is alone: a record is readable by eye, and one whose shape no
longer fits the code is refused with the place that does not fit, instead of being taken for something else.
So is a number outside of the range that its annotation names.
"""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Callable, Mapping
from enum import Enum
from functools import cache, partial
from typing import Any, TypeVar

T = TypeVar("T")


class RecordError(ValueError):
    """A record does not have the shape its type asks for."""


def to_json(value: Any) -> Any:
    """A frozen dataclass, enum, tuple or scalar as what ``json.dumps`` takes."""
    convert = _converter(value.__class__)
    return value if convert is None else convert(value)


@cache
def _converter(kind: type) -> Callable[[Any], Any] | None:
    """What turns values of exactly this type into JSON; None for those that are JSON already.

    It is called for each event of a job, so what the type says is looked up only once.
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
        convert = _converter(item.__class__)
        dumped[name] = item if convert is None else convert(item)
    return dumped


def _dump_enum(value: Enum) -> Any:
    return value.value


def _dump_tuple(value: tuple[object, ...]) -> list[Any]:
    return [to_json(item) for item in value]


def from_json(kind: type[T], data: Any) -> T:
    """The value of type ``kind`` that ``to_json`` turned into ``data``.

    Raises:
        RecordError: ``data`` does not fit ``kind``.
    """
    return typing.cast("T", _load(kind, data))


def _load(kind: Any, data: Any) -> Any:
    if dataclasses.is_dataclass(kind) and isinstance(kind, type):
        return _load_dataclass(kind, data)
    if isinstance(kind, type) and issubclass(kind, Enum):
        return _load_enum(kind, data)
    origin = typing.get_origin(kind)
    if origin is typing.Annotated:
        return _load_ranged(kind, data)
    if origin is tuple:
        return _load_tuple(typing.get_args(kind), _expect(list, data))
    if origin in (types.UnionType, typing.Union):
        return None if data is None else _load(typing.get_args(kind)[0], data)
    if kind is bytes:
        return bytes.fromhex(_expect(str, data))
    if kind is float:
        return float(_expect(int | float, data))
    return _expect(kind, data)


def _load_dataclass(kind: type, data: Any) -> Any:
    values: Mapping[str, Any] = _expect(dict, data)
    fields = _fields(kind)
    if values.keys() != fields.keys():
        raise RecordError(f"{kind.__name__} has the fields {sorted(fields)}, not {sorted(values)}")
    return kind(**{name: _load(fields[name], values[name]) for name in fields})


def _load_ranged(kind: Any, data: Any) -> Any:
    value = _load(kind.__origin__, data)
    for allowed in kind.__metadata__:
        if value not in allowed:
            raise RecordError(f"{value!r} is not between {allowed.low} and {allowed.high}")
    return value


def _load_tuple(kinds: tuple[Any, ...], data: list[Any]) -> tuple[Any, ...]:
    if kinds[-1] is ...:
        return tuple(_load(kinds[0], entry) for entry in data)
    if len(kinds) != len(data):
        raise RecordError(f"{data!r} has {len(data)} parts, not {len(kinds)}")
    return tuple(_load(kind, entry) for kind, entry in zip(kinds, data, strict=True))


def _load_enum(kind: type[Enum], data: Any) -> Enum:
    try:
        return kind(data)
    except ValueError:
        raise RecordError(f"{data!r} is no {kind.__name__}") from None


def _expect(kind: Any, data: Any) -> Any:
    if not isinstance(data, kind) or (kind is int and isinstance(data, bool)):
        raise RecordError(f"{data!r} is no {getattr(kind, '__name__', kind)}")
    return data


@cache
def _fields(kind: type) -> dict[str, Any]:
    hints = typing.get_type_hints(kind, include_extras=True)
    return {field.name: hints[field.name] for field in dataclasses.fields(kind)}
