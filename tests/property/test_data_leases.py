"""Leases under crashes, joins, late and doubled messages: each record is in the committed history once.

A job is played with a real ledger. Workers train on the records of their leases, and write down which ones:
that is the model. A step is committed when all workers of the round were told that what they consumed is
noted. After a crash the next round restores a commit, and with it the model as it was then.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elasticrun.core.data.leases import Holder, Ledger, Progress
from elasticrun.core.data.shards import Plan, Shard
from elasticrun.core.protocol.commits import CommitId
from elasticrun.errors import DataError

Record = tuple[int, str, int]  # epoch, file, number


@dataclass
class Worker:
    """One rank of one round."""

    name: Holder
    speed: int
    open: dict[int, Progress] = field(default_factory=dict)
    shards: dict[int, tuple[int, Shard]] = field(default_factory=dict)
    request: int = 0
    model: list[Record] = field(default_factory=list)

    def train(self) -> None:
        """As many records as this worker is fast."""
        for id, (epoch, shard) in self.shards.items():
            start = self.open[id].upto
            stop = min(shard.stop, start + self.speed)
            self.model += [(epoch, shard.name, number) for number in range(start, stop)]
            self.open[id] = Progress(stop)
            break

    def forget_done(self) -> None:
        done = [id for id, (_, shard) in self.shards.items() if self.open[id].upto == shard.stop]
        for id in done:
            del self.open[id], self.shards[id]


class Job:
    """A job with chance faults. ``planted`` breaks it on purpose."""

    def __init__(self, seed: int, epochs: int = 2, planted: str = "") -> None:
        self.random = random = Random(seed)
        files: dict[str, int | None] = {f"f{n}": random.randint(1, 9) for n in range(random.randint(1, 5))}
        plan = Plan.of_files(files, random.randint(1, 4), seed)
        self.epochs, self.planted = epochs, planted
        self.due = Counter(
            (e, name, n) for e in range(epochs) for name, it in files.items() for n in range(it or 0)
        )
        self.ledger = Ledger(plan, patience=50.0, retries=1000)
        self.now, self.round, self.step = 0.0, -1, 0
        self.commits: dict[CommitId, list[Record]] = {}
        self.restored: CommitId | None = None
        self.late: list[tuple[Holder, int, dict[int, Progress]]] = []  # messages still on their way
        self.begin()

    def begin(self) -> None:
        """A new round in a world of another size; some commit is restored, mostly the newest."""
        self.round += 1
        choices = sorted(self.commits, key=lambda each: each.age)[-2:]
        self.restored = (choices[-1] if self.random.random() < 0.8 else choices[0]) if choices else None
        self.ledger.restore(self.round, None if self.planted == "forgets" else self.restored)
        self.history = list(self.commits[self.restored]) if self.restored else []
        self.step = self.restored.step if self.restored else 0
        kept = self.restored
        self.commits = {id: it for id, it in self.commits.items() if kept and id.age <= kept.age}
        self.workers = [
            Worker(Holder(self.round, f"w{n}"), self.random.randint(1, 4))
            for n in range(self.random.randint(1, 4))
        ]

    def feed(self, worker: Worker) -> None:
        """A worker asks for more; the question may come twice, and old ones again."""
        if worker.shards:
            return
        worker.request += 1
        for request in (worker.request, worker.request - 1, worker.request)[: self.random.randint(1, 3)]:
            found = self.ledger.take(
                worker.name, request, self.epochs - 1, self.now, self.random.randint(1, 3)
            )
            if request == worker.request:
                for lease in found:
                    worker.shards[lease.id] = lease.epoch, lease.shard
                    worker.open[lease.id] = Progress(lease.shard.start)

    def save(self) -> bool:
        """All workers tell what they have trained on. Returns whether the step was committed."""
        self.step += 1
        for worker in self.workers:
            told = worker.name, self.step, dict(worker.open)
            if self.random.random() < 0.1:
                self.late.append(told)
            if self.random.random() < 0.05 and self.planted != "skips":
                return False  # it dies before it is heard
            if self.planted != "skips" or worker is not self.workers[0]:
                self.ledger.consume(*told, self.now)
                if self.random.random() < 0.2:
                    self.ledger.consume(*told, self.now)
        models = [record for worker in self.workers for record in worker.model]
        self.commits[CommitId(self.round, self.step)] = [*self.history, *models]
        for worker in self.workers:
            worker.forget_done()
        if self.random.random() < 0.2 and len(self.commits) > 1:
            ids = sorted(self.commits, key=lambda each: each.age)
            self.ledger.settle(ids[-2])
            self.commits = {id: self.commits[id] for id in ids[-2:]}
        return True

    def disturb(self) -> None:
        """Words of workers that are gone come in now, and must change nothing."""
        for told in self.late:
            if told[0].round != self.round:
                with pytest.raises(DataError, match="has no leases any more"):
                    self.ledger.consume(*told, self.now)
        self.late = [told for told in self.late if told[0].round == self.round]

    def run(self) -> None:
        """Train until nothing is left, then compare the model with what was due."""
        for turn in range(4000):
            self.now += self.random.random()
            self.disturb()
            faulty = turn < 300 and self.random.random() < 0.08
            try:
                for worker in self.workers:
                    self.feed(worker)
                    worker.train()
                if faulty and self.random.random() < 0.5:
                    self.ledger.lose(self.workers[0].name.name)
                if faulty and self.random.random() < 0.3:
                    self.now += 60.0
                    self.ledger.expire(self.now)
                is_saved = self.random.random() > 0.3 or self.save()
            except DataError:
                is_saved = False  # a worker has lost its leases: its step is not saved, and it fails
            if faulty or not is_saved:
                self.begin()
            elif not any(worker.shards for worker in self.workers) and self.is_over():
                break
        else:
            raise AssertionError("the job does not end")
        final = self.commits[max(self.commits, key=lambda each: each.age)]
        assert Counter(final) == self.due

    def is_over(self) -> bool:
        worker = self.workers[0]
        self.feed(worker)
        return not worker.shards and CommitId(self.round, self.step) in self.commits


@pytest.mark.parametrize("hundred", range(10))
def test_each_record_is_in_the_history_of_what_was_committed_once(hundred: int) -> None:
    for seed in range(100 * hundred, 100 * hundred + 100):
        try:
            Job(seed).run()
        except Exception as error:
            raise AssertionError(f"seed {seed}: {error!r}") from error


@pytest.mark.parametrize("planted", ["forgets", "skips"])
def test_the_simulation_finds_a_planted_fault(planted: str) -> None:
    found = 0
    for seed in range(60):
        try:
            Job(seed, planted=planted).run()
        except (AssertionError, DataError, KeyError, ValueError):
            found += 1
    assert found > 10


@given(
    st.lists(st.integers(0, 30), min_size=1, max_size=5),
    st.integers(1, 7),
    st.integers(-3, 3),
    st.integers(0, 3),
)
def test_the_shards_of_an_epoch_have_each_record_once(
    lengths: list[int], size: int, seed: int, epoch: int
) -> None:
    files: dict[str, int | None] = {f"f{n}": length for n, length in enumerate(lengths)}
    if not any(lengths):
        with pytest.raises(DataError, match="each extent is empty"):
            Plan.of_files(files, size, seed)
        return
    plan = Plan.of_files(files, size, seed)
    shards = [plan.shard(epoch, place) for place in range(plan.count)]
    assert all(0 < each.stop - each.start <= size for each in shards)
    found = Counter((each.name, n) for each in shards for n in range(each.start, each.stop))
    assert found == Counter((name, n) for name, length in files.items() for n in range(length or 0))
