"""The state of a job's machine as text: what a journal begins with in place of all events before.

What a machine will do follows from its state alone (``core/job/state.py``). So the text has every object that
can be reached from there, and needs no list of names: a new field cannot be forgotten. An object that several
parts share (the table of nodes, say) is written once and stays one object. So a machine that is restored, and
the one that it was taken from, do the same from then on.

Reading creates only objects of ``elasticrun.core`` and ``elasticrun.config``. Immutable values are read
as the journal's events are: each by its annotations, each number in its range. The shape of the rest belongs
to one version, so the text names the version that wrote it and the shape, and no other one reads it.
"""

from __future__ import annotations

import dataclasses
import json
import types
import typing
from collections import Counter, OrderedDict
from collections.abc import Callable
from enum import Enum
from functools import cache
from importlib import import_module
from typing import Any

from elasticrun import __version__
from elasticrun.config import JobConfig
from elasticrun.core.job.machine import JobMachine
from elasticrun.core.job.state import JobState
from elasticrun.dataclass import dataclass, is_frozen
from elasticrun.rpc.records import RecordError, from_json, to_json

#: Who can read a snapshot. The number counts changes of the state's shape within one version.
WRITER = f"{__version__}, shape 14"
_PACKAGE = "elasticrun."
_MODULES = ("elasticrun.core.", "elasticrun.config.")
#: Attributes that are not kept: the next event ignores them, or they are counted anew when asked for.
_PASSING: dict[str, Callable[[], Any]] = {"now": float, "_by_members": dict}
_DICTS = (dict, OrderedDict, Counter)
_CONTAINERS: dict[str, Any] = {kind.__name__: kind for kind in (list, set, *_DICTS)}
_SCALARS = (bool, int, float, str, type(None))


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Everything that a machine knew at one moment."""

    version: str
    epoch: int
    state: str  # JSON


def take(state: JobState) -> Snapshot:
    """A snapshot of the job now."""
    text = json.dumps(_Writer(state.config).dump(state), separators=(",", ":"))
    return Snapshot(WRITER, state.epoch, text)


def restore(config: JobConfig, snapshot: Snapshot) -> JobMachine:
    """The machine that a snapshot was taken of.

    Raises:
        RecordError: another version took it, or it is damaged.
    """
    if snapshot.version != WRITER:
        raise RecordError(f"elasticrun {snapshot.version} wrote it, and this is {WRITER}")
    try:
        state = _Reader(config).load(json.loads(snapshot.state))
    except RecordError:
        raise
    except Exception as error:  # whatever it is, it was not taken of a machine
        raise RecordError(f"its state is damaged: {error!r}") from error
    if not isinstance(state, JobState) or state.epoch != snapshot.epoch:
        raise RecordError("its state is not that of a job")
    return JobMachine(config, state)


class _Writer:
    """Turns objects into JSON. A list is a tuple; an object's only key names any other type."""

    def __init__(self, config: JobConfig) -> None:
        self._config = config
        self._seen: dict[int, int] = {}  # numbers of the objects that can change, by id

    def dump(self, value: Any) -> Any:
        kind: Any = type(value)
        if kind in _SCALARS:
            return value
        if value is self._config:
            return {"config": None}
        if kind is tuple:
            return [self.dump(item) for item in value]
        if kind is frozenset:
            return {"frozenset": [self.dump(item) for item in sorted(value)]}
        if issubclass(kind, Enum):
            return {"enum": [_name(kind), value.value]}
        if _is_record(kind):
            return {"record": [_name(kind), to_json(value)]}
        if issubclass(kind, tuple):  # with names
            return {"named": [_name(kind), [self.dump(item) for item in value]]}
        if id(value) in self._seen:
            return {"same": self._seen[id(value)]}
        self._seen[id(value)] = len(self._seen)
        if kind is list:
            return {"list": [self.dump(item) for item in value]}
        if kind is set:
            return {"set": [self.dump(item) for item in sorted(value, key=repr)]}
        if kind in _DICTS:
            pairs = [[self.dump(key), self.dump(item)] for key, item in value.items()]
            return {kind.__name__: pairs}
        names = _attributes(value)
        kept = {name: self.dump(getattr(value, name)) for name in names if name not in _PASSING}
        return {"object": [_name(kind), kept, [name for name in names if name in _PASSING]]}


class _Reader:
    """Turns the JSON of a ``_Writer`` into objects, and numbers them in the same order."""

    def __init__(self, config: JobConfig) -> None:
        self._config = config
        self._made: list[Any] = []

    def load(self, data: Any) -> Any:
        if isinstance(data, list):
            return tuple(self.load(item) for item in data)
        if not isinstance(data, dict):
            return data
        ((tag, body),) = data.items()
        match tag:
            case "config":
                return self._config
            case "frozenset":
                return frozenset(self.load(item) for item in body)
            case "enum":
                return _class(body[0], Enum)(body[1])
            case "record":
                return from_json(_class(body[0]), body[1])
            case "named":
                return _class(body[0], tuple)(*(self.load(item) for item in body[1]))
            case "same":
                return self._made[body]
            case _:
                return self._load_mutable(tag, body)

    def _load_mutable(self, tag: str, body: Any) -> Any:
        if tag == "object":
            kind = _class(body[0])
            made: Any = kind.__new__(kind)
            self._made.append(made)
            for name, item in body[1].items():
                object.__setattr__(made, name, self.load(item))
            for name in body[2]:
                object.__setattr__(made, name, _PASSING[name]())
            return made
        made = _CONTAINERS[tag]()
        self._made.append(made)
        if tag == "list":
            made.extend(self.load(item) for item in body)
        elif tag == "set":
            made.update(self.load(item) for item in body)
        else:
            made.update({self.load(key): self.load(item) for key, item in body})
        return made


def _attributes(value: object) -> list[str]:
    if dataclasses.is_dataclass(value):
        return [field.name for field in dataclasses.fields(value)]
    return list(vars(value))


def _name(kind: type) -> str:
    if not f"{kind.__module__}.".startswith(_MODULES):
        raise RecordError(f"{kind.__module__}.{kind.__name__} is no part of a job's state")
    return f"{kind.__module__.removeprefix(_PACKAGE)}:{kind.__name__}"


def _class(name: str, base: type = object) -> Any:
    module, _, last = name.partition(":")
    if not f"{_PACKAGE}{module}.".startswith(_MODULES):
        raise RecordError(f"{name} is no part of a job's state")
    kind = getattr(import_module(_PACKAGE + module), last)
    if not isinstance(kind, type) or not issubclass(kind, base) or _name(kind) != name:
        raise RecordError(f"{name} is no class of a job's state")
    return kind


@cache
def _is_record(kind: Any) -> bool:
    """Whether the journal's records can carry it: an immutable value, all the way down."""
    if kind in _SCALARS or kind is bytes:
        return True
    origin, parts = typing.get_origin(kind), typing.get_args(kind)
    if origin is typing.Annotated:
        return _is_record(parts[0])
    if origin in (types.UnionType, typing.Union):
        return len(parts) == 2 and parts[1] is type(None) and _is_record(parts[0])
    if origin is tuple:
        return all(part is ... or _is_record(part) for part in parts)
    if isinstance(kind, type) and issubclass(kind, Enum):
        return True
    if not is_frozen(kind):
        return False
    hints = typing.get_type_hints(kind, include_extras=True)
    return all(_is_record(hints[field.name]) for field in dataclasses.fields(kind))
