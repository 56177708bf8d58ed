"""Saves and loads of a worker that may copy with several threads."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from elasticrun.core.protocol.commits import CommitId
from elasticrun.errors import CheckpointError

pytest.importorskip("torch", reason="needs torch: pip install 'elasticrun[torch]'")

import torch
import torch.distributed.checkpoint as dcp_module
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
from torch.distributed.checkpoint.planner import ReadItem

from elasticrun.checkpoint import copying, filling, parts
from elasticrun.checkpoint.memory import MemoryReader
from elasticrun.checkpoint.parallel import run_all
from tests.checkpoint.nodes import Node

dcp: Any = dcp_module  # it has no annotations

pytestmark = pytest.mark.torch


@pytest.fixture(autouse=True)
def started(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Four cores for a worker, and small tensors are copied as large ones are. The threads that copy."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1, 2, 3})
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)
    for module in (parts, copying):
        monkeypatch.setattr(module, "LEAST", 0)
    for module in (parts, filling):
        monkeypatch.setattr(module, "JOB", 4096)
    monkeypatch.setattr(filling, "PIECE", 1024)
    monkeypatch.setattr(copying, "BATCH", 100_000)
    start, found = threading.Thread.start, list[str]()

    def note(self: threading.Thread) -> None:
        found.append(self.name)
        start(self)

    monkeypatch.setattr(threading.Thread, "start", note)
    return found


def many() -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return {f"layer{number}": torch.randn(number * 1000, generator=generator) for number in range(20)}


def test_a_state_comes_back_bit_by_bit(node: Node, started: list[str]) -> None:
    worker, state = node.worker(), many()
    assert worker.save(1, dict(state))
    assert "elasticrun-copy" in started
    node.restart(1)
    started.clear()
    found = {name: torch.zeros_like(tensor) for name, tensor in state.items()}
    assert node.worker().load(dict(found)) == 1
    assert "elasticrun-copy" in started
    assert all(torch.equal(found[name], tensor) for name, tensor in state.items())


def test_damage_in_one_of_several_batches_is_told(node: Node) -> None:
    assert node.worker().save(1, dict(many()))
    node.restart(1)
    memory = node.host.connect()
    (part,) = memory.stored()
    damaged = bytearray(part.memory)
    damaged[-50_000] ^= 1  # in the last layer, before the index
    granted = memory.begin(2, len(damaged), len(damaged), "")
    granted.memory[: len(damaged)] = bytes(damaged)
    memory.end(2, len(damaged), part.digest, own=False)
    memory.close()
    node.host.begin(3, restore=CommitId(2, 2))
    with pytest.raises(CheckpointError, match=r"^layer19 is damaged in the part of rank 0"):
        node.worker().load(dict(many()))


def test_of_two_that_go_to_one_place_the_last_one_stays(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """As with weights that are tied, and were not when they were saved."""
    size = 10_000  # both are in one batch
    assert node.worker().save(1, {"a": torch.ones(size), "b": torch.full((size,), 2.0)})
    node.restart(1)

    def worst(jobs: Sequence[Callable[[], object]], threads: int) -> None:
        """Threads may take jobs in any order."""
        run_all(jobs if threads == 1 else jobs[::-1], 1)

    monkeypatch.setattr(copying, "run_all", worst)
    tied = torch.zeros(size)
    assert node.worker().load({"a": tied, "b": tied}) == 1
    assert torch.equal(tied, torch.full((size,), 2.0))


def test_parts_of_one_memory_are_filled_together(node: Node, started: list[str]) -> None:
    """As those of a flat buffer of parameters."""
    assert node.worker().save(1, {"a": torch.ones(9000), "b": torch.full((9000,), 2.0)})
    node.restart(1)
    started.clear()
    flat = torch.zeros(18_000)
    assert node.worker().load({"a": flat[:9000], "b": flat[9000:]}) == 1
    assert "elasticrun-copy" in started
    assert flat.tolist() == 9000 * [1.0] + 9000 * [2.0]


class Staging(DefaultLoadPlanner):
    """Has room for one tensor at a time, as one that moves each to another place."""

    def __init__(self) -> None:
        super().__init__()
        self.room = torch.zeros(9000)

    def resolve_tensor(self, read_item: ReadItem) -> torch.Tensor:
        return self.room

    def commit_tensor(self, read_item: ReadItem, tensor: torch.Tensor) -> None:
        super().resolve_tensor(read_item).copy_(tensor)


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_a_planner_of_its_own_hears_of_each_tensor_before_the_next(node: Node) -> None:
    assert node.worker().save(1, {"a": torch.ones(9000), "b": torch.full((9000,), 2.0)})
    node.restart(1)
    state = {"a": torch.zeros(9000), "b": torch.zeros(9000)}
    memory = node.host.connect()
    dcp.load(state, storage_reader=MemoryReader(memory, alone=True), planner=Staging(), no_dist=True)
    memory.close()
    assert [float(each[0]) for each in state.values()] == [1.0, 2.0]


def test_a_state_is_saved_in_the_mode_of_inference(node: Node) -> None:
    worker, state = node.worker(), many()
    with torch.inference_mode():
        assert worker.save(1, dict(state))
    node.restart(1)
    found = {name: torch.zeros_like(tensor) for name, tensor in state.items()}
    assert node.worker().load(dict(found)) == 1
    assert all(torch.equal(found[name], tensor) for name, tensor in state.items())


def test_a_handler_that_raises_during_a_load_is_told_as_a_failed_load(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other ranks would wait for one that raises alone."""
    assert node.worker().save(1, dict(many()))
    node.restart(1)

    def interrupted(jobs: object, threads: int) -> None:
        raise RuntimeError("preempted")

    monkeypatch.setattr(copying, "run_all", interrupted)
    with pytest.raises(CheckpointError, match="cannot be restored: preempted"):
        node.worker().load(dict(many()))
