"""Who gets which nodes: ours, and what others do with jobs of one size.

All are asked after each change, and once a minute. They are told the jobs that are there, and say how many
nodes each one gets.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

from elasticrun.core.cluster.curve import Curve, curve
from elasticrun.core.cluster.jobs import Job, Rules
from elasticrun.core.cluster.plan import plan
from elasticrun.sim.cluster.trace import Asked


class Live:
    """A job that has come, and has not ended."""

    def __init__(self, asked: Asked) -> None:
        self.asked = asked
        self.nodes = 0
        self.left = asked.work
        self.paused = 0.0  # until when
        self.measured = dict[int, float]()
        self._curve: tuple[int, Curve] | None = None

    @property
    def uses(self) -> int:
        """Units that it has."""
        return self.needs(self.nodes) if self.nodes else 0

    def needs(self, nodes: int) -> int:
        """Units of it with so many nodes."""
        return self.asked.besides + nodes * self.asked.takes

    def ends(self, now: float) -> float:
        """When it will have done its work, with the nodes that it has."""
        return max(now, self.paused) + self.left / self.asked.rate(self.nodes)

    def known(self) -> Curve:
        """What its telemetry tells of it."""
        if self._curve is None or self._curve[0] != len(self.measured):
            self._curve = len(self.measured), curve(self.asked.most, self.measured)
        return self._curve[1]


#: Jobs in the order of submission, units that they may use in all, and the moment -> nodes of each job.
Scheduler = Callable[[Sequence[Live], int, float], Mapping[str, int]]


def static(jobs: Sequence[Live], units: int, now: float) -> Mapping[str, int]:
    """First come, first served; each job at its fixed size, as a whole."""
    left, nodes = units - sum(job.uses for job in jobs), _as_they_are(jobs)
    for job in jobs:
        if not job.nodes:
            if job.needs(job.asked.fixed) > left:
                break
            nodes[job.asked.name] = job.asked.fixed
            left -= job.needs(job.asked.fixed)
    return nodes


def pod_by_pod(jobs: Sequence[Live], units: int, now: float) -> Mapping[str, int]:
    """As Kubernetes does without gangs: a job that finds room for some of its nodes starts with these."""
    left, nodes = units - sum(job.uses for job in jobs), _as_they_are(jobs)
    for job in jobs:
        if not job.nodes and left > job.needs(0):
            found = min(job.asked.fixed, (left - job.needs(0)) // job.asked.takes)
            nodes[job.asked.name] = found
            left -= job.needs(found) if found else 0
    return nodes


def gang(jobs: Sequence[Live], units: int, now: float) -> Mapping[str, int]:
    """Fixed sizes, higher priority first, with backfill.

    The first one that finds no room gets a reservation for the moment when there is room. Others may start
    before it if they do not put that off (EASY backfill). The time that each job takes is known exactly,
    which flatters.
    """
    nodes = _as_they_are(jobs)
    left = units - sum(job.uses for job in jobs)
    ends = [(job.ends(now), job.uses) for job in jobs if job.nodes]
    head: Live | None = None
    at = spare = 0.0
    for job in sorted((it for it in jobs if not it.nodes), key=lambda it: -it.asked.priority):
        need, end = job.needs(job.asked.fixed), now + job.asked.seconds
        if head is not None and end > at and need > spare:
            continue
        if need <= left:
            nodes[job.asked.name] = job.asked.fixed
            left -= need
            ends.append((end, need))
            if end > at:
                spare -= need
        elif head is None:
            head, (at, spare) = job, _room(ends, left, need)
    return nodes


def _room(ends: Sequence[tuple[float, int]], left: int, need: int) -> tuple[float, float]:
    """When there will be room for so many units, and how many there are more then."""
    for end, freed in sorted(ends):
        left += freed
        if left >= need:
            return end, left - need
    return float("inf"), 0.0


class Elastic:
    """Ours."""

    def __init__(self, rules: Rules | None = None) -> None:
        self._rules = rules or Rules()

    def __call__(self, jobs: Sequence[Live], units: int, now: float) -> Mapping[str, int]:
        """As the policy plans."""
        return plan([told(job) for job in jobs], {"": units}, now, self._rules).nodes


def told(job: Live) -> Job:
    """What the policy is told of a job."""
    it = job.asked
    return Job(
        it.name,
        it.least,
        it.most,
        job.known(),
        job.nodes,
        it.submitted,
        it.priority,
        it.takes,
        besides=it.besides,
        rescale=it.pause,
    )


def _as_they_are(jobs: Sequence[Live]) -> dict[str, int]:
    return {job.asked.name: job.nodes for job in jobs}


SCHEDULERS: Mapping[str, Scheduler] = MappingProxyType(
    {"static": static, "pod by pod": pod_by_pod, "gang": gang, "elastic": Elastic()}
)
