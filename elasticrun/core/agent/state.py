"""The data that several parts of an agent's machine share.

Each part of the machine writes some of it and reads the rest; data of a single part stay in that part.
"""

from __future__ import annotations

from dataclasses import field

from elasticrun.core.agent.departure import Departure
from elasticrun.core.agent.desired import Desired
from elasticrun.core.agent.events import HoldingsChanged
from elasticrun.core.agent.scope import RestartScope, WholeWorld
from elasticrun.core.agent.search import Search
from elasticrun.core.protocol.messages import (
    AgentPhase,
    Assignment,
    Failure,
    NodeInfo,
    ProbeReport,
    Stall,
    Vote,
)
from elasticrun.dataclass import dataclass


@dataclass(frozen=True, slots=True)
class Offer:
    """What this node holds ready to start workers at once."""

    store_port: int = 0
    ports: tuple[int, ...] = ()  # for tasks
    hosts_store: bool = False  # a process of ours would serve the store


@dataclass(slots=True)
class AgentState:
    """The facts about one node. Times are of the agent's monotonic clock, in seconds."""

    info: NodeInfo
    search: Search
    now: float = 0.0  # the instant of the event that is handled
    phase: AgentPhase = AgentPhase.PREPARING
    round: int = -1  # the last one that was accepted
    assignment: Assignment | None = None  # of the round that runs, or ran last
    scope: RestartScope = field(default_factory=WholeWorld)  # of that round
    failures: tuple[Failure, ...] = ()  # of ``round``
    stall: Stall | None = None  # as it was seen last, since the newest Hello
    hangs: bool = False  # there is evidence that the workers make no steps any more
    probe: ProbeReport | None = None  # of the last one that ended
    offer: Offer = field(default_factory=Offer)
    imports: bool = False  # a worker that started now would wait for them
    desired: Desired = field(default_factory=Desired)
    votes: tuple[Vote, ...] = ()
    stock: HoldingsChanged = HoldingsChanged(())  # of the job's saved states, in this node's memory
    judged: tuple[int, int] = (0, 0)  # epoch and number of the newest word about these states
    sequence: int = 0  # of the newest status
    departure: Departure | None = None
    lingers: bool = False  # it leaves once the master lets it go, for a bounded time
    is_done: bool = False  # Finish was said

    @property
    def works(self) -> bool:
        """Whether workers run here, and nothing shows that they cannot go on."""
        return self.phase is AgentPhase.RUNNING and not self.hangs

    @property
    def is_warming(self) -> bool:
        """Whether this node's first workers would wait for imports, so that a running world can go on.

        False once its workers have run: its place in the next world, and its vote, are worth the wait for a
        warm parent that had to be replaced.
        """
        return self.imports and self.assignment is None
