"""How far shared datasets are: what of it is worth an entry of the event log.

Ranks ask for shards many times a second. Of each dataset a sample is told, at most once in ``EACH`` seconds
and only if it differs from the one before; one more of an epoch that has ended since, and one before
something else happens, as that may end the round. So the log grows by a bounded rate, whatever workers ask,
and what is kept here is of one round, and of so many datasets.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from elasticrun.core.protocol.chronicle import MAX_DATASET, MAX_DATASETS, DataProgress

if TYPE_CHECKING:
    from elasticrun.core.data.desk import Desks

#: Seconds between two samples of a dataset.
EACH = 5.0


class DataNotes:
    """Of the datasets of the newest round that has any."""

    def __init__(self) -> None:
        self._round = -1
        self._desks: Desks | None = None  # of that round
        self._told: dict[str, DataProgress] = {}  # the newest, by the name of the dataset
        self._sampled: dict[str, float] = {}  # when

    def take(self, name: str, round_: int, desks: Desks, now: float) -> Iterator[DataProgress]:
        """What is new of a dataset that somebody has asked for."""
        if desks is not self._desks:
            self._round, self._desks, self._told, self._sampled = round_, desks, {}, {}
        if now - self._sampled.get(name, -EACH) < EACH:
            return
        if name in self._sampled or len(self._sampled) < MAX_DATASETS:
            yield from self._sample(name)
            if name in self._told:  # else nobody has opened it
                self._sampled[name] = now

    def rest(self) -> Iterator[DataProgress]:
        """What was not told yet, as it was too soon."""
        for name in self._told:
            yield from self._sample(name)

    def _sample(self, name: str) -> Iterator[DataProgress]:
        desk = None if self._desks is None else self._desks.get(name)
        if desk is None:
            return
        before, found = self._told.get(name), desk.standing()
        new = [found]
        if before is not None and before.epoch < found.epoch:
            new.insert(0, desk.standing(before.epoch))
        for each in new:
            told = DataProgress(self._round, name[:MAX_DATASET], *each)
            if told != self._told.get(name):
                self._told[name] = told
                yield told
