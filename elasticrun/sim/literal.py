"""Values as text that can be pasted into a test."""

from __future__ import annotations

import dataclasses
from collections.abc import Container
from enum import Enum


def literal(value: object, hidden: Container[str] = ()) -> str:
    """The expression that makes ``value``, without defaults; ``...`` for fields that are hidden."""
    if isinstance(value, tuple):
        parts = ", ".join(literal(item, hidden) for item in value)
        return f"({parts}{',' * (len(value) == 1)})"
    if isinstance(value, Enum):
        return str(value)
    if not dataclasses.is_dataclass(value):
        return repr(value)
    shown = [(f.name, getattr(value, f.name)) for f in dataclasses.fields(value)]
    defaults = {f.name: f.default for f in dataclasses.fields(value)}
    arguments = ", ".join(
        f"{name}={'...' if name in hidden else literal(item, hidden)}"
        for name, item in shown
        if item != defaults[name]
    )
    return f"{type(value).__name__}({arguments})"
