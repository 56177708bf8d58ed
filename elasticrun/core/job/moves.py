"""The answer of a rule of the machine: a move from one phase to another."""

from __future__ import annotations

from elasticrun.core.job.events import Trigger
from elasticrun.core.recovery.settlement import Settlement
from elasticrun.dataclass import dataclass


@dataclass(frozen=True, slots=True)
class Move:
    """A rule has found that the phase is over."""

    trigger: Trigger
    reason: str = ""  # why, in words
    nodes: tuple[str, ...] = ()  # that have to be checked
    settled: Settlement | None = None  # what follows the round that has stopped
