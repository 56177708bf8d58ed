"""What a node uses, as a row of the page. A master of a version without figures tells of none."""

from __future__ import annotations

from typing import Any

from elasticrun.core.protocol.round_progress import NodeFigures
from elasticrun.core.protocol.status import NodeStatus
from elasticrun.dataclass import dataclass


@dataclass(frozen=True, slots=True)
class FigureRow:
    """What the workers of a node use, and how much there is. Bytes, and bytes per second."""

    cpu: float  # cores that are busy
    cpus: int
    memory: int
    memory_limit: int
    received: float
    sent: float
    gpus: int
    gpu_busy: float | None  # mean share of the time, 0 to 1; None: not known
    gpu_memory: int  # of all of them
    gpu_memory_limit: int


def figures_of(said: NodeStatus | None) -> FigureRow | None:
    """The figures in a node's status; None if it has none."""
    found: Any = getattr(said, "figures", None)
    return _row(found) if isinstance(found, NodeFigures) else None


def _row(it: NodeFigures) -> FigureRow:
    busy = [gpu.busy for gpu in it.gpus if gpu.busy is not None]
    return FigureRow(
        round(it.cpu, 2),
        it.cpus,
        it.memory,
        it.memory_limit,
        round(it.received),
        round(it.sent),
        len(it.gpus),
        round(sum(busy) / len(busy), 2) if busy else None,
        sum(gpu.memory for gpu in it.gpus),
        sum(gpu.memory_limit for gpu in it.gpus),
    )
