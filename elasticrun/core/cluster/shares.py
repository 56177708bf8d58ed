"""The nodes of the jobs that run: the ideal, and the steps towards it that pay."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from heapq import heapify, heappop, heappush

from elasticrun.core.cluster.jobs import Job
from elasticrun.dataclass import dataclass


def ideal(jobs: Sequence[Job], units: int) -> dict[str, int]:
    """The best shares, whatever there is now. The least of all jobs fits into the units."""
    nodes = {job.name: job.least for job in jobs}
    left = units - sum(job.pledge for job in jobs)
    heap = [_offer(job, job.least, place) for place, job in enumerate(jobs) if job.least < job.most]
    heapify(heap)
    while heap:
        gain, place = heappop(heap)
        job = jobs[place]
        if gain >= 0 or job.takes > left:
            continue
        nodes[job.name] += 1
        left -= job.takes
        if nodes[job.name] < job.most:
            heappush(heap, _offer(job, nodes[job.name], place))
    return nodes


def _offer(job: Job, nodes: int, place: int) -> tuple[float, int]:
    """What one node more adds for each unit, so that the most comes first; then the order of jobs decides."""
    return -job.curve.gain(nodes) * job.worth / job.takes, place


@dataclass(frozen=True, slots=True)
class Step:
    """Nodes for one job; of units that are free, or of another one that has more than its ideal."""

    job: Job
    more: int
    giver: Job | None
    fewer: int
    net: float  # effective nodes times seconds, by worth


class Shares:
    """The nodes of the jobs of one kind. Each step goes towards the ideal, never beyond."""

    def __init__(self, jobs: Sequence[Job], ideal: Mapping[str, int], units: int, horizon: float) -> None:
        """Begin with what they have; one that starts, with its least."""
        self.nodes = {job.name: max(job.least, min(job.nodes, job.most)) for job in jobs}
        self.reasons = {job.name: _first_reason(job) for job in jobs if job.nodes != self.nodes[job.name]}
        self._jobs, self._ideal, self._horizon = jobs, ideal, horizon
        self._left = units - sum(job.uses(self.nodes[job.name]) for job in jobs)

    def make_room(self) -> None:
        """Take from those above their ideal, where it costs least for each unit, what starting jobs need."""
        while self._left < 0:
            fewer = {job.name: self._to_give(job, -self._left) for job in self._above()}
            giver = min(self._above(), key=lambda job: (self._price(job, fewer[job.name]), job.name))
            self._give(giver, fewer[giver.name], "room is made for a job that starts, or units are gone")

    def improve(self) -> None:
        """Take all steps that pay."""
        steps = True
        while steps:
            steps = False
            for job in self._jobs:
                while (best := max(self._steps(job), key=_net, default=None)) and best.net > 0:
                    self._take(best)
                    steps = True

    # -- what there is

    def _above(self) -> list[Job]:
        return [job for job in self._jobs if self.nodes[job.name] > self._ideal[job.name]]

    def _to_give(self, job: Job, units: int) -> int:
        """How many nodes make so many units; all above the ideal, if these are fewer."""
        return min(-(-units // job.takes), self.nodes[job.name] - self._ideal[job.name])

    def _value(self, job: Job, more: int) -> float:
        """Of so many nodes more within the horizon, without what the change loses."""
        now = self.nodes[job.name]
        return (job.curve.of(now + more) - job.curve.of(now)) * job.worth * self._horizon

    def _cost(self, job: Job) -> float:
        """Of a change; of one that changes anyhow, nothing."""
        if job.name in self.reasons:
            return 0.0
        return job.curve.of(self.nodes[job.name]) * job.worth * job.rescale

    def _price(self, job: Job, fewer: int) -> float:
        """Of each unit that it gives."""
        return (self._cost(job) - self._value(job, -fewer)) / (fewer * job.takes)

    # -- steps

    def _steps(self, job: Job) -> Iterator[Step]:
        wanted = self._ideal[job.name] - self.nodes[job.name]
        if wanted <= 0:
            return
        yield from self._step(job, wanted, None)
        for giver in self._above():
            yield from self._step(job, wanted, giver)

    def _step(self, job: Job, wanted: int, giver: Job | None) -> Iterable[Step]:
        left, fewer, net = self._left, 0, -self._cost(job)
        if giver is not None:
            left += (self.nodes[giver.name] - self._ideal[giver.name]) * giver.takes
        more = min(wanted, left // job.takes)
        if more < 1:
            return ()
        if giver is not None:
            fewer = self._to_give(giver, max(0, more * job.takes - self._left))
            if fewer < 1:
                return ()  # what is free is enough
            net += self._value(giver, -fewer) - self._cost(giver)
        return (Step(job, more, giver, fewer, net + self._value(job, more)),)

    def _take(self, step: Step) -> None:
        if step.giver is not None:
            self._give(step.giver, step.fewer, f"{step.job.name} does more with its nodes")
        self._change(step.job, step.more, "what it does more within the horizon is worth the change")

    def _give(self, job: Job, fewer: int, reason: str) -> None:
        self._change(job, -fewer, reason)

    def _change(self, job: Job, more: int, reason: str) -> None:
        self.nodes[job.name] += more
        self._left -= more * job.takes
        self.reasons.setdefault(job.name, reason)


def _net(step: Step) -> float:
    return step.net


def _first_reason(job: Job) -> str:
    if not job.nodes:
        return "its least number of nodes can be had"
    return "it had more nodes than its most" if job.nodes > job.most else "it had fewer nodes than its least"
