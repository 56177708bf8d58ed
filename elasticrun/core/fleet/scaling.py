"""More or fewer replicas by an operation, which has an end: one at a time, and each is done once.

Theory. What is wanted is a number in the job's own description, plus an offset that operations change. An
operation begins by changing the offset, in the same step in which the record remembers it; so whoever decides
may die at any time, and the next one neither forgets it nor does it again. It ends when the replicas are as
it asked, or when its time is over: then a growth is taken back, while replicas that were told to leave do.
Results are remembered, as whoever has to be told of one may die before. A new number in the description
replaces all offsets, and ends the operation that is under way.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

from elasticrun.core.fleet.replicas import Operation, Record, Result, ScalePhase, Scaling, Shape, Wish
from elasticrun.dataclass import dataclass

#: So many results are remembered.
MOST_RESULTS = 16


@dataclass(frozen=True, slots=True)
class Scene:
    """What an operation is judged by."""

    shape: Shape
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


def wanted_of(wish: Wish, shape: Shape, record: Record) -> int:
    """How many replicas are wanted now."""
    offset = record.offset if record.base == wish.wanted else 0
    return min(max(wish.wanted + offset, shape.min_replicas), shape.max_replicas)


def scale(wish: Wish, record: Record, operations: Sequence[Operation], scene: Scene, now: float) -> Scaled:
    """Take the operations of a job, the oldest first, one step further."""
    if record.base != wish.wanted:
        record = _end(record, ScalePhase.FAILED, "the job's own number of replicas was changed")
        record = replace(record, base=wish.wanted, offset=0)
    record = _go_on(record, scene, now)
    leaving: tuple[int, ...] = ()
    for operation in operations[:MOST_RESULTS]:
        if record.scaling is None and _result(record, operation.key) is None:
            record, leaving = _begin(wish, record, operation, scene, now)
            record = record if leaving else _go_on(record, scene, now)
    results = tuple(_told(record, operation.key) for operation in operations)
    return Scaled(_without_old(record, {operation.key for operation in operations}), leaving, results)


def _without_old(record: Record, asked: set[str]) -> Record:
    """Forget the oldest results of what nobody asks for any more; whoever asks late may be few."""
    others = [result for result in record.results if result.key not in asked]
    old = {result.key for result in others[: max(0, len(others) - MOST_RESULTS)]}
    return replace(record, results=tuple(result for result in record.results if result.key not in old))


def _go_on(record: Record, scene: Scene, now: float) -> Record:
    """End the operation that is under way, if it is time."""
    active = record.scaling
    if active is None:
        return record
    if scene.over:
        return _end(record, ScalePhase.FAILED, scene.over)
    count = len(scene.live)
    has_grown = count == active.target == scene.running
    if has_grown if active.grows else scene.holding <= active.target:
        return _end(record, ScalePhase.SUCCEEDED, f"{count} replicas, as was asked for")
    if now < active.until:
        return record
    if active.grows:
        text = f"{scene.running} of {active.target} replicas ran in time: there are as many wanted as before"
        return replace(_end(record, ScalePhase.FAILED, text), offset=active.before)
    return _end(record, ScalePhase.FAILED, f"{scene.holding - active.target} replicas did not end in time")


def _begin(
    wish: Wish, record: Record, operation: Operation, scene: Scene, now: float
) -> tuple[Record, tuple[int, ...]]:
    wanted = wanted_of(wish, scene.shape, record)
    target = wanted + operation.more - len(operation.indices)
    if refusal := scene.over or _refusal(operation, target, scene):
        return _remember(record, Result(operation.key, ScalePhase.FAILED, refusal)), ()
    scaling = Scaling(operation.key, target, operation.more > 0, record.offset, now + operation.timeout)
    return replace(record, scaling=scaling, offset=target - wish.wanted), operation.indices


def _refusal(operation: Operation, target: int, scene: Scene) -> str:
    """Why an operation cannot begin; "" if it can."""
    if absent := [index for index in operation.indices if index not in scene.live]:
        return f"there is no replica {', '.join(map(str, absent))}"
    if len(set(operation.indices)) < len(operation.indices):
        return "a replica is named twice"
    if target > scene.shape.max_replicas:
        return f"there would be {target} replicas of at most {scene.shape.max_replicas}"
    if target < scene.shape.min_replicas:
        return f"there would be {target} replicas of at least {scene.shape.min_replicas}"
    return "" if operation.more or operation.indices else "it asks for nothing"


def _told(record: Record, key: str) -> Result:
    if (result := _result(record, key)) is not None:
        return result
    if record.scaling is not None and record.scaling.key == key:
        return Result(key, ScalePhase.RUNNING, f"until there are {record.scaling.target} replicas")
    return Result(key, ScalePhase.WAITING, "another operation is under way")


def _result(record: Record, key: str) -> Result | None:
    return next((result for result in record.results if result.key == key), None)


def _end(record: Record, phase: ScalePhase, text: str) -> Record:
    if record.scaling is None:
        return record
    return replace(_remember(record, Result(record.scaling.key, phase, text)), scaling=None)


def _remember(record: Record, result: Result) -> Record:
    return replace(record, results=(*record.results, result))
