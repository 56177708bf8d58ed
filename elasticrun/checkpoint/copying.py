"""Copies what a plan asks for from the parts of a commit to where it is wanted.

An item may be in several parts: what all ranks have alike is on each node, and each rank has its own values.
A copy that is damaged is passed over, and the item is taken from the next one.

Where other ranks send something, all ranks make as many rounds as the one that needs the most, and each rank
ends with the same error or with none. So an error waits until its round is over: other ranks wait for what
this one sends.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise

import torch
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
from torch.distributed.checkpoint.metadata import (
    BytesStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import LoadItemType, LoadPlan, LoadPlanner, ReadItem
from torch.distributed.tensor import DTensor

from elasticrun.checkpoint.exchange import Remote, Wanted, tell, transfer
from elasticrun.checkpoint.filling import Filling
from elasticrun.checkpoint.parallel import LEAST, batches, run_all
from elasticrun.checkpoint.parts import Damaged, Item, Part, is_unsealed, value_in
from elasticrun.errors import CheckpointError

logger = logging.getLogger("elasticrun")

#: Who holds the parts of this node, in place of the rank that sends another one.
HERE = -1

#: Bytes that are copied, in all threads, before the planner hears that they are there: until then it may hold
#: a tensor of its own for each item.
BATCH = 256 << 20

Place = tuple[Part | Remote, int]  # a part, and which of its items
Request = tuple[Place, ReadItem, torch.Tensor]  # where to take an item from, what of it, and its bytes


class Copies:
    """Where each item is: all its copies, the best one first."""

    def __init__(self) -> None:
        self._places: dict[MetadataIndex, list[Place]] = {}
        self._damaged: dict[tuple[int, int, int], str] = {}  # by holder, rank of the part, number of the item

    def arrange(self, found: Iterable[Part | Remote], rank: int) -> None:
        """Note where each item is. What this node has comes first, with digests before without; but of plain
        values, each rank's own.
        """
        self._places.clear()
        for part in sorted(
            found, key=lambda it: (isinstance(it, Remote), is_unsealed(it.facts), it.rank != rank)
        ):
            for number, item in enumerate(part.items):
                self._places.setdefault(item.index, []).append((part, number))
        for places in self._places.values():
            if not _item(places[0]).dtype:
                places.sort(key=lambda place: place[0].rank != rank)

    def best(self, index: MetadataIndex) -> Place:
        """Where to take an item from. Damaged if none of its copies is whole."""
        places = self._places[index]
        for part, number in places:
            if _key((part, number)) not in self._damaged:
                return part, number
        raise Damaged(self._damaged[_key(places[0])])

    def pass_over(self, place: Place, why: str) -> None:
        """Take an item from another one of its copies from now on."""
        if _key(place) not in self._damaged:
            logger.warning("%s; another copy is taken if there is one", why)
            self._damaged[_key(place)] = why


def _key(place: Place) -> tuple[int, int, int]:
    part, number = place
    return part.sender if isinstance(part, Remote) else HERE, part.rank, number


class Copying:
    """Fills what a plan asks for."""

    def __init__(
        self, copies: Copies, own: Sequence[Part], is_wide: bool, planner: LoadPlanner, threads: int = 1
    ) -> None:
        """``own``: what this node has. ``is_wide``: other ranks send what it does not have."""
        self._copies = copies
        self._own = own
        self._is_wide = is_wide
        self._planner = planner
        self._threads = threads
        self._left: list[ReadItem] = []  # what is to be taken from another copy
        self._error = ""

    def run(self, requests: Sequence[ReadItem], error: str = "") -> None:
        """Copy all that is requested. ``error``: why it cannot be; where ranks are connected all hear it.

        Raises:
            CheckpointError: no copy of an item is whole, or it does not fit.
        """
        self._error, self._left = error, [] if error else list(requests)
        while True:
            self._make_round()
            mine = self._error, bool(self._left)
            told = tell(mine) if self._is_wide else [mine]
            if errors := [each for each, _ in told if each]:
                raise CheckpointError(errors[0])
            if not any(more for _, more in told):
                return

    def _make_round(self) -> None:
        """Take each item from the best of its copies, and send what others want."""
        requests, self._left = self._left, []
        here: list[tuple[int, Request]] = []
        wanted: dict[Wanted, tuple[Place, list[ReadItem]]] = {}
        for request in requests:
            try:
                place = part, number = self._copies.best(request.storage_index)
            except CheckpointError as error:
                self._error = self._error or str(error)
                continue
            if isinstance(part, Remote):
                wish = Wanted(part.sender, part.rank, number)
                wanted.setdefault(wish, (place, []))[1].append(request)
            else:
                item = part.items[number]
                here.append((item.length, (place, request, part.data(item))))
        for batch in batches(here, BATCH if _may_wait(self._planner) else 0):
            self._fill(batch)
        if self._is_wide:
            lengths = {wish: _item(place).length for wish, (place, _) in wanted.items()}
            for wish, data in transfer(self._own, lengths):
                place, wishes = wanted[wish]
                self._fill([(place, request, data) for request in wishes])

    def _fill(self, batch: Sequence[Request]) -> None:
        """Copy what is requested. What is damaged is left to another copy."""
        ends = [(*each[:2], self._begin(*each)) for each in batch]
        fillings = [end for _, _, end in ends if isinstance(end, Filling)]
        threads = self._threads if sum(data.numel() for _, _, data in batch) >= LEAST else 1
        try:
            if threads == 1 or _overlap(fillings):  # the last one that is requested stays
                run_all([job for each in fillings for job in each.jobs()], 1)
            else:
                run_all([job for each in fillings if not each.may_be_elsewhere for job in each.jobs()], 1)
                run_all([job for each in fillings if each.may_be_elsewhere for job in each.jobs()], threads)
        except Exception as error:  # a signal's handler has raised; other ranks wait to hear of it
            logger.exception("the saved state cannot be restored")
            self._error = self._error or f"the saved state cannot be restored: {error}"
            return
        for place, request, end in ends:
            self._end(place, request, end)

    def _begin(self, place: Place, request: ReadItem, data: torch.Tensor) -> Filling | Exception | None:
        """How a tensor will be copied, or why it cannot be. None: it was no tensor, and is there."""
        item, rank = _item(place), place[0].rank
        try:
            if request.type is LoadItemType.BYTE_IO:
                self._planner.load_bytes(request, value_in(data, item, rank))
                return None
            box = tuple(zip(request.storage_offsets, request.lengths, strict=True))
            return Filling(self._planner.resolve_tensor(request).detach(), data, item, rank, box)
        except Exception as error:  # noqa: BLE001 what it means is judged below
            return error

    def _end(self, place: Place, request: ReadItem, end: Filling | Exception | None) -> None:
        """Tell the planner, or note why not."""
        name = _item(place).name
        try:
            if isinstance(end, Exception):
                raise end
            if end is not None:
                end.finish()
                self._planner.commit_tensor(request, end.target)
        except Damaged as damage:
            self._copies.pass_over(place, str(damage))
            self._left.append(request)
        except CheckpointError as error:
            self._error = self._error or str(error)
        except Exception as error:
            logger.exception("%s cannot be restored", name)
            self._error = self._error or f"{name} cannot be restored: {error}"


def _may_wait(planner: LoadPlanner) -> bool:
    """Whether a planner may be asked for further tensors before it hears that the first ones are filled."""
    kind = type(planner)
    return (
        getattr(kind, "resolve_tensor", None) is DefaultLoadPlanner.resolve_tensor
        and getattr(kind, "commit_tensor", None) is DefaultLoadPlanner.commit_tensor
    )


def _overlap(fillings: Sequence[Filling]) -> bool:
    """Whether two of them go to the same memory, as those of tied weights that were not tied when saved."""
    spans = sorted(each.span for each in fillings)
    return any(begin < end for (_, end), (begin, _) in pairwise(spans) if begin)


def _item(place: Place) -> Item:
    part, number = place
    return part.items[number]


# What fits


def misfit(targets: Mapping[str, object], metadata: Metadata) -> str:
    """The first of these targets that cannot take what was saved for it, in a sentence; "" if all can."""
    for name, target in targets.items():
        saved = metadata.state_dict_metadata.get(name)
        if not isinstance(target, torch.Tensor) or saved is None:
            continue  # what was not saved is the planner's to tell
        here = f"{name} is a tensor of {_kind(target.dtype)} of shape {list(target.size())} here"
        if isinstance(saved, BytesStorageMetadata):
            return f"{here}, and was saved as a plain value"
        if saved.size != target.size() or not _can_take(target.dtype, saved.properties.dtype):
            return f"{here}, and was saved as {_kind(saved.properties.dtype)} of shape {list(saved.size)}"
    return ""


def _kind(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _can_take(here: torch.dtype, saved: torch.dtype) -> bool:
    """Whether numbers of a type are still the same, but for their precision, in another type."""
    if here == saved or here.is_floating_point or here.is_complex or saved is torch.bool:
        return bool(torch.can_cast(saved, here))
    if here is torch.bool or saved.is_floating_point or saved.is_complex:
        return False
    mine, others = torch.iinfo(here), torch.iinfo(saved)
    return mine.min <= others.min and others.max <= mine.max


def missing_tensors(plan: LoadPlan, targets: Mapping[str, object], metadata: Metadata) -> list[str]:
    """The names of saved tensors of which a plan fills only a part, or nothing."""
    filled: dict[str, int] = {}
    for request in plan.items:
        if request.type is LoadItemType.TENSOR:
            name = request.dest_index.fqn
            filled[name] = filled.get(name, 0) + math.prod(request.lengths)
    return [
        name
        for name, target in targets.items()
        if isinstance(target, torch.Tensor)
        and isinstance(metadata.state_dict_metadata.get(name), TensorStorageMetadata)
        and filled.get(name, 0) < local_of(target).numel()
    ]


def local_of(tensor: torch.Tensor) -> torch.Tensor:
    """What this rank has of a tensor."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor
