"""JSON schemas of frozen dataclasses, from their annotations, docstrings and limits."""

from __future__ import annotations

import dataclasses
import types
import typing
from enum import Enum
from typing import Annotated, Any

from elasticrun.core.protocol.bounds import Length, Range

DIALECT = "https://json-schema.org/draft/2020-12/schema"
_SCALARS = {int: "integer", float: "number", str: "string", bool: "boolean", bytes: "string"}


def of_dataclass(kind: type, definitions: dict[str, Any]) -> dict[str, Any]:
    """The schema of a class. Those of classes in its fields go into ``definitions``, by name."""
    hints = typing.get_type_hints(kind, include_extras=True)
    properties = {field.name: _of(hints[field.name], definitions) for field in dataclasses.fields(kind)}
    about = (kind.__doc__ or "").split("\n")[0]
    return {"type": "object", "description": about, "required": list(properties), "properties": properties}


def _of(hint: Any, definitions: dict[str, Any]) -> dict[str, Any]:
    origin, parts = typing.get_origin(hint), typing.get_args(hint)
    if origin is Annotated:
        return _of(parts[0], definitions) | _limits(parts[0], hint.__metadata__)
    if origin in (types.UnionType, typing.Union):
        assert parts[1:] == (types.NoneType,), f"{hint} is no type that may be missing"
        return {"anyOf": [_of(parts[0], definitions), {"type": "null"}]}
    if origin is tuple:
        return {"type": "array", "items": _of(parts[0], definitions)}
    kind: type = hint
    if issubclass(kind, Enum):
        return {"enum": [member.value for member in kind]}
    if kind in _SCALARS:
        return {"type": _SCALARS[kind]}
    if kind.__name__ not in definitions:
        definitions[kind.__name__] = {}  # seen, should it hold itself
        definitions[kind.__name__] = of_dataclass(kind, definitions)
    return {"$ref": f"#/$defs/{kind.__name__}"}


def _limits(kind: Any, metadata: tuple[Any, ...]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for limit in metadata:
        if isinstance(limit, Range):
            found |= {"minimum": limit.low, "maximum": limit.high}
        elif isinstance(limit, Length) and typing.get_origin(kind) is tuple:
            found["maxItems"] = limit.most
        elif isinstance(limit, Length) and kind is str:
            found |= {"maxLength": limit.most} | ({"minLength": limit.least} if limit.least else {})
    return found
