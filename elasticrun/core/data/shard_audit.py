"""Proves that each record of shards is in a model's history once, from what each rank wrote down.

Theory. With each saved step a rank writes what it has trained on since the step before (its *trail*), what
could not be read, and what is left of the data by the ledger. Trail and ledger come from different hands: the
one from the rank's loop, the other from all ranks. For the final model, what was due is all that was dealt,
without what is left and what was left out. What was trained on is the sum of the trails in its history. All
are ranges of records; they are sorted, and compared. Nothing is concluded from rules.

A trail covers all that its rank did since the one before, so all steps of a round count that a rank wrote
down until the one that was restored, also those that were no commits.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import groupby, pairwise
from typing import Any

from elasticrun.core.data.audit import NAMED, Audit, EpochAudit, Wrong
from elasticrun.core.data.leases import Ledger
from elasticrun.core.data.record import is_number
from elasticrun.core.data.shards import ENDLESS, Plan
from elasticrun.dataclass import dataclass
from elasticrun.errors import DataError

Range = tuple[int, int]
LeftOut = tuple[int, str, int, int, str]  # epoch, name, first record, the one after the last, and why
Place = tuple[int, str]  # an epoch and a name


@dataclass(frozen=True, slots=True)
class Trail:
    """What one rank wrote down about one dataset with one step."""

    trained: tuple[tuple[int, str, int, int], ...]  # epoch, name, first record, and the one after the last
    is_lost: bool  # something before it was not kept
    left: Mapping[str, Any]  # as ``Ledger.state`` has it; its plan may be missing if it is the one before
    left_out: tuple[LeftOut, ...] = ()  # since the one before
    begun: Mapping[str, Any] | None = None  # what was left when its rank went on, in its first trail


def is_shards(state: Any) -> bool:
    """Whether this is the state of a ``ShardedDataset``, as far as its form tells."""
    return isinstance(state, Mapping) and isinstance(state.get("leases"), Mapping)


def to_line(state: Mapping[str, Any], trail: Mapping[str, Any], known: object) -> dict[str, Any]:
    """What is written down. ``known``: the plan that was written down last, which need not come again."""
    left = dict(state["leases"])
    if left.get("plan") == known:
        del left["plan"]
    return {"left": left, **trail}


def from_line(line: Any) -> Trail:
    """What ``to_line`` made. DataError: it is damaged."""
    try:
        left, trained, is_lost = line["left"], line["trained"], line["lost"]
        found = tuple((epoch, str(name), start, stop) for epoch, name, start, stop in trained)
        begun = line.get("begun")
        listed = tuple((at, str(name), n, m, str(why)) for at, name, n, m, why in line.get("left_out", ()))
    except (KeyError, TypeError, ValueError) as error:
        raise DataError(f"what was trained on is damaged: {error!r}") from None
    is_whole = all(
        is_number(epoch, 0) and is_number(start, 0) and is_number(stop, start + 1)
        for epoch, _, start, stop in (*found, *(each[:4] for each in listed))
    )
    if not is_whole or not isinstance(left, Mapping) or not isinstance(begun, Mapping | None):
        raise DataError("what was trained on is damaged: it has no ranges of records")
    return Trail(found, bool(is_lost), left, listed, begun)


def joined(one: Trail, other: Trail) -> Trail:
    """Two trails of one rank, the later one last."""
    plan = {"plan": one.left["plan"]} if "plan" in one.left else {}
    left = {**plan, **other.left}
    is_lost = one.is_lost or other.is_lost
    left_out, begun = one.left_out + other.left_out, other.begun if one.begun is None else one.begun
    return Trail(one.trained + other.trained, is_lost, left, left_out, begun)


def audit_shards(
    trails: Sequence[Trail], final: Sequence[Trail], begun: Mapping[str, Any] | None = None
) -> Audit:
    """Check the history of a model. ``trails``: all in it; ``final``: those of the last step, by rank.

    ``begun``: what was left when it went on from the model of another job, which is believed.
    """
    plans = [each.left["plan"] for each in (*trails, *final) if "plan" in each.left]
    if not plans:
        return Audit((), ("nobody wrote down what the data were",))
    problems = [
        text
        for text, holds in (
            ("the data were not the same in all rounds", any(each != plans[0] for each in plans)),
            ("the ranks of the last step do not agree on what is left", not _agree(final)),
            ("something that was trained on was not written down", any(each.is_lost for each in trails)),
        )
        if holds
    ]
    try:
        plan = Plan.of_identity(plans[0])
        ledger = Ledger.of_state(plan, {**final[0].left, "plan": plan.identity})
        before = None if begun is None else Ledger.of_state(plan, {**begun, "plan": plan.identity})
    except DataError as error:
        return Audit((), (*problems, str(error)))
    left_out, taken = _left_out(trails, ledger), _sorted(trails)
    if before is not None:
        old = {each[:4] for each in _left_out((), before)}
        left_out = [each for each in left_out if each[:4] not in old]
    dealt = _dealt(plan, ledger)
    due, left = _due(plan, ledger, dealt, left_out), _to_come(plan, ledger, dealt)
    if before is not None:
        done = _due(plan, before, _dealt(plan, before), ())
        rest = {key: _without(ranges, done.get(key, [])) for key, ranges in due.items()}
        due = {key: ranges for key, ranges in rest.items() if ranges}
    problems += _in_words(left_out)
    epochs = sorted({epoch for epoch, _ in (*due, *taken)} | left.keys())
    checked = (replace(_check(each, due, taken), left=left.get(each, 0)) for each in epochs)
    return Audit(tuple(checked), tuple(problems))


def _agree(final: Sequence[Trail]) -> bool:
    lefts = [{**each.left, "plan": None} for each in final]
    return all(each == lefts[0] for each in lefts)


def _left_out(trails: Sequence[Trail], ledger: Ledger) -> list[LeftOut]:
    """What could not be read, sorted. Each rank may have written it down; the ledger has the newest."""
    found = {each[:4]: each for trail in trails for each in trail.left_out}
    for failed in ledger.failed:
        shard = failed.shard
        key = failed.piece.epoch, shard.name, shard.start, shard.stop
        found.setdefault(key, (*key, failed.reason))
    return sorted(found.values())


def _in_words(left_out: Sequence[LeftOut]) -> Iterator[str]:
    """The first few of each epoch, and how many more there are."""
    for epoch, of_epoch in groupby(left_out, key=lambda each: each[0]):
        found = list(of_epoch)
        for _, name, start, stop, reason in found[:NAMED]:
            yield f"left out: {_named(name, start, stop)} of epoch {epoch} ({reason})"
        if len(found) > NAMED:
            yield f"left out: {len(found) - NAMED} more pieces of epoch {epoch}"


def _dealt(plan: Plan, ledger: Ledger) -> dict[Place, list[Range]]:
    """What is before the cursor; of an epoch that is over whole extents."""
    epoch, place = ledger.cursor
    dealt: dict[Place, list[Range]] = {}
    for each in range(epoch):
        for extent in plan.extents:
            dealt.setdefault((each, extent.name), []).append((extent.start, extent.stop))
    for shard in (plan.shard(epoch, each) for each in range(place)):
        dealt.setdefault((epoch, shard.name), []).append((shard.start, shard.stop))
    return dealt


def _to_come(plan: Plan, ledger: Ledger, dealt: Mapping[Place, list[Range]]) -> dict[int, int | None]:
    """How many records are left of each epoch that has begun and is not over; None: nobody knows."""
    epoch, place = ledger.cursor
    counts = [(piece.epoch, _length(piece.start, piece.stop)) for piece in ledger.left()]
    if place:
        for each in plan.extents:
            undealt = _without([(each.start, each.stop)], sorted(dealt.get((epoch, each.name), [])))
            counts += [(epoch, _length(start, stop)) for start, stop in undealt]
    found: dict[int, int | None] = {}
    for at, count in counts:
        before = found.get(at, 0)
        found[at] = None if before is None or count is None else before + count
    return found


def _length(start: int, stop: int) -> int | None:
    return stop - start if stop < ENDLESS else None


def _due(
    plan: Plan, ledger: Ledger, dealt: Mapping[Place, list[Range]], left_out: Iterable[LeftOut]
) -> dict[Place, list[Range]]:
    """What was dealt, and is neither left nor left out; ranges of a name do not touch one another."""
    gone: dict[Place, list[Range]] = {}
    for piece in ledger.left():
        name = plan.shard(piece.epoch, piece.place).name
        gone.setdefault((piece.epoch, name), []).append((piece.start, piece.stop))
    for at, name, start, stop, _ in left_out:
        gone.setdefault((at, name), []).append((start, stop))
    return {key: _without(sorted(ranges), sorted(gone.get(key, []))) for key, ranges in dealt.items()}


def _sorted(trails: Iterable[Trail]) -> dict[Place, list[Range]]:
    found: dict[Place, list[Range]] = {}
    for epoch, name, start, stop in (each for trail in trails for each in trail.trained):
        found.setdefault((epoch, name), []).append((start, stop))
    return {key: sorted(ranges) for key, ranges in found.items()}


def _check(epoch: int, due: Mapping[Place, list[Range]], taken: Mapping[Place, list[Range]]) -> EpochAudit:
    samples, missing, repeated = 0, Wrong(), Wrong()
    for name in sorted({name for at, name in (*due, *taken) if at == epoch}):
        wanted, found = due.get((epoch, name), []), taken.get((epoch, name), [])
        once, twice = _overlaps(found)
        wanted = [(start, max(start, _end(stop, once))) for start, stop in wanted]
        samples += sum(stop - start for start, stop in wanted)
        missing = _more(missing, name, _without(wanted, once))
        # What is left as well will be trained on again.
        repeated = _more(repeated, name, [*twice, *_without(once, wanted)])
    return EpochAudit(epoch, samples, 0, 0, missing, repeated)


def _end(stop: int, taken: Sequence[Range]) -> int:
    """The end of what has no known one: there the last one stopped who read it."""
    return stop if stop < ENDLESS else max((last for _, last in taken), default=0)


def _overlaps(ranges: Sequence[Range]) -> tuple[list[Range], list[Range]]:
    """What sorted ranges cover, and what they cover more than once."""
    once, twice, end = list[Range](), list[Range](), -1
    for start, stop in ranges:
        if start < end:
            twice.append((start, min(stop, end)))
        if stop > end:
            once.append((max(start, end), stop))
        end = max(end, stop)
    return once, twice


def _without(ranges: Sequence[Range], others: Sequence[Range]) -> list[Range]:
    """Sorted ranges without what is in other sorted ones."""
    edges = sorted(
        [(at, 0, side) for each in ranges for at, side in ((each[0], 1), (each[1], -1))]
        + [(at, 1, side) for each in others for at, side in ((each[0], 1), (each[1], -1))]
    )
    depth, found = [0, 0], list[Range]()
    for (at, which, side), (after, _, _) in pairwise([*edges, (0, 0, 0)]):
        depth[which] += side
        if depth[0] and not depth[1] and after > at:
            if found and found[-1][1] == at:
                found[-1] = (found[-1][0], after)
            else:
                found.append((at, after))
    return found


def _more(wrong: Wrong, name: str, ranges: Sequence[Range]) -> Wrong:
    first = ranges[: NAMED - len(wrong.first)]
    return Wrong(
        wrong.count + sum(stop - start for start, stop in ranges),
        (*wrong.first, *(_named(name, start, stop) for start, stop in first)),
        (wrong.named or 0) + sum(stop - start for start, stop in first),
    )


def _named(name: str, start: int, stop: int) -> str:
    end = "the end" if stop >= ENDLESS else str(stop - 1)
    numbers = str(start) if end == str(start) else f"{start} to {end}"
    return f"{numbers} of {name}" if name else numbers
