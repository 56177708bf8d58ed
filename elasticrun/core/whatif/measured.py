"""What a job lost, as a few sums from which any *what if* starts.

Theory. The time of a job is a sum: what it lost by incidents of each kind (the recovery, and the work that
was done again for it), what it lost by saves, and the rest, which is taken to be the same whatever happens.
A what-if replaces some of the parts, so with parts equal to those that were measured it gives the time that
was measured.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from elasticrun.core.accounting.activities import Activity
from elasticrun.core.history.history import History
from elasticrun.core.history.incidents import Kind, Sums
from elasticrun.core.protocol.chronicle import Place
from elasticrun.core.protocol.round_progress import Milestone
from elasticrun.dataclass import dataclass

#: Seconds of training of which nothing follows.
_LEAST = 1e-3
_IMPORTED = Milestone.IMPORTED.name.lower()


@dataclass(frozen=True, slots=True)
class Measured:
    """Of one job, in seconds."""

    seconds: float  # of the job
    node_seconds: float  # of all of its nodes
    incidents: Mapping[Kind, Sums]
    stalled: float = 0.0  # training that saves held up
    trained: float = 0.0  # steps, the first time or again
    productive: float = 0.0  # steps, the first time
    saves: int = 0  # in memory; if there are none, in the storage
    stored: int = 0  # saves in the storage
    setup: float = 0.0  # a restart from its imports to the first step: loading the state, the step itself
    first_import: float = 0.0  # imports of the first round
    most_nodes: int = 1
    sees_steps: bool = True  # else nobody knows what was done again, or was held up

    @property
    def nodes(self) -> float:
        """How many there were, on average."""
        return self.node_seconds / self.seconds if self.seconds > 0 else 0.0

    @property
    def all(self) -> Sums:
        """Incidents of all kinds."""
        return sum_of(self.incidents.values())

    @property
    def between_saves(self) -> float | None:
        """Seconds of training from one save to the next, on average; None: there were no two."""
        return self.trained / self.saves if self.saves > 1 and self.trained > _LEAST else None


def sum_of(parts: Iterable[Sums]) -> Sums:
    """All of some sums."""
    total = Sums()
    for each in parts:
        total = total.plus(each)
    return total


def measured(history: History, now: float | None = None) -> Measured:
    """What a history tells."""
    summary = history.summary(now)
    at = history.last[0] if now is None else now
    job, saves = summary.job, history.totals.saves
    incidents, first_import = history.incidents.sums(at, job), history.incidents.first_import
    if not any(_IMPORTED in round_.milestones for round_ in history.rounds):  # that time may be anything
        incidents = {kind: replace(sums, imports=0.0) for kind, sums in incidents.items()}
        first_import = 0.0
    memory = max(saves[Place.MEMORY], saves[Place.HOSTS])
    return Measured(
        seconds=sum(job.values()) / 1e6,
        node_seconds=sum(summary.total.values()) / 1e6,
        incidents=incidents,
        stalled=job[Activity.CHECKPOINT] / 1e6,
        trained=(job[Activity.PRODUCTIVE] + job[Activity.REDONE]) / 1e6,
        productive=job[Activity.PRODUCTIVE] / 1e6,
        saves=memory or saves[Place.STORAGE],
        stored=saves[Place.STORAGE],
        setup=_setup(history),
        first_import=first_import,
        most_nodes=max(1, history.incidents.most_nodes),
        sees_steps=history.reports_steps,
    )


def _setup(history: History) -> float:
    """The median of the seconds from the imports to the first step of those rounds that followed another."""
    found = sorted(
        round_.first_step - imported
        for round_ in history.rounds
        if round_.number > 0
        and round_.first_step is not None
        and (imported := round_.milestones.get(_IMPORTED)) is not None
        and imported <= round_.first_step
    )
    return found[len(found) // 2] if found else 0.0
