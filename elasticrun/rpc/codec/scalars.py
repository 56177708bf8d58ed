"""Enums, numbers, texts and bytes to their fields and back, within the limits of ``core/protocol/bounds.py``.

None instead of a function: nothing has to be done.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from enum import Enum
from typing import Any

from google.protobuf.descriptor import EnumDescriptor

from elasticrun.core.protocol.bounds import Keep, Length, Range, Unknown
from elasticrun.errors import ProtocolError
from elasticrun.rpc.text import clean, head, tail

# What a field holds is known from its annotation at run time only, hence Any.
Convert = Callable[[Any], Any]


def enumeration(
    name: str, kind: type[Enum], descriptor: EnumDescriptor, limits: tuple[Any, ...]
) -> tuple[Convert, Convert]:
    """To and from the number of a member."""
    prefix = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", descriptor.name).upper()
    wires = descriptor.values_by_name
    unknown = next((limit.member for limit in limits if isinstance(limit, Unknown)), None)
    number_of = {each: wires[f"{prefix}_{each.name}"].number for each in kind if each is not unknown}
    member_of = {number: each for each, number in number_of.items()}

    def load(number: int) -> Enum:
        found = member_of.get(number, unknown)
        if found is None:
            raise ProtocolError(f"{name} has the value {number}, which this version does not know")
        return found

    return number_of.get, load  # None for the unknown member: it is not sent


def dump_scalar(kind: type, limits: tuple[Any, ...]) -> Convert | None:
    """The function that cleans a text, or clips a value where its limits say so."""
    for limit in limits:
        match limit:
            case Length(most, keep=keep) if kind is str:
                return _dump_text(most, keep)
            case Range(clips=True):
                return limit.clip
    return clean if kind is str else None


def _dump_text(most: int, keep: Keep) -> Convert:
    match keep:
        case Keep.ALL:
            return clean
        case Keep.HEAD:
            return lambda text: head(text, most)
        case Keep.TAIL:
            return lambda text: tail(text, most)


def checked(name: str, kind: Any, limits: tuple[Any, ...]) -> Convert | None:
    """The function that refuses a value that does not fit."""
    if kind is bool:
        return None
    if not limits:
        raise TypeError(f"{name}: {kind} has no limits")
    (limit,) = limits
    match limit:
        case Range():
            return _checked_number(name, limit)
        case Length(encoded=False):
            return _checked_length(name, limit)

    def check(value: Any) -> Any:
        if fault := limit.fault(value):
            raise ProtocolError(f"{name} {fault}")
        return value

    return check


def _checked_number(name: str, limit: Range[Any]) -> Convert:
    low, high = limit.low, limit.high

    def check(value: float) -> float:
        if low <= value <= high:
            return value
        raise ProtocolError(f"{name} {limit.fault(value)}")

    return check


def _checked_length(name: str, limit: Length) -> Convert:
    low, high = limit.least, limit.most

    def check(value: Any) -> Any:
        if low <= len(value) <= high:
            return value
        raise ProtocolError(f"{name} {limit.fault(value)}")

    return check
