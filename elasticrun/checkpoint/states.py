"""Turns what a script gives to ``Checkpointer`` into a dict of tensors and plain values, and back.

``torch.distributed.checkpoint`` flattens nested dicts, and turns all their keys into text. An optimizer
numbers its state, so its keys are turned into text here, and back when it is restored. A new optimizer
has no state yet. It gets empty tensors of the saved sizes to restore into; or, where its parameters are
shards, a state by a step that changes nothing.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, MutableMapping
from typing import Any

import torch
from torch import nn
from torch.distributed.checkpoint.metadata import BytesStorageMetadata, TensorStorageMetadata
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer
from torch.optim import optimizer as hooked

from elasticrun.errors import CheckpointError

Saved = Mapping[str, Any]  # torch's metadata of each saved item, by its name


def states_of(state: Mapping[str, Any], saved: Saved | None = None) -> dict[str, Any]:
    """What each entry of ``state`` has to save. ``saved``: what will be restored into it."""
    return {name: _state_of(name, value, saved or {}) for name, value in state.items()}


def put_back(state: MutableMapping[str, Any], restored: Mapping[str, Any]) -> None:
    """Hand each entry of ``state`` what was restored for it."""
    for name, value in list(state.items()):
        if isinstance(value, Optimizer):
            numbered = {
                int(number): {key: _opened(each) for key, each in entry.items()}
                for number, entry in restored[name]["state"].items()
            }
            groups = list(restored[name]["param_groups"])
            _load(name, value, {"state": numbered, "param_groups": groups})
        elif hasattr(value, "load_state_dict"):
            _load(name, value, _opened(restored[name]))
        elif not isinstance(value, torch.Tensor):
            state[name] = _opened(restored[name])


def fixed_names(state: Mapping[str, Any]) -> set[str]:
    """The names of saved tensors that training may leave as they are: frozen parameters, and buffers."""
    modules = [(name, value) for name, value in state.items() if isinstance(value, nn.Module)]
    return {
        f"{name}.{key}"
        for name, module in modules
        for key, each in [*module.named_parameters(), *module.named_buffers()]
        if not each.requires_grad
    }


def plain_values(gathered: Mapping[str, Any]) -> dict[str, Any]:
    """Of what ``states_of`` has made, the entries that are saved in one piece, as they were."""
    return {name: _opened(value) for name, value in gathered.items() if isinstance(value, tuple)}


def _load(name: str, value: Any, restored: Any) -> None:
    try:
        value.load_state_dict(restored)
    except (RuntimeError, ValueError, KeyError, TypeError) as error:
        raise CheckpointError(f"the saved state of {name} does not fit: {error}") from error


def _closed(value: Any) -> Any:
    """A value in one piece: ``torch.distributed.checkpoint`` looks into dicts and lists, not into tuples."""
    return (value,)


def _opened(value: Any) -> Any:
    return value[0] if isinstance(value, tuple) else value


def _has_tensors(value: Any) -> bool:
    if isinstance(value, Mapping):
        return any(map(_has_tensors, value.values()))
    return isinstance(value, torch.Tensor) or (isinstance(value, list) and any(map(_has_tensors, value)))


def _state_of(name: str, value: Any, saved: Saved) -> Any:
    if isinstance(value, Optimizer):
        prefix = f"{name}.state."
        mine = {key: kind for key, kind in saved.items() if key.startswith(prefix)}
        is_sharded = any(
            isinstance(each, DTensor) for group in value.param_groups for each in group["params"]
        )
        if mine and not value.state and is_sharded:
            _give_state(value, {int(key.removeprefix(prefix).partition(".")[0]) for key in mine})
        found = value.state_dict()
        numbered = {
            str(number): {k: v if isinstance(v, torch.Tensor) else _closed(v) for k, v in entry.items()}
            for number, entry in found["state"].items()
        }
        if mine and not numbered:
            numbered = _empty_state(mine, prefix)
        return {"state": numbered, "param_groups": tuple(found["param_groups"])}
    if isinstance(saved.get(name), BytesStorageMetadata) and not isinstance(value, torch.Tensor):
        return _closed(None)
    plain = value.state_dict() if hasattr(value, "state_dict") else value
    return plain if isinstance(value, nn.Module) or _has_tensors(plain) else _closed(plain)


def _empty_state(saved: Saved, prefix: str) -> dict[str, dict[str, Any]]:
    """The state of a new optimizer whose tensors are still to be filled."""
    state: dict[str, dict[str, Any]] = {}
    for name, kind in saved.items():
        number, _, key = name.removeprefix(prefix).partition(".")
        is_tensor = isinstance(kind, TensorStorageMetadata)
        state.setdefault(number, {})[key] = (
            torch.empty(kind.size, dtype=kind.properties.dtype) if is_tensor else None
        )
    return state


def _give_state(optimizer: Optimizer, numbers: set[int]) -> None:
    """Make the state of a new optimizer: a step with gradients of zero, and a learning rate of zero."""
    parameters = [each for group in optimizer.param_groups for each in group["params"]]
    gradients = [each.grad for each in parameters]
    rates = [group["lr"] for group in optimizer.param_groups]
    for number, each in enumerate(parameters):
        each.grad = torch.zeros_like(each) if number in numbers else None
    for group in optimizer.param_groups:
        rate = group["lr"]
        group["lr"] = torch.zeros_like(rate) if isinstance(rate, torch.Tensor) else 0.0
    try:
        with _unheard(optimizer):
            type(optimizer).step(optimizer)  # the object's own ``step`` may count for a scheduler
    finally:
        for each, gradient in zip(parameters, gradients, strict=True):
            each.grad = gradient
        for group, rate in zip(optimizer.param_groups, rates, strict=True):
            group["lr"] = rate


@contextlib.contextmanager
def _unheard(optimizer: Optimizer) -> Iterator[None]:
    """Nobody hears of a step: it is none of the training, and hooks count steps, or end it.

    The hooks are taken away, and not passed by: a class may call the ``step`` of its base, which calls them.
    """
    places = [
        *((hooked, f"_global_optimizer_{when}_hooks") for when in ("pre", "post")),
        *((optimizer, f"_optimizer_step_{when}_hooks") for when in ("pre", "post")),
    ]
    found: list[dict[int, Any]] = [getattr(holder, name, {}) for holder, name in places]
    kept = [dict(hooks) for hooks in found]
    for hooks in found:
        hooks.clear()
    try:
        yield
    finally:
        for hooks, before in zip(found, kept, strict=True):
            hooks.update(before)
