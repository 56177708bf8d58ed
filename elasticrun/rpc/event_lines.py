"""The lines of the event log as values, and back."""

from __future__ import annotations

import json
import re
import typing
from contextlib import suppress
from typing import Any

from elasticrun.core.protocol.chronicle import VERSION, Happening, LogEntry
from elasticrun.rpc.records import RecordError, from_json, to_json

_ENCODER = json.JSONEncoder(separators=(",", ":"), check_circular=False)
_WORDS = re.compile("(?<!^)(?=[A-Z])")


def kind_of(happening: type[Happening]) -> str:
    """The name of a kind of entries in the log."""
    return _WORDS.sub("_", happening.__name__).lower()


_KINDS: dict[str, type[Happening]] = {kind_of(kind): kind for kind in typing.get_args(Happening)}
_HEAD = frozenset({"v", "event", "at", "time", "kind"})
#: No seconds since 1970, or of a job, are as many; no number of an entry is larger.
_AGES, _MOST = 1e11, 1e30


def to_line(entry: LogEntry) -> str:
    """The entry as one line of JSON, without its end."""
    fields: dict[str, Any] = to_json(entry.told)
    head = {"v": VERSION, "event": entry.event, "at": round(entry.at, 6), "time": round(entry.time, 6)}
    return _ENCODER.encode({**head, "kind": kind_of(type(entry.told)), **fields})


def from_fields(found: dict[str, Any]) -> LogEntry | None:
    """The entry of a line that was read as JSON; None: it is of a kind, or has fields, of another version."""
    kind = _KINDS.get(found["kind"])
    if kind is None:
        return None
    try:
        told = from_json(kind, {name: value for name, value in found.items() if name not in _HEAD})
    except RecordError:
        return None
    return LogEntry(found["event"], found["at"], found["time"], told)


def is_entry(value: object) -> bool:
    """Whether what was read as JSON is an entry of any version: it has a head, and numbers to reckon with."""
    match value:
        case {
            "v": int(),
            "event": int() as event,
            "at": int() | float() as at,
            "time": int() | float() as now,
            "kind": str(),
            **rest,
        }:
            numbers = (each for each in (event, *rest.values()) if isinstance(each, int | float))
            return abs(at) < _AGES and 0 <= now < _AGES and all(abs(each) <= _MOST for each in numbers)
    return False


def tells_the_end(line: str) -> bool:
    """Whether a line of ``to_line`` tells the end of the job."""
    return '"kind":"job_ended"' in line


def from_line(line: str) -> LogEntry | None:
    """The same of a line. ValueError: it is no line of an event log."""
    try:
        found = json.loads(line)
        if found["kind"] not in _KINDS:
            return None
    except (KeyError, TypeError, RecursionError) as error:
        raise ValueError(f"{line:.100} is no entry of an event log") from error
    if not is_entry(found):
        raise ValueError(f"{line:.100} is no entry of an event log")
    return from_fields(found)


def known_entry(line: str) -> LogEntry | None:
    """The entry of a line; None: it is of another version, or none at all."""
    with suppress(ValueError):
        return from_line(line)
    return None
