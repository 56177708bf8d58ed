"""The roles of a job: what is asked of each, within which bounds, and what is remembered of it.

Theory. A job with one role has no other name for it than "", and what is asked and remembered of it stands in
the wish and the record themselves. With several roles each has its own in ``Wish.roles``, ``Shape.roles`` and
``Record.tallies``, found by its name. Whoever decides asks here, and need not know how many roles there are.

The bounds of all roles are part of the shape, as their sums are what agents were told. So the roles of a job
that runs are those with which it began. One that is not asked for any more, while others run, keeps as many
replicas as were asked for last: others hold once none of them runs.

Invariants. A role is never given the tally, or the slots, of another one. Slots go to the replicas that there
always are, in the order of the roles, so that they can be filled whenever the job is complete.
"""

from __future__ import annotations

from dataclasses import fields, replace
from functools import cache

from elasticrun.core.fleet.replicas import Bounds, Live, Record, Role, Shape, Start, Tally, Wish

#: Of one job.
MOST_ROLES = 8


def names_of(shape: Shape) -> tuple[str, ...]:
    """The names of the roles, in their order."""
    return tuple(bounds.role for bounds in shape.roles) or ("",)


def elastic_of(shape: Shape) -> str:
    """The role whose number a cluster that is shared may change: the last one that may have more or fewer.

    If none may, the first one, of which there always is a replica.
    """
    elastic = [bounds.role for bounds in shape.roles if bounds.least < bounds.most]
    return elastic[-1] if elastic else names_of(shape)[0]


def bounds_of(shape: Shape, name: str) -> Bounds:
    """The bounds of a role of this shape."""
    whole = Bounds("", shape.min_replicas, shape.max_replicas)
    return next((bounds for bounds in shape.roles if bounds.role == name), whole)


def role_of(wish: Wish, shape: Shape, name: str) -> Role:
    """What is asked of a role of this shape."""
    if not name:
        return Role("", wish.wanted, wish.max_failures, wish.memory, wish.max_memory, wish.caps)
    wanted = (role for role in wish.roles if role.name == name)
    return next(wanted, Role(name, bounds_of(shape, name).most))


def slots_of(shape: Shape, name: str) -> range:
    """The slots that replicas of a role may have."""
    if not name:
        return range(shape.slots)
    first = 0
    for bounds in shape.roles:
        if bounds.role == name:
            return range(min(first, shape.slots), min(first + bounds.least, shape.slots))
        first += bounds.least
    return range(0)


def tally_of(record: Record, name: str) -> Tally:
    """What is remembered of a role."""
    if not name:
        return Tally(**{field: getattr(record, field) for field in _shared()})
    return next((tally for tally in record.tallies if tally.role == name), Tally(name))


def with_tally(record: Record, tally: Tally) -> Record:
    """The record with this instead of what it has of the role; the very same if nothing changes."""
    if tally == tally_of(record, tally.role):
        return record
    if not tally.role:
        return replace(record, **{field: getattr(tally, field) for field in _shared()})
    kept = [each for each in record.tallies if each.role != tally.role]
    return replace(record, tallies=tuple(sorted((*kept, tally), key=lambda it: it.role)))


def forgiven(record: Record) -> Record:
    """What is still remembered after a suspension: of a role its memory, and what operations have added."""
    for tally in (tally_of(record, ""), *record.tallies):
        kept = Tally(tally.role, memory=tally.memory, base=tally.base, offset=tally.offset)
        record = with_tally(record, kept)
    return record


def start_of(live: Live, shape: Shape, record: Record) -> Start:
    """The order to start a replica with what its role has learned."""
    tally = tally_of(record, live.role)
    return Start(live.index, live.slot, tally.memory, record.avoided, shape, tally.requests, live.role)


def why_halted(record: Record) -> str:
    """Why some replicas are not replaced any more; "" if all are."""
    return record.halted or next((tally.halted for tally in record.tallies if tally.halted), "")


def of(name: str) -> str:
    """The role of some replicas, for people; nothing where there is only one."""
    return f" of {name}" if name else ""


def in_words(shape: Shape) -> str:
    """The bounds, for people."""
    return ", ".join(f"{it.role} {it.least}:{it.most}" for it in shape.roles) or str(shape)


@cache
def _shared() -> tuple[str, ...]:
    """The fields that a tally has in common with the record."""
    return tuple(field.name for field in fields(Tally) if field.name != "role")
