"""``Checkpointer(overlap=True)``: what optimizers have is copied while the next step computes."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

pytest.importorskip("torch", reason="needs torch: pip install 'elasticrun[torch]'")

import torch
from torch import nn
from torch.optim import SGD, AdamW

from elasticrun.checkpoint import memory
from elasticrun.checkpoint.parts import Item, write
from elasticrun.checkpoint.rhythm import Auto, Fixed
from elasticrun.core.protocol.commits import CommitId
from elasticrun.core.state.interval import History
from tests.checkpoint.nodes import Node, picture
from tests.support.memory_host import DEADLINE

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore::UserWarning:torch")]

Items = Iterable[tuple[Item, torch.Tensor]]


class Gate:
    """Holds up each copy of a thread until it is opened."""

    def __init__(self) -> None:
        self.reached = threading.Event()
        self.open = threading.Event()
        self.early: list[str] = []  # what was copied by ``save`` itself
        self.late: list[str] = []  # and by the thread

    def write(self, target: torch.Tensor, items: Items, threads: int) -> None:
        given, is_early = list(items), threading.current_thread() is threading.main_thread()
        if not is_early:
            self.reached.set()
            assert self.open.wait(DEADLINE)
        (self.early if is_early else self.late).extend(item.name for item, _ in given)
        write(target, given, threads)


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Iterator[Gate]:
    made = Gate()
    monkeypatch.setattr(memory, "write", made.write)
    yield made
    made.open.set()


def training(seed: int) -> dict[str, Any]:
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
    state: dict[str, Any] = {
        "model": model,
        "optimizer": AdamW(model.parameters(), lr=0.1),
        "seen": torch.zeros(2),
        "epoch": 0,
    }
    passes(state)
    state["optimizer"].step()
    return state


def passes(state: dict[str, Any]) -> None:
    """One forward and one backward pass, and what a loop does beside."""
    state["optimizer"].zero_grad()
    state["model"](torch.randn(4, 3)).square().sum().backward()
    state["seen"].add_(1.0)
    state["epoch"] += 1


def everything(state: dict[str, Any]) -> Any:
    return {
        name: picture(each.state_dict() if hasattr(each, "state_dict") else each)
        for name, each in state.items()
    }


def test_the_next_step_waits_for_the_copies_and_all_else_does_not(node: Node, gate: Gate) -> None:
    state, worker = training(1), node.worker(overlap=True)
    expected = everything(state)
    assert worker.save(1, state)
    assert gate.reached.wait(DEADLINE)
    passes(state)
    weight = state["model"][0].weight
    before = weight.detach().clone()
    with ThreadPoolExecutor(1) as pool:
        stepping = pool.submit(state["optimizer"].step)
        assert torch.equal(weight, before)
        assert not stepping.done()
        gate.open.set()
        stepping.result(DEADLINE)
    assert not torch.equal(weight, before)
    node.restart(1)
    other = training(2)
    assert node.worker().load(other) == 1
    assert everything(other) == expected
    assert "model.0.weight" in gate.late
    assert {"seen", "epoch", "model.1.running_mean"} <= set(gate.early)


def test_a_tensor_that_changes_meanwhile_costs_this_save_only(
    node: Node, gate: Gate, caplog: pytest.LogCaptureFixture
) -> None:
    gate.open.set()
    state, worker = training(1), node.worker(overlap=True)
    expected = everything(state)
    assert worker.save(1, state)
    worker.wait()
    node.host.holdings()
    node.host.judge(kept=CommitId(1, 1))
    gate.reached.clear()
    gate.open.clear()
    assert worker.save(2, state)
    assert gate.reached.wait(DEADLINE)
    with torch.no_grad():
        state["model"][2].weight.mul_(2.0)
    gate.open.set()
    worker.wait()
    node.stop()
    assert "step 2 is not saved: model.2.weight was changed while it was copied" in caplog.text
    node.host.begin(2, restore=CommitId(1, 1))
    other = training(2)
    assert node.worker().load(other) == 1
    assert everything(other) == expected


class Graph:
    """Stands in for a captured CUDA graph: it changes a tensor, and torch counts no change."""

    def __init__(self, weight: torch.Tensor) -> None:
        self._memory = weight.detach().numpy()

    def capture_begin(self) -> None:
        self._memory += 1.0

    def replay(self) -> None:
        self._memory += 1.0


@pytest.mark.parametrize("method", ["replay", "capture_begin"])
def test_a_captured_graph_waits_as_well(
    node: Node, gate: Gate, method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "CUDAGraph", Graph)
    state, worker = training(1), node.worker(overlap=True)
    expected = everything(state)
    assert worker.save(1, state)
    assert gate.reached.wait(DEADLINE)
    weight = state["model"][0].weight
    before = weight.detach().clone()
    with ThreadPoolExecutor(1) as pool:
        replaying = pool.submit(getattr(Graph(weight), method))
        assert not replaying.done()
        assert torch.equal(weight, before)
        gate.open.set()
        replaying.result(DEADLINE)
    assert torch.equal(weight, before + 1.0)
    node.restart(1)
    other = training(2)
    assert node.worker().load(other) == 1
    assert everything(other) == expected


def test_graphs_are_left_alone_afterwards(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "CUDAGraph", Graph)
    replay = Graph.replay
    node.worker(overlap=True)
    assert Graph.replay is not replay
    node.stop()
    assert Graph.replay is replay


def test_a_step_of_another_optimizer_waits_as_well(node: Node, gate: Gate) -> None:
    """Wrappers hand a step on to an optimizer that is not in the state."""
    state, worker = training(1), node.worker(overlap=True)
    hidden = SGD(state["model"].parameters(), lr=0.1)
    copied_before: list[int] = []
    hidden.register_step_pre_hook(lambda *_: copied_before.append(len(gate.late)))
    assert worker.save(1, state)
    passes(state)
    with ThreadPoolExecutor(1) as pool:
        stepping = pool.submit(hidden.step)
        assert gate.reached.wait(DEADLINE)
        gate.open.set()
        stepping.result(DEADLINE)
    assert copied_before == [len(gate.late)]


def test_without_an_optimizer_all_is_copied_at_once(node: Node, gate: Gate) -> None:
    worker = node.worker(overlap=True)
    assert worker.save(1, {"weight": torch.ones(3)})
    worker.wait()
    assert gate.late == []


def test_a_closed_checkpointer_lets_optimizers_alone(node: Node, gate: Gate) -> None:
    gate.open.set()
    state, worker = training(1), node.worker(overlap=True)
    assert worker.save(1, state)
    worker.close()
    passes(state)
    state["optimizer"].step()


def test_a_thread_that_cannot_start_holds_nobody_up(
    node: Node, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    state, worker = training(1), node.worker(overlap=True)
    start = threading.Thread.start

    def refuse(thread: threading.Thread) -> None:
        if thread.name == "elasticrun-seal":
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", refuse)
    with pytest.raises(RuntimeError, match="can't start"):
        worker.save(1, state)
    monkeypatch.undo()
    passes(state)
    state["optimizer"].step()


def test_what_a_step_waits_counts_as_part_of_the_save() -> None:
    now = [0.0]
    auto = Auto(History, 1, lambda: now[0])
    auto.held_up(9.0)  # before any save
    assert auto.is_due(1)
    auto.stalled(0.5)
    auto.held_up(0.25)
    now[0] = 2.75
    assert auto._measure(2).stall == 0.75
    Fixed(1).held_up(1.0)
