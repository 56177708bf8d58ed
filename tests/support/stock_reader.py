"""Programs that use torch alone, where elasticrun cannot be imported.

    stock_reader.py plain FOLDER EXPECTED
    stock_reader.py sharded FOLDER EXPECTED MEETING RANK SIZE

Each loads a commit with ``torch.distributed.checkpoint.load`` into a new model and optimizer, and compares
what it got with what torch.save wrote to EXPECTED. Ends with 0 if they are equal bit by bit.
"""

# ruff: noqa: E402 elasticrun is blocked before torch could ask for it

from __future__ import annotations

import importlib.abc
import os
import sys
import warnings
from typing import Any


class Blocked(importlib.abc.MetaPathFinder):
    """Keeps elasticrun from being found."""

    def find_spec(self, name: str, path: object, target: object = None) -> None:
        if name.split(".")[0] == "elasticrun":
            raise ImportError(f"{name} is blocked")


if __name__ == "__main__":
    sys.meta_path.insert(0, Blocked())

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint.state_dict_loader import load


def whole(value: Any) -> Any:
    """A state with whole tensors in place of shards."""
    if isinstance(value, dict):
        return {key: whole(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [whole(each) for each in value]
    return value.full_tensor() if hasattr(value, "full_tensor") else value


def equal(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor):
        return one.dtype == other.dtype and one.shape == other.shape and bool((one == other).all())
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(equal(each, other[key]) for key, each in one.items())
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(equal, one, other))
    return bool(one == other)


def model_of() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 8), nn.BatchNorm1d(8), nn.Linear(8, 2))


def stepped(model: nn.Module, groups: int = 1) -> torch.optim.Optimizer:
    """An optimizer that has a state, of which each number is to be replaced."""
    each = list(model.parameters())
    optimizer = torch.optim.AdamW([{"params": each[n::groups], "lr": 9.0 + n} for n in range(groups)])
    for parameter in each:
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    return optimizer


def read_plain(folder: str) -> dict[str, Any]:
    model = model_of()
    state = {
        "model": model.state_dict(),
        "optimizer": stepped(model, groups=2).state_dict(),
        "plan": {"last_epoch": -1, "rates": []},
        "half": torch.zeros(5, dtype=torch.bfloat16),
        "seen": 0,
        "note": {"files": [], "name": ""},
        "empty": torch.ones(0, 3),
    }
    load(state, checkpoint_id=folder)
    return state


def read_sharded(folder: str, meeting: str, rank: int, size: int) -> dict[str, Any]:
    from torch.distributed.fsdp import fully_shard

    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=size)
    model = nn.Sequential(nn.Linear(3, 8), nn.Linear(8, 2))
    fully_shard(model)
    state = {"model": model.state_dict(), "optimizer": stepped(model).state_dict(), "seen": 0}
    load(state, checkpoint_id=folder)
    found: dict[str, Any] = whole(state)
    dist.destroy_process_group()
    return found


def main(kind: str, folder: str, expected: str, *more: str) -> int:
    warnings.simplefilter("ignore")
    assert not [name for name in sys.modules if name.startswith("elasticrun")]
    if kind == "plain":
        found = read_plain(folder)
    else:
        found = read_sharded(folder, more[0], int(more[1]), int(more[2]))
    right = torch.load(expected, weights_only=False)
    for key, value in right.items():
        if not equal(whole(value), whole(found[key])):
            print(f"{key} is {found[key]!r} and must be {value!r}")
            return 1
    return 0


if __name__ == "__main__":
    status = main(*sys.argv[1:])
    sys.stdout.flush()
    os._exit(status)  # FSDP keeps the process group, whose threads now and then abort who exits with them
