"""Gangs in queues with fair shares: kube-batch's four actions, for gangs of one size and for elastic ones.

Theory. A gang starts with its pledge or not at all: all its nodes if it is rigid, its least if it is elastic.
What an elastic gang has above that is borrowed: it counts for no queue, and whoever starts gets it. So only
pledges are decided here, and core/cluster/shares.py does the rest.

- *Allocate*: the queue that holds least for its weight comes first, in it the first job in turn.
- *Backfill*: a smaller gang passes one that finds no room, for as long as ``patience`` says. One that waits
  longer comes before all queues, and holds what becomes free.
- *Reclaim*: a gang stops gangs of queues that hold more than they deserve.
- *Preempt*: a gang stops gangs of its own queue that have less priority.

What a queue deserves are all units, shared by weight, but none gets more than its jobs ask for.

Invariants, kept by ``tests/property/test_cluster_queues.py``. Whoever stops others starts, and would not
without each one of them. No queue is taken below what it deserves, and none goes above that by reclaiming.
So no gang is stopped for the sake of one that it could stop in turn, and repeated decisions settle.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from elasticrun.core.cluster.jobs import Rules
from elasticrun.core.cluster.plan import plan
from elasticrun.dataclass import dataclass
from elasticrun.sim.cluster.schedulers import Live, told


@dataclass(frozen=True, slots=True)
class Gang:
    """A job, as queues see it."""

    name: str
    queue: str
    pledge: int  # units
    priority: int
    submitted: float
    runs: bool


@dataclass(frozen=True, slots=True)
class Stop:
    """Gangs that stop for one that starts."""

    action: str  # "reclaim" or "preempt"
    starter: str
    victims: tuple[str, ...]


def deserved(gangs: Sequence[Gang], units: int, weights: Mapping[str, float]) -> dict[str, float]:
    """Units of each queue: shared by weight, and what a queue does not ask for goes to the others."""
    asked = {queue: float(sum(it.pledge for it in gangs if it.queue == queue)) for queue in weights}
    found, left = dict.fromkeys(weights, 0.0), float(units)
    hungry = sorted(weights, key=lambda queue: (asked[queue] / weights[queue], queue))
    while hungry:
        share = left / sum(weights[queue] for queue in hungry)
        queue = hungry.pop(0)
        found[queue] = min(asked[queue], share * weights[queue])
        left -= found[queue]
    return found


class Decision:
    """One round of all actions. ``runs`` and ``stops`` are what comes of it."""

    def __init__(
        self, gangs: Sequence[Gang], units: int, weights: Mapping[str, float], now: float, rules: Rules
    ) -> None:
        """All gangs that run fit into the units."""
        self.runs = {it.name: it for it in gangs if it.runs}
        self.stops = list[Stop]()
        self._units, self._weights, self._now, self._rules = units, weights, now, rules
        self._deserved = deserved(gangs, units, weights)
        self._waiting = sorted((it for it in gangs if not it.runs), key=self._turn)
        while self._waiting:
            gang = self._next()
            self._waiting.remove(gang)
            if gang.pledge <= self.left or self._stop_others(gang):
                self.runs[gang.name] = gang
            elif self._is_impatient(gang):
                break

    @property
    def left(self) -> int:
        """Units that nobody was promised."""
        return self._units - sum(it.pledge for it in self.runs.values())

    def held(self, queue: str) -> int:
        """Units that are promised to a queue."""
        return sum(it.pledge for it in self.runs.values() if it.queue == queue)

    # -- allocate, backfill

    def _turn(self, gang: Gang) -> tuple[float, str]:
        return self._rules.turn(gang.submitted, gang.priority, gang.name)

    def _is_impatient(self, gang: Gang) -> bool:
        return gang.pledge <= self._units and not self._rules.may_be_passed(gang.submitted, self._now)

    def _next(self) -> Gang:
        """Who comes next."""
        for gang in self._waiting:
            if self._is_impatient(gang):
                return gang
        return min(
            self._waiting, key=lambda it: (self.held(it.queue) / self._weights[it.queue], self._turn(it))
        )

    # -- reclaim, preempt

    def _stop_others(self, gang: Gang) -> bool:
        """Stop as few as needed; none if that is not enough."""
        for action, victims in (("reclaim", self._reclaimed(gang)), ("preempt", self._preempted(gang))):
            chosen, left = list[Gang](), self.left
            for victim in victims:
                if left >= gang.pledge:
                    break
                chosen.append(victim)
                left += victim.pledge
            if left < gang.pledge:
                continue
            for victim in list(chosen):  # a larger one may have made it unnecessary
                if left - victim.pledge >= gang.pledge:
                    chosen.remove(victim)
                    left -= victim.pledge
            for victim in chosen:
                del self.runs[victim.name]
            self.stops.append(Stop(action, gang.name, tuple(it.name for it in chosen)))
            return True
        return False

    def _reclaimed(self, gang: Gang) -> Iterator[Gang]:
        """Gangs of queues that hold more than they deserve, as long as they do."""
        if self.held(gang.queue) + gang.pledge > self._deserved[gang.queue]:
            return
        over = {queue: self.held(queue) - self._deserved[queue] for queue in self._weights}
        for victim in self._last_first():
            if victim.queue != gang.queue and over[victim.queue] >= victim.pledge:
                over[victim.queue] -= victim.pledge
                yield victim

    def _preempted(self, gang: Gang) -> Iterator[Gang]:
        yield from (it for it in self._last_first() if it.queue == gang.queue and it.priority < gang.priority)

    def _last_first(self) -> list[Gang]:
        """Those that run and were not started now; least priority first, then who came last."""
        return sorted(
            (it for it in self.runs.values() if it.runs), key=lambda it: (it.priority, -it.submitted, it.name)
        )


class Queues:
    """A scheduler of gangs in queues."""

    def __init__(self, weights: Mapping[str, float], is_elastic: bool, rules: Rules | None = None) -> None:
        self.stops = list[Stop]()  # of all decisions
        self._weights, self._is_elastic, self._rules = weights, is_elastic, rules or Rules()

    def __call__(self, jobs: Sequence[Live], units: int, now: float) -> Mapping[str, int]:
        """Let the queues decide who runs; of elastic gangs, the policy then shares what is left."""
        gangs = [self._gang(job) for job in jobs]
        decision = Decision(gangs, units, self._weights, now, self._rules)
        self.stops += decision.stops
        nodes = {job.asked.name: 0 for job in jobs}
        running = [job for job in jobs if job.asked.name in decision.runs]
        if not self._is_elastic:
            return nodes | {job.asked.name: job.asked.fixed for job in running}
        return nodes | dict(plan([told(job) for job in running], {"": units}, now, self._rules).nodes)

    def _gang(self, job: Live) -> Gang:
        it = job.asked
        pledge = job.needs(it.least if self._is_elastic else it.fixed)
        return Gang(it.name, it.queue, pledge, it.priority, it.submitted, job.nodes > 0)
