"""The same log with other costs: torchrun-style restarts, other intervals of saves, one spare more.

Models, in short; ``ABOUT_*`` say them in words for the report.

- *Other restarts.* Each incident costs a recovery and work that is done again. Both are replaced, by kind.
- *Other intervals.* With k times the interval there are 1/k as many saves, each with the measured stall; and
  after each failure k times as much work is done again, as a failure comes anywhere between two saves; what
  was more than one interval had another cause, and stays. That scales what was measured, so k = 1 gives it
  back.
- *Spares.* A spare is there as soon as a node is lost, and the node that comes later becomes the next one. So
  all waiting for nodes goes away after incidents in which no more nodes were gone than there are more spares.

Each result is a difference, not a simulation: the faults come at the same moments of training, and do not
hit the time that was added.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType

from elasticrun.core.history.incidents import Kind
from elasticrun.core.state.interval import best_interval
from elasticrun.core.whatif.measured import Measured
from elasticrun.dataclass import dataclass

#: Intervals of the table, as multiples of the one that was measured.
FACTORS = (0.25, 0.5, 1.0, 2.0, 4.0)
#: Seconds of all stalls that count as measured.
_LEAST = 1e-6


@dataclass(frozen=True, slots=True)
class Cost:
    """Of one incident, in seconds of the job."""

    recovery: float  # from the first sign to the first work of the next round
    redone: float  # work that is done again, or was lost


@dataclass(frozen=True, slots=True)
class Costs:
    """What incidents and saves cost."""

    by_kind: Mapping[Kind, Cost]
    stalled: float  # by all saves

    @classmethod
    def of(cls, measured: Measured) -> Costs:
        """Those that were measured, on average."""
        return cls(
            {
                kind: Cost(sums.seconds / sums.count, sums.redone / sums.count) if sums.count else Cost(0, 0)
                for kind, sums in measured.incidents.items()
            },
            measured.stalled,
        )


@dataclass(frozen=True, slots=True)
class Outcome:
    """How long a job would have taken, and all of its nodes, in seconds."""

    seconds: float
    node_seconds: float
    lost: float  # by incidents and saves, in seconds of the job


def as_measured(measured: Measured) -> Outcome:
    """How long it took."""
    every = measured.all
    lost = every.seconds + every.redone + measured.stalled
    return Outcome(measured.seconds, measured.node_seconds, lost)


def replayed(measured: Measured, costs: Costs) -> Outcome:
    """The same incidents at other costs."""
    before = as_measured(measured)
    lost = costs.stalled + sum(
        sums.count * (costs.by_kind[kind].recovery + costs.by_kind[kind].redone)
        for kind, sums in measured.incidents.items()
    )
    return _changed(measured, lost - before.lost)


def _changed(measured: Measured, more: float) -> Outcome:
    """A job that loses so much more, or less; never more than it had."""
    before = as_measured(measured)
    more = max(more, -min(before.lost, before.seconds))
    return Outcome(
        before.seconds + more, max(0.0, before.node_seconds + more * measured.nodes), before.lost + more
    )


@dataclass(frozen=True, slots=True)
class Guess:
    """A figure that nobody measured in this job: what it may be, and what it is usually."""

    least: float
    usual: float
    most: float

    def at(self, end: int) -> float:
        """The least for -1, the most for 1."""
        return (self.least, self.usual, self.most)[end + 1]


#: What torchrun takes, by ``elastic-ctl manual speed``: names as ``--assume`` takes them, in seconds.
#: restart: SIGKILL of a worker to the first all-reduce, without imports, one node or more nodes.
#: lost-node: until the others see that a node is lost, and go on with fewer: three missed signs of life, five
#: seconds apart, and the last call for others, 30 s. replaced-node: the same without the last call.
#: stall: a save of torch.save, times that of ours.
FIGURES: Mapping[str, Guess] = MappingProxyType(
    {
        "restart": Guess(0.7, 1.0, 1.2),
        "restart-nodes": Guess(2.0, 2.6, 3.0),
        "import": Guess(0.7, 0.9, 1.4),
        "lost-node": Guess(30.0, 43.5, 60.0),
        "replaced-node": Guess(10.0, 13.5, 18.0),
        "stall-factor": Guess(8.0, 10.0, 23.0),
    }
)
MEANINGS: Mapping[str, str] = MappingProxyType(
    {
        "restart": "seconds from a failure to the new workers, without imports, on one node",
        "restart-nodes": "the same on more nodes, which meet again first",
        "import": "seconds in which a worker imports its modules, or as the log has it if longer",
        "lost-node": "seconds until the others go on without a node that is lost: missed signs of life",
        "replaced-node": "the same if another node has come in its place",
        "stall-factor": "how many times as long as here a save holds up the training, as torch.save does",
        "every": "seconds of training between two saves to storage; without it: see below",
    }
)


def torchrun(measured: Measured, assumed: Mapping[str, float], end: int = 0) -> Costs:
    """What the same incidents cost with torchrun.

    ``assumed``: figures instead of the usual ones, and ``every``, the seconds between two saves. ``end``: -1
    for the least of the others, 1 for the most.
    """

    def figure(name: str) -> float:
        return assumed[name] if name in assumed else FIGURES[name].at(end)

    imports = figure("import") if "import" in assumed else max(figure("import"), measured.first_import)
    restart = figure("restart-nodes" if measured.most_nodes > 1 else "restart") + imports + measured.setup
    stalled, redone = _saves_of_torchrun(measured, assumed, figure("stall-factor"))
    found = {}
    for kind, sums in measured.incidents.items():
        waits = sums.waiting / sums.count if sums.count else 0.0
        notice = 0.0
        if kind is Kind.LOST:
            share = sums.replaced / sums.count if sums.count else 0.0
            notice = share * figure("replaced-node") + (1 - share) * figure("lost-node")
        found[kind] = Cost(restart + max(notice, waits), redone[kind])
    return Costs(found, stalled)


def _saves_of_torchrun(
    measured: Measured, assumed: Mapping[str, float], factor: float
) -> tuple[float, dict[Kind, float]]:
    """Seconds of all stalls, and of work that each incident of a kind costs."""
    mean = Costs.of(measured)
    as_it_was = {kind: cost.redone for kind, cost in mean.by_kind.items()}
    every = assumed.get("every")
    if every is None and measured.stored:  # the same saves in the storage, and no others
        return measured.stalled, {
            kind: max(as_it_was[kind], sums.undone / sums.count if sums.count else 0.0)
            for kind, sums in measured.incidents.items()
        }
    if every is None and not measured.saves:
        return measured.stalled, as_it_was
    stall = factor * measured.stalled / measured.saves if measured.saves else 0.0
    if every is None:
        every = max(stall, best_interval(stall, _between_failures(measured)))
    if every <= 0:
        return measured.stalled, as_it_was
    kinds = dict.fromkeys(as_it_was, every / 2)
    return stall * measured.trained / every, kinds


def _between_failures(measured: Measured) -> float:
    """The mean seconds between two incidents; a job without any is taken to have one next."""
    return max(measured.trained, 1.0) / max(1, measured.all.count)


# -- other intervals of saves


@dataclass(frozen=True, slots=True)
class Interval:
    """Saves so many seconds of training apart."""

    every: float
    outcome: Outcome
    is_measured: bool = False
    is_best: bool = False


def daly(measured: Measured) -> float | None:
    """Young's and Daly's best interval for the measured stall and failures; None: they were not measured."""
    if measured.saves < 1 or measured.stalled < _LEAST or measured.all.count < 1:
        return None
    return best_interval(measured.stalled / measured.saves, _between_failures(measured))


def with_interval(measured: Measured, factor: float) -> Outcome:
    """Saves so many times as far apart. No more than one interval of an incident's work depends on that."""
    stalled, every = measured.stalled / factor - measured.stalled, measured.all
    redone = min(every.redone, every.count * (measured.between_saves or 0.0))
    return _changed(measured, stalled + redone * (factor - 1))


def intervals(measured: Measured) -> tuple[Interval, ...]:
    """The table: multiples of the interval that was measured, and the best one. Empty: nothing to go by."""
    every, best = measured.between_saves, daly(measured)
    if every is None or best is None:
        return ()
    rows = [
        Interval(every * factor, with_interval(measured, factor), is_measured=factor == 1.0)
        for factor in FACTORS
    ]
    rows.append(Interval(best, with_interval(measured, best / every), is_best=True))
    return tuple(sorted(rows, key=lambda row: row.every))


# -- spares


def with_spare(measured: Measured) -> Outcome:
    """One spare more, which is paid for all the time."""
    saved = sum(sums.coverable for kind, sums in measured.incidents.items() if kind is not Kind.CHANGED)
    outcome = _changed(measured, -saved)
    return replace(outcome, node_seconds=outcome.node_seconds + outcome.seconds)
