"""Values of any kind, as they stand in objects of the API server: whatever is there, something comes out.

Whoever may write to the namespace may have written anything. Nothing here raises but ``limit_of``.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timezone
from typing import Any

from elasticrun.core.protocol.plain import one_line
from elasticrun.platforms.kubernetes.quantity import memory_of

_SHOWN = 200
#: Levels of a template; whatever walks through it, or copies it, need not be ready for more. A pod has 15.
DEEPEST = 100


def dict_of(value: object) -> dict[str, Any]:
    """The object; an empty one if it is none."""
    return value if isinstance(value, dict) else {}


def list_of(value: object) -> list[Any]:
    """The list; an empty one if it is none."""
    return value if isinstance(value, list) else []


def number_of(value: object) -> int:
    """The number that a text is; -1 if it is none, or absurd."""
    return int(value) if isinstance(value, str) and value.isdecimal() and len(value) < 10 else -1


def is_deep(value: object) -> bool:
    """Whether it has too many levels; without recursion, as there may be thousands."""
    level: list[object] = [value]
    for _ in range(DEEPEST):
        level = [
            part
            for each in level
            if isinstance(each, dict | list)
            for part in (each.values() if isinstance(each, dict) else each)
        ]
        if not level:
            return False
    return True


def limit_of(container: Mapping[str, Any]) -> int:
    """The memory limit of a container; 0 if it has none. Raises ValueError."""
    limits = dict_of(dict_of(container.get("resources")).get("limits"))
    return memory_of(limits["memory"]) if "memory" in limits else 0


def limit_or_none(container: Mapping[str, Any]) -> int:
    """The same; 0 as well if it makes no sense."""
    try:
        return limit_of(container)
    except ValueError:
        return 0


def moment_of(text: object) -> float | None:
    """Seconds of the wall clock; None if nothing is said, and 0 if it makes no sense."""
    if not isinstance(text, str):
        return None
    try:
        return datetime.strptime(text, "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=timezone.utc).timestamp()
    except ValueError:
        return 0.0


def words_of(text: object) -> str:
    """A sentence for people: one line, and not too long."""
    return one_line(str(text or "").strip())[:_SHOWN]
