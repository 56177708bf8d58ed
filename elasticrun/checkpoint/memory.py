"""Reads and writes commits in the agent's memory, by the protocols of ``torch.distributed.checkpoint``.

``MemoryWriter`` and ``MemoryReader`` can be given to ``save`` and ``load`` of that library. Each rank then
writes what its planner has decided, so nothing is left to divide. ``Checkpointer``
(``checkpoint/checkpointer.py``) saves without talking to other ranks.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch.distributed.checkpoint.metadata import (
    BytesStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import (
    LoadItemType,
    LoadPlan,
    LoadPlanner,
    ReadItem,
    SavePlan,
    SavePlanner,
)
from torch.distributed.checkpoint.storage import StorageReader, StorageWriter, WriteResult
from torch.distributed.tensor import DTensor
from torch.futures import Future

from elasticrun.checkpoint.agent_memory import AgentMemory, Granted
from elasticrun.checkpoint.exchange import Remote, Wanted, others, transfer
from elasticrun.checkpoint.parts import Item, Layout, Part, seal, tensor_in, value_in, write
from elasticrun.errors import CheckpointError

Place = tuple[Part | Remote, int]  # a part, and which of its items


def save_part(
    memory: AgentMemory, granted: Granted, layout: Layout, facts: dict[str, Any]
) -> tuple[torch.Tensor, list[Item], dict[str, Any]]:
    """Copy what a layout says into a buffer; ``finish_part`` completes it."""
    target = torch.frombuffer(granted.memory, dtype=torch.uint8)
    try:
        return target, write(target, layout.items(granted.divides)), facts
    except BaseException:
        memory.give_up()
        raise


def finish_part(
    memory: AgentMemory, step: int, target: torch.Tensor, items: Sequence[Item], facts: dict[str, Any]
) -> None:
    """Add digests and index to a part that was copied, and tell the agent that it is complete."""
    memory.end(step, *seal(target, items, facts), any(item.is_shard for item in items))


class MemoryWriter(StorageWriter):
    """Saves into the agent's memory: ``dcp.save(state, storage_writer=MemoryWriter(step))``."""

    def __init__(self, step: int, memory: AgentMemory | None = None) -> None:
        """``step`` must be larger than that of the last save in this round.

        Raises:
            CheckpointError: this process is no worker of elastic-run, or its agent cannot be reached.
        """
        self._step = step
        self._memory = memory if memory is not None else connected()

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        """Begin another save; the id means nothing here."""

    def set_up_storage_writer(self, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        """Nothing has to be prepared."""

    def prepare_local_plan(self, plan: SavePlan) -> SavePlan:
        """The plan as it is."""
        return plan

    def prepare_global_plan(self, plans: list[SavePlan]) -> list[SavePlan]:
        """The plans as they are."""
        return plans

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        """Copy this rank's part. Raises SaveRefused if the agent has no buffer for it."""
        layout = Layout(planner, plan.items)
        granted = self._memory.begin(self._step, layout.room(False), layout.room(False), "")
        facts = {"mappings": {}, "step": self._step}
        finish_part(self._memory, self._step, *save_part(self._memory, granted, layout, facts))
        done: Future[list[WriteResult]] = Future()
        done.set_result([WriteResult(item.index, 0, None) for item in plan.items])
        return done

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        """Nothing is left to do: the master knows by itself which ranks have saved."""

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        """No path names a commit in memory."""
        return False


class MemoryReader(StorageReader):
    """Reads the commit that this round restores: ``dcp.load(state, storage_reader=MemoryReader())``."""

    def __init__(self, memory: AgentMemory | None = None, rank: int | None = None) -> None:
        """``rank``: whose own values are preferred; by default this worker's.

        Raises:
            CheckpointError: nothing is there to restore, or this process is no worker of elastic-run.
        """
        self._memory = memory if memory is not None else connected()
        self._rank = int(os.environ.get("RANK", "0")) if rank is None else rank
        self._places: dict[MetadataIndex, Place] = {}
        self._metadata: Metadata | None = None
        self._parts: list[Part] | None = None  # that this node has
        self._is_wide = False  # other ranks send what is missing here

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        """Read anew; the id means nothing here."""

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        """What the commit has, as far as this node holds it."""
        if self._metadata is None:
            self._metadata = self._read()
        return self._metadata

    def set_up_storage_reader(
        self, metadata: Metadata, is_coordinator: bool, *args: Any, **kwargs: Any
    ) -> None:
        """Nothing has to be prepared."""

    def prepare_local_plan(self, plan: LoadPlan) -> LoadPlan:
        """The plan as it is."""
        return plan

    def prepare_global_plan(self, plans: list[LoadPlan]) -> list[LoadPlan]:
        """The plans as they are."""
        return plans

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        """Copy everything that the plan asks for. CheckpointError if some of it is not here, or damaged."""
        wanted: dict[Wanted, list[ReadItem]] = {}
        for request in plan.items:
            part, number = self._places[request.storage_index]
            if isinstance(part, Remote):
                wanted.setdefault(Wanted(part.sender, part.rank, number), []).append(request)
            else:
                _fill(planner, request, part.data(part.items[number]), part.items[number], part.rank)
        if self._is_wide:
            self._fetch(planner, wanted)
        done: Future[None] = Future()
        done.set_result(None)
        return done

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        """No path names a commit in memory."""
        return False

    def widen(self) -> None:
        """Let other ranks send what this node does not have. Every rank has to call it, and then to read."""
        self._is_wide = True
        found: list[Part | Remote] = [*self._stored(), *others(self._stored())]
        self._metadata = self._arrange(found)

    def _fetch(self, planner: LoadPlanner, wanted: Mapping[Wanted, list[ReadItem]]) -> None:
        """Take what other ranks send, and send what they want."""
        items: dict[Wanted, Item] = {}
        for wish, requests in wanted.items():
            part, number = self._places[requests[0].storage_index]
            items[wish] = part.items[number]
        lengths = {wish: item.length for wish, item in items.items()}
        for wish, data in transfer(self._stored(), lengths):
            for request in wanted[wish]:
                _fill(planner, request, data, items[wish], wish.part)

    def _stored(self) -> list[Part]:
        if self._parts is None:
            stored = self._memory.stored()
            self._parts = [Part(part.rank, memoryview(part.memory), part.digest) for part in stored]
        return self._parts

    def _read(self) -> Metadata:
        if not self._stored():
            raise CheckpointError("no state is in memory on this node that this round could restore")
        return self._arrange(self._stored())

    def _arrange(self, found: Sequence[Part | Remote]) -> Metadata:
        """Note where each item is: our own copies first, then what this node has, then the others."""
        self._places.clear()
        for part in sorted(found, key=lambda part: (isinstance(part, Remote), part.rank != self._rank)):
            for number, item in enumerate(part.items):
                self._places.setdefault(item.index, (part, number))
        return self._merge(sorted(found, key=lambda part: part.rank))

    def _merge(self, found: Iterable[Part | Remote]) -> Metadata:
        """The metadata of these parts together, in the order in which the items were saved."""
        kinds: dict[str, Any] = {}
        seen: set[MetadataIndex] = set()
        mappings: dict[str, tuple[str | int, ...]] = {}
        for part in found:
            mappings |= {
                name: tuple(path) for name, path in part.facts["mappings"].items() if name not in mappings
            }
            for item in part.items:
                if item.index in seen:
                    continue
                seen.add(item.index)
                if not item.dtype:
                    kinds[item.name] = BytesStorageMetadata()
                else:
                    size = torch.Size(item.size)
                    kind = kinds.setdefault(item.name, TensorStorageMetadata(item.properties, size, []))
                    kind.chunks.append(item.chunk)
        return Metadata(kinds, planner_data=mappings)


def _fill(planner: LoadPlanner, request: ReadItem, data: torch.Tensor, item: Item, rank: int) -> None:
    """Copy one item, of which these are the bytes, to where it is wanted."""
    if request.type is LoadItemType.BYTE_IO:
        planner.load_bytes(request, value_in(data, item, rank))
        return
    source = tensor_in(data, item, rank)
    for dim, (start, length) in enumerate(zip(request.storage_offsets, request.lengths, strict=True)):
        source = source.narrow(dim, start, length)
    target = planner.resolve_tensor(request).detach()
    target.copy_(source)
    planner.commit_tensor(request, target)


def missing_tensors(plan: LoadPlan, targets: Mapping[str, Any]) -> list[str]:
    """The names of tensors of which a plan fills only a part, or nothing."""
    filled: dict[str, int] = {}
    for request in plan.items:
        if request.type is LoadItemType.TENSOR:
            name = request.dest_index.fqn
            filled[name] = filled.get(name, 0) + math.prod(request.lengths)
    return [
        name
        for name, target in targets.items()
        if isinstance(target, torch.Tensor) and filled.get(name, 0) < local_of(target).numel()
    ]


def local_of(tensor: torch.Tensor) -> torch.Tensor:
    """What this rank has of a tensor."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def connected() -> AgentMemory:
    """A connection to this worker's agent. CheckpointError if there is none."""
    memory = AgentMemory.connect(os.environ)
    if memory is None:
        raise CheckpointError(
            "this process is no worker of elastic-run, so no agent keeps its state in memory"
        )
    return memory
