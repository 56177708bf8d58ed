"""What scripts hand to ``Checkpointer``, saved into files by torch's own means, and restored elsewhere."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="needs torch: pip install 'elasticrun[torch]'")

import torch
import torch.distributed as dist
from torch import nn
from torch._C._distributed_c10d import HashStore
from torch.distributed.checkpoint import state_dict_loader, state_dict_saver
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.optim import LBFGS, SGD, Adagrad, Adam, AdamW, Optimizer
from torch.optim.lr_scheduler import (
    CosineAnnealingLR,
    ExponentialLR,
    LinearLR,
    LRScheduler,
    MultiStepLR,
    SequentialLR,
    StepLR,
)
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from elasticrun.checkpoint.states import put_back, states_of
from elasticrun.errors import CheckpointError

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore::UserWarning:torch")]

Make = Callable[[Any], Optimizer]


def adam(parameters: Any) -> Optimizer:
    return Adam(parameters, lr=0.1)


MAKERS: dict[str, Make] = {
    "Adam": adam,
    "AMSGrad": lambda parameters: AdamW(parameters, lr=0.1, amsgrad=True),
    "SGD": lambda parameters: SGD(parameters, lr=0.1),
    "SGD with momentum": lambda parameters: SGD(parameters, lr=0.1, momentum=0.9),
    "Adagrad": lambda parameters: Adagrad(parameters, lr=0.1),
    "a rate that is a tensor": lambda parameters: Adam(parameters, lr=torch.tensor(0.1), foreach=False),
}


def same(one: Any, other: Any) -> bool:
    """Whether two values are the same bit by bit."""
    if isinstance(one, torch.Tensor):
        return isinstance(other, torch.Tensor) and one.dtype == other.dtype and torch.equal(one, other)
    if isinstance(one, dict):
        return (
            isinstance(other, dict)
            and one.keys() == other.keys()
            and all(same(one[k], other[k]) for k in one)
        )
    if isinstance(one, list | tuple):
        return type(one) is type(other) and len(one) == len(other) and all(map(same, one, other))
    return bool(one == other)


def train(model: nn.Module, optimizer: Optimizer, steps: int, scheduler: LRScheduler | None = None) -> None:
    for step in range(steps):
        optimizer.zero_grad()
        model(torch.full((2, 3), step + 1.0)).square().sum().backward()
        optimizer.step()
        if scheduler is not None:
            scheduler.step()


@pytest.fixture
def keep(tmp_path: Path) -> Callable[[dict[str, Any], dict[str, Any]], None]:
    """Saves one state, and restores it into another one."""

    def keep(old: dict[str, Any], new: dict[str, Any]) -> None:
        state_dict_saver.save(states_of(old), checkpoint_id=tmp_path, no_dist=True)
        saved = FileSystemReader(tmp_path).read_metadata()
        gathered = states_of(new, saved)
        state_dict_loader.load(gathered, checkpoint_id=tmp_path, no_dist=True)
        put_back(new, gathered)

    return keep


Keep = Callable[[dict[str, Any], dict[str, Any]], None]


def model() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))


@pytest.mark.parametrize("name", MAKERS)
def test_a_new_optimizer_gets_its_state(keep: Keep, name: str) -> None:
    old, new = model(), model()
    trained, fresh = MAKERS[name](old.parameters()), MAKERS[name](new.parameters())
    train(old, trained, 3)
    keep({"model": old, "optimizer": trained}, {"model": new, "optimizer": fresh})
    assert same(trained.state_dict(), fresh.state_dict())
    assert same(dict(old.state_dict()), dict(new.state_dict()))
    train(old, trained, 2)
    train(new, fresh, 2)
    assert same(dict(old.state_dict()), dict(new.state_dict())), "they go on alike"


@pytest.mark.parametrize("name", MAKERS)
def test_an_optimizer_in_use_goes_back_to_what_was_saved(keep: Keep, name: str) -> None:
    old, new = model(), model()
    trained, used = MAKERS[name](old.parameters()), MAKERS[name](new.parameters())
    train(old, trained, 3)
    train(new, used, 5)
    keep({"model": old, "optimizer": trained}, {"model": new, "optimizer": used})
    assert same(trained.state_dict(), used.state_dict())
    assert same(dict(old.state_dict()), dict(new.state_dict()))


@pytest.mark.parametrize("name", MAKERS)
def test_an_optimizer_that_has_done_nothing_is_restored(keep: Keep, name: str) -> None:
    old, new = model(), model()
    trained, fresh = MAKERS[name](old.parameters()), MAKERS[name](new.parameters())
    keep({"model": old, "optimizer": trained}, {"model": new, "optimizer": fresh})
    assert same(trained.state_dict(), fresh.state_dict())


def test_an_optimizer_alone_leaves_its_parameters_as_they_are(keep: Keep) -> None:
    old, new = model(), model()
    trained, fresh = adam(old.parameters()), adam(new.parameters())
    train(old, trained, 3)
    before = copy.deepcopy(dict(new.state_dict()))
    keep({"optimizer": trained}, {"optimizer": fresh})
    assert same(trained.state_dict(), fresh.state_dict())
    assert same(before, dict(new.state_dict()))


def test_groups_of_parameters_keep_their_settings(keep: Keep) -> None:
    def grouped(model: nn.Module, rate: float) -> Optimizer:
        first, *others = model.parameters()
        return Adam([{"params": [first], "lr": rate}, {"params": others, "weight_decay": rate}], lr=1.0)

    old, new = model(), model()
    trained, fresh = grouped(old, 0.1), grouped(new, 0.7)
    train(old, trained, 2)
    keep({"optimizer": trained}, {"optimizer": fresh})
    assert [group["lr"] for group in fresh.param_groups] == [0.1, 1.0]
    assert [group["weight_decay"] for group in fresh.param_groups] == [0, 0.1]


def test_parameters_without_gradients_have_no_state(keep: Keep) -> None:
    def frozen() -> tuple[nn.Module, Optimizer]:
        made = model()
        next(made.parameters()).requires_grad_(False)
        return made, adam(made.parameters())

    (old, trained), (_, fresh) = frozen(), frozen()
    train(old, trained, 2)
    assert 0 not in trained.state_dict()["state"]
    keep({"optimizer": trained}, {"optimizer": fresh})
    assert same(trained.state_dict(), fresh.state_dict())


def test_an_optimizer_whose_state_has_lists_is_restored(keep: Keep) -> None:
    old, new = nn.Linear(3, 2), nn.Linear(3, 2)
    trained: Optimizer = LBFGS(old.parameters())
    fresh = LBFGS(new.parameters())

    def loss() -> float:
        trained.zero_grad()
        found = old(torch.ones(4, 3)).square().sum()
        found.backward()
        return float(found.item())

    for _ in range(3):
        trained.step(loss)
    assert trained.state_dict()["state"][0]["old_dirs"]
    keep({"optimizer": trained}, {"optimizer": fresh})
    assert same(trained.state_dict(), fresh.state_dict())


def test_an_optimizer_of_other_parameters_is_told(keep: Keep) -> None:
    old, new = model(), model()
    trained, other = adam(old.parameters()), adam([next(new.parameters())])
    train(old, trained, 1)
    with pytest.raises(CheckpointError, match="the saved state of optimizer does not fit: "):
        keep({"optimizer": trained}, {"optimizer": other})


SCHEDULERS: dict[str, Callable[[Optimizer], LRScheduler]] = {
    "step": lambda optimizer: StepLR(optimizer, 2),
    "milestones": lambda optimizer: MultiStepLR(optimizer, [2, 4]),
    "cosine": lambda optimizer: CosineAnnealingLR(optimizer, 10),
    "sequence": lambda optimizer: SequentialLR(
        optimizer, [LinearLR(optimizer, 0.1, total_iters=2), ExponentialLR(optimizer, 0.9)], [2]
    ),
}


@pytest.mark.parametrize("name", SCHEDULERS)
def test_a_scheduler_goes_on_where_it_was(keep: Keep, name: str) -> None:
    old, new = model(), model()
    trained, fresh = SGD(old.parameters(), lr=0.1), SGD(new.parameters(), lr=0.1)
    plan, anew = SCHEDULERS[name](trained), SCHEDULERS[name](fresh)
    train(old, trained, 3, plan)
    keep({"model": old, "optimizer": trained, "plan": plan}, {"model": new, "optimizer": fresh, "plan": anew})
    for each in ((old, trained, plan), (new, fresh, anew)):
        train(each[0], each[1], 4, each[2])
    assert plan.get_last_lr() == anew.get_last_lr()
    assert same(dict(old.state_dict()), dict(new.state_dict()))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (7, 0),
        (None, 5),
        ("text", ""),
        (2.5, None),
        ([1, 2, 3], []),
        ([], [1]),
        ((1, "two"), None),
        ({"a": 1, "b": {"c": [2], "d": None}}, {"a": 0, "b": {"c": [], "d": 1}}),
        ({}, {}),
        ({1: 2}, {1: 0}),
        ({"a": 1, "b": 2}, {"a": 0}),
        ({"a": 1}, {}),
        ({}, {"a": 1}),
        ([1, {"x": 2}], []),
        ({"a": {}}, {"a": {"b": 1}}),
        ({"a.b": 1, "a": {"b": 2}}, {}),
    ],
    ids=repr,
)
def test_plain_values_come_back(keep: Keep, old: object, new: object) -> None:
    state = {"value": new}
    keep({"value": old}, state)
    assert state["value"] == old
    assert type(state["value"]) is type(old)


def test_tensors_are_restored_in_place(keep: Keep) -> None:
    weight, inner = torch.zeros(3), torch.zeros(2)
    state = {"weight": weight, "nested": {"list": [inner], "note": ""}}
    keep({"weight": torch.ones(3), "nested": {"list": [torch.ones(2)], "note": "x"}}, state)
    assert state["weight"] is weight
    assert weight.tolist() == [1, 1, 1]
    assert inner.tolist() == [1, 1]
    assert same(state["nested"], {"list": [torch.ones(2)], "note": "x"})


class Position:
    """Anything with a state."""

    def __init__(self, epoch: int, batch: int) -> None:
        self.at = epoch, batch

    def state_dict(self) -> dict[str, int]:
        return {"epoch": self.at[0], "batch": self.at[1]}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.at = state["epoch"], state["batch"]


def test_any_object_with_a_state_is_restored(keep: Keep) -> None:
    position = Position(0, 0)
    keep({"position": Position(3, 14)}, {"position": position})
    assert position.at == (3, 14)


class Notes:
    """A state of any keys."""

    def __init__(self, notes: dict[str, Any]) -> None:
        self.notes = notes

    def state_dict(self) -> dict[str, Any]:
        return self.notes

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.notes = state


def test_an_object_whose_state_is_empty_at_first_is_restored(keep: Keep) -> None:
    notes = Notes({})
    keep({"notes": Notes({"worker": {"at": 5}})}, {"notes": notes})
    assert notes.notes == {"worker": {"at": 5}}


# Parameters that are shards


@pytest.fixture
def alone() -> Iterator[None]:
    """A process group of this process alone."""
    dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def shards(values: torch.Tensor) -> DTensor:
    return distribute_tensor(values, init_device_mesh("cpu", (1,)), [Shard(0)])


def local(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


SHARDED: dict[str, Make] = {
    "Adam": MAKERS["Adam"],
    "decay": lambda parameters: AdamW(parameters, lr=0.1, weight_decay=0.5),
    "SGD with momentum": lambda parameters: SGD(parameters, lr=0.1, momentum=0.9, weight_decay=0.5),
}


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize("name", SHARDED)
def test_a_new_optimizer_of_shards_gets_its_state(keep: Keep, name: str) -> None:
    old, new = nn.Parameter(shards(torch.arange(6.0))), nn.Parameter(shards(torch.arange(6.0) - 2.5))
    trained, fresh = SHARDED[name]([old]), SHARDED[name]([new])
    for _ in range(3):
        old.grad = shards(torch.ones(6))
        trained.step()
    gradient = new.grad = shards(torch.ones(6))
    keep({"optimizer": trained}, {"optimizer": fresh})
    assert torch.equal(local(new.detach()), torch.arange(6.0) - 2.5), "its parameters are as they were"
    assert new.grad is gradient
    assert fresh.param_groups[0]["lr"] == 0.1
    mine, others = trained.state[old], fresh.state[new]
    assert mine.keys() == others.keys()
    for key, value in mine.items():
        assert torch.equal(local(value), local(others[key])), key
        assert type(value) is type(others[key])


class Derived(Adam):
    def step(self, closure: Any = None) -> Any:
        return super().step(closure)


@pytest.mark.usefixtures("alone")
def test_nobody_hears_of_the_step_that_makes_the_state_of_shards(keep: Keep) -> None:
    old, new = nn.Parameter(shards(torch.ones(4))), nn.Parameter(shards(torch.ones(4)))
    Adam([old])  # torch has hooks called by the step of each class that was instantiated
    trained, fresh = Derived([old]), Derived([new])
    plan = StepLR(fresh, 2)
    old.grad = shards(torch.ones(4))
    trained.step()
    heard: list[object] = []
    hooks = [
        register_optimizer_step_pre_hook(lambda *_: heard.append("before a step")),
        register_optimizer_step_post_hook(lambda *_: heard.append("after a step")),
        fresh.register_step_post_hook(lambda *_: heard.append("after a step of this one")),
    ]
    try:
        keep({"optimizer": trained}, {"optimizer": fresh})
        assert heard == []
        with pytest.warns(UserWarning, match="`lr_scheduler.step\\(\\)` before `optimizer.step\\(\\)`"):
            plan.step()
        fresh.step()
        assert len(heard) == 6, "of its class, and of the base of that"
    finally:
        for hook in hooks:
            hook.remove()
    assert torch.equal(local(trained.state[old]["exp_avg"]), local(fresh.state[new]["exp_avg"]))


@pytest.mark.usefixtures("alone")
def test_shards_without_gradients_have_no_state(keep: Keep) -> None:
    old, new = ([nn.Parameter(shards(torch.ones(4))) for _ in range(2)] for _ in range(2))
    trained, fresh = adam(old), adam(new)
    old[0].grad = shards(torch.ones(4))
    trained.step()
    keep({"optimizer": trained}, {"optimizer": fresh})
    assert list(fresh.state_dict()["state"]) == [0]
    assert torch.equal(local(trained.state[old[0]]["exp_avg"]), local(fresh.state[new[0]]["exp_avg"]))


@pytest.mark.usefixtures("alone")
def test_parameters_that_every_rank_has_whole_get_their_state(keep: Keep) -> None:
    mesh = init_device_mesh("cpu", (1,))
    old, new = (nn.Parameter(distribute_tensor(torch.ones(3), mesh, [Replicate()])) for _ in range(2))
    trained, fresh = adam([old]), adam([new])
    old.grad = distribute_tensor(torch.ones(3), mesh, [Replicate()])
    trained.step()
    keep({"optimizer": trained}, {"optimizer": fresh})
    assert torch.equal(local(trained.state[old]["exp_avg"]), local(fresh.state[new]["exp_avg"]))
