"""Amounts of memory and CPU as Kubernetes writes them."""

from __future__ import annotations

import math
import re

_QUANTITY = re.compile(r"([0-9]+(?:\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+|[A-Za-z]*)")
_UNITS = {
    **{f"{unit}i": 1024**power for power, unit in enumerate("KMGTPE", 1)},
    **{unit: 1000**power for power, unit in enumerate("kMGTPE", 1)},
    "": 1,
    "m": 1e-3,
}
_MOST = 1 << 60
#: The resource of which a unit is a thousandth.
CPU = "cpu"


def memory_of(text: object) -> int:
    """The bytes of a quantity, rounded up. Raises ValueError."""
    return math.ceil(_amount(text, "memory"))


def cpu_of(text: object) -> int:
    """The thousandths of a core of a quantity, rounded up. Raises ValueError."""
    return math.ceil(1000 * _amount(text, "CPU"))


def _amount(text: object, what: str) -> float:
    match = _QUANTITY.fullmatch(str(text).strip())
    if not match:
        raise ValueError(f"{text!r} is no amount of {what}")
    number, unit = match.groups()
    factor = _UNITS.get(unit)
    if factor is None:
        if not unit.lstrip("eE").lstrip("+-").isdigit():
            raise ValueError(f"{text!r} is no amount of {what}")
        number, factor = number + unit, 1
    amount = float(number) * factor
    if amount > _MOST:
        raise ValueError(f"{text!r} is too much {what}")
    return amount


def to_quantity(memory: int) -> str:
    """How bytes are written."""
    return f"{memory >> 20}Mi" if memory % (1 << 20) == 0 else str(memory)


def units_of(kind: str, text: object) -> int:
    """The units of an amount of this resource, rounded up: thousandths of a core, or whole devices.

    Raises ValueError.
    """
    return cpu_of(text) if kind == CPU else math.ceil(_amount(text, kind))
