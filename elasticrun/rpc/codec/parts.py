"""What the codec needs for fields of many messages; what refuses a value raises ProtocolError."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from enum import Enum
from itertools import islice
from typing import TypeVar

from elasticrun.errors import ProtocolError

E = TypeVar("E", bound=Enum)
T = TypeVar("T")


def few(field: str, limit: int, items: Iterable[T]) -> tuple[T, ...]:
    """The items, decoded one by one, unless there are more than ``limit``."""
    found = tuple(islice(items, limit + 1))
    if len(found) > limit:
        raise ProtocolError(f"{field} must be at most {limit}, got more")
    return found


def member(field: str, table: Mapping[int, E], number: int) -> E:
    """The member of an enum that a number stands for."""
    found = table.get(number)
    if found is None:
        raise ProtocolError(f"{field} has the value {number}, which this version does not know")
    return found


def finite(number: float) -> float:
    """The number, or 0 in place of one that the receiver would refuse."""
    return number if math.isfinite(number) else 0.0
