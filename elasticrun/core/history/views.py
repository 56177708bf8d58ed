"""What a history knows of each node, round, recovery and saved state.

Instants are seconds of the job's clock.
"""

from __future__ import annotations

from dataclasses import dataclass as mutable
from dataclasses import field

from elasticrun.core.protocol.messages import AgentPhase
from elasticrun.dataclass import dataclass

#: From so many times the others' time on, a node is shown as slow.
SLOW = 1.05


@mutable(slots=True)
class NodeView:
    """A node that is here, or was a moment ago."""

    name: str
    host: str = ""
    workers: int = 0
    phase: str = AgentPhase.PREPARING.value
    round: int = -1  # that its agent speaks of
    since: float = 0.0  # when it came
    is_attached: bool = True
    slowness: float = 1.0  # how many times as long as the others it takes


@mutable(slots=True)
class RoundView:
    """One round."""

    number: int
    started: float
    nodes: int
    workers: int
    names: tuple[str, ...]  # of the first nodes
    restart: int  # how many restarts of the budget were used
    restored_step: int | None
    reason: str
    running: float | None = None  # when all of its nodes had said that their workers run
    milestones: dict[str, float] = field(default_factory=dict)  # when the last node got there; by name
    first_step: float | None = None
    step: int = -1  # the newest that is known
    rate: float | None = None  # steps per second
    stopping: float | None = None
    cause: str = ""  # of the stop
    stop_reason: str = ""
    stopped: float | None = None
    runs: set[str] = field(default_factory=set)  # nodes whose workers run, or ran; of the newest round only


@mutable(slots=True)
class Recovery:
    """From the end of the work of one round to the first work of the next one."""

    round: int  # that came to be
    began: float  # the first failure of the round before, or its stop
    cause: str  # see ``StopCause``
    reason: str
    is_failure: bool  # else nodes came or went, or somebody wanted it
    started: float | None = None  # when the next round started: before that, workers were stopped
    running: float | None = None  # when its workers ran
    over: float | None = None  # when its first step was done; or, if nobody reports steps, as ``running``
    sign: float = 0.0  # when its newest failure, or stop, was heard

    @property
    def seconds(self) -> float | None:
        """How long it took; None: it is not over."""
        return None if self.over is None else self.over - self.began


@dataclass(frozen=True, slots=True)
class SavedView:
    """The newest saved state at one place."""

    step: int
    at: float  # when it got there
    time: float  # the same by the wall clock of the master's host
