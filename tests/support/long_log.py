"""Event logs of jobs that never were, as realistic as their readers need them.

A job of some nodes trains; now and then a worker fails, a node is lost and comes back, a node joins, or the
workers hang. Everything follows from the seed, so two logs with the same settings are the same.
"""

from __future__ import annotations

import random
from collections.abc import Generator, Iterator
from dataclasses import dataclass, field

from elasticrun.core.protocol.chronicle import (
    Decision,
    HangFound,
    Happening,
    JobEnded,
    LogEntry,
    MasterStarted,
    MilestoneReached,
    NodeChanged,
    NodeGone,
    NodeJoined,
    Place,
    RoundStarted,
    RoundStopped,
    RoundStopping,
    SaveStalled,
    StateSaved,
    StepsDone,
    StragglerFound,
    WorkerFailed,
)

BEGAN = 1_790_000_000.0
MILESTONES = ("spawned", "imported", "connected", "restored", "first_step")
SUMMARIES = (
    (-9, "was killed by signal 9"),
    (1, "exited with 1: RuntimeError: CUDA error: an illegal memory access was encountered (0x7f3a)"),
    (1, "exited with 1: ValueError: Loss is nan at step 4711 <script>alert(1)</script>"),
    (3, "exited with 3"),
)


@dataclass(frozen=True, slots=True)
class Settings:
    """Of a job."""

    rounds: int = 200
    nodes: int = 4
    workers: int = 8  # of each node
    apart: float = 300.0  # seconds between two faults, on average
    step: float = 0.5
    stall: float = 0.4
    every: int = 20  # steps between two saves in memory; 0: no saves
    stored: int = 5  # each so many of them gets to the storage; 0: none does
    imports: float = 0.02  # of a restart; the first round takes 4 s
    waits: float = 90.0  # for the place of a lost node
    steps: bool = True  # milestones, steps and stalls are told
    seed: int = 1
    ends: bool = True


@dataclass(slots=True)
class Job:
    """The job as it goes."""

    it: Settings
    now: float = 0.0
    event: int = 0
    step: int = 0
    chance: random.Random = field(default_factory=random.Random)

    def told(self, *happenings: Happening, at: float | None = None) -> Iterator[LogEntry]:
        self.event += 1
        when = self.now if at is None else at
        for each in happenings:
            yield LogEntry(self.event, when, BEGAN + when, each)

    def names(self) -> tuple[str, ...]:
        return tuple(f"node{number}" for number in range(self.it.nodes))


def log(settings: Settings = Settings()) -> Iterator[LogEntry]:
    """All entries of such a job."""
    job = Job(settings, chance=random.Random(settings.seed))
    yield from job.told(MasterStarted(1, is_first=True))
    for number, name in enumerate(job.names()):
        job.now += 0.2
        yield from job.told(NodeJoined(name, f"host{number}", settings.workers, returns=False))
        yield from job.told(NodeChanged(name, "ready", -1))
    saved, restart = 0, 0
    for number in range(settings.rounds):
        yield from _start(job, number, restart, saved if number else None)
        job.step = saved
        saved = yield from _train(job, number, saved)
        if number + 1 < settings.rounds:
            restart += yield from _fault(job, number)
    if settings.ends:
        for name in job.names():
            yield from job.told(NodeChanged(name, "finished", settings.rounds - 1))
        yield from job.told(RoundStopped(settings.rounds - 1), JobEnded("succeeded", "all workers are done"))


def _start(job: Job, number: int, restart: int, restored: int | None) -> Iterator[LogEntry]:
    it, names = job.it, job.names()
    why = f"{it.nodes} nodes of {it.nodes}:{it.nodes} ready"
    has = restored if it.every else None
    yield from job.told(
        RoundStarted(number, it.nodes, it.nodes * it.workers, names[:64], restart, has, why),
        Decision("running", number, f"round {number} starts with {it.nodes} nodes: {why}"),
    )
    imports = it.imports if number else 4.0
    lengths = (0.03, imports, 0.2 + 0.1 * job.chance.random(), 0.15, it.step)
    for name in names:
        yield from job.told(NodeChanged(name, "running", number))
    for milestone, length in zip(MILESTONES, lengths, strict=True):
        job.now += length
        if it.steps:
            for name in names:
                yield from job.told(MilestoneReached(name, number, milestone))


def _train(job: Job, number: int, saved: int) -> Generator[LogEntry, None, int]:
    """Train until the next fault; returns the step that the next round begins with."""
    it = job.it
    until = job.now + max(2 * it.step, job.chance.expovariate(1 / it.apart))
    slow = number % 7 == 3 and it.nodes > 1
    saves, told = 0, job.now
    while job.now + it.step < until:
        job.now += it.step * (1.3 if slow else 1.0)
        job.step += 1
        if slow and it.steps and job.step % 40 == 0:
            yield from job.told(StragglerFound(number, f"node{1 % it.nodes}", 1.3))
        if it.every and job.step % it.every == 0:
            job.now += it.stall
            saves += 1
            saved = job.step
            if it.steps:
                yield from job.told(SaveStalled(number, it.stall))
            yield from job.told(
                StateSaved(Place.MEMORY, number, saved), StateSaved(Place.HOSTS, number, saved)
            )
            if it.stored and saves % it.stored == 0:
                yield from job.told(StateSaved(Place.STORAGE, number, saved))
        if it.steps and job.now >= told + 5.0:
            told = job.now
            yield from job.told(StepsDone(number, job.step, 1 / it.step))
    if it.steps:
        yield from job.told(StepsDone(number, job.step, 1 / it.step))
    job.now = max(job.now, until)
    return saved


def _fault(job: Job, number: int) -> Generator[LogEntry, None, int]:
    """Stop a round; returns how much of the budget that takes."""
    it, chance = job.it, job.chance
    draw = chance.random()
    node = chance.randrange(it.nodes)
    name, host = f"node{node}", f"host{node}"
    if draw < 0.7:
        code, words = chance.choice(SUMMARIES)
        local = chance.randrange(it.workers)
        rank = node * it.workers + local
        pid = 10000 + job.event
        summary = f"rank {rank} (local rank {local}, pid {pid}, {host}) {words}"
        how = "signal" if code < 0 else "exit"
        cause, spent = "worker failed", 1
        yield from job.told(
            WorkerFailed(number, name, host, rank, local, pid, how, code, job.step, summary),
            RoundStopping(number, cause, summary),
        )
    elif draw < 0.8 and it.steps:
        job.now += 60.0
        cause, spent = "hang", 1
        yield from job.told(HangFound(number, 60.0), RoundStopping(number, cause, "no step for 60 s"))
    elif draw < 0.93 and it.nodes > 1:
        cause, spent = "member lost", 0
        yield from job.told(
            NodeGone(name, "its stream broke"), RoundStopping(number, cause, f"{name} is lost")
        )
    else:
        cause, spent = "node joined", 0
        yield from job.told(RoundStopping(number, cause, "a node joins"))
    there = [each for each in job.names() if cause != "member lost" or each != name]
    for each in there:
        yield from job.told(NodeChanged(each, "stopping", number))
    job.now += 0.05 + 0.1 * chance.random()
    for each in there:
        yield from job.told(NodeChanged(each, "ready", number))
    yield from job.told(RoundStopped(number))
    if cause == "member lost":
        job.now += it.waits * (0.5 + chance.random())
        yield from job.told(NodeJoined(name, host, it.workers, returns=False), NodeChanged(name, "ready", -1))
    return spent
