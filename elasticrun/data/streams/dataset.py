"""``StreamDataset``: batches from a stream, whose position is saved with the model.

Theory. The position of a partition moves when the loop gets a batch, and at no other time. A state has the
positions of all ranks after the same step (``core/data/streams.py``), and is saved with the model of that
step. So whatever is restored, the records below its positions are in the model exactly once, and reading
goes on with the others. What the broker knows of it is never asked, except where a training begins anew.

Why the ranks tell each other their positions when a state is made. Who goes on with a partition is known only
after the next change of the world, and each rank restores one rank's values, which may be those of another
one. So each must have all. The price is one small exchange for each save, at a point where ranks that train
together are at the same step anyway.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Literal

from torch.utils.data import IterableDataset, default_collate, get_worker_info

from elasticrun.core.data.streams import (
    Failed,
    Gap,
    Standing,
    Told,
    from_state,
    grown,
    merge,
    share,
    to_state,
)
from elasticrun.core.protocol.commits import CommitId
from elasticrun.data.streams.options import Options, converter
from elasticrun.data.streams.prefetch import Item, Prefetch, persist
from elasticrun.data.streams.ranks import Beginning, Ranks, find, first_positions
from elasticrun.data.streams.source import Record, Source, Start
from elasticrun.data.streams.telling import Telling
from elasticrun.dataclass import dataclass
from elasticrun.errors import DataError

logger = logging.getLogger("elasticrun")

ROUND = "ELASTICRUN_ROUND"


@dataclass(frozen=True, slots=True)
class Batch:
    """Records that the loop gets together."""

    data: Any  # what collate_fn made of them; None if there are none
    places: tuple[tuple[str, int], ...]  # partition and offset of each


class StreamDataset(IterableDataset[Batch]):
    """An iterable of batches without an end, whose state is what the loop has got.

    ``source`` is a ``KafkaSource``, a ``RedisSource``, or what has the methods of ``Source``. ``decode``
    makes a sample of a record, by default its value; ``collate_fn`` makes a batch of samples. A record of
    which ``decode`` raises, or one of more than ``max_bytes``, is left out and reported (``failed``); more
    than ``max_failed`` are an error.

    A batch is handed out when it is full, or ``linger`` seconds after its first record came. With
    ``may_be_empty`` it is handed out after ``linger`` seconds even without a record, with ``data=None``: so a
    rank whose partitions are idle need not hold up the others.

    ``start`` is for partitions that are in no saved state when a training begins; those that are added later
    begin with their oldest record. ``on_gap`` says what happens when records were removed before they were
    trained on: "refuse" is an OffsetGoneError, "oldest" goes on with what is left and reports it (``gaps``).
    A broker that is away is waited for, up to ``patience`` seconds.

    With several ranks each reads a share of the partitions. Then ``state_dict``, and the first batch, are
    exchanges: all ranks of ``group`` have to make them, after the same steps.

    Raises:
        DataError: an option is none that can be, or the ranks are not connected.
    """

    def __init__(
        self,
        source: Source,
        batch_size: int = 1,
        *,
        decode: Callable[[Record], Any] | None = None,
        collate_fn: Callable[[list[Any]], Any] = default_collate,
        linger: float = 1.0,
        may_be_empty: bool = False,
        start: Literal["oldest", "newest", "committed"] = "oldest",
        on_gap: Literal["refuse", "oldest"] = "refuse",
        prefetch: int = 2,
        max_bytes: int = 16 << 20,
        max_failed: int = 100,
        patience: float = 300.0,
        group: Any = None,
    ) -> None:
        self._options = Options(
            *(batch_size, linger, may_be_empty, start, on_gap),
            *(prefetch, max_bytes, max_failed, patience),
        )
        self._options.check()
        self._ranks = Ranks(group)
        self._source, self._collate = source, collate_fn
        self._convert = converter(decode, max_bytes)
        self._round = int(os.environ.get(ROUND, "0"))
        self._iteration = 0
        self._positions: dict[str, int]  # of the partitions that this rank reads
        self._failed: list[Failed]  # of this rank, since it began
        self._gaps: list[Gap]
        self._snapshot: Standing | None  # the state that was made last
        self._prefetch: Prefetch | None
        self._is_open: bool  # the ranks know who reads what
        self._closed = threading.Event()
        self._loaded: Standing | None = None
        self._begin(Standing({}))
        self._telling = Telling(source)

    # -- what the loop asks

    def __iter__(self) -> Iterator[Batch]:
        """The batches from the position on. An iteration that began before is over."""
        if get_worker_info() is not None:
            raise DataError(
                "a StreamDataset reads ahead in a thread of its own: give the DataLoader around it no"
                " workers, which would lose the position"
            )
        self._iteration += 1
        return self._hand_out(self._iteration)

    @property
    def positions(self) -> Mapping[str, int]:
        """The partitions that this rank reads, and the first offset of each that the loop has not got."""
        return dict(self._positions)

    @property
    def failed(self) -> tuple[Failed, ...]:
        """The records that were left out: of all ranks until the loaded state, of this one since."""
        return (*self._before.failed, *self._failed)

    @property
    def gaps(self) -> tuple[Gap, ...]:
        """What was removed before it was trained on: of all ranks until the loaded state, this one since."""
        return (*self._before.gaps, *self._gaps)

    # -- the state

    def state_dict(self) -> dict[str, Any]:
        """The positions of all ranks, as plain values. All ranks have to call it after the same step."""
        prefetch = self._open()
        told = self._ranks.tell(Told(self._positions, prefetch.seen, tuple(self._failed), tuple(self._gaps)))
        self._snapshot = standing = merge(self._before, told, self._round)
        if new := grown(told):
            mine = share(new, self._ranks.rank, self._ranks.size, len(standing.positions))
            self._positions |= (found := find(self._source, mine, Start.OLDEST, self._persist))
            prefetch.join(found)
        return to_state(standing)

    def load_state_dict(self, state: Any) -> None:
        """Let the next iteration go on where the state was saved, in a world of any size.

        Raises:
            DataError: it is damaged, or no state of a stream.
        """
        standing = from_state(state)
        self._end()
        self._iteration += 1
        self._begin(standing)
        self._loaded = standing

    # -- what the broker is told

    def saved(self, step: int) -> None:
        """Say, after ``save``, that the state that was made last belongs to this step.

        Raises:
            DataError: no state was made yet.
        """
        if self._snapshot is None:
            raise DataError(f"step {step} has no position: save a state with the StreamDataset first")
        self._telling.saved(CommitId(self._round, step), self._snapshot.positions)

    def restored(self, step: int) -> None:
        """Say, after ``load``, that the loaded state belongs to this step. Without one it does nothing."""
        if self._loaded is not None:
            self._telling.restored(CommitId(self._loaded.round, step), self._loaded.positions)

    def durable(self, step: int, round: int | None = None) -> bool:
        """Say that a storage has this step of a round, by default of this one: tell the broker its offsets.

        Each rank calls it, and tells those of its own partitions. It may be called in any thread, late, twice
        or in any order. Returns whether the broker knows all that it may know; if not, the next call tries
        again. It never raises because of the broker: the training does not need it.
        """
        commit = CommitId(self._round if round is None else round, step)
        return self._telling.durable(commit, self._positions) and self._is_open

    def close(self) -> None:
        """Stop reading, and hang up."""
        self._closed.set()
        self._end()
        self._source.close()

    # -- parts

    def _begin(self, standing: Standing) -> None:
        self._before = standing
        self._positions, self._failed, self._gaps = {}, [], []
        self._snapshot = self._prefetch = None
        self._is_open = False

    def _open(self) -> Prefetch:
        """Begin to read, if that has not begun. The first time is an exchange."""
        if not self._is_open:
            start = Start(self._options.start) if self._loaded is None else Start.OLDEST
            how = Beginning(start, self._options.may_be_empty)
            self._positions = first_positions(self._source, self._ranks, self._before, how, self._persist)
            self._is_open = True
        if self._prefetch is None:
            self._prefetch = Prefetch(self._source, self._positions, self._convert, self._options.limits)
        return self._prefetch

    def _end(self) -> None:
        if self._prefetch is not None:
            self._prefetch.stop()
            self._prefetch = None

    def _hand_out(self, iteration: int) -> Iterator[Batch]:
        options = self._options
        while True:
            self._check(iteration)
            prefetch = self._open()
            try:
                items = prefetch.take(options.batch_size, options.linger, options.may_be_empty)
                self._check_faults(items)
                records = [item for item in items if item.gap is None and not item.fault]
                data = self._collate([item.value for item in records]) if records else None
            except BaseException:  # what was read ahead is lost with it: who goes on begins at the position
                self._end()
                raise
            for item in items:
                self._note(item)
            if records or options.may_be_empty:
                yield Batch(data, tuple((item.partition, item.offset) for item in records))

    def _check_faults(self, items: list[Item]) -> None:
        most = self._options.max_failed
        faulty = [item for item in items if item.fault]
        if faulty and len(self.failed) + len(faulty) > most:
            raise DataError(
                f"more than {most} records cannot be read (max_failed), the last one:"
                f" {self._told(faulty[-1])}"
            )

    def _told(self, item: Item) -> str:
        shown = self._source.shown(item.offset)
        return f"record {shown} of {item.partition} is left out: {item.fault}"

    def _note(self, item: Item) -> None:
        """The loop has this item."""
        self._positions[item.partition] = item.next
        if item.gap is not None:
            self._gaps.append(item.gap)
            wanted, oldest = self._source.shown(item.gap.wanted), self._source.shown(item.gap.oldest)
            logger.warning(
                "records %s to %s of %s were removed before they were trained on: they are left out",
                *(wanted, oldest, item.partition),
            )
        elif item.fault:
            self._failed.append(Failed(item.partition, item.offset, item.fault))
            logger.warning("%s", self._told(item))

    def _persist(self, action: Callable[[], Any]) -> Any:
        return persist(action, self._options.limits.patience, self._closed)

    def _check(self, iteration: int) -> None:
        if iteration != self._iteration or self._closed.is_set():
            raise DataError(
                "this iteration is over: another one has begun since, a state was loaded, or the dataset was"
                " closed; a position cannot follow two loops"
            )
