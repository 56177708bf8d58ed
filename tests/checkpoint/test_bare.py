"""A state that is made on torch's meta device, and written once: by ``load``."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("torch", reason="needs torch: pip install 'elasticrun[torch]'")

import torch
from torch import nn
from torch.optim import AdamW

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


class Wrapped(nn.Module):
    """Its state is copies of what it has."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 2)
        self.register_state_dict_post_hook(_detach)  # type: ignore[no-untyped-call]


def _detach(module: nn.Module, found: dict[str, Any], prefix: str, metadata: object) -> None:
    found.update({key: each.detach() for key, each in found.items()})


@pytest.mark.parametrize(
    ("make", "where"),
    [
        (lambda: {"sums": {"of": torch.ones(2)}}, "sums.of"),
        (lambda: {"sums": {"of": [torch.ones(2)]}}, "sums.of.0"),
        (lambda: {"model": Wrapped()}, "model.layer.weight"),
    ],
    ids=["in a dict", "in a list", "copied by a hook"],
)
def test_what_load_could_not_fill_is_refused(
    node: Node, make: Callable[[], dict[str, Any]], where: str
) -> None:
    assert node.worker().save(1, make())
    node.restart(1)
    with torch.device("meta"):
        state = make()
    with pytest.raises(CheckpointError, match=f"^{re.escape(where)} is on the meta device, where `load`"):
        node.worker().load(state)


def test_hooks_attributes_and_classes_stay(node: Node) -> None:
    class Marked(nn.Parameter):
        pass

    assert node.worker().save(1, {"value": nn.Parameter(torch.ones(2))})
    node.restart(1)
    value: Any = Marked(torch.ones(2, device="meta"))
    value.no_decay = True
    called: list[str] = []
    value.register_hook(lambda gradient: called.append("before"))
    handle = value.register_post_accumulate_grad_hook(lambda parameter: called.append("after"))
    assert node.worker().load({"value": value}) == 1
    assert (type(value), value.no_decay) == (Marked, True)
    value.sum().backward()
    assert called == ["before", "after"]
    handle.remove()
    value.sum().backward()
    assert called == ["before", "after", "before"]


def test_a_recurrent_model_comes_back(node: Node) -> None:
    expected = nn.LSTM(2, 3)
    assert node.worker().save(1, {"model": expected})
    node.restart(1)
    model = nn.LSTM(2, 3, device="meta")
    assert node.worker().load({"model": model}) == 1
    assert torch.equal(model(torch.ones(1, 2))[0], expected(torch.ones(1, 2))[0])
    refs: list[Any] = model._flat_weight_refs
    assert all(ref() is weight for ref, weight in zip(refs, model._flat_weights, strict=True))


def test_two_that_share_memory_and_are_not_one_are_refused(node: Node) -> None:
    assert node.worker().save(1, {"one": torch.ones(2), "two": torch.ones(2)})
    node.restart(1)
    one = torch.ones(2, device="meta")
    with pytest.raises(CheckpointError, match=r"^one and two share memory, and are on the meta device"):
        node.worker().load({"one": one, "two": one.view(2)})


@pytest.mark.parametrize(
    ("saved", "there", "told"),
    [
        (
            {"one": torch.ones(2), "two": torch.ones(2)},
            {"one": 2, "two": 3},
            "two is a tensor of float32 of shape",
        ),
        ({"one": torch.ones(2)}, {"one": 2, "two": 2}, "two was not saved$"),
    ],
    ids=["another shape", "not saved"],
)
def test_if_the_model_is_another_one_nothing_has_memory(
    node: Node, saved: dict[str, Any], there: dict[str, int], told: str
) -> None:
    assert node.worker().save(1, saved)
    node.restart(1)
    state = {name: torch.empty(size, device="meta") for name, size in there.items()}
    with pytest.raises(CheckpointError, match=told):
        node.worker().load(state)
    assert all(each.is_meta for each in state.values())


def test_it_may_be_loaded_where_torch_makes_tensors_on_the_meta_device(node: Node) -> None:
    saved(node, state_of(Model()))
    with torch.device("meta"):
        state = state_of(Model())
        assert node.worker().load(state) == 1
    assert state["optimizer"].state[state["model"].first.weight]["exp_avg"].device.type == "cpu"


def test_an_inference_tensor_stays_one(node: Node) -> None:
    with torch.inference_mode(), torch.device("meta"):
        value = nn.Parameter(torch.ones(2))
    assert node.worker().load({"value": value}, lambda: None) == 0
    assert value.is_inference()
    assert value.requires_grad
    assert not value.is_meta


def test_a_tensor_that_asks_for_gradients_still_does(node: Node) -> None:
    value = torch.ones(2, device="meta", requires_grad=True)
    node.worker().load({"value": value}, lambda: None)
    assert value.requires_grad


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


def test_a_lazy_module_is_refused(node: Node) -> None:
    with torch.device("meta"):
        model = nn.LazyLinear(2)
    with pytest.raises(CheckpointError, match=r"model.weight .* When using LazyModules Call `forward`"):
        node.worker().load({"model": model}, lambda: None)


@pytest.mark.parametrize("is_saved", [True, False])
def test_memory_is_given_on_the_device_that_is_named(node: Node, is_saved: bool) -> None:
    worker = node.worker()
    if is_saved:
        assert worker.save(1, {"value": torch.ones(2)})
        node.restart(1)
        worker = node.worker()
    with pytest.raises(CheckpointError, match="`device` has to be one with memory"):
        worker.load({"value": torch.ones(2, device="meta")}, lambda: None, "meta")


def test_a_state_that_takes_no_keep_vars_is_refused(node: Node) -> None:
    class Own(nn.Linear):
        def state_dict(self) -> dict[str, Any]:  # type: ignore[override]
            return {"weight": self.weight}

    assert node.worker().save(1, {"model": Own(1, 1)})
    node.restart(1)
    with pytest.raises(CheckpointError, match="its state_dict does not take keep_vars"):
        node.worker().load({"model": Own(1, 1, device="meta")})
