"""Saves from a real GPU, and what comes back. Skipped where there is none; ``test_gpu.py`` has stand-ins."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("torch", reason="needs torch: pip install 'elasticrun[torch]'")

import torch
from torch import nn

from elasticrun import RandomState
from elasticrun.checkpoint.checkpointer import Checkpointer
from elasticrun.core.protocol.commits import CommitId
from tests.checkpoint.nodes import Node

pytestmark = [
    pytest.mark.torch,
    pytest.mark.filterwarnings("ignore::UserWarning:torch"),
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU that torch can use"),
]

DEVICE = "cuda"
LARGE = 16 << 20  # numbers: their copy takes a millisecond
CYCLES = 100_000_000  # a kernel of some 50 ms


@pytest.fixture(autouse=True)
def small_again() -> Iterator[None]:
    yield
    torch.cuda.empty_cache()


def numbers(*shape: int) -> torch.Tensor:
    return torch.randn(shape, device=DEVICE)


def kinds() -> dict[str, torch.Tensor]:
    """Tensors of several types, and of several ways to lie in memory."""
    pairs = torch.complex(numbers(63, 5), numbers(63, 5))
    types = [torch.float16, torch.bfloat16, torch.float64, torch.float8_e4m3fn, torch.float8_e5m2]
    return {
        **{str(each): numbers(1001, 33).to(each) for each in types},
        **{str(each): (numbers(777) * 10).to(each) for each in (torch.int8, torch.int64, torch.bool)},
        "conjugate": pairs.conj(),
        "negative": pairs.conj().imag,
        "scalar": numbers(1)[0].clone(),
        "empty": numbers(0, 3),
        "transposed": numbers(513, 255).t(),
        "strided": numbers(1000, 64)[::3, 1::2],
        "channels last": numbers(8, 16, 33, 31).to(memory_format=torch.channels_last),
        "float8 transposed": numbers(256, 64).to(torch.float8_e4m3fn).t(),
        "unaligned": numbers(1001)[1:],
        "of the CPU": torch.randn(100),
    }


def bits(tensor: torch.Tensor) -> bytes:
    plain = tensor.detach().resolve_conj().resolve_neg().contiguous().cpu()
    return bytes(plain.reshape(-1).view(torch.uint8).tolist())


def restored(node: Node, step: int, state: dict[str, Any]) -> dict[str, Any]:
    node.restart(step)
    assert node.worker().load(state) == step
    return state


def test_tensors_come_back_bit_for_bit(node: Node) -> None:
    state, worker = kinds(), node.worker()
    expected = {name: bits(each) for name, each in state.items()}
    assert worker.save(1, state)
    again = restored(node, 1, kinds())
    assert [name for name in expected if bits(again[name]) != expected[name]] == []
    assert again["channels last"].is_contiguous(memory_format=torch.channels_last)


def test_what_is_queued_before_is_saved_and_what_comes_after_is_not(node: Node) -> None:
    before, after, elsewhere = (torch.zeros(LARGE, device=DEVICE) for _ in range(3))
    other: Any = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    worker = node.worker()
    torch.cuda.synchronize()
    torch.cuda._sleep(CYCLES)  # type: ignore[no-untyped-call]
    before.fill_(1.0)
    assert worker.save(1, {"before": before, "after": after, "elsewhere": elsewhere})
    with torch.cuda.stream(other):
        elsewhere.fill_(3.0)
    before.fill_(2.0)
    after.fill_(2.0)
    state = {name: torch.ones(LARGE, device=DEVICE) for name in ("before", "after", "elsewhere")}
    restored(node, 1, state)
    assert [(each.min().item(), each.max().item()) for each in state.values()] == [(1, 1), (0, 0), (0, 0)]


def test_the_random_state_of_the_gpu_comes_back(node: Node) -> None:
    torch.zeros(1, device=DEVICE)  # or there is no generator yet
    worker = node.worker()
    assert worker.save(1, {"random": RandomState()})
    drawn = torch.rand(5, device=DEVICE)
    restored(node, 1, {"random": RandomState()})
    assert torch.equal(torch.rand(5, device=DEVICE), drawn)


@pytest.mark.parametrize("is_captured", [False, True])
def test_the_next_step_waits_for_the_copies(node: Node, is_captured: bool) -> None:
    weight = nn.Parameter(torch.zeros(2 * LARGE, device=DEVICE))
    weight.grad = torch.ones_like(weight)
    optimizer = torch.optim.SGD([weight], lr=1.0)
    optimizer.step()
    graph: Any = None
    if is_captured:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            optimizer.step()
    state, worker = {"weight": weight, "optimizer": optimizer}, node.worker(overlap=True)
    torch.cuda.synchronize()
    assert worker.save(1, state)
    for _ in range(10):
        if is_captured:
            graph.replay()
        else:
            optimizer.step()
    worker.wait()
    with torch.no_grad():
        weight.fill_(7.0)
    restored(node, 1, state)
    assert torch.unique(weight.detach()).tolist() == [-1.0]


def test_a_dropped_worker_leaves_nothing_pinned(node: Node) -> None:
    """Buffers of the next one may be mapped at the same addresses: copies have to arrive in these."""

    def save_each(size: int, first: int) -> None:
        worker = Checkpointer()
        for step in range(first, first + 3):
            assert worker.save(step, {"weight": torch.full((size,), float(step), device=DEVICE)})
            worker.wait()
            node.host.holdings()
            node.host.judge(kept=CommitId(1, step))

    node.worker().close()  # its environment stays
    for first in (1, 4, 7, 10):
        with pytest.warns(ResourceWarning):  # nobody has closed its connection
            save_each(LARGE // first, first)
            gc.collect()
    state = {"weight": torch.zeros(LARGE // 10, device=DEVICE)}
    restored(node, 12, state)
    assert torch.unique(state["weight"]).tolist() == [12.0]
