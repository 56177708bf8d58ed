"""Frozen dataclasses as protobuf messages and back, driven by the annotations of the dataclasses.

A dataclass and its message have the same fields by name. The annotation of a field says what stands there:

====================================  =====================================================================
``int``, ``float``, ``str``, ...      the same
an enum                               the enum of the field, whose values are named PREFIX_MEMBER
a dataclass                           a message, which must be there
``X | None``                          absent: None
``tuple[X, ...]``                     repeated
``tuple[A, B]``                       a message whose fields are A and B, in the order of their numbers
``A | B | ...``, as a whole message   a oneof, in which each type of message is named like its dataclass
``Annotated[X, ...]``                 limits and marks of ``core/protocol/bounds.py``
====================================  =====================================================================

A field that may be absent on the wire, but has no None, gets its default instead. A dataclass may check
several fields together: its method ``contradiction`` returns a sentence about the fault, or "".

Invariants. A decoded value fits the limits of its annotation; an annotation that lacks them is a TypeError.
A refusal is a ProtocolError that names the field with its path. Each class is compiled at its first value,
into functions with one converter for each field: annotations are read once, and a message that a process
never uses costs nothing at its start.
"""

from __future__ import annotations

import dataclasses
import math
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, lru_cache
from typing import Any, Generic, NamedTuple, TypeVar, cast

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import DecodeError, Message
from google.protobuf.message_factory import GetMessageClass

from elasticrun.core.protocol.bounds import MAX_MESSAGE_BYTES, Keep, Length, Mark, Range
from elasticrun.errors import ProtocolError
from elasticrun.rpc.codec.scalars import Convert, checked, dump_scalar, enumeration

T = TypeVar("T")
M = TypeVar("M", bound=Message)

UNKNOWN = "the message is of no kind that this version knows"
Prepare = Mapping[str, Callable[[Any], None]]
_NOTHING: Prepare = {}
_SOME: Any = typing.Annotated[int, 0]
_ANNOTATED: type[Any] = type(_SOME)
_UNIONS = (types.UnionType, type(_SOME | None))
_SCALARS = (int, float, str, bytes, bool)


class Codec(Generic[T, M]):
    """Turns values of a dataclass, or of a union of them, into the bytes of one type of message."""

    def __init__(self, kind: Any, message: type[M], prepare: Prepare = _NOTHING) -> None:
        """``prepare`` changes messages of some fields of a oneof before they are loaded."""
        self._message = message
        self._dump, self._load = _whole(kind, message.DESCRIPTOR, prepare)

    def encode(self, value: T) -> bytes:
        """The bytes of a value."""
        return self._message(**self._dump(value)).SerializeToString()

    def parse(self, data: bytes) -> M:
        """The message in ``data``; raises ProtocolError."""
        if len(data) > MAX_MESSAGE_BYTES:
            raise ProtocolError(f"a message must have at most {MAX_MESSAGE_BYTES} bytes, got {len(data)}")
        try:
            return self._message.FromString(data)
        except DecodeError:
            raise ProtocolError(f"{len(data)} bytes are not a message of the elasticrun protocol") from None

    def load(self, message: M) -> T:
        """The value of a message; raises ProtocolError."""
        return cast("T", self._load(message))

    def decode(self, data: bytes) -> T:
        """The value in ``data``; raises ProtocolError."""
        return cast("T", self._load(self.parse(data)))


def _whole(kind: Any, descriptor: Any, prepare: Prepare) -> tuple[Convert, Convert]:
    """Converters to the fields of a message and back, for a dataclass or a union of them."""
    if not isinstance(kind, types.UnionType):
        shape = Shape(kind, descriptor)
        return shape.dump, shape.load
    (oneof,) = descriptor.oneofs
    fields = {field.message_type.name: field for field in oneof.fields}
    kinds = {each: fields[each.__name__] for each in typing.get_args(kind)}
    shapes = {each: (field.name, Shape(each, field.message_type)) for each, field in kinds.items()}
    by_name = dict(shapes.values())

    def dump(value: object) -> dict[str, Any]:
        name, shape = shapes[type(value)]
        return {name: shape.dump(value)}

    def load(message: Message) -> Any:
        name = message.WhichOneof(oneof.name)
        shape = by_name.get(name)
        if shape is None:
            raise ProtocolError(UNKNOWN)
        said = getattr(message, name)
        if name in prepare:
            prepare[name](said)
        return shape.load(said)

    return dump, load


class _Field(NamedTuple):
    """One field of a message, as the annotation of its value describes it."""

    name: str
    value: str  # the expression for it, in terms of ``value``
    kind: Any
    limits: tuple[Any, ...]
    is_optional: bool  # it may be None
    default: Any
    wire: FieldDescriptor

    @classmethod
    def of(cls, name: str, value: str, annotation: Any, default: Any, wire: FieldDescriptor) -> _Field:
        kind, limits, is_optional = _split(annotation)
        return cls(name, value, kind, limits, is_optional, default, wire)


def _split(annotation: Any) -> tuple[Any, tuple[Any, ...], bool]:
    """A type, its limits and marks, and whether it may be None."""
    is_optional = isinstance(annotation, _UNIONS)
    if is_optional:
        (annotation,) = (each for each in annotation.__args__ if each is not types.NoneType)
    if isinstance(annotation, _ANNOTATED):
        return annotation.__origin__, annotation.__metadata__, is_optional
    return annotation, (), is_optional


class Shape:
    """A dataclass, or a tuple of different parts, and its message."""

    def __init__(self, kind: Any, descriptor: Any) -> None:
        self._kind = kind
        self._descriptor: Descriptor = descriptor

    @cached_property
    def _fields(self) -> list[_Field]:
        wires = self._descriptor.fields_by_name
        if isinstance(self._kind, types.GenericAlias):
            parts = zip(self._kind.__args__, self._descriptor.fields, strict=True)
            return [
                _Field.of(wire.name, f"value[{number}]", part, None, wire)
                for number, (part, wire) in enumerate(parts)
            ]
        return [
            _Field.of(field.name, f"value.{field.name}", field.type, field.default, wires[field.name])
            for field in dataclasses.fields(self._kind)
            if field.name in wires or not _is_local(field)
        ]

    @cached_property
    def dump(self) -> Convert:
        """From a value to the fields of a message; leaves out those that equal absent ones."""
        lines = ["def made(value):", " found = {}"]
        names: dict[str, Any] = {}
        for number, field in enumerate(self._fields):
            name, convert = f"to{number}", _value(field)[0]
            if field.wire.has_presence and field.wire.message_type is None:
                names[name] = _known(field, convert)
                lines.append(f" found[{field.name!r}] = {name}({field.value})")
            else:
                names[name] = convert
                item = "item" if convert is None else f"{name}(item)"
                lines.append(f" if item := {field.value}: found[{field.name!r}] = {item}")
        return _function([*lines, " return found"], names)

    @cached_property
    def load(self) -> Convert:
        """From a message to a value."""
        parts: list[str] = []
        names: dict[str, Any] = {}
        for number, field in enumerate(self._fields):
            name, wire = f"from{number}", f"message.{field.name}"
            names[name] = convert = _value(field)[1]
            item = wire if convert is None else f"{name}({wire})"
            if field.wire.has_presence:
                names[f"no{number}"] = _absent(field)
                item += f" if message.HasField({field.name!r}) else no{number}()"
            parts.append(item)
        names["kind"] = (lambda *items: items) if isinstance(self._kind, types.GenericAlias) else self._kind
        lines = ["def made(message):", f" value = kind({', '.join(parts)})"]
        if hasattr(self._kind, "contradiction"):
            names["ProtocolError"] = ProtocolError
            lines.append(" if fault := value.contradiction(): raise ProtocolError(fault)")
        return _function([*lines, " return value"], names)


def _function(lines: list[str], names: dict[str, Any]) -> Convert:
    """The function ``made`` that these lines define, as dataclasses make theirs.

    A loop over the fields instead takes half as long again.
    """
    exec("\n".join(lines), names)
    return cast("Convert", names["made"])


def _is_local(field: dataclasses.Field[Any]) -> bool:
    return Mark.LOCAL in _split(field.type)[1]


# Fields that may be absent


def _absent(field: _Field) -> Callable[[], Any]:
    """Gives the value of a field that is absent."""
    if field.is_optional:
        return lambda: None
    if field.default is not dataclasses.MISSING:
        return lambda: field.default

    def missing() -> Any:
        raise ProtocolError(f"{field.name} is missing")

    return missing


def _known(field: _Field, convert: Convert | None) -> Convert:
    """Gives None for what is not sent: no value, the default, and a number that cannot be clipped."""
    default = None if field.is_optional else field.default
    match field.limits:
        case [Range(low, high, clips=True)] if field.kind is float:
            return lambda value: None if value == default or not low <= value < math.inf else min(value, high)
        case _ if convert is None:
            return lambda value: None if value == default else value
    return lambda value: None if value == default else convert(value)


# Values


def _value(field: _Field) -> tuple[Convert | None, Convert | None]:
    """Converters to and from the wire; None where nothing has to be done."""
    kind = field.kind
    if isinstance(kind, types.GenericAlias) and Ellipsis in kind.__args__:
        return _list(field, kind.__args__[0])
    if kind in _SCALARS:
        return dump_scalar(kind, field.limits), checked(field.name, kind, field.limits)
    if field.wire.enum_type is not None:
        return enumeration(field.name, kind, field.wire.enum_type, field.limits)
    return _message(field.name, Shape(kind, field.wire.message_type))


def _message(name: str, shape: Shape) -> tuple[Convert, Convert]:
    def load(message: Message) -> Any:
        try:
            return shape.load(message)
        except ProtocolError as error:
            raise ProtocolError(f"{name}.{error}") from None

    return lambda value: shape.dump(value), load


def _list(field: _Field, item: Any) -> tuple[Convert, Convert]:
    name, limits = field.name, field.limits
    (length,) = (limit for limit in limits if isinstance(limit, Length))
    rest = tuple(limit for limit in limits if not isinstance(limit, Length | Mark))
    check = checked(name, tuple, rest) if rest else None
    dump_all, load_all = _items(_Field.of(name, "", item, None, field.wire))

    def dump(items: Sequence[Any]) -> Any:
        return dump_all(_kept(items, length))

    def load(items: Sequence[Any]) -> tuple[Any, ...]:
        if not items:
            return ()
        if len(items) > length.most:  # before any is decoded
            raise ProtocolError(f"{name} must have at most {length.most} entries, got {len(items)}")
        found = load_all(items)
        return found if check is None else cast("tuple[Any, ...]", check(found))

    return _once(dump, field.wire.message_type) if Mark.SHARED in limits else dump, load


def _items(field: _Field) -> tuple[Convert, Convert]:
    """Converters for all items of a list together."""
    if field.wire.message_type is None:
        to, back = _value(field)
        return (
            list if to is None else lambda items: [to(item) for item in items],
            tuple if back is None else lambda items: tuple([back(item) for item in items]),
        )
    shape = Shape(field.kind, field.wire.message_type)

    def load(messages: Sequence[Message]) -> tuple[Any, ...]:
        convert = shape.load
        try:
            return tuple([convert(message) for message in messages])
        except ProtocolError as error:
            raise ProtocolError(f"{field.name}.{error}") from None

    def dump(values: Sequence[Any]) -> list[Any]:
        convert = shape.dump
        return [convert(value) for value in values]

    return dump, load


def _kept(items: Sequence[Any], length: Length) -> Sequence[Any]:
    match length.keep:
        case Keep.ALL:
            return items
        case Keep.HEAD:
            return items[: length.most]
        case Keep.TAIL:
            return items[-length.most :]


def _once(dump: Convert, descriptor: Any) -> Convert:
    """The same, but caches the messages made of the newest value."""
    message = GetMessageClass(descriptor)

    @lru_cache(maxsize=1)
    def dump_once(items: Sequence[Any]) -> list[Message]:
        return [message(**each) for each in dump(items)]

    return dump_once
