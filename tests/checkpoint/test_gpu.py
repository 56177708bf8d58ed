"""Copies from GPUs, with as much of ``torch.cuda`` as they use: no GPU is needed, and none is tested."""

from __future__ import annotations

import gc
import logging
import mmap
import os
import weakref
from typing import Any, ClassVar

import pytest

pytest.importorskip("torch", reason="needs torch: pip install 'elasticrun[torch]'")

import torch

from elasticrun.checkpoint import gpu
from elasticrun.checkpoint.checkpointer import Checkpointer
from elasticrun.checkpoint.parts import Item, write
from elasticrun.core.protocol.commits import CommitId
from tests.checkpoint.nodes import Node

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore::UserWarning:torch")]


class FakeGpu:
    """Notes what is called."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.pinned: dict[int, int] = {}  # bytes, by address
        self.refusal = 0

    # as torch.cuda

    def current_stream(self, device: object) -> FakeGpu:
        return self

    def Stream(self, device: object) -> FakeGpu:
        return self

    def stream(self, stream: FakeGpu) -> FakeGpu:
        return self

    def cudart(self) -> FakeGpu:
        return self

    # as a stream

    def record_event(self) -> str:
        self.calls.append("record")
        return "queued"

    def wait_event(self, event: str) -> None:
        self.calls.append(f"wait for {event}")

    def synchronize(self) -> None:
        self.calls.append("synchronize")

    def __enter__(self) -> None:
        self.calls.append("enter")

    def __exit__(self, *_: object) -> None:
        self.calls.append("leave")

    # as the runtime of CUDA

    def cudaHostRegister(self, address: int, size: int, flags: int) -> int:
        assert address not in self.pinned, "CUDA refuses what is pinned already"
        if not self.refusal:
            self.pinned[address] = size
        return self.refusal

    def cudaHostUnregister(self, address: int) -> int:
        del self.pinned[address]
        return 0


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> FakeGpu:
    made = FakeGpu()
    monkeypatch.setattr(torch, "cuda", made)
    monkeypatch.setattr(gpu, "_forget_error", lambda: made.calls.append("forget error"))
    return made


class OnGpu(torch.Tensor):
    """A tensor that says that it lies on a GPU."""

    is_cuda = True

    @staticmethod
    def of(*values: float) -> Any:
        return torch.tensor(values).as_subclass(OnGpu)


def test_copies_run_on_a_stream_of_their_own_and_are_waited_for(fake: FakeGpu) -> None:
    devices = gpu.Devices([OnGpu.of(1.0), OnGpu.of(2.0), torch.ones(1)])
    assert fake.calls == ["record"]
    with devices.beside():
        fake.calls.append("copy")
    assert fake.calls == ["record", "wait for queued", "enter", "copy", "synchronize", "leave"]


def test_without_a_gpu_nothing_is_called(fake: FakeGpu) -> None:
    with gpu.Devices([torch.ones(1)]).beside():
        pass
    assert not fake.calls


def saved(node: Node, worker: Checkpointer, step: int, weight: Any) -> None:
    """Save a step, of which the master says that all ranks have it."""
    assert worker.save(step, {"weight": weight})
    worker.wait()
    node.host.holdings()
    node.host.judge(kept=CommitId(1, step))


def test_a_buffer_is_pinned_once_and_let_go_before_it_is_unmapped(node: Node, fake: FakeGpu) -> None:
    worker, weight = node.worker(), OnGpu.of(1.0, 2.0)
    for step in range(1, 7):
        weight += 1.0
        saved(node, worker, step, weight)
    assert 1 <= len(fake.pinned) <= 2
    assert fake.calls.count("record") == fake.calls.count("synchronize") == 6
    many = OnGpu.of(*map(float, range(100_000)))  # needs larger buffers
    for step in (7, 8, 9):
        saved(node, worker, step, many)
    assert min(fake.pinned.values()) > 400_000, "those that were too small are gone"
    node.stop()
    assert not fake.pinned
    node.host.begin(2, restore=CommitId(1, 9))
    state = {"weight": torch.zeros(100_000)}
    assert node.worker().load(state) == 9
    assert torch.equal(state["weight"], torch.arange(100_000.0))


def test_buffers_stay_mapped_until_they_are_let_go(fake: FakeGpu) -> None:
    pins, memory = gpu.Pins(), mmap.mmap(-1, 4096)
    pins.pin(memory)
    is_mapped = weakref.ref(memory)
    del memory
    gc.collect()
    assert is_mapped()
    assert len(fake.pinned) == 1
    del pins
    gc.collect()
    assert not is_mapped()
    assert not fake.pinned


def test_a_forked_process_leaves_the_driver_alone(fake: FakeGpu, monkeypatch: pytest.MonkeyPatch) -> None:
    pins, memory = gpu.Pins(), mmap.mmap(-1, 4096)
    pins.pin(memory)
    monkeypatch.setattr(os, "getpid", lambda: 1)
    pins.release(memory)
    assert len(fake.pinned) == 1


def test_a_driver_that_refuses_to_pin_costs_speed_only(
    node: Node, fake: FakeGpu, caplog: pytest.LogCaptureFixture
) -> None:
    fake.refusal = 2
    worker = node.worker()
    with caplog.at_level(logging.WARNING, "elasticrun"):
        for step in (1, 2, 3):
            saved(node, worker, step, OnGpu.of(float(step)))
    assert caplog.text.count("the driver does not pin the agent's memory (CUDA error 2)") == 1
    assert 1 <= fake.calls.count("forget error") <= 3, "it is asked once for each buffer"
    node.stop()
    node.host.begin(2, restore=CommitId(1, 3))
    state = {"weight": torch.zeros(1)}
    assert node.worker().load(state) == 3
    assert state["weight"].item() == 3.0


class Negated(OnGpu):
    """Notes that somebody asks for its numbers as they are."""

    asked: ClassVar[list[str]] = []

    def resolve_conj(self) -> Any:
        self.asked.append("conj")
        return self

    def resolve_neg(self) -> Any:
        self.asked.append("neg")
        return torch.tensor([3.0])


def test_a_view_that_negates_is_resolved_on_the_gpu() -> None:
    """Torch would copy one with strides wrongly, and stop the host."""
    memory = torch.zeros(4, dtype=torch.uint8)
    item = Item("it", 0, 4, "float32", (1,), (0,), (1,))
    write(memory, [(item, torch.tensor([-3.0]).as_subclass(Negated))])
    assert memory.view(torch.float32).tolist() == [3.0]
    assert Negated.asked == ["conj", "neg"]
