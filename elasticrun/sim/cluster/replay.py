"""Replays a trace with one scheduler, event by event, and measures utilisation, waiting and swings."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, inf

from elasticrun.dataclass import dataclass
from elasticrun.sim.cluster.schedulers import Live, Scheduler
from elasticrun.sim.cluster.trace import Asked, Trace
from elasticrun.sim.kernel import require

#: Seconds after which the scheduler is asked again at the latest, and of work that give a measurement.
TICK = 60.0
#: A job that grows and becomes smaller within so many seconds has turned; without a cause, it swings.
TURN = 600.0
_NEARLY = 1e-6


@dataclass(frozen=True, slots=True)
class Result:
    """What came of it. Times in seconds; shares are of all units, from the first submission to the last.

    Of a trace that is cut off they are of the time from its begin to its end.
    """

    utilisation: float  # the share in use, that of others included
    useful: float  # the share that works as well as a single node does
    waits: tuple[float, ...]  # of each job from its submission to its start, or to the end
    completions: tuple[float, ...]  # from its submission to its end, of those that came to one
    rescales: int  # of jobs that run
    turns: int
    swings: int  # turns without any change from outside
    stopped: int  # jobs that ran, and had to wait again

    @property
    def mean_wait(self) -> float:
        return _mean(self.waits)

    @property
    def p95_wait(self) -> float:
        return percentile(self.waits, 0.95)

    @property
    def mean_completion(self) -> float:
        return _mean(self.completions)


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0


def percentile(values: Sequence[float], part: float) -> float:
    """The least value that is not below this part of them."""
    return sorted(values)[max(0, ceil(part * len(values)) - 1)] if values else 0.0


class Replay:
    """One trace with one scheduler."""

    def __init__(self, trace: Trace, scheduler: Scheduler) -> None:
        self.now = 0.0
        self.jobs = dict[str, Live]()  # that are there, in the order of submission
        self._trace, self._scheduler = trace, scheduler
        self._coming = list[Asked](trace.jobs[::-1])
        self._others = list[tuple[float, int]](trace.others[::-1])
        self._taken = 0  # units, by others
        self._last = trace.end if trace.end < inf else trace.jobs[-1].submitted
        self._used = self._useful = 0.0
        self._waits = dict[str, float]()
        self._completions = dict[str, float]()
        self._changes = 0  # from outside
        self._grown = dict[str, tuple[float, int]]()  # when, and after how many changes from outside
        self._rescales = self._turns = self._swings = self._stopped = 0

    def run(self) -> Result:
        """Until all jobs have ended, or the trace is cut off."""
        while (next_ := self._next()) < self._trace.end and (self._coming or self.jobs):
            self._pass(next_)
            self._change()
            self._decide()
        if self._trace.end < inf:
            self._pass(self._trace.end)
        for name, job in self.jobs.items():
            self._waits.setdefault(name, self.now - job.asked.submitted)
        whole = self._trace.total * self._last
        return Result(
            self._used / whole if whole else 0.0,
            self._useful / whole if whole else 0.0,
            tuple(self._waits.values()),
            tuple(self._completions.values()),
            self._rescales,
            self._turns,
            self._swings,
            self._stopped,
        )

    # -- time

    def _next(self) -> float:
        coming = self._coming[-1].submitted if self._coming else inf
        others = self._others[-1][0] if self._others else inf
        ends = (job.ends(self.now) for job in self.jobs.values() if job.nodes)
        return min(coming, others, self.now + TICK, *ends)

    def _pass(self, instant: float) -> None:
        """Let all jobs work until then."""
        counted = max(0.0, min(instant, self._last) - self.now)
        self._used += counted * (self._taken + sum(job.uses for job in self.jobs.values()))
        for job in self.jobs.values():
            if not job.nodes:
                continue
            begin, rate = max(self.now, job.paused), job.asked.rate(job.nodes)
            job.left -= max(0.0, instant - begin) * rate
            self._useful += max(0.0, min(instant, self._last) - begin) * rate * job.asked.takes
            if instant - job.paused >= TICK:
                job.measured[job.nodes] = rate
        self.now = instant

    # -- what happens

    def _change(self) -> None:
        """Take in what happens now."""
        while self._coming and self._coming[-1].submitted <= self.now:
            asked = self._coming.pop()
            self.jobs[asked.name] = Live(asked)
            self._changes += 1
        while self._others and self._others[-1][0] <= self.now:
            self._taken = self._others.pop()[1]
            self._changes += 1
        for name, job in list(self.jobs.items()):
            if job.nodes and job.left <= _NEARLY * job.asked.rate(job.nodes):
                self._completions[name] = self.now - job.asked.submitted
                del self.jobs[name]
                self._changes += 1

    def _decide(self) -> None:
        units = self._trace.units - self._taken
        nodes = self._scheduler(list(self.jobs.values()), units, self.now)
        is_given = any(nodes[name] < job.nodes for name, job in self.jobs.items())
        for name, job in self.jobs.items():
            if nodes[name] != job.nodes:
                self._resize(job, nodes[name], self._trace.release if is_given else 0.0)
        used = sum(job.uses for job in self.jobs.values())
        require("capacity", used <= units, f"{used} of {units} units are in use")

    def _resize(self, job: Live, nodes: int, release: float) -> None:
        """Change a job. One that starts waits for the units that others give back at this moment."""
        name, before = job.asked.name, job.nodes
        job.nodes, job.paused = nodes, self.now + job.asked.pause
        if not before:
            job.paused += release
            self._waits.setdefault(name, self.now + release - job.asked.submitted)
            return
        self._rescales += 1
        self._stopped += not nodes
        if nodes > before:
            self._grown[name] = self.now, self._changes
        elif name in self._grown:
            when, changes = self._grown.pop(name)
            self._turns += self.now - when <= TURN
            self._swings += self.now - when <= TURN and changes == self._changes


def replay(trace: Trace, scheduler: Scheduler) -> Result:
    """What comes of a trace with this scheduler. The same arguments give the same result."""
    return Replay(trace, scheduler).run()
