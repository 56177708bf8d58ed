"""Gives memory to tensors on torch's meta device, so that a state is written once: by ``load``.

Theory. A script that makes a model and then restores it writes the whole state twice, and has the kernel
make its pages before the copy begins. A tensor on the meta device has a shape and no memory: it is bare.
``load`` gives it memory just before it copies into it, with as many cores as it copies with.

Each tensor stays the same object (``torch.utils.swap_tensors``), with its class, attributes and hooks. So an
optimizer that was made of it, and a second module that shares it, still have it, which ``Module.to_empty``
does not promise.

Only what is restored is given memory then. Buffers that no checkpoint has (``persistent=False``) stay bare:
a step that uses one fails at once, where memory with anything in it would give wrong numbers. For the same
reason what cannot be given memory is an error: torch's own planner would read into a tensor that nobody has.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import nn
from torch.distributed.tensor import DTensor
from torch.nn.parameter import is_lazy

from elasticrun.errors import CheckpointError

logger = logging.getLogger("elasticrun")

#: Of so many tensors the names are told.
MOST_NAMES = 3

Device = torch.device | str | None
Named = Iterator[tuple[str, torch.Tensor]]


def off_meta() -> contextlib.AbstractContextManager[object]:
    """Within it torch makes tensors that have memory, also where the caller makes none."""
    is_meta = torch.get_default_device().type == "meta"
    return torch.device("cpu") if is_meta else contextlib.nullcontext()


def bare_of(state: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    """The bare tensors in ``state`` that are saved, by name: of modules, and those that are entries."""
    return {name: tensor for name, tensor in _saved_of(state) if tensor.is_meta}


def give_memory(state: Mapping[str, Any], device: Device, also_unsaved: bool = False) -> None:
    """Give each bare tensor of the modules and tensors in ``state`` memory, with any content.

    ``device``: where; None: a DTensor on the devices of its mesh, others on torch's default device.
    ``also_unsaved``: buffers that are not saved as well.

    Raises:
        CheckpointError: a tensor cannot be given memory; the text names it.
    """
    if device is not None and torch.device(device).type == "meta":
        raise CheckpointError("`device` has to be one with memory, such as cpu or cuda, got meta")
    bare = dict(_all_of(state)) if also_unsaved else bare_of(state)
    _refuse_shared(bare)
    with contextlib.ExitStack() as renewals:
        for value in state.values():
            if isinstance(value, nn.Module):
                _let_go(value, renewals)
        for name, tensor in bare.items():
            if tensor.is_meta:  # and was not given memory by another name
                _give(name, tensor, device)


def refuse_bare(gathered: Mapping[str, Any], name: str = "") -> None:
    """CheckpointError if a tensor in these dicts and lists is bare; the text names it."""
    for key, value in gathered.items():
        where = f"{name}.{key}" if name else str(key)
        if isinstance(value, torch.Tensor) and value.is_meta:
            raise CheckpointError(
                f"{where} is on the meta device, where `load` restores only tensors and parameters of modules"
                " that are entries of `state`: make it on a device that has memory"
            )
        if isinstance(value, Mapping):
            refuse_bare(value, where)
        elif isinstance(value, list):
            refuse_bare(dict(enumerate(value)), where)  # type: ignore[arg-type]  # keys only name the place


def warn_of_bare(state: Mapping[str, Any]) -> None:
    """Tell of the tensors in a restored ``state`` that have no memory."""
    if names := [name for name, tensor in _all_of(state) if tensor.is_meta]:
        others = f" and {len(names) - MOST_NAMES} others" if names[MOST_NAMES:] else ""
        logger.warning(
            "%s%s still on the meta device, as no checkpoint has %s: fill %s before the first step",
            ", ".join(names[:MOST_NAMES]) + others,
            *((" is", "it", "it") if len(names) == 1 else (" are", "them", "them")),
        )


def _saved_of(state: Mapping[str, Any]) -> Named:
    for name, value in state.items():
        if isinstance(value, nn.Module):
            if any(each.is_meta for _, each in _in_module(value)):  # else its state need not be gathered
                yield from ((f"{name}.{key}", it) for key, it in _kept(name, value).items() if _is_tensor(it))
        elif _is_tensor(value):
            yield name, value


def _kept(name: str, module: nn.Module) -> dict[str, Any]:
    """What a module saves, as the objects that it has."""
    try:
        found: dict[str, Any] = module.state_dict(keep_vars=True)
    except TypeError as error:
        raise CheckpointError(
            f"{name} has tensors on the meta device, and its state_dict does not take keep_vars ({error}):"
            " make it on a device that has memory"
        ) from error
    return found


def _all_of(state: Mapping[str, Any]) -> Named:
    for name, value in state.items():
        if isinstance(value, nn.Module):
            yield from ((f"{name}.{key}", tensor) for key, tensor in _in_module(value))
        elif _is_tensor(value):
            yield name, value


def _in_module(module: nn.Module) -> Named:
    yield from module.named_parameters()
    yield from module.named_buffers()


def _is_tensor(value: object) -> bool:
    return isinstance(value, torch.Tensor)


def _refuse_shared(bare: Mapping[str, torch.Tensor]) -> None:
    """CheckpointError if two of them would share memory, and are not one object: they would not any more."""
    holders: dict[int, tuple[str, torch.Tensor, object]] = {}
    for name, tensor in bare.items():
        if not tensor.is_meta or is_lazy(tensor) or isinstance(tensor, DTensor):
            continue
        storage = tensor.untyped_storage()
        other, holder, _ = holders.setdefault(
            id(storage), (name, tensor, storage)
        )  # kept, so the id is its own
        if holder is not tensor:
            raise CheckpointError(
                f"{other} and {name} share memory, and are on the meta device: make them on one that has some"
            )


def _let_go(module: nn.Module, renewals: contextlib.ExitStack) -> None:
    """Drop the weak references that recurrent modules have to their weights, until ``renewals`` ends."""
    for each in module.modules():
        if isinstance(each, nn.RNNBase):
            each._flat_weight_refs = []
            renewals.callback(each._init_flat_weights)


def _give(name: str, tensor: torch.Tensor, device: Device) -> None:
    kind, hooks = type(tensor), (tensor._backward_hooks, tensor._post_accumulate_grad_hooks)
    try:
        with torch.inference_mode(tensor.is_inference()):
            made = _made_like(tensor, device)
        for key, value in tensor.__dict__.items():
            made.__dict__.setdefault(key, value)
        torch.utils.swap_tensors(tensor, made)  # type: ignore[no-untyped-call]
        if type(tensor) is not kind:
            tensor.__class__ = kind
    except (RuntimeError, TypeError, ValueError) as error:
        raise CheckpointError(
            f"{name} is on the meta device, and cannot be given memory ({error}): make it on another device"
        ) from error
    # They are the object's; what the tensor is made of now does not know of them.
    if hooks[0]:
        tensor._backward_hooks = hooks[0]
    if hooks[1]:
        tensor._post_accumulate_grad_hooks = hooks[1]


def _made_like(tensor: torch.Tensor, device: Device) -> torch.Tensor:
    if device is None:
        mesh = tensor.device_mesh if isinstance(tensor, DTensor) else None
        device = torch.get_default_device() if mesh is None else mesh.device_type
    made = torch.empty_like(tensor.detach(), device=device)
    if isinstance(tensor, nn.Parameter):
        return nn.Parameter(made, requires_grad=tensor.requires_grad)
    return made.requires_grad_(tensor.requires_grad)
