"""One number for everything that masters decide in many simulated jobs.

Two versions of the package decide the same if they have the same digest. It covers each event that a master
handles, the time, and each effect that follows, with its text. Names inside the package do not count, so that
they can change: a value is written as its fields in order, without those that have their default, and an
event, effect or message by its place in its union.
"""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Iterable, Sequence
from enum import Enum
from hashlib import sha256
from typing import Any

from elasticrun.core.job.events import Decided, JobEffect, JobEvent
from elasticrun.core.protocol.messages import MasterMessage
from elasticrun.sim.failover import simulator
from elasticrun.sim.master import SAVING, Saving
from elasticrun.sim.scenario import Scenario

#: Unions whose members are written as their places.
_UNIONS: tuple[Any, ...] = (JobEvent, JobEffect, MasterMessage)
_PLACES: dict[type, str] = {
    kind: f"{union}.{place}"
    for union, of in enumerate(_UNIONS)
    for place, kind in enumerate(typing.get_args(of))
}
_FIELDS: dict[type, tuple[tuple[int, str, object], ...]] = {}  # number, name and default


def plain(value: Any) -> str:
    """A value as text without names of types or fields."""
    if isinstance(value, Enum):
        return plain(value.value)
    if isinstance(value, tuple | list):
        return f"({','.join(map(plain, value))})"
    if isinstance(value, set | frozenset):
        return f"{{{','.join(sorted(map(plain, value)))}}}"
    if dataclasses.is_dataclass(value):
        kind = type(value)
        found = [(number, getattr(value, name), default) for number, name, default in _fields(kind)]
        told = [f"{number}={plain(item)}" for number, item, default in found if item != default]
        return f"<{_PLACES.get(kind, '')}:{','.join(told)}>"
    return repr(value)


def _fields(kind: type) -> tuple[tuple[int, str, object], ...]:
    if kind not in _FIELDS:
        fields: Any = dataclasses.fields(kind)
        made = (
            f.default if f.default_factory is dataclasses.MISSING else f.default_factory() for f in fields
        )
        _FIELDS[kind] = tuple(
            (n, f.name, default) for n, (f, default) in enumerate(zip(fields, made, strict=True))
        )
    return _FIELDS[kind]


def digest_of(scenario: Scenario, saving: Saving = SAVING) -> str:
    """The digest of all that the masters of one job decide, in hex."""
    found = sha256()

    def note(now: float, event: JobEvent, effects: Sequence[JobEffect]) -> None:
        # The number of the event is only its name, not part of the decision.
        told = [dataclasses.replace(each, event=0) if isinstance(each, Decided) else each for each in effects]
        found.update(f"{now!r} {plain(event)} -> {plain(told)}\n".encode())

    run = simulator(scenario, False, saving)
    run.observers.append(note)
    found.update(str(run.run().outcome).encode())
    return found.hexdigest()


def digest_all(scenarios: Iterable[Scenario], tell: bool = False, saving: Saving = SAVING) -> str:
    """The digest of many jobs, in hex; ``tell`` prints that of each, to find the first that differs."""
    found = sha256()
    for scenario in scenarios:
        one = digest_of(scenario, saving)
        if tell:
            print(f"seed {scenario.seed}: {one[:16]}")
        found.update(one.encode())
    return found.hexdigest()
