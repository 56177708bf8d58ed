"""What a node uses, as a row of the page."""

from __future__ import annotations

from elasticrun.core.protocol.round_progress import NodeFigures
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


def figures_of(it: NodeFigures) -> FigureRow:
    """The row of these figures."""
    return FigureRow(
        round(it.cpu, 2),
        it.cpus,
        it.memory,
        it.memory_limit,
        round(it.received),
        round(it.sent),
        len(it.gpus),
        None if it.gpu_busy is None else round(it.gpu_busy, 2),
        sum(gpu.memory for gpu in it.gpus),
        sum(gpu.memory_limit for gpu in it.gpus),
    )
