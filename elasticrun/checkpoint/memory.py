"""Reads and writes commits in the agent's memory, by the protocols of ``torch.distributed.checkpoint``.

``MemoryWriter`` and ``MemoryReader`` can be given to ``save`` and ``load`` of that library. Each rank then
writes what its planner has decided, so nothing is left to divide: each part has tensors and values that no
other part has, and the commit is lost with it. ``Checkpointer`` (``checkpoint/checkpointer.py``) saves
without talking to other ranks.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Iterable
from typing import Any

import torch
from torch.distributed.checkpoint.metadata import (
    BytesStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import LoadPlan, LoadPlanner, SavePlan, SavePlanner
from torch.distributed.checkpoint.storage import StorageReader, StorageWriter, WriteResult
from torch.futures import Future

from elasticrun.checkpoint.agent_memory import AgentMemory, Granted
from elasticrun.checkpoint.copying import Copies, Copying, missing_tensors
from elasticrun.checkpoint.exchange import Remote, is_possible, others
from elasticrun.checkpoint.gpu import Devices
from elasticrun.checkpoint.parallel import threads_for
from elasticrun.checkpoint.parts import Item, Layout, Part, enlist, is_unsealed, place, seal, write
from elasticrun.errors import CheckpointError

logger = logging.getLogger("elasticrun")


class Writing:
    """One part on its way into a buffer: all of it is copied, then it is completed."""

    def __init__(self, memory: AgentMemory, granted: Granted, layout: Layout, facts: dict[str, Any]) -> None:
        self._memory = memory
        with torch.inference_mode(False):  # else only threads in that mode could write to it
            self._target = torch.frombuffer(granted.memory, dtype=torch.uint8)
        self._facts = facts
        self.placed = layout.items(granted.divides)
        self.items = place(self.placed)

    def copy(
        self, placed: Iterable[tuple[Item, torch.Tensor]], devices: Devices | None = None, threads: int = 1
    ) -> None:
        """Copy some of ``placed``, in so many threads. If that fails, the save has to be given up.

        ``devices``: the GPUs that they are on, if what was queued there counted from an earlier moment.
        """
        given = [*placed]
        beside = (devices or Devices(tensor for _, tensor in given)).beside()
        with torch.inference_mode(False), beside:
            write(self._target, given, threads)

    def finish(self, step: int, own: bool) -> None:
        """Add an index, and then digests; tell the agent after each that the part could be restored.

        ``own``: it has what no other rank has saved.
        """
        self._memory.copied(step, *enlist(self._target, self.items, self._facts), own)
        self._memory.end(step, *seal(self._target, self.items, self._facts), own)


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
        facts = {"mappings": {}, "step": self._step}
        try:
            granted = self._memory.begin(self._step, layout.room(False), layout.room(False), "")
            writing = Writing(self._memory, granted, layout, facts)
            writing.copy(writing.placed, threads=threads_for(os.environ))
            writing.finish(self._step, own=bool(plan.items))  # torch has each item saved by one rank only
        except BaseException:
            with contextlib.suppress(CheckpointError):
                self._memory.give_up()  # else the agent would refuse each later save of this round
            raise
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

    def __init__(
        self, memory: AgentMemory | None = None, rank: int | None = None, alone: bool = False
    ) -> None:
        """``rank``: whose own values are preferred; by default this worker's. ``alone``: ask no other rank.

        Raises:
            CheckpointError: this process is no worker of elastic-run, or its agent cannot be reached.
        """
        self._memory = memory if memory is not None else connected()
        self._rank = int(os.environ.get("RANK", "0")) if rank is None else rank
        self._alone = alone
        self._copies = Copies()
        self._metadata: Metadata | None = None
        self._parts: list[Part] | None = None  # that this node has
        self._others: list[Remote] | None = None  # that other ranks send; None: they were not asked
        self.facts: list[dict[str, Any]] = []  # of each part, once the metadata was read
        self.faults: list[str] = []  # why parts of this node cannot be read, in words

    @property
    def step(self) -> int | None:
        """The step that this round restores, the same on all ranks; None: nothing is in memory."""
        return None if self._memory.restore is None else self._memory.restore[1]

    @property
    def is_empty(self) -> bool:
        """Whether nothing is in memory to restore, as when a job starts: ``load`` would raise."""
        return self._memory.restore is None

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        """Read anew; the id means nothing here."""

    # If there were an argument ``kwargs``, torch would ask once more, then without the other ranks.
    def read_metadata(self) -> Metadata:
        """What the commit has. Every rank has to call it, unless ``alone``: other ranks tell what they have.

        Raises:
            CheckpointError: nothing is there to restore.
        """
        if self._metadata is None:
            if not self.is_wide and not self._alone and is_possible():
                self.widen()
            found = [*self.own, *(self._others or ())]
            if not found:
                where = "on any node" if self.is_wide else "on this node"
                raise CheckpointError(f"no state is in memory {where} that this round could restore")
            self._copies.arrange(found, self._rank)
            if bare := sorted({part.rank for part in found if is_unsealed(part.facts)}):
                logger.info("what ranks %s saved has no checksums: they were killed before", bare)
            self.facts = list({part.rank: part.facts for part in found}.values())
            self._metadata = _merge(sorted(found, key=lambda part: part.rank))
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
        """Copy everything that the plan asks for. If one rank cannot, all of them raise the same error.

        Raises:
            CheckpointError: some of it is not here, or damaged.
        """
        copying = Copying(self._copies, self.own, self.is_wide, planner, threads_for(os.environ))
        copying.run(plan.items, self._lack(plan, planner))
        done: Future[None] = Future()
        done.set_result(None)
        return done

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        """No path names a commit in memory."""
        return False

    def empty(self) -> None:
        """Take what was read out of this process's memory; it can be read again, more slowly."""
        for part in self._parts or ():
            part.empty()

    @property
    def is_wide(self) -> bool:
        """Whether other ranks send what this node does not have, or has damaged."""
        return self._others is not None

    def widen(self) -> None:
        """Let other ranks send what is missing or damaged here. Every rank has to call it, then to read."""
        self._others = others(self.own, self._memory.name)
        self._metadata = None

    def _lack(self, plan: LoadPlan, planner: LoadPlanner) -> str:
        """Why a plan does not fill its tensors, in a sentence; "" if it does. torch would not tell."""
        targets = getattr(planner, "state_dict", {})
        missing = missing_tensors(plan, targets, self._metadata) if self._metadata is not None else []
        return f"parts of the saved state are missing, the first of {missing[0]}" if missing else ""

    @property
    def own(self) -> list[Part]:
        """The parts that this node has, as far as they can be read; other ranks may have what they cannot."""
        if self._parts is None:
            self._parts = []
            try:
                for each in self._memory.stored():
                    try:
                        self._parts.append(Part(each.rank, memoryview(each.memory), each.digest))
                    except CheckpointError as error:
                        self._note(str(error))
            except (CheckpointError, OSError) as error:
                self._note(f"what this node has in memory cannot be read: {error}")
        return self._parts

    def _note(self, fault: str) -> None:
        logger.warning("%s; another copy is taken if there is one", fault)
        self.faults.append(fault)


def _merge(found: Iterable[Part | Remote]) -> Metadata:
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


def connected() -> AgentMemory:
    """A connection to this worker's agent. CheckpointError if there is none."""
    memory = AgentMemory.connect(os.environ)
    if memory is None:
        raise CheckpointError(
            "this process is no worker of elastic-run, so no agent keeps its state in memory"
        )
    return memory
