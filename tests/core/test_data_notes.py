"""How far shared datasets are, and what of it gets into the event log."""

from __future__ import annotations

from typing import Any

from elasticrun.core.data.leases import Holder, Ledger, Progress
from elasticrun.core.data.shards import ENDLESS, Places
from elasticrun.core.data.standing import Standing, standing
from elasticrun.core.job.chronicler import Chronicler
from elasticrun.core.job.data_notes import EACH
from elasticrun.core.job.events import DataAsked, DataOpened, JobEffect, JobEvent
from elasticrun.core.protocol.chronicle import (
    MAX_DATASET,
    MAX_DATASETS,
    DataProgress,
    Happening,
    RoundStarted,
    RoundStopping,
)
from elasticrun.core.protocol.data import AskData, DataReader, OpenData, ShardProgress
from elasticrun.core.protocol.messages import AgentPhase
from tests.core.build import Job, failure

READY, RUNNING, FAILED = AgentPhase.READY, AgentPhase.RUNNING, AgentPhase.FAILED
KINDS = DataProgress | RoundStarted | RoundStopping


class Told(Job):
    """One node whose worker reads shared data alone; what is told of that, and of rounds."""

    def __init__(self) -> None:
        self.happened: list[Happening] = []
        self._chronicler: Chronicler | None = None
        self._calls: dict[tuple[int, str], int] = {}
        super().__init__(min_nodes=1, max_nodes=1, max_restarts=3)
        self.attach("a")
        self.report("a", RUNNING, 0)
        self.news()

    def do(self, event: JobEvent) -> list[JobEffect]:
        if self._chronicler is None:
            self._chronicler = Chronicler(self.machine.state)
        effects = super().do(event)
        told = self._chronicler.after(event, self.machine.state, effects)
        self.happened += [it for it in told if isinstance(it, KINDS)]
        return effects

    def news(self) -> list[Happening]:
        found, self.happened = self.happened, []
        return found

    def opens(self, name: str = "data", round_: int = 0) -> None:
        opened = OpenData("a.1", self._reader(name, round_), self._call(name, round_), "plan", 3, 1, 50.0)
        self.do(DataOpened(self.sessions["a"], opened))

    def asks(self, name: str = "data", round_: int = 0, **what: Any) -> None:
        asked = AskData("a.1", self._reader(name, round_), self._call(name, round_), **what)
        self.do(DataAsked(self.sessions["a"], asked))

    def reads(self, *leases: int, name: str = "data", epoch: int = 0) -> None:
        """Lease shards one by one, whose ids are known, and say that they are over."""
        for each in leases:
            self.asks(name, epoch=epoch, wanted=1)
            self.asks(name, progress=(ShardProgress(each, 5, is_over=True),))

    def _reader(self, name: str, round_: int) -> DataReader:
        return DataReader(round_, 0, name, f"{name[-9:]}{round_}", 0)

    def _call(self, name: str, round_: int) -> int:
        self._calls[round_, name] = self._calls.get((round_, name), 0) + 1
        return self._calls[round_, name]


def data(epoch: int, done: int, leased: int = 0, round_: int = 0, name: str = "data") -> DataProgress:
    return DataProgress(round_, name, epoch, done, leased, 0, 3)


def ledger(count: int, retries: int = 0) -> tuple[Ledger, Holder]:
    made = Ledger(Places(count, "plan"), retries=retries)
    made.restore(0, None)
    return made, Holder(0, "rank 0")


def test_each_shard_of_an_epoch_counts_once() -> None:
    it, holder = ledger(5)
    assert standing(it, 5) == Standing(0, 0, 0, 0, 5)
    leases = it.take(holder, 1, 0, 0.0, 4)
    it.consume(holder, 1, {leases[0].id: Progress(7, is_over=True), leases[1].id: Progress(2)}, 0.0)
    it.fail(holder, leases[2].id, 3, "bad sector")  # the records before the third are still leased
    assert standing(it, 5) == Standing(0, 1, 2, 1, 5)
    it.lose("rank 0")  # what it was at failed once too often; the rest is free
    assert standing(it, 5) == Standing(0, 1, 0, 2, 5)


def test_an_epoch_stays_in_sight_until_the_next_one_begins() -> None:
    it, holder = ledger(2)
    first, second = it.take(holder, 1, 0, 0.0, 2)
    it.consume(holder, 1, {first.id: Progress(7, is_over=True)}, 0.0)
    [third] = it.take(holder, 2, 1, 0.0)
    assert standing(it, 2) == Standing(0, 1, 1, 0, 2), "the oldest one"
    it.consume(holder, 2, {second.id: Progress(7, True), third.id: Progress(7, True)}, 0.0)
    assert standing(it, 2) == Standing(1, 1, 0, 0, 2)
    assert standing(it, 2, 0) == Standing(0, 2, 0, 0, 2)
    [last] = it.take(holder, 3, 1, 0.0)
    it.consume(holder, 3, {last.id: Progress(7, is_over=True)}, 0.0)
    assert standing(it, 2) == Standing(1, 2, 0, 0, 2)


def test_a_stream_has_no_end() -> None:
    it, holder = ledger(ENDLESS)
    it.take(holder, 1, 0, 0.0, 3)
    assert standing(it, ENDLESS) == Standing(0, 0, 3, 0, 0)


def test_samples_are_told_now_and_then_and_only_what_is_new() -> None:
    job = Told()
    job.opens()
    assert job.news() == [data(0, 0)]
    job.reads(1)
    assert job.news() == [], "it is too soon"
    job.now += EACH
    job.asks(epoch=0, wanted=1)
    assert job.news() == [data(0, 1, 1)]
    job.now += EACH
    job.asks()
    assert job.news() == [], "nothing has changed"


def test_the_end_of_an_epoch_is_told() -> None:
    job = Told()
    job.opens()
    job.reads(1, 2, 3)
    job.reads(4, epoch=1)
    job.now += EACH
    job.asks(epoch=1, wanted=1)
    assert job.news() == [data(0, 0), data(0, 3), data(1, 1, 1)]


def test_the_newest_is_told_before_the_round_stops_and_a_new_round_begins_anew() -> None:
    job = Told()
    job.opens()
    job.reads(1, 2)
    job.report("a", FAILED, 0, failure("a"))
    first, second, *_ = job.news()
    assert (first, second) == (data(0, 0), data(0, 2))
    job.report("a", READY, 0)
    assert not any(isinstance(it, DataProgress) for it in job.news())
    job.opens(round_=1)
    assert job.news() == [data(0, 0, round_=1)]


def test_what_nobody_has_opened_is_not_told() -> None:
    job = Told()
    job.asks("other")
    job.opens()
    job.asks("other")
    assert job.news() == [data(0, 0)]


def test_the_log_tells_of_so_many_datasets_and_cuts_their_names() -> None:
    job = Told()
    for number in range(MAX_DATASETS + 3):
        job.opens(f"{number:02}" + "x" * MAX_DATASET)
    told = job.news()
    assert len(told) == MAX_DATASETS
    assert all(isinstance(it, DataProgress) and len(it.dataset) == MAX_DATASET for it in told)
    job.report("a", FAILED, 0, failure("a"))
    assert not any(isinstance(it, DataProgress) for it in job.news())


def test_the_log_grows_by_a_bounded_rate() -> None:
    job = Told()
    job.opens()
    for number in range(300):
        job.now += 0.1
        job.reads(number + 1, epoch=number)
    assert len(job.news()) <= 2 * (30 / EACH + 1)
