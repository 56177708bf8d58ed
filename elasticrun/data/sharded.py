"""``ShardedDataset``: reads shards of files or streams, each record once, whoever is killed.

Theory. The process of the training loop takes leases, and cuts each into chunks of a batch. The workers of
torch's ``DataLoader`` read chunks, and the loader hands them out in the order in which they were cut. So this
process knows which records each batch has, and its position is what the loop has got, however far workers are
ahead.
A state says so to the ledger, and has what is left; so leases that were taken ahead are given back by whoever
loads it.

Several ranks share leases (``shared_leases.py``); in step (``in_step.py``) they have equally many batches.

A chunk that comes up short ends its lease: at the end of a file whose records nobody had counted, or where it
cannot be read. Chunks of it that are still under way are dropped, as they do not begin where the loop is.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice
from typing import Any, NamedTuple

import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, Sampler, default_collate, get_worker_info

from elasticrun.core.data.batches import Part
from elasticrun.core.data.leases import Failed, Lease, Progress
from elasticrun.core.data.record import is_number
from elasticrun.core.data.shards import Plan, Shard
from elasticrun.data.in_step import Agreement, Sized, goes_in_step, in_step
from elasticrun.data.lease_source import LeaseSource, LocalLeases
from elasticrun.data.shared_leases import SharedLeases
from elasticrun.data.trail import Trail
from elasticrun.data.world import find_world
from elasticrun.errors import DataError

logger = logging.getLogger("elasticrun")

FORMAT = 1
#: How many shards are tried for a batch that fills a step up.
MAX_PADDING = 64
Read = Callable[[Shard], Iterable[Any]]


class Chunk(NamedTuple):
    """The records of one batch."""

    lease: int
    shard: Shard


class Answer(NamedTuple):
    """What was read of a chunk."""

    chunk: Chunk
    records: int
    batch: Any  # None if there are none
    fault: str  # why there are no more; "": they end here


class ShardedDataset(IterableDataset[Any]):
    """An iterable of batches, whose state is what the loop has got.

    ``plan`` says what there is to read: ``Plan.of_files``, ``Plan.of_samples``, ``Plan.of_streams``.
    ``read(shard)`` gives the records ``shard.start`` to ``shard.stop`` of ``shard.name``; fewer only where it
    ends. An ``OSError`` in it is tried again, and then reported: see ``failed``. ``options`` are those of
    torch's ``DataLoader`` that are about reading, such as ``num_workers``.

    A batch never has records of two shards. An iteration is an epoch, and goes on where the last one stopped;
    after the end of an epoch the next one begins. To use torch's loader around it, give that
    ``batch_size=None`` and no workers of its own.

    All ranks of a world share the shards, and who is faster gets more; each has to save the same steps, as
    ``state_dict`` waits for all of them, ``patience`` seconds at most. ``name`` is that of the data: each
    dataset of a script needs its own. ``readers``: how many ranks share them, by default all.

    ``in_step``: all ranks get equally many batches, and ``part.scale`` says how a batch weighs: that is for
    exchanged gradients. By default so if the ranks are connected by ``torch.distributed``.

    ``saved=False``: it is in no saved state, as for an evaluation. Each round begins it anew.
    """

    def __init__(
        self,
        read: Read,
        plan: Plan,
        batch_size: int = 1,
        collate_fn: Callable[[list[Any]], Any] = default_collate,
        source: LeaseSource | None = None,
        *,
        name: str = "data",
        readers: int | None = None,
        patience: float = 600.0,
        in_step: bool | None = None,
        saved: bool = True,
        **options: Any,
    ) -> None:
        """DataError: the batch or an option is none that can be."""
        if not is_number(batch_size, 1):
            raise DataError(f"batch_size is a number of records from 1 on, got {batch_size!r}")
        if not options.get("in_order", True):
            raise DataError("with in_order=False nobody knows which batches were handed out: leave it out")
        self.epoch = 0
        #: What the batch is that the loop has got last.
        self.part = Part(0, 1.0, True)
        self._readers = find_world(None, None).size if readers is None else readers
        if not is_number(self._readers, 1) or not name or not patience > 0:
            raise DataError(
                "readers and patience are numbers above 0, and the name is not empty: got"
                f" {readers!r}, {patience!r} and {name!r}"
            )
        self._source = source or _source_of(plan, name, self._readers, patience)
        self._plan = plan
        self._in_step = in_step
        self._is_saved = saved
        self._trail = Trail()
        self._agreement = Agreement()
        self._leases: dict[int, Lease] = {}  # that are open, oldest first
        self._progress: dict[int, Progress] = {}  # of leases that moved since the last state
        self._at: dict[int, int] = {}  # the first record that the loop has not got, of the open ones
        self._iteration = 0
        self._chunks = _Chunks(self, batch_size)
        options.setdefault("generator", torch.Generator())  # else each epoch draws from the script's
        as_it_is: Any = _as_it_is  # torch's types know only of lists
        self._reader = _Reader(read, collate_fn)
        self._loader = DataLoader(
            self._reader, batch_size=None, sampler=self._chunks, collate_fn=as_it_is, **options
        )

    @property
    def failed(self) -> tuple[Failed, ...]:
        """What could not be read in several attempts, and is left out: the newest."""
        return self._source.failed

    def __iter__(self) -> Iterator[Any]:
        """The next batches, until the end of the epoch."""
        if get_worker_info() is not None:
            raise DataError(
                "a ShardedDataset has workers of its own: give num_workers to it, and not to the DataLoader"
                " around it, which would lose the position"
            )
        self._iteration += 1
        if goes_in_step(self._in_step, self._readers):
            return self._in_steps(self._iteration)
        return self._alone(self._iteration)

    def state_dict(self) -> dict[str, Any]:
        """What is left after the last batch that the loop has got, as plain values."""
        self._check_saved()
        self._source.consume(self._progress)
        self._progress = {}
        leases = self._source.state()
        self._report()
        return {"format": FORMAT, "epoch": self.epoch, "leases": leases}

    def load_state_dict(self, state: Any) -> None:
        """Let the next iteration go on where the state was saved.

        Raises:
            DataError: it is damaged, or of another plan.
        """
        self._check_saved()
        if not isinstance(state, Mapping) or state.get("format") != FORMAT or "leases" not in state:
            raise DataError(
                "the saved state of the shards is none: it has no format that this elasticrun reads"
            )
        if not is_number(state.get("epoch"), 0):
            raise DataError(f"the saved state of the shards is damaged: its epoch is {state.get('epoch')!r}")
        self._source.load(state["leases"])
        left = [each[0] for each in state["leases"]["free"]]
        self.epoch = min([state["epoch"], *left])  # a rank that saved it may have been ahead of others
        is_first = self._readers == 1 or find_world(None, None).rank == 0
        self._trail.begin(state["leases"] if is_first else None)
        self._iteration += 1
        for each in (self._leases, self._progress, self._at):
            each.clear()

    def audit_trail(self) -> dict[str, Any]:
        """What the loop has got since the last call, as plain values: for ``elastic-ctl audit``."""
        return self._trail.taken()

    def open_leases(self) -> Iterator[tuple[Lease, int]]:
        """Leases of this epoch to cut, and from where: those that are open, then new ones."""
        for id, lease in list(self._leases.items()):
            yield lease, self._at[id]
        while found := self._source.take(self.epoch):
            for lease in found:
                self._leases[lease.id], self._at[lease.id] = lease, lease.shard.start
                yield lease, lease.shard.start

    def is_open(self, lease: int) -> bool:
        """Whether more of a lease is wanted."""
        return lease in self._leases

    def _alone(self, iteration: int) -> Iterator[Any]:
        """The batches of this rank."""
        for batch, count in self._hand_out(iteration):
            self.part = Part(count, 1.0, True)
            yield batch
        self.epoch += 1

    def _in_steps(self, iteration: int) -> Iterator[Any]:
        """Batches and padding, as many as on each other rank."""
        for batch, part in in_step(self._hand_out(iteration), self._padding, self._agreement):
            self._check(iteration)
            self.part = part
            yield batch
        self.epoch += 1

    def _padding(self) -> Any:
        """A batch for a rank that has had none: of the first shard that can be read."""
        for place in range(min(MAX_PADDING, self._plan.count)):
            shard = self._plan.shard(self.epoch, place)
            answer = self._reader[Chunk(0, Shard(shard.name, shard.start, min(shard.start + 2, shard.stop)))]
            if answer.records:
                return answer.batch
        raise DataError(
            f"this rank has no batch to fill a step up with: of the {place + 1} shards that were tried none"
            f" can be read or has records, the last one of {shard.name or 'the dataset'}"
            f"{answer.fault and f' ({answer.fault})'}"
        )

    def _hand_out(self, iteration: int) -> Iterator[Sized]:
        self._check(iteration)
        while True:
            has_read = False
            for answer in self._loader:
                self._check(iteration)
                has_read = True
                if self._at.get(answer.chunk.lease) == answer.chunk.shard.start:
                    self._note(answer)
                    if answer.records:
                        yield answer.batch, answer.records
            self._check(iteration)
            if not has_read:  # else what could not be read may be tried again
                break

    def _note(self, answer: Answer) -> None:
        """The loop gets a batch; it may be the last one of its lease."""
        (id, shard), at = answer.chunk, answer.chunk.shard.start + answer.records
        is_short = at < shard.stop
        self._at[id] = at
        if answer.records and self._is_saved:
            self._trail.add(self._leases[id].epoch, shard.name, shard.start, at)
        if answer.records or not answer.fault:
            self._progress[id] = Progress(at, is_over=is_short and not answer.fault)
        if answer.fault:
            self._source.fail(id, at, answer.fault)
            self._report()
        if is_short or at == self._leases[id].shard.stop:
            del self._leases[id], self._at[id]
            if not self._is_saved and id in self._progress:
                self._source.end(id, self._progress.pop(id))

    def _report(self) -> None:
        """Write down what is left out since the last time. If ranks share the data, the master says so."""
        for each in self._source.news():
            shard = each.shard
            if self._is_saved:
                self._trail.leave_out(each.piece.epoch, shard.name, shard.start, shard.stop, each.reason)
            if self._readers == 1:
                logger.warning(
                    "records %d to %d of %s are left out: %s",
                    *(shard.start, shard.stop, shard.name or "the dataset", each.reason),
                )

    def _check_saved(self) -> None:
        if not self._is_saved:
            raise DataError(
                "these shards have saved=False, so nobody knows what is left of them: leave them out of the"
                " state, or make them without it"
            )

    def _check(self, iteration: int) -> None:
        if iteration != self._iteration:
            raise DataError(
                "this iteration is over: another one has begun since, or a state was loaded; a position"
                " cannot follow two loops"
            )


class _Chunks(Sampler[Chunk]):
    """Cuts leases into batches, in the process of the loop."""

    def __init__(self, dataset: ShardedDataset, size: int) -> None:
        self._dataset = dataset
        self._size = size

    def __iter__(self) -> Iterator[Chunk]:
        for lease, at in self._dataset.open_leases():
            while at < lease.shard.stop and self._dataset.is_open(lease.id):
                stop = min(at + self._size, lease.shard.stop)
                yield Chunk(lease.id, Shard(lease.shard.name, at, stop))
                at = stop


class _Reader(Dataset[Answer]):
    """Reads chunks, in a worker."""

    def __init__(self, read: Read, collate: Callable[[list[Any]], Any]) -> None:
        self._read = read
        self._collate = collate

    def __getitem__(self, chunk: Chunk) -> Answer:
        wanted, records, fault = chunk.shard.stop - chunk.shard.start, list[Any](), ""
        try:
            records.extend(islice(self._read(chunk.shard), wanted))
        except OSError as error:
            fault = str(error) or type(error).__name__
        return Answer(chunk, len(records), self._collate(records) if records else None, fault)


def _source_of(plan: Plan, name: str, readers: int, patience: float) -> LeaseSource:
    """The ledger of the ranks that share the data."""
    return LocalLeases(plan) if readers == 1 else SharedLeases(plan, name, readers, patience)


def _as_it_is(answer: Answer) -> Answer:
    return answer
