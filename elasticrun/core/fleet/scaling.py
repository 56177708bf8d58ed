"""More or fewer replicas by an operation, which has an end: one at a time, and each is done once.

Theory. What is wanted is a number in the job's own description, plus an offset that operations change. An
operation begins by changing the offset, in the same step in which the record remembers it; so whoever decides
may die at any time, and the next one neither forgets it nor does it again. It ends when the replicas are as
it asked, or when its time is over: then a growth is taken back, while replicas that were told to leave do.
Results are remembered, as whoever has to be told of one may die before. A new number in the description
replaces all offsets of that role, and ends the operation that is under way for it. An operation is for one
role: it names one if there are several, and of the others nothing changes.

In a cluster that is shared there may be fewer than are wanted (``core/cluster/sharing.py``). An operation
changes what is wanted, never the share: one for more has to wait for it, and one for fewer begins at what
the job has, so that it takes some of that.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from elasticrun.core.fleet.replicas import (
    Bounds,
    Live,
    Operation,
    Record,
    Result,
    ScalePhase,
    Scaling,
    Shape,
    Share,
    Wish,
)
from elasticrun.core.fleet.roles import bounds_of, elastic_of, names_of, of, role_of, tally_of, with_tally
from elasticrun.dataclass import dataclass

#: So many results are remembered.
MOST_RESULTS = 16


@dataclass(frozen=True, slots=True)
class Scene:
    """What an operation for one role is judged by."""

    bounds: Bounds
    live: Collection[int]  # the replicas that are meant to run
    running: int  # of these
    holding: int  # these, and those that still end
    over: str = ""  # why the job takes no operation


@dataclass(frozen=True, slots=True)
class Scaled:
    """What follows: the record, which replicas leave, and what to tell of each operation."""

    record: Record
    leaving: tuple[int, ...]
    results: tuple[Result, ...]


def wanted_of(wish: Wish, shape: Shape, record: Record, name: str) -> int:
    """How many replicas of a role are wanted now."""
    asked, bounds, tally = asked_of(wish, shape, record, name), bounds_of(shape, name), tally_of(record, name)
    offset = tally.offset if tally.base == asked else 0
    return min(max(asked + offset, bounds.least), bounds.most)


def asked_of(wish: Wish, shape: Shape, record: Record, name: str) -> int:
    """How many replicas of a role the description asks for; of one that it has no more, as it did last."""
    if name not in names_of(wish.shape):
        return tally_of(record, name).base
    return role_of(wish, shape, name).wanted


def waits(share: Share | None, live: int) -> bool:
    """Whether a job may have no replicas at all now; ``live``: how many are meant to run."""
    return share is not None and not (live if share.replicas is None else share.replicas)


def granted_of(wish: Wish, shape: Shape, record: Record, name: str, live: int) -> int:
    """How many replicas of a role there may be now: what is wanted, as far as the share allows.

    As long as no share is decided, ``live`` of that role: a job keeps what it has, and starts nothing.
    """
    wanted = wanted_of(wish, shape, record, name)
    if wish.share is None:
        return wanted
    if wish.share.replicas is None:
        return min(wanted, live)
    if name == elastic_of(shape):
        return min(wanted, wish.share.replicas)
    return wanted if wish.share.replicas else 0


def least_needed(live: Collection[Live], wanted: int) -> list[int]:
    """Those beyond the number that is wanted: the newest go first, those with a name of their own last."""
    by_need = sorted(live, key=lambda it: (it.slot >= 0, -it.index))
    return [each.index for each in by_need[: max(0, len(live) - wanted)]]


def scale(
    wish: Wish,
    shape: Shape,
    record: Record,
    operations: Sequence[Operation],
    scenes: Mapping[str, Scene],
    now: float,
) -> Scaled:
    """Take the operations of a job, the oldest first, one step further. ``scenes``: by role."""
    for name in scenes:
        tally, wanted = tally_of(record, name), asked_of(wish, shape, record, name)
        if tally.base != wanted:
            if record.scaling is not None and record.scaling.role == name:
                record = _end(
                    record, ScalePhase.FAILED, f"the job's own number of replicas{of(name)} was changed"
                )
            record = with_tally(record, replace(tally, base=wanted, offset=0))
    if waits(wish.share, sum(len(scene.live) for scene in scenes.values())):
        why = "the job waits for its share of the cluster"
        scenes = {name: replace(scene, over=scene.over or why) for name, scene in scenes.items()}
    record = _go_on(record, scenes, now)
    leaving: tuple[int, ...] = ()
    for operation in operations[:MOST_RESULTS]:
        if record.scaling is None and _result(record, operation.key) is None:
            record, leaving = _begin(wish, shape, record, operation, scenes, now)
            record = record if leaving else _go_on(record, scenes, now)
    results = tuple(_told(record, operation.key) for operation in operations)
    return Scaled(_without_old(record, {operation.key for operation in operations}), leaving, results)


def _without_old(record: Record, asked: set[str]) -> Record:
    """Forget the oldest results of what nobody asks for any more; whoever asks late may be few."""
    others = [result for result in record.results if result.key not in asked]
    old = {result.key for result in others[: max(0, len(others) - MOST_RESULTS)]}
    return replace(record, results=tuple(result for result in record.results if result.key not in old))


def _go_on(record: Record, scenes: Mapping[str, Scene], now: float) -> Record:
    """End the operation that is under way, if it is time."""
    active = record.scaling
    if active is None:
        return record
    if (scene := scenes.get(active.role)) is None:
        return _end(record, ScalePhase.FAILED, f"the job has no role {active.role} any more")
    if scene.over:
        return _end(record, ScalePhase.FAILED, scene.over)
    count, whose = len(scene.live), of(active.role)
    has_grown = count == active.target == scene.running
    if has_grown if active.grows else scene.holding <= active.target:
        return _end(record, ScalePhase.SUCCEEDED, f"{count} replicas{whose}, as was asked for")
    if now < active.until:
        return record
    if not active.grows:
        left = scene.holding - active.target
        return _end(record, ScalePhase.FAILED, f"{left} replicas{whose} did not end in time")
    text = (
        f"{scene.running} of {active.target} replicas{whose} ran in time: there are as many wanted as before"
    )
    before = replace(tally_of(record, active.role), offset=active.before)
    return with_tally(_end(record, ScalePhase.FAILED, text), before)


def _begin(
    wish: Wish,
    shape: Shape,
    record: Record,
    operation: Operation,
    scenes: Mapping[str, Scene],
    now: float,
) -> tuple[Record, tuple[int, ...]]:
    name = operation.role
    if "" in scenes and name == wish.name:
        name = ""
    if refusal := _unknown(name, scenes):
        return _remember(record, Result(operation.key, ScalePhase.FAILED, refusal)), ()
    tally, scene = tally_of(record, name), scenes[name]
    wanted = wanted_of(wish, shape, record, name)
    if operation.more <= 0:
        wanted = granted_of(wish, shape, record, name, len(scene.live))
    target = wanted + operation.more - len(operation.indices)
    if refusal := scene.over or _refusal(operation, target, scene):
        return _remember(record, Result(operation.key, ScalePhase.FAILED, refusal)), ()
    until = now + operation.timeout
    scaling = Scaling(operation.key, target, operation.more > 0, tally.offset, until, name)
    offset = target - asked_of(wish, shape, record, name)
    return with_tally(replace(record, scaling=scaling), replace(tally, offset=offset)), operation.indices


def _unknown(name: str, scenes: Mapping[str, Scene]) -> str:
    """Why it is not clear whose replicas are meant; "" if it is."""
    if name in scenes:
        return ""
    if "" in scenes:
        return f"the job has no role {name}: it has only one, so name none"
    names = ", ".join(scenes)
    return (
        f"the job has no role {name}: name one of {names}"
        if name
        else f"the job has several roles: name one of {names}"
    )


def _refusal(operation: Operation, target: int, scene: Scene) -> str:
    """Why an operation cannot begin; "" if it can."""
    bounds, whose = scene.bounds, of(scene.bounds.role)
    if absent := [index for index in operation.indices if index not in scene.live]:
        return f"there is no replica {', '.join(map(str, absent))}{whose}"
    if len(set(operation.indices)) < len(operation.indices):
        return "a replica is named twice"
    if target > bounds.most:
        return f"there would be {target} replicas{whose} of at most {bounds.most}"
    if target < bounds.least:
        return f"there would be {target} replicas{whose} of at least {bounds.least}"
    return "" if operation.more or operation.indices else "it asks for nothing"


def _told(record: Record, key: str) -> Result:
    if (result := _result(record, key)) is not None:
        return result
    if record.scaling is not None and record.scaling.key == key:
        return Result(key, ScalePhase.RUNNING, _aim(record.scaling))
    return Result(key, ScalePhase.WAITING, "another operation is under way")


def _aim(scaling: Scaling) -> str:
    return f"until there are {scaling.target} replicas{of(scaling.role)}"


def _result(record: Record, key: str) -> Result | None:
    return next((result for result in record.results if result.key == key), None)


def _end(record: Record, phase: ScalePhase, text: str) -> Record:
    assert record.scaling is not None
    return replace(_remember(record, Result(record.scaling.key, phase, text)), scaling=None)


def _remember(record: Record, result: Result) -> Record:
    return replace(record, results=(*record.results, result))
