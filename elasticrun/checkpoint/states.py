"""Turns what a script gives to ``Checkpointer`` into a dict of tensors and plain values, and back.

``torch.distributed.checkpoint`` flattens nested dicts, and turns all their keys into text. An optimizer
numbers its state, so its keys are turned into text here, and back when it is restored. A new optimizer
has no state yet. It gets empty tensors of the saved sizes to restore into; or, where its parameters are
shards, a state by a step that changes nothing.

Modules and optimizers know by themselves what they consist of. Anything else that has tensors inside is built
again as it was saved (``checkpoint/forms.py``).
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, MutableMapping
from typing import Any

import torch
from torch import nn
from torch.distributed.checkpoint.metadata import BytesStorageMetadata, Metadata, TensorStorageMetadata
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer
from torch.optim import optimizer as hooked

from elasticrun.checkpoint.forms import FORM, Apart, Builder, refuse_objects
from elasticrun.errors import CheckpointError

Saved = Mapping[str, Any]  # torch's metadata of each saved item, by its name


def states_of(state: Mapping[str, Any], saved: Metadata | None = None) -> dict[str, Any]:
    """What each entry of ``state`` has to save. ``saved``: what will be restored into it.

    Raises:
        CheckpointError: an entry could not be restored as it is; the text names it.
    """
    kinds = {} if saved is None else saved.state_dict_metadata
    gathered: dict[str, Any] = {}
    for name, value in state.items():
        if name.endswith(FORM):
            raise CheckpointError(f"no entry of `state` can have a name that ends with {FORM!r}, as {name!r}")
        if isinstance(value, Optimizer):
            gathered[name] = _state_of_optimizer(name, value, kinds)
        elif isinstance(kinds.get(name), BytesStorageMetadata) and not isinstance(value, torch.Tensor):
            _refuse_objects(name, value)
            gathered[name] = _closed(None)
        elif isinstance(value, nn.Module | torch.Tensor):
            gathered[name] = value.state_dict() if isinstance(value, nn.Module) else value
        else:
            gathered |= _parts_of(name, value, saved)
    return gathered


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
        elif isinstance(value, nn.Module):
            _load(name, value, restored[name])
        elif not isinstance(value, torch.Tensor):
            _put_back_other(state, name, restored)


def _put_back_other(state: MutableMapping[str, Any], name: str, restored: Mapping[str, Any]) -> None:
    value, found = state[name], _opened(restored[name])
    has_state = hasattr(value, "load_state_dict")
    if name + FORM in restored:
        form = _opened(restored[name + FORM])
        found = Builder(name, restored[name]).build(form, None if has_state else value)
    if has_state:
        _load(name, value, found)
    else:
        state[name] = found


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
    return {
        name: _opened(value)
        for name, value in gathered.items()
        if isinstance(value, tuple) and not name.endswith(FORM)
    }


def _load(name: str, value: Any, restored: Any) -> None:
    try:
        value.load_state_dict(restored)
    except (RuntimeError, ValueError, KeyError, TypeError) as error:
        raise CheckpointError(f"the saved state of {name} does not fit: {error}") from error


def _refuse_objects(name: str, value: Any) -> None:
    if not hasattr(value, "load_state_dict"):
        refuse_objects(name, value)


def _closed(value: Any) -> Any:
    """A value in one piece: ``torch.distributed.checkpoint`` looks into dicts and lists, not into tuples."""
    return (value,)


def _opened(value: Any) -> Any:
    return value[0] if isinstance(value, tuple) else value


def _state_of_optimizer(name: str, optimizer: Optimizer, saved: Saved) -> dict[str, Any]:
    prefix = f"{name}.state."
    mine = {key: kind for key, kind in saved.items() if key.startswith(prefix)}
    is_sharded = any(
        isinstance(each, DTensor) for group in optimizer.param_groups for each in group["params"]
    )
    if mine and not optimizer.state and is_sharded:
        _give_state(optimizer, {int(key.removeprefix(prefix).partition(".")[0]) for key in mine})
    found = optimizer.state_dict()
    numbered = {
        str(number): {k: v if isinstance(v, torch.Tensor) else _closed(v) for k, v in entry.items()}
        for number, entry in found["state"].items()
    }
    if mine and not numbered:
        numbered = _empty_state(mine, prefix)
    return {"state": numbered, "param_groups": tuple(found["param_groups"])}


def _parts_of(name: str, value: Any, saved: Metadata | None) -> dict[str, Any]:
    """The parts of an entry that is neither module, optimizer nor tensor."""
    _refuse_objects(name, value)
    plain = value.state_dict() if hasattr(value, "state_dict") else value
    if isinstance(plain, torch.Tensor):
        return {name: plain}
    apart = Apart(name, plain)
    if saved is not None and name + FORM in saved.state_dict_metadata:
        return {name: _targets(name, apart, saved), name + FORM: _closed(None)}
    if saved is not None and apart.tensors is not None:
        return {name: plain}  # what has no form was saved of a module, by the same names
    if apart.tensors is None:
        return {name: _closed(plain)}
    return {name: apart.tensors, name + FORM: _closed(apart.form)}


def _targets(name: str, apart: Apart, saved: Metadata) -> dict[str, torch.Tensor]:
    """What the saved tensors of an entry are read into: those that it has here, and new ones.

    One that it has and that was not saved is among them, so that it is told; but lists may have grown.
    """
    targets = {key: tensor for key, (tensor, in_list) in apart.found.items() if not in_list}
    for item, path in (saved.planner_data or {}).items():
        kind, key = saved.state_dict_metadata.get(item), item.removeprefix(f"{name}.")
        if path[0] != name or not isinstance(kind, TensorStorageMetadata):
            continue
        if key in apart.found:
            targets[key] = apart.found[key][0]
        elif len(kind.chunks) > 1:  # whole, it may be larger than this host's memory
            raise CheckpointError(
                f"{item} was saved as shards, and `state` has none there to restore: make it before `load`"
            )
        else:
            targets[key] = torch.empty(kind.size, dtype=kind.properties.dtype)
    return targets


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
