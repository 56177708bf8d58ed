"""What ``elastic-ctl --json`` prints, as values, and the JSON schemas that describe it.

The schemas lie in ``elasticrun/manual/schemas``. They are made from the values below and their annotations
(``python -m elasticrun.cli.documents NAME`` prints one), so a test sees when one is out of date. A version
stays as long as its fields keep their meaning; new fields may come within it.
"""

from __future__ import annotations

import dataclasses
import json
import sys
import types
import typing
from datetime import datetime, timezone
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from elasticrun.core.protocol.bounds import PIDS, Counted, Label, Length, Range
from elasticrun.core.protocol.status import JobPhase, JobStatus
from elasticrun.dataclass import dataclass
from elasticrun.rpc.records import to_json

if TYPE_CHECKING:
    from elasticrun.rpc.nearby import NearbyJob

VERSION = 1
FOLDER = Path(__file__).parent.parent / "manual" / "schemas"
_DIALECT = "https://json-schema.org/draft/2020-12/schema"
_SCALARS = {int: "integer", float: "number", str: "string", bool: "boolean", bytes: "string"}


@dataclass(frozen=True, slots=True)
class StatusDocument:
    """What elastic-ctl status --json prints."""

    version: int
    job: JobStatus


@dataclass(frozen=True, slots=True)
class ListedJob:
    """One job of this user whose master is on this host."""

    job_id: Label
    phase: JobPhase
    round: Annotated[int, Range(-1, 2**63 - 1)]  # the newest; -1: there was none
    nodes: Counted
    min_nodes: Counted
    max_nodes: Counted
    endpoint: str | None  # HOST:PORT; null: it can be asked on this host only
    since: str | None  # when it began, in UTC by ISO 8601; null: not known, as its master was started again
    pid: Annotated[int, PIDS]  # of the launcher that started the master


@dataclass(frozen=True, slots=True)
class JobsDocument:
    """What elastic-ctl ps --json prints."""

    version: int
    jobs: tuple[ListedJob, ...]


DOCUMENTS: dict[str, type] = {"status": StatusDocument, "ps": JobsDocument}


def listed(job: NearbyJob) -> ListedJob:
    """A job as ``ps`` shows it."""
    status, about = job.status, job.about
    since = (
        None if about.since is None else datetime.fromtimestamp(int(about.since), timezone.utc).isoformat()
    )
    return ListedJob(
        job_id=status.job_id,
        phase=status.phase,
        round=status.round,
        nodes=len(status.nodes) + status.unlisted,
        min_nodes=status.min_nodes,
        max_nodes=status.max_nodes,
        endpoint=about.endpoint or None,
        since=since,
        pid=about.launcher,
    )


def as_json(document: StatusDocument | JobsDocument) -> str:
    """The text to print."""
    return json.dumps(to_json(document), indent=2)


def schema_text(name: str) -> str:
    """The schema of a document of this name, as its file holds it."""
    kind, definitions = DOCUMENTS[name], {}  # type: type, dict[str, Any]
    body = _of_dataclass(kind, definitions)
    body["properties"]["version"] = {"const": VERSION}
    head = {"$schema": _DIALECT, "title": f"elastic-ctl {name} --json, version {VERSION}"}
    return json.dumps({**head, **body, "$defs": dict(sorted(definitions.items()))}, indent=2) + "\n"


def _of_dataclass(kind: type, definitions: dict[str, Any]) -> dict[str, Any]:
    hints = typing.get_type_hints(kind, include_extras=True)
    properties = {field.name: _of(hints[field.name], definitions) for field in dataclasses.fields(kind)}
    about = (kind.__doc__ or "").split("\n")[0]
    return {"type": "object", "description": about, "required": list(properties), "properties": properties}


def _of(hint: Any, definitions: dict[str, Any]) -> dict[str, Any]:
    origin, parts = typing.get_origin(hint), typing.get_args(hint)
    if origin is Annotated:
        return _of(parts[0], definitions) | _limits(parts[0], hint.__metadata__)
    if origin in (types.UnionType, typing.Union):
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
        definitions[kind.__name__] = _of_dataclass(kind, definitions)
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


if __name__ == "__main__":
    sys.stdout.write(schema_text(sys.argv[1]))
