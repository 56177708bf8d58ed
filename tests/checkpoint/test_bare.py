"""A state that is made on torch's meta device, and written once: by ``load``."""

from __future__ import annotations

import logging
from typing import Any

import pytest

pytest.importorskip("torch", reason="needs torch: pip install 'elasticrun[torch]'")

import torch
from torch import nn
from torch.optim import AdamW

from elasticrun.checkpoint.bare import home_of
from elasticrun.errors import CheckpointError
from tests.checkpoint.nodes import Node, picture

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore::UserWarning:torch")]


class Model(nn.Module):
    """With a buffer that is saved, one that is not, and two layers that share a weight."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.norm = nn.BatchNorm1d(4)
        self.last = nn.Linear(4, 4)
        self.last.weight = self.first.weight
        self.last.bias.requires_grad_(False)
        self.register_buffer("table", torch.arange(4.0), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = self.last(self.norm(self.first(x))) + self.table
        return made

    def fill(self) -> None:
        """Give all of it values."""
        with torch.no_grad():
            for at, each in enumerate(self.parameters()):
                each.fill_(0.1 * at)
        self.norm.reset_running_stats()
        self.table = torch.arange(4.0)


def state_of(model: Model) -> dict[str, Any]:
    trained = [each for each in model.parameters() if each.requires_grad]
    return {
        "model": model,
        "optimizer": AdamW(trained, lr=0.1),
        "mean": torch.zeros(3, device=model.first.weight.device),
    }


def train(state: dict[str, Any]) -> None:
    state["optimizer"].zero_grad()
    state["model"](torch.ones(2, 4)).square().sum().backward()
    state["optimizer"].step()
    state["mean"] += 1


def all_of(state: dict[str, Any]) -> Any:
    return picture({name: it.state_dict() if hasattr(it, "state_dict") else it for name, it in state.items()})


def bare_state() -> dict[str, Any]:
    with torch.device("meta"):
        return state_of(Model())


def saved(node: Node, state: dict[str, Any]) -> None:
    """Train it once, save it as step 1, and begin the next round."""
    worker = node.worker()
    state["model"].fill()
    train(state)
    assert worker.save(1, state)
    node.restart(1)


def test_a_bare_state_comes_back_bit_by_bit_and_trains_on_alike(node: Node) -> None:
    expected = state_of(Model())
    saved(node, expected)
    state = bare_state()
    parameters = list(state["model"].parameters())
    assert node.worker().load(state) == 1
    assert all_of(state) == all_of(expected)
    model = state["model"]
    assert all(now is before for now, before in zip(model.parameters(), parameters, strict=True))
    assert model.first.weight is model.last.weight
    assert not model.last.bias.requires_grad
    model.table = torch.arange(4.0)
    train(state)
    train(expected)
    assert all_of(state) == all_of(expected)


def test_what_no_checkpoint_has_stays_bare_and_is_told(node: Node, caplog: pytest.LogCaptureFixture) -> None:
    saved(node, state_of(Model()))
    state = bare_state()
    with caplog.at_level(logging.WARNING, "elasticrun"):
        node.worker().load(state)
    assert state["model"].table.is_meta
    assert caplog.messages == [
        "model.table is still on the meta device, as no checkpoint has it: fill it before the first step"
    ]


def test_of_many_that_stay_bare_three_are_named(node: Node, caplog: pytest.LogCaptureFixture) -> None:
    worker, model = node.worker(), nn.Linear(1, 1)
    assert worker.save(1, {"model": model})
    node.restart(1)
    for at in range(5):
        model.register_buffer(f"table{at}", torch.empty(1, device="meta"), persistent=False)
    node.worker().load({"model": model})
    assert caplog.messages == [
        "model.table0, model.table1, model.table2 and 2 others are still on the meta device, as no checkpoint"
        " has them: fill them before the first step"
    ]


def test_init_fills_what_was_not_restored(node: Node) -> None:
    state = bare_state()
    assert node.worker().load(state, init=state["model"].fill) == 0
    assert not state["model"].table.is_meta
    assert not state["mean"].is_meta
    train(state)
    assert all(torch.isfinite(each).all() for each in state["model"].parameters())


def test_init_is_called_outside_of_elastic_run_too(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    worker = node.worker()
    worker.close()  # it has no agent any more
    state = bare_state()
    assert worker.load(state, init=state["model"].fill) == 0
    assert not state["model"].first.weight.is_meta


def test_init_is_not_called_if_something_was_restored(node: Node) -> None:
    worker, value = node.worker(), torch.ones(2)
    assert worker.save(0, {"value": value})  # a step that looks like none
    node.restart(0)
    there = torch.zeros(2)
    assert node.worker().load({"value": there}, init=lambda: there.fill_(7)) == 0
    assert there.tolist() == [1, 1]


def test_without_init_a_bare_state_stays_bare(node: Node) -> None:
    state = bare_state()
    assert node.worker().load(state) == 0
    assert state["model"].first.weight.is_meta


def test_a_model_that_is_partly_bare_keeps_what_it_has(node: Node) -> None:
    worker = node.worker()
    assert worker.save(1, {"model": nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))})
    node.restart(1)
    here, bare = nn.Linear(2, 2), nn.Linear(2, 2, device="meta")
    place = here.weight.data_ptr()
    assert node.worker().load({"model": nn.Sequential(here, bare)}) == 1
    assert here.weight.data_ptr() == place
    assert not bare.weight.is_meta


def test_a_bare_tensor_deep_inside_is_refused(node: Node) -> None:
    worker = node.worker()
    assert worker.save(1, {"sums": {"of": torch.ones(2)}})
    node.restart(1)
    with pytest.raises(CheckpointError, match=r"^sums\.of is on the meta device: only tensors and modules"):
        node.worker().load({"sums": {"of": torch.ones(2, device="meta")}})


def test_one_that_cannot_be_given_memory_is_named(node: Node) -> None:
    worker = node.worker()
    assert worker.save(1, {"value": torch.ones(2)})
    node.restart(1)
    value = torch.ones(2, device="meta")
    view = value[:1]
    with pytest.raises(CheckpointError, match=r"^value is on the meta device, and cannot be given memory"):
        node.worker().load({"value": value})
    assert view.is_meta


def test_a_bare_tensor_cannot_be_saved(node: Node) -> None:
    with pytest.raises(CheckpointError, match="value is a meta tensor, which cannot be saved"):
        node.worker().save(1, {"value": torch.ones(2, device="meta")})


def test_where_memory_is_given() -> None:
    assert home_of(None) == torch.device("cpu")
    assert home_of("cuda:1") == torch.device("cuda:1")
    with torch.device("meta"):
        assert home_of(None) == torch.device("cpu")
