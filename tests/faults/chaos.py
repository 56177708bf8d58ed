"""The digits on two nodes, with a random fault every few seconds: do they end as if nothing had happened?

The reference is a run of the same line that nobody disturbs: two nodes, the same seed, the same number of
epochs, and so the same learning rates. The number is such that it takes as long as faults are to come; so the
disturbed run is still training when the last fault has come, and is then left alone. The two differ in
nothing but the faults, and what follows from them: while a node is away, the other trains on all images.

A fault strikes only while two nodes train calmly, and the next one waits until they do again. A node that
ended is replaced by a new agent with an empty disk, as a platform would do. What does not come back before a
generous deadline fails the soak with the story of both nodes.
"""

from __future__ import annotations

import random
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tests.faults.chaos_faults import FAULTS
from tests.faults.chaos_job import Job
from tests.faults.ledger import useful
from tests.faults.leftovers import shared_memory, shared_memory_left
from tests.support.cluster import Cluster
from tests.support.processes import DEADLINE

CALIBRATION = 40  # epochs from which the time of one is learnt
LEAST_EPOCHS = 100
TOLERANCE = 0.015  # of the accuracy: 5 of the 360 test images
#: Descriptors that a process may have more than when it was young. Roles move from node to node: two pipes to
#: a master, a listener for the store, a socket and a pipe to each of two store servers; and one at most that
#: is open for a moment.
SLACK = 8


@dataclass(frozen=True)
class Plan:
    """What to do to the job."""

    seconds: float
    every: float
    seed: int
    faults: tuple[str, ...] = tuple(FAULTS)
    options: tuple[str, ...] = ()  # of elastic-run
    most: int = 1_000_000  # faults
    replaced: float = 8.0  # most seconds until a lost node's next agent; the other may train alone meanwhile
    log_dirs: bool = True  # agents get one, so that the stacks of hangs are no temporary files


@dataclass(frozen=True)
class Reference:
    """What the digits do when nobody disturbs them."""

    epochs: int
    accuracy: float
    seconds: float  # from the launch to the accuracy
    pace: dict[int, float]  # seconds from the end of an epoch to the next, by the size of the world


@dataclass(frozen=True)
class Strike:
    """One fault and what followed; seconds from the fault on."""

    kind: str
    node: int
    at: float  # seconds after the launch
    back: float | None  # until the first epoch in a new round; without one, after the fault was over
    whole: float | None  # until two nodes had trained an epoch together again
    pause: float  # the longest without the end of an epoch
    rounds: int  # how many began

    def __str__(self) -> str:
        back, whole = (
            "never: training ended" if it is None else f"{it:.2f} s" for it in (self.back, self.whole)
        )
        return (
            f"{self.at:7.1f} s  {self.kind:8} node {self.node}: {self.rounds} new rounds, "
            f"an epoch after {back}, two nodes after {whole}, longest pause {self.pause:.2f} s"
        )


@dataclass
class Outcome:
    """What became of the disturbed run; ``failure`` says in words why it did not even end."""

    plan: Plan
    reference: Reference
    strikes: list[Strike] = field(default_factory=list)
    failure: str = ""
    story: str = ""
    seconds: float = 0.0  # from the launch to the end of training
    window: float = 0.0  # from when two nodes trained calmly until no more faults came
    kept: Counter[int] = field(default_factory=Counter)  # in the window, by the size of the world
    repeated: int = 0
    pace: dict[int, float] = field(default_factory=dict)  # this run's own
    accuracy: float = 0.0
    leftovers: dict[str, list[str]] = field(default_factory=dict)  # by kind
    stacks: int = 0  # files with the stacks of hangs, in the log directories
    descriptors: dict[str, list[int]] = field(default_factory=dict)

    def goodput(self, pace: dict[int, float]) -> float:
        """Useful time over wall time while faults came: see ``ledger.GOODPUT``."""
        return useful(self.kept, {**self.pace, **pace}) / self.window if self.window else 0.0

    @property
    def good(self) -> bool:
        close = abs(self.accuracy - self.reference.accuracy) <= TOLERANCE
        return close and not self.failure and not any(self.leftovers.values())


@contextmanager
def cluster() -> Iterator[Cluster]:
    """A cluster in a folder of its own; nothing of it survives."""
    with tempfile.TemporaryDirectory(prefix="elasticrun-soak-", ignore_cleanup_errors=True) as folder:
        made = Cluster(Path(folder))
        try:
            yield made
        finally:
            for launcher in made.launchers:
                launcher.finish()
            made.director.close()


def undisturbed(
    epochs: int, nodes: int, options: Sequence[str] = ()
) -> tuple[float, float, dict[int, float]]:
    """Train to the end: (accuracy, seconds, pace)."""
    with cluster() as made:
        job = Job(made, epochs, options)
        for node in range(nodes):
            job.start(node, f"{nodes}")
        accuracy, seconds = finish(job, epochs)
        return accuracy, seconds, job.ledger.pace()


def finish(job: Job, epochs: int, pace: float = 2.0) -> tuple[float, float]:
    """Wait for the end of training, generously: (accuracy, seconds since the launch)."""
    job.wait(lambda: job.finished, "end of training", DEADLINE + epochs * pace)
    seconds = time.monotonic() - job.begin
    job.end()
    assert job.ledger.accuracy is not None
    return job.ledger.accuracy, seconds


def reference(seconds: float, options: Sequence[str] = ()) -> Reference:
    """A run that lasts about as long, after short ones that find out how many epochs that is."""
    _, _, alone = undisturbed(CALIBRATION, 1, options)
    _, _, together = undisturbed(CALIBRATION, 2, options)
    epochs = max(LEAST_EPOCHS, round(seconds / together[2]))
    accuracy, taken, pace = undisturbed(epochs, 2, options)
    return Reference(epochs, accuracy, taken, {**alone, **pace})


def disturb(plan: Plan, given: Reference) -> Outcome:
    """The run with faults."""
    outcome = Outcome(plan, given)
    before = shared_memory()
    with cluster() as made:
        job = Job(made, given.epochs, plan.options, random.Random(plan.seed), plan.replaced, plan.log_dirs)
        try:
            for node in (0, 1):
                job.start(node)
            job.wait(lambda: job.calm(job.begin), "training of two nodes")
            storm(job, outcome)
            outcome.accuracy, outcome.seconds = finish(job, given.epochs)
            outcome.leftovers = {**job.leftovers(), "descriptors": job.descriptors.leaks(SLACK)}
        except (AssertionError, OSError) as error:  # the latter: a victim was not there to be struck
            outcome.failure = str(error).partition("\n")[0]
        outcome.story = job.story()
        outcome.repeated, outcome.pace = job.ledger.repeated(), job.ledger.pace()
        outcome.descriptors, outcome.stacks = job.descriptors.longest(), job.stacks()
    outcome.leftovers["shared memory"] = shared_memory_left(before)
    return outcome


def storm(job: Job, outcome: Outcome) -> None:
    """Fault after fault, until the time is over or training nearly is."""
    begin = time.monotonic()
    kept = job.ledger.kept()
    dealt = deal(job.rng, outcome.plan.faults)
    job.look()
    try:
        blow(job, outcome, begin, dealt)
    finally:
        outcome.window = time.monotonic() - begin
        outcome.kept = job.ledger.kept()
        outcome.kept.subtract(kept)


def blow(job: Job, outcome: Outcome, begin: float, dealt: Iterator[str]) -> None:
    plan = outcome.plan
    for number in range(1, plan.most + 1):
        job.rest(min(begin + number * plan.every, begin + plan.seconds) - time.monotonic())
        if time.monotonic() >= begin + plan.seconds or nearly_done(job, outcome):
            break
        outcome.strikes.append(strike(job, next(dealt)))
        print(outcome.strikes[-1], flush=True)
    else:
        job.rest(plan.every)


def deal(rng: random.Random, kinds: Sequence[str]) -> Iterator[str]:
    """Kinds of faults at random, but none much more often than another."""
    while True:
        yield from rng.sample(kinds, len(kinds))


def nearly_done(job: Job, outcome: Outcome) -> bool:
    """Whether training would end before a fault's consequences have."""
    left = outcome.reference.epochs - job.ledger.done
    return left * outcome.reference.pace[2] < outcome.plan.every


def strike(job: Job, kind: str) -> Strike:
    """One fault, until two nodes train calmly again."""
    node = job.rng.choice(sorted(job.nodes))
    moment = time.monotonic()
    job.note(f"{kind}, node {node}")
    FAULTS[kind](job, node)
    struck = time.monotonic()
    job.wait(lambda: job.calm(struck), f"calm training of two nodes after fault {kind!r} of node {node}")
    job.look()
    rounds = [it for it in job.ledger.rounds if it.moment > moment]
    back = job.ledger.first_epoch(moment if rounds else struck, new_round=bool(rounds))
    whole = min((it.epochs[0][0] for it in rounds if it.world == len(job.nodes) and it.epochs), default=back)
    return Strike(
        kind,
        node,
        moment - job.begin,
        None if back is None else back - moment,
        None if whole is None else whole - moment,
        job.ledger.longest_pause(moment),
        len(rounds),
    )
