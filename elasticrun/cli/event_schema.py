"""The JSON schema of the event log, from the types of its entries.

python -m elasticrun.cli.event_schema --write elasticrun/manual/schemas/events.json
"""

from __future__ import annotations

import dataclasses
import json
import sys
import types
import typing
from collections.abc import Sequence
from enum import Enum
from pathlib import Path
from typing import Any

from elasticrun.core.protocol.chronicle import VERSION, Happening
from elasticrun.master.event_log import kind_of

_PLAIN = {str: "string", int: "integer", float: "number", bool: "boolean", types.NoneType: "null"}


def schema() -> dict[str, Any]:
    """Of one line. Readers have to pass over fields that it does not name."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": f"An entry of elasticrun's event log, version {VERSION}",
        "oneOf": [_of_kind(kind) for kind in typing.get_args(Happening)],
    }


def _of_kind(kind: type[Happening]) -> dict[str, Any]:
    hints = typing.get_type_hints(kind)
    fields = {field.name: _of_type(hints[field.name]) for field in dataclasses.fields(kind)}
    head: dict[str, Any] = {
        "v": {"const": VERSION},
        "event": {"type": "integer", "description": "number of the journal's event that caused it"},
        "at": {"type": "number", "description": "seconds of the job's clock"},
        "time": {"type": "number", "description": "seconds since 1970 by the clock of the master's host"},
        "kind": {"const": kind_of(kind)},
    }
    return {
        "type": "object",
        "description": " ".join((kind.__doc__ or "").split()),
        "properties": {**head, **fields},
        "required": [*head, *fields],
    }


def _of_type(hint: Any) -> dict[str, Any]:
    if hint in _PLAIN:
        return {"type": _PLAIN[hint]}
    if isinstance(hint, type) and issubclass(hint, Enum):
        return {"enum": [each.value for each in hint]}
    given = typing.get_args(hint)
    if typing.get_origin(hint) is tuple:
        return {"type": "array", "items": _of_type(given[0])}
    return {"anyOf": [_of_type(each) for each in given]}


def text() -> str:
    """The file."""
    return json.dumps(schema(), indent=1) + "\n"


def main(arguments: Sequence[str]) -> int:
    """Print it, or write it to a file."""
    match arguments:
        case []:
            print(text(), end="")
        case ["--write", path]:
            Path(path).write_text(text())
        case _:
            print("usage: python -m elasticrun.cli.event_schema [--write FILE]", file=sys.stderr)
            return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
