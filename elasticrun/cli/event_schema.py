"""The JSON schema of the event log, from the types of its entries.

python -m elasticrun.cli.event_schema --write elasticrun/manual/schemas/events.json
"""

from __future__ import annotations

import json
import sys
import typing
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from elasticrun.cli.json_schema import DIALECT, of_dataclass
from elasticrun.core.protocol.chronicle import VERSION, Happening
from elasticrun.rpc.event_lines import kind_of


def schema() -> dict[str, Any]:
    """Of one line. Readers have to pass over fields that it does not name."""
    return {
        "$schema": DIALECT,
        "title": f"An entry of elasticrun's event log, version {VERSION}",
        "oneOf": [_of_kind(kind) for kind in typing.get_args(Happening)],
    }


def _of_kind(kind: type[Happening]) -> dict[str, Any]:
    head: dict[str, Any] = {
        "v": {"const": VERSION},
        "event": {"type": "integer", "description": "number of the journal's event that caused it"},
        "at": {"type": "number", "description": "seconds of the job's clock"},
        "time": {"type": "number", "description": "seconds since 1970 by the clock of the master's host"},
        "kind": {"const": kind_of(kind)},
    }
    others: dict[str, Any] = {}
    own = of_dataclass(kind, others)
    assert not others, f"{kind.__name__} must hold no other class, as a line is one flat object"
    return {
        **own,
        "properties": {**head, **own["properties"]},
        "required": [*head, *own["required"]],
    }


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
