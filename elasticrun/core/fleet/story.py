"""How a job is doing, in a word and in conditions."""

from __future__ import annotations

from collections.abc import Mapping

from elasticrun.core.fleet.replicas import Condition, Record, Seen, Shape, Verdict

PENDING, RUNNING, ENDING = "Pending", "Running", "Ending"
SUSPENDING, SUSPENDED = "Suspending", "Suspended"
#: Phases that never change again.
FINAL = frozenset({Verdict.SUCCEEDED.value, Verdict.FAILED.value, Verdict.STOPPED.value})


def phase_of(suspended: bool, shape: Shape, record: Record, running: int, holding: int) -> str:
    """The word. ``holding``: how many replicas are meant to run, or still end."""
    if record.verdict is not None:
        return ENDING if record.live or record.verdict is Verdict.AGAIN else record.verdict.value
    if suspended:
        return SUSPENDING if holding else SUSPENDED
    return RUNNING if running >= max(1, shape.min_replicas) else PENDING


def conditions_of(
    wished: Shape, shape: Shape, record: Record, running: int, phase: str, hindered: tuple[str, str]
) -> tuple[Condition, ...]:
    """What holds, and what does not; each always has the same place."""
    verdict, why = record.verdict, record.why
    later = "" if wished == shape else f"; {wished} holds once it was suspended and resumed"
    of = f"{running} of {shape} replicas run{later}"
    return (
        Condition("Available", phase == RUNNING, phase, of),
        Condition("Hindered", bool(hindered[1]), *hindered),
        Condition(
            "Suspended", phase == SUSPENDED, phase, "" if phase != SUSPENDED else "as spec.suspend asks"
        ),
        _ended("Complete", verdict is Verdict.SUCCEEDED, phase, why),
        _ended("Failed", verdict is Verdict.FAILED, phase, why),
    )


def _ended(kind: str, holds: bool, phase: str, why: str) -> Condition:
    return Condition(kind, holds and phase in FINAL, phase, why if holds else "")


def hindrance(record: Record, seen: Mapping[int, Seen], refused: str) -> tuple[str, str]:
    """Why replicas that are meant to run do not: one word, and a sentence, which is empty if they do."""
    if record.halted and record.verdict is None:
        return "NotReplaced", record.halted
    if refused:
        return "Refused", refused
    troubles = [
        f"replica {each.index}: {seen[each.index].trouble}"
        for each in record.live
        if each.index in seen and seen[each.index].trouble
    ]
    return "NotRunning" if troubles else "Fine", "; ".join(troubles[:4])
