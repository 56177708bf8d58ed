"""What the accounting is told: typed facts, each with its moment ``at``.

Moments are integer microseconds of the job's clock. Who tells them should tell them in the order in which
they happened, and two things before what ends a step or a round: a stall before the steps that it was part
of, and the last step of a round before its stop. Whatever comes late is taken to have happened just now.
"""

from __future__ import annotations

from enum import Enum

from elasticrun.core.protocol.messages import AgentPhase
from elasticrun.core.protocol.round_progress import Milestone
from elasticrun.dataclass import dataclass


class Stop(Enum):
    """Why a round ends, as far as it matters for what was lost."""

    FINISHED = "finished"  # every worker ended with 0: nothing is lost
    CHANGED = "changed"  # nodes come or go, or an operator wants it: the step under way is lost
    FAILED = "failed"  # the same, after a failure or a hang


@dataclass(frozen=True, slots=True)
class NodeCame:
    """A node is here from now on."""

    at: int
    node: str


@dataclass(frozen=True, slots=True)
class NodeWent:
    """A node left, or was lost."""

    at: int
    node: str


@dataclass(frozen=True, slots=True)
class PhaseChanged:
    """A node does something else, as its agent says. ``round``: which one it speaks of; -1: unknown."""

    at: int
    node: str
    phase: AgentPhase
    round: int = -1


@dataclass(frozen=True, slots=True)
class RoundStarted:
    """A world was formed. ``restores``: the step that it goes on from; 0: it begins anew.

    None: nobody knows, as the script loads its own state. Then all its steps count as new ones.
    """

    at: int
    round: int
    members: tuple[str, ...]
    restores: int | None = 0


@dataclass(frozen=True, slots=True)
class RoundStopped:
    """A round was told to stop, or has ended."""

    at: int
    round: int
    why: Stop


@dataclass(frozen=True, slots=True)
class MilestoneReached:
    """The workers of a node are so far."""

    at: int
    round: int
    node: str
    milestone: Milestone


@dataclass(frozen=True, slots=True)
class StepsDone:
    """A round has done all steps up to this one. A sample now and then is enough."""

    at: int
    round: int
    step: int


@dataclass(frozen=True, slots=True)
class StateSaved:
    """What a round had done up to this step is not lost with it."""

    at: int
    round: int
    step: int


@dataclass(frozen=True, slots=True)
class SaveStalled:
    """A save has held up the training of a round for so long, just now."""

    at: int
    round: int
    micros: int


@dataclass(frozen=True, slots=True)
class HangFound:
    """A round makes no steps, and has made none ``since`` this moment."""

    at: int
    round: int
    since: int


@dataclass(frozen=True, slots=True)
class StragglerFound:
    """A node takes ``factor`` times as long as the others of its round need. Up to 1: it does no longer.

    Only the slowest one counts, from the last sample of steps on.
    """

    at: int
    round: int
    node: str
    factor: float


@dataclass(frozen=True, slots=True)
class JobEnded:
    """The job is over: nothing is accounted after that. A round that still ran has failed."""

    at: int


Fact = (
    NodeCame
    | NodeWent
    | PhaseChanged
    | RoundStarted
    | RoundStopped
    | MilestoneReached
    | StepsDone
    | StateSaved
    | SaveStalled
    | HangFound
    | StragglerFound
    | JobEnded
)
