"""How a job is doing, in a word and in conditions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from elasticrun.core.fleet.replicas import Condition, Count, Record, Seen, Shape, Verdict
from elasticrun.core.fleet.roles import bounds_of, in_words, of, why_halted

PENDING, RUNNING, ENDING = "Pending", "Running", "Ending"
SUSPENDING, SUSPENDED = "Suspending", "Suspended"
#: Phases that never change again.
FINAL = frozenset({Verdict.SUCCEEDED.value, Verdict.FAILED.value, Verdict.STOPPED.value})


def phase_of(suspended: bool, shape: Shape, record: Record, counts: Sequence[Count], holding: int) -> str:
    """The word. ``holding``: how many replicas are meant to run, or still end."""
    if record.verdict is not None:
        return ENDING if record.live or record.verdict is Verdict.AGAIN else record.verdict.value
    if suspended:
        return SUSPENDING if holding else SUSPENDED
    are_enough = all(each.running >= bounds_of(shape, each.role).least for each in counts)
    return RUNNING if are_enough and any(each.running for each in counts) else PENDING


def conditions_of(
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
    of = f"{', '.join(_running(each, shape) for each in running)} replicas run{later}"
    return (
        Condition("Available", phase == RUNNING, phase, of),
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
