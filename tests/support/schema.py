"""Checks a value against a JSON schema: with jsonschema if it is here, else as far as our own schemas go."""

from __future__ import annotations

import importlib.util
from typing import Any

_TYPES: dict[str, type | tuple[type, ...]] = {
    "object": dict,
    "array": list,
    "string": str,
    "integer": int,
    "number": (int, float),
    "boolean": bool,
    "null": type(None),
}
#: What is understood; another word in a schema is an error, not a rule that nobody checks.
_WORDS = frozenset(
    {
        *("$schema", "$defs", "$ref", "title", "description", "type", "required", "properties", "items"),
        *("anyOf", "enum", "const", "minimum", "maximum", "maxLength", "minLength", "maxItems"),
    }
)


def misfits(value: Any, schema: dict[str, Any]) -> list[str]:
    """What does not fit, in words."""
    if importlib.util.find_spec("jsonschema"):
        import jsonschema  # type: ignore[import-untyped, import-not-found, unused-ignore]

        jsonschema.Draft202012Validator.check_schema(schema)
        return [error.message for error in jsonschema.Draft202012Validator(schema).iter_errors(value)]
    return _misfits(value, schema, schema["$defs"], "")


def _is_a(kind: str, value: Any) -> bool:
    is_no_number = kind in ("integer", "number") and isinstance(value, bool)
    return isinstance(value, _TYPES[kind]) and not is_no_number


def _misfits(value: Any, schema: dict[str, Any], known: dict[str, Any], at: str) -> list[str]:
    assert schema.keys() <= _WORDS, schema.keys() - _WORDS
    if "$ref" in schema:
        return _misfits(value, known[schema["$ref"].removeprefix("#/$defs/")], known, at)
    if "anyOf" in schema:
        tried = [_misfits(value, each, known, at) for each in schema["anyOf"]]
        return [] if [] in tried else tried[0]
    if "enum" in schema or "const" in schema:
        return [] if value in schema.get("enum", [schema.get("const")]) else [f"{at}: {value!r}"]
    kind = schema["type"]
    if not _is_a(kind, value):
        return [f"{at}: {value!r} is no {kind}"]
    if kind == "object":
        missing = [f"{at}.{name} is missing" for name in schema["required"] if name not in value]
        pairs = [(value[name], rule, name) for name, rule in schema["properties"].items() if name in value]
        return missing + [
            fault for v, rule, name in pairs for fault in _misfits(v, rule, known, f"{at}.{name}")
        ]
    if kind == "array":
        items = schema["items"]
        return [
            fault
            for number, each in enumerate(value)
            for fault in _misfits(each, items, known, f"{at}[{number}]")
        ]
    if kind == "string":
        return [] if schema.get("minLength", 0) <= len(value) <= schema.get("maxLength", len(value)) else [at]
    fits = kind in ("boolean", "null") or schema.get("minimum", value) <= value <= schema.get(
        "maximum", value
    )
    return [] if fits else [f"{at}: {value!r}"]
