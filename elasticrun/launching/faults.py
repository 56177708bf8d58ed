"""Faults that a launch brings about by itself, to see that a job outlives them.

A fault is placed by the step that a rank reports, not by time, so each run meets it at the same place. Steps
are those of torch's optimizers, counted from 0, or the numbers that ``elasticrun.report_step`` is given. A
fault comes once, in one round: the job that goes on after it meets it no more.
"""

from __future__ import annotations

from typing import Any

from elasticrun.dataclass import dataclass
from elasticrun.errors import UsageError
from elasticrun.rpc.records import to_json


@dataclass(frozen=True, slots=True)
class Kill:
    """SIGKILL for a rank, right after it has reported a step."""

    rank: int
    at_step: int
    round: int = 0


@dataclass(frozen=True, slots=True)
class Freeze:
    """SIGSTOP for a rank, right after it has reported a step: it hangs until somebody notices."""

    rank: int
    at_step: int
    round: int = 0


@dataclass(frozen=True, slots=True)
class Slow:
    """A rank takes so many times as long for each step, from one on."""

    rank: int
    factor: float
    at_step: int = 0
    round: int = 0


Fault = Kill | Freeze | Slow


def described(faults: object, ranks: int) -> list[dict[str, Any]]:
    """The faults as workers are told of them. Raises UsageError if one is none, or names no rank."""
    if not isinstance(faults, list | tuple) or not all(isinstance(it, Kill | Freeze | Slow) for it in faults):
        raise UsageError(f"faults={faults!r} was given: give a list of Kill, Freeze and Slow")
    for fault in faults:
        numbers = (fault.rank, fault.at_step, fault.round)
        factor = fault.factor if isinstance(fault, Slow) else 1
        if not all(isinstance(it, int) for it in numbers) or not isinstance(factor, int | float):
            raise UsageError(f"{fault} was given: give numbers, and whole ones for rank, at_step and round")
        if not 0 <= fault.rank < ranks:
            raise UsageError(f"{fault} names no rank of this job: give one from 0 to {ranks - 1}")
    return [{"kind": type(it).__name__, **to_json(it)} for it in faults]
