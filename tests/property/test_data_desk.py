"""Shared data under crashes, joins, lost nodes, restarts of the master, late and doubled messages.

A job is played with real desks. Its workers ask over a network that delays, doubles and loses, train on what
they are leased, and save what the desk says is left. The master's journal is the list of what it took in; a
master that restarts replays it, and may have lost the end of it. The model is the list of all records that
the ranks have trained on. Whatever happens, what the final model has is each record of each epoch, once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

import pytest

from elasticrun.core.data.desk import Desks
from elasticrun.core.protocol.data import (
    AskData,
    DataAnswer,
    DataLeft,
    DataReader,
    OpenData,
    ShardLease,
    ShardProgress,
)

Record = tuple[int, int, int]  # epoch, place, number
Ask = OpenData | AskData
PATIENCE = 50.0


@dataclass
class Saved:
    """A commit."""

    left: DataLeft | None
    model: list[Record]


@dataclass
class Worker:
    """One rank of one round."""

    job: Job
    rank: int
    reader: DataReader
    call: int = 0
    asked: Ask | None = None  # that has no answer yet
    open: dict[int, ShardLease] = field(default_factory=dict)
    at: dict[int, int] = field(default_factory=dict)
    told: dict[int, ShardProgress] = field(default_factory=dict)
    model: list[Record] = field(default_factory=list)
    is_open = False
    saving = 0  # steps
    step = 0
    is_idle = False  # nothing was left when it asked last
    is_dead = False

    def act(self) -> None:
        """Train a little, or ask, or save."""
        if self.is_dead or self.asked is not None:
            return
        random = self.job.random
        if not self.is_open:
            self.job.send(self, self.opening())
        elif random.random() < 0.25 or self.is_idle:
            self.save()
        elif not self.open:
            self.ask(epoch=self.job.epochs - 1, wanted=random.randint(1, 3))
        else:
            self.train(random.randint(1, 4))

    def opening(self, left: DataLeft | None = None) -> OpenData:
        saved = self.job.restored.left
        state = "" if saved is None else str(hash(saved) & 0xFFFFFF)
        self.call += 1
        return OpenData(
            *("i", self.reader, self.call, "plan", len(self.job.lengths), self.job.world, PATIENCE),
            state=state,
            left=left,
        )

    def ask(self, **what: Any) -> None:
        self.call += 1
        self.job.send(self, replace(AskData("i", self.reader, self.call), **what))

    def save(self) -> None:
        told = tuple(self.told.values())
        if self.job.planted == "forgets":
            told = told[1:]
        self.told = {}
        self.ask(progress=told, saves=True)

    def train(self, count: int) -> None:
        id, lease = next(iter(self.open.items()))
        piece = lease.piece
        length = self.job.lengths[piece.place]
        stop = min(piece.stop or length, length, self.at[id] + count)
        self.model += [(piece.epoch, piece.place, n) for n in range(self.at[id], stop)]
        self.at[id] = stop
        is_over = stop == (piece.stop or length)
        self.told[id] = ShardProgress(id, stop, is_over)
        if is_over:
            del self.open[id], self.at[id]

    def hear(self, answer: DataAnswer) -> None:
        if self.asked is None or answer.call != self.asked.call:
            return  # it came before
        asked, self.asked = self.asked, None
        if answer.refused:
            self.is_dead = True
        elif answer.needs_left:
            self.job.send(self, self.opening(self.job.restored.left))
        elif isinstance(asked, OpenData):
            self.is_open = True
        elif asked.saves:
            assert answer.left is not None
            self.step += 1
            self.job.saved(self, answer.left)
            self.is_idle = False
        else:
            self.is_idle = not answer.leases and not self.open
            for lease in answer.leases:
                self.open[lease.id], self.at[lease.id] = lease, lease.piece.start


class Job:
    """A job with chance faults. ``planted`` breaks it on purpose."""

    def __init__(self, seed: int, planted: str = "") -> None:
        self.random = random = Random(seed)
        self.planted = planted
        self.lengths = [random.randint(1, 6) for _ in range(random.randint(1, 7))]
        self.epochs = 2
        self.now, self.round = 0.0, -1
        self.commits = [Saved(None, [])]
        self.begin()

    def begin(self) -> None:
        """A world of another size; some commit is restored, mostly the newest."""
        random = self.random
        self.round += 1
        del self.commits[-random.choice([1, 1, 1, 2]) :][1:]
        self.restored = self.commits[-1]
        self.world = random.randint(1, 4)
        self.partial: dict[int, list[tuple[DataLeft, list[Record]]]] = {}
        self.desks, self.journal = Desks(), list[tuple[int, Ask, float]]()
        self.network: list[tuple[Worker, Ask | DataAnswer]] = []
        self.workers = [
            Worker(self, rank, DataReader(self.round, rank, "data", f"{self.round}-{rank}", 0))
            for rank in range(self.world)
        ]
        self.faulty = random.random() < 0.7 and self.round < 30

    def send(self, worker: Worker, ask: Ask) -> None:
        worker.asked = ask
        self.network.append((worker, ask))

    def saved(self, worker: Worker, left: DataLeft) -> None:
        """A rank has saved a step; once all have, it is committed."""
        parts = self.partial.setdefault(worker.step, [])
        parts.append((left, list(worker.model)))
        if len(parts) == self.world:
            assert all(each == left for each, _ in parts), "a step has one state"
            self.commits.append(
                Saved(left, [*self.restored.model, *(record for _, model in parts for record in model)])
            )

    def master_hears(self, rank: int, ask: Ask) -> None:
        self.journal.append((rank, ask, self.now))
        for told, answer in self.take_in(rank, ask, self.now):
            self.network.append((self.workers[told], answer))

    def take_in(self, rank: int, ask: Ask, now: float) -> list[tuple[int, DataAnswer]]:
        if isinstance(ask, OpenData):
            return self.desks.open(rank, ask)
        return self.desks.ask(rank, ask, now)

    def restart_master(self) -> None:
        """It replays its journal, of which the end may be lost; agents send again what has no answer."""
        lost = self.random.choice([0, 0, 1, 2, 5, 1000])
        self.journal = self.journal[: len(self.journal) - lost] if lost else self.journal
        self.desks = Desks()
        for entry in self.journal:
            self.take_in(*entry)
        self.network = []
        for worker in self.workers:
            if worker.asked is not None:
                self.network.append((worker, worker.asked))

    def disturb(self) -> None:
        random, chance = self.random, self.random.random()
        if chance < 0.02:
            self.workers[random.randrange(self.world)].is_dead = True
        elif chance < 0.06:
            self.restart_master()
        elif chance < 0.08 and self.network:
            self.network += random.choices(self.network, k=2)  # doubled, and late
        elif chance < 0.09:
            self.now += 60.0
            for told, answer in self.desks.expire(self.now):
                self.network.append((self.workers[told], answer))

    def deliver(self) -> None:
        if not self.network:
            return
        worker, message = self.network.pop(0)
        if isinstance(message, DataAnswer):
            worker.hear(message)
        else:
            self.master_hears(worker.rank, message)

    def run(self) -> None:
        for _ in range(40_000):
            self.now += 0.1
            if self.faulty:
                self.disturb()
            self.deliver()
            self.workers[self.random.randrange(self.world)].act()
            if any(each.is_dead for each in self.workers):
                self.begin()
            elif self.is_over():
                break
        else:
            raise AssertionError("the job does not end")
        due = [
            (epoch, place, n)
            for epoch in range(self.epochs)
            for place, length in enumerate(self.lengths)
            for n in range(length)
        ]
        assert Counter(self.commits[-1].model) == Counter(due)

    def is_over(self) -> bool:
        left = self.commits[-1].left
        return left is not None and not left.free and left.epoch == self.epochs


def seeds(hundred: int) -> Iterator[int]:
    return iter(range(100 * hundred, 100 * hundred + 100))


@pytest.mark.parametrize("hundred", range(10))
def test_each_record_is_in_the_final_model_once(hundred: int) -> None:
    for seed in seeds(hundred):
        try:
            Job(seed).run()
        except Exception as error:
            raise AssertionError(f"seed {seed}: {error!r}") from error


def test_the_simulation_finds_a_reader_that_forgets_what_it_trained_on() -> None:
    found = 0
    for seed in range(12):
        try:
            Job(seed, "forgets").run()
        except AssertionError:
            found += 1
    assert found > 5


def test_the_simulation_finds_a_master_that_overlooks_a_gap(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the numbers of asks, a journal that has lost its end would deal again what was dealt."""
    ask = Desks.ask

    def overlook(self: Desks, rank: int, message: AskData, now: float) -> list[tuple[int, DataAnswer]]:
        reader = self._desks[message.reader.name]._readers.get(rank) if self._desks else None
        if reader is not None and message.call > reader.call + 1:
            reader.call = message.call - 1
        return ask(self, rank, message, now)

    monkeypatch.setattr(Desks, "ask", overlook)
    found = 0
    for seed in range(200):
        try:
            Job(seed).run()
        except AssertionError:
            found += 1
    assert found
