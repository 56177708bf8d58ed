"""What befalls a cluster: jobs that come, and units that others take. One trace is drawn at random."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import replace
from math import inf, log
from types import MappingProxyType

from elasticrun.core.cluster.curve import OVERHEAD, assumed
from elasticrun.dataclass import dataclass


@dataclass(frozen=True, slots=True)
class Asked:
    """A job as its user wants it."""

    name: str
    submitted: float  # seconds from the begin
    least: int
    most: int
    fixed: int  # its nodes where jobs cannot change their size
    work: float = inf  # effective nodes times seconds; without end: until the trace ends
    overhead: float = OVERHEAD  # of its true curve, see core/cluster/curve.py
    priority: int = 0
    takes: int = 1  # units of each node
    besides: int = 0  # units
    queue: str = ""
    pause: float = 30.0  # seconds without work at each start, and at each change of size

    def rate(self, nodes: int) -> float:
        """Effective nodes of so many nodes, in truth."""
        return assumed(nodes, self.overhead)

    @property
    def seconds(self) -> float:
        """How long it takes at its fixed size."""
        return self.pause + self.work / self.rate(self.fixed)


@dataclass(frozen=True, slots=True)
class Trace:
    """What befalls a cluster."""

    name: str
    units: int  # that jobs may use, those of others included
    total: int  # units, those that are of no use to jobs included
    jobs: tuple[Asked, ...]  # in the order of submission
    others: tuple[tuple[float, int], ...] = ((0.0, 0),)  # from when on others take how many units
    end: float = inf  # when it is cut off; else all jobs come to an end
    release: float = 30.0  # seconds in which a job that becomes smaller, or stops, gives its units back


#: Sizes of the synthetic trace, and how often each is asked for.
SIZES, ODDS = (1, 2, 4, 8, 16, 32), (30, 20, 20, 15, 10, 5)
#: The share of its jobs that have one size only.
RIGID = 0.3
#: The logarithm of the seconds at the fixed size has a normal distribution: the median, and the deviation.
MEDIAN, DEVIATION, LONGEST = 1200.0, 1.2, 6 * 3600.0
NODES, LOAD = 128, 0.85
#: Queues of a trace that has some: their weights, and how often jobs are sent there.
WEIGHTS: Mapping[str, float] = MappingProxyType({"research": 2.0, "product": 1.0, "students": 1.0})
SENT = (30, 30, 40)


def synthetic(count: int = 1000, seed: int = 0, nodes: int = NODES, load: float = LOAD) -> Trace:
    """Jobs of a cluster of equal nodes, which would use the share ``load`` of it at their fixed sizes.

    The gaps between submissions are exponential. Sizes are powers of two, small ones more often. An elastic
    job runs with a quarter of its size up to twice its size. Priorities: one of five jobs has 1, the others
    0. The overhead of the true curves is spread evenly in its logarithm from 0.002 to 0.08, which no
    scheduler is told.
    """
    chance = random.Random(seed)
    drawn = list[tuple[int, float, float, bool, int]]()
    for _ in range(count):
        size = chance.choices(SIZES, ODDS)[0]
        seconds = min(chance.lognormvariate(log(MEDIAN), DEVIATION), LONGEST)
        overhead = 0.002 * 40 ** chance.random()
        drawn.append((size, seconds, overhead, chance.random() < RIGID, int(chance.random() < 0.2)))
    gap = sum(size * seconds for size, seconds, *_ in drawn) / (count * nodes * load)
    jobs, now = list[Asked](), 0.0
    for number, (size, seconds, overhead, is_rigid, priority) in enumerate(drawn):
        least, most = (size, size) if is_rigid else (max(1, size // 4), 2 * size)
        work = seconds * assumed(size, overhead)
        jobs.append(Asked(f"job-{number:04}", now, least, most, size, work, overhead, priority))
        now += chance.expovariate(1 / gap)
    return Trace(f"{count} jobs, {nodes} nodes", nodes, nodes, tuple(jobs))


def in_queues(trace: Trace, seed: int = 0) -> Trace:
    """The same jobs, each in a queue drawn at random."""
    chance = random.Random(f"queues {seed}")
    sent = chance.choices(tuple(WEIGHTS), SENT, k=len(trace.jobs))
    jobs = (replace(job, queue=queue) for job, queue in zip(trace.jobs, sent, strict=True))
    return replace(trace, name=f"{trace.name}, queues", jobs=tuple(jobs))
