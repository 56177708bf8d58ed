"""How a job is doing, in a word and in conditions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from elasticrun.core.fleet.replicas import Condition, Count, Record, Seen, Shape, Share, Verdict, Wish
from elasticrun.core.fleet.roles import bounds_of, elastic_of, in_words, of, why_halted
from elasticrun.core.fleet.scaling import waits

PENDING, RUNNING, ENDING, WAITING = "Pending", "Running", "Ending", "Waiting"
SUSPENDING, SUSPENDED = "Suspending", "Suspended"
#: The condition that says whether a job has a share of its cluster.
ADMITTED = "Admitted"
#: Phases that never change again.
FINAL = frozenset({Verdict.SUCCEEDED.value, Verdict.FAILED.value, Verdict.STOPPED.value})


def story_of(
    wish: Wish,
    shape: Shape,
    record: Record,
    counts: Sequence[Count],
    holding: int,
    hindered: tuple[str, str],
) -> tuple[str, tuple[Condition, ...]]:
    """The phase and the conditions. ``holding``: how many replicas are meant to run, or still end."""
    phase = _phase(wish, shape, record, counts, holding)
    conditions = _conditions(wish.shape, shape, record, counts, phase, hindered)
    return phase, (*conditions, *_admission(wish.share, elastic_of(shape)))


def _phase(wish: Wish, shape: Shape, record: Record, counts: Sequence[Count], holding: int) -> str:
    if record.verdict is not None:
        return ENDING if record.live or record.verdict is Verdict.AGAIN else record.verdict.value
    if wish.suspended:
        return SUSPENDING if holding else SUSPENDED
    if waits(wish.share, len(record.live)):
        return WAITING
    are_enough = all(each.running >= bounds_of(shape, each.role).least for each in counts)
    return RUNNING if are_enough and any(each.running for each in counts) else PENDING


def _conditions(
    wished: Shape,
    shape: Shape,
    record: Record,
    running: Sequence[Count],
    phase: str,
    hindered: tuple[str, str],
) -> tuple[Condition, ...]:
    """What holds, and what does not; each always has the same place."""
    verdict, why = record.verdict, record.why
    later = "" if wished == shape else f"; {in_words(wished)} holds once it was suspended and resumed"
    text = f"{', '.join(_running(each, shape) for each in running)} replicas run{later}"
    return (
        Condition("Available", phase == RUNNING, phase, text),
        Condition("Hindered", bool(hindered[1]), *hindered),
        Condition(
            "Suspended", phase == SUSPENDED, phase, "" if phase != SUSPENDED else "as spec.suspend asks"
        ),
        _ended("Complete", verdict is Verdict.SUCCEEDED, phase, why),
        _ended("Failed", verdict is Verdict.FAILED, phase, why),
    )


def _running(count: Count, shape: Shape) -> str:
    bounds = bounds_of(shape, count.role)
    name = f"{count.role} " if count.role else ""
    return f"{name}{count.running} of {bounds.least}:{bounds.most}"


def _admission(share: Share | None, elastic: str) -> tuple[Condition, ...]:
    """Whether the job has a share of its cluster, and why; nothing, if that is not shared."""
    if share is None:
        return ()
    if share.replicas is None:
        return (Condition(ADMITTED, False, "Undecided", "its share of the cluster is not decided yet"),)
    if not share.replicas:
        return (Condition(ADMITTED, False, "Waiting", share.why),)
    return (Condition(ADMITTED, True, "Shared", f"{share.replicas} replicas{of(elastic)}: {share.why}"),)


def _ended(kind: str, holds: bool, phase: str, why: str) -> Condition:
    return Condition(kind, holds and phase in FINAL, phase, why if holds else "")


def hindrance(record: Record, seen: Mapping[int, Seen], refused: str) -> tuple[str, str]:
    """Why replicas that are meant to run do not: one word, and a sentence, which is empty if they do."""
    if (halted := why_halted(record)) and record.verdict is None:
        return "NotReplaced", halted
    if refused:
        return "Refused", refused
    troubles = [
        f"replica {each.index}{of(each.role)}: {seen[each.index].trouble}"
        for each in record.live
        if each.index in seen and seen[each.index].trouble
    ]
    return "NotRunning" if troubles else "Fine", "; ".join(troubles[:4])
