"""What an agent tells of its workers between its reports: how far they are, how fast, and what they use.

It goes with a heartbeat, and at once when a milestone is reached. None of it is a fact that a decision needs,
so it is not journaled: what was lost with a master is told again, as each message says all of a round.
"""

from enum import IntEnum
from typing import Annotated

from elasticrun.core.protocol.bounds import (
    BYTES,
    COUNTS,
    RANKS,
    RATES,
    ROUNDS,
    SECONDS,
    STEPS,
    Distinct,
    Length,
    Name,
    Range,
)
from elasticrun.dataclass import dataclass

#: Most GPUs of a node that are told of.
MAX_GPUS = 64
#: Most roles of which the usage is told.
MAX_PEAKS = 16


class Milestone(IntEnum):
    """How far the workers of a node are in a round. A later one says that all earlier ones were reached.

    Who cannot see one of them leaves it out. Who will see none any more, as of a script without torch, tells
    ``FIRST_STEP`` at once.
    """

    NONE = 0
    SPAWNED = 1  # its processes exist
    IMPORTED = 2  # the script's imports are done
    CONNECTED = 3  # it is in the process group
    RESTORED = 4  # the saved state is loaded
    FIRST_STEP = 5  # the first step is done. Ranks step together, so it holds for all members


@dataclass(frozen=True, slots=True)
class Reached:
    """A milestone that all workers of a node have reached."""

    milestone: Annotated[int, Range(1, 5)]
    ago: Annotated[float, SECONDS]  # before this was sent


@dataclass(frozen=True, slots=True)
class StepTimes:
    """How long steps of late took on a node, on average: of its worker that was the slowest by itself."""

    local_rank: Annotated[int, RANKS]  # this worker
    steps: Annotated[int, COUNTS]  # of all its workers that were measured; it grows with each new measurement
    own: Annotated[float, SECONDS]  # of a step, in which the worker waited for no other rank
    whole: Annotated[float, SECONDS]  # from one step to the next


@dataclass(frozen=True, slots=True)
class RoundProgress:
    """How far the workers of a node are in a round. Repeats what was said of the round before."""

    round: Annotated[int, ROUNDS]
    reached: Annotated[tuple[Reached, ...], Length(5), Distinct("milestone")] = ()
    step: Annotated[int, STEPS] = -1  # the last one that all its workers have done; -1: none is known
    step_rate: Annotated[float, RATES] | None = None  # steps per second, of late
    stalled: Annotated[float, SECONDS] = 0.0  # that training waited for saves, since the round began
    step_ago: Annotated[float, SECONDS] = 0.0  # before this was sent, ``step`` was done
    times: StepTimes | None = None  # None: nothing was measured yet


@dataclass(frozen=True, slots=True)
class GpuFigures:
    """What one GPU of a node does."""

    name: Name
    busy: Annotated[float, RATES] | None  # share of the time, 0 to 1; None: not known
    memory: Annotated[int, BYTES]
    memory_limit: Annotated[int, BYTES]


@dataclass(frozen=True, slots=True)
class NodeFigures:
    """What a node's workers use, and how much there is."""

    cpu: Annotated[float, RATES]  # cores that were busy with its workers since the last heartbeat
    cpus: Annotated[int, COUNTS]  # cores that they may use
    memory: Annotated[int, BYTES]  # of its workers; what they share counts for each
    memory_limit: Annotated[int, BYTES]  # of the host, or of the control group if that is less
    received: Annotated[float, RATES]  # bytes per second, of all of the host
    sent: Annotated[float, RATES]
    gpus: Annotated[tuple[GpuFigures, ...], Length(MAX_GPUS)] = ()

    @property
    def gpu_busy(self) -> float | None:
        """The share of the time that its GPUs are busy, on average; None: not known."""
        known = [gpu.busy for gpu in self.gpus if gpu.busy is not None]
        return sum(known) / len(known) if known else None


@dataclass(frozen=True, slots=True)
class UsagePeak:
    """The most that any node of a job used at a time, and the least that any of them had."""

    cpu: Annotated[float, RATES] = 0.0  # cores
    memory: Annotated[int, BYTES] = 0
    cpus: Annotated[int, COUNTS] = 0  # 0: not known
    memory_limit: Annotated[int, BYTES] = 0

    def with_(self, figures: NodeFigures) -> "UsagePeak":
        """The same with what one more node uses now."""
        return UsagePeak(
            cpu=max(self.cpu, figures.cpu),
            memory=max(self.memory, figures.memory),
            cpus=min(filter(None, (self.cpus, figures.cpus)), default=0),
            memory_limit=min(filter(None, (self.memory_limit, figures.memory_limit)), default=0),
        )


@dataclass(frozen=True, slots=True)
class RolePeak:
    """The same of the nodes of one role."""

    role: Name
    peak: UsagePeak
