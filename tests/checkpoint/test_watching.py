"""A warning if what ``Checkpointer`` saves does not change."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

pytest.importorskip("torch", reason="needs torch: pip install 'elasticrun[torch]'")

import torch
from torch import nn
from torch.optim import SGD, AdamW

from elasticrun.core.protocol.commits import CommitId
from elasticrun.core.state.sameness import SAME
from tests.checkpoint.nodes import Node, at_once

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore::UserWarning:torch")]


def save_often(node: Node, state: dict[str, Any], change: torch.Tensor | None = None) -> None:
    worker = node.worker()
    for step in range(1, SAME + 3):
        if change is not None:
            with torch.no_grad():
                change += 1
        state["seen"] = step
        assert worker.save(step, state)
        worker.wait()
        node.host.holdings()
        node.host.judge(kept=CommitId(1, step))


def test_a_state_of_copies_is_told_once(node: Node, caplog: pytest.LogCaptureFixture) -> None:
    model = nn.Linear(2, 2)
    copies = {name: value.clone() for name, value in model.state_dict().items()}
    save_often(node, {"model": copies}, model.weight)
    (told,) = caplog.messages
    assert told.startswith(f"no tensor that this rank saves has changed from step 1 to step {SAME}: ")


def test_a_state_that_changes_is_fine(node: Node, caplog: pytest.LogCaptureFixture) -> None:
    model = nn.Linear(2, 2)
    save_often(node, {"model": model, "table": torch.ones(3)}, model.weight)
    assert caplog.messages == []


def test_frozen_parameters_and_buffers_need_not_change(node: Node, caplog: pytest.LogCaptureFixture) -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    model.requires_grad_(False)
    save_often(node, {"model": model})
    assert caplog.messages == []


def trained(node: Node, state: dict[str, Any], step: Callable[[], object], ranks: int = 1) -> None:
    """Train, and save after each step on all ranks of the node."""
    workers = [node.worker(rank) for rank in range(ranks)]
    for number in range(1, SAME + 3):
        step()
        assert all(at_once(*(partial(worker.save, number, state) for worker in workers)))
        for worker in workers:
            worker.wait()
        while CommitId(1, number) not in [holding.commit for holding in node.host.holdings()]:
            pass  # that was told before
        node.host.judge(kept=CommitId(1, number))


class Halves(nn.Module):
    """Only the first half is used."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.spare = nn.Linear(64, 64), nn.Linear(64, 64)

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.body(values)
        return found


def a_step(model: nn.Module, optimizer: torch.optim.Optimizer, width: int) -> None:
    optimizer.zero_grad()
    model(torch.ones(2, width)).sum().backward()
    optimizer.step()


def test_a_copy_of_the_model_is_told_although_its_optimizer_changes(
    node: Node, caplog: pytest.LogCaptureFixture
) -> None:
    model = nn.Linear(2, 2)
    optimizer = AdamW(model.parameters())
    copied = {name: value.clone() for name, value in model.state_dict().items()}
    state = {"table": torch.ones(3), "model": copied, "optimizer": optimizer}
    trained(node, state, partial(a_step, model, optimizer, 2))
    (told,) = caplog.messages
    assert told.startswith(f"no tensor of 'model' has changed from step 1 to step {SAME}, and what the")


def test_what_is_no_copy_may_stay_the_same(node: Node, caplog: pytest.LogCaptureFixture) -> None:
    model, teacher = nn.Linear(2, 2), nn.Linear(2, 2)
    optimizer = AdamW(model.parameters())
    state = {"model": model, "teacher": teacher, "optimizer": optimizer}
    trained(node, state, partial(a_step, model, optimizer, 2))
    assert caplog.messages == []


def test_an_optimizer_may_have_parameters_of_its_own(node: Node, caplog: pytest.LogCaptureFixture) -> None:
    """As one that keeps them in one piece, or with more digits."""
    model, flat = nn.Linear(2, 2), nn.Parameter(torch.zeros(6))
    optimizer = AdamW([flat])

    def step() -> None:
        flat.grad = torch.ones(6)
        optimizer.step()
        with torch.no_grad():
            model.weight.copy_(flat[:4].view(2, 2))

    trained(node, {"model": model, "table": torch.ones(2, 3), "optimizer": optimizer}, step)
    assert caplog.messages == []


def test_the_share_of_a_rank_may_be_a_layer_that_is_not_used(
    pair: Node, caplog: pytest.LogCaptureFixture
) -> None:
    model = Halves()
    optimizer = SGD(model.parameters(), lr=0.1)
    trained(pair, {"model": model, "optimizer": optimizer}, partial(a_step, model, optimizer, 64), ranks=2)
    assert caplog.messages == []


def test_a_copy_is_told_by_each_rank_that_has_a_share_of_it(
    pair: Node, caplog: pytest.LogCaptureFixture
) -> None:
    model = Halves()
    optimizer = SGD(model.parameters(), lr=0.1)
    copied = {name: value.clone() for name, value in model.state_dict().items()}
    trained(pair, {"model": copied, "optimizer": optimizer}, partial(a_step, model, optimizer, 64), ranks=2)
    assert [text[:46] for text in caplog.messages] == ["no tensor that this rank saves has changed fro"] * 2
