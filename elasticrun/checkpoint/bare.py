"""Gives memory to tensors on torch's meta device, so that a state is written once: by ``load``.

Theory. A script that makes a model and then restores it writes the whole state twice, and has the kernel
make its pages before the copy begins. A tensor on the meta device has a shape and no memory: it is bare.
``load`` gives it memory just before it copies into it, with as many cores as it copies with.

Each tensor stays the same object (``torch.utils.swap_tensors``). So an optimizer that was made of it, and a
second module that shares it, still have it, which ``Module.to_empty`` does not promise.

Only what is restored is given memory then. Buffers that no checkpoint has (``persistent=False``) stay bare:
a step that uses one fails at once, where memory with anything in it would give wrong numbers.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import nn

from elasticrun.errors import CheckpointError

logger = logging.getLogger("elasticrun")

#: Of so many tensors the names are told.
MOST_NAMES = 3

Named = Iterator[tuple[str, torch.Tensor]]


def give_memory(state: Mapping[str, Any], device: torch.device | str, also_unsaved: bool = False) -> None:
    """Give each bare tensor of the modules and tensors in ``state`` memory on ``device``, with any content.

    ``also_unsaved``: buffers that are not saved as well.

    Raises:
        CheckpointError: something holds on to a tensor so that it cannot be changed; the text names it.
    """
    for name, tensor in _all_of(state) if also_unsaved else _saved_of(state):
        if tensor.is_meta:  # and was not given memory by another name
            _give(name, tensor, device)


def home_of(device: torch.device | str | None) -> torch.device:
    """Where tensors get memory. ``device``: as asked for; None: torch's default device, if it has memory."""
    home = torch.get_default_device() if device is None else torch.device(device)
    return torch.device("cpu") if home.type == "meta" else home


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
                saved = value.state_dict(keep_vars=True)
                yield from (
                    (f"{name}.{key}", it) for key, it in saved.items() if isinstance(it, torch.Tensor)
                )
        elif isinstance(value, torch.Tensor):
            yield name, value


def _all_of(state: Mapping[str, Any]) -> Named:
    for name, value in state.items():
        if isinstance(value, nn.Module):
            yield from ((f"{name}.{key}", tensor) for key, tensor in _in_module(value))
        elif isinstance(value, torch.Tensor):
            yield name, value


def _in_module(module: nn.Module) -> Named:
    yield from module.named_parameters()
    yield from module.named_buffers()


def _give(name: str, tensor: torch.Tensor, device: torch.device | str) -> None:
    with torch.inference_mode(tensor.is_inference()), torch.no_grad():
        made = torch.empty_like(tensor, device=device)
    if isinstance(tensor, nn.Parameter):
        made = nn.Parameter(made, requires_grad=tensor.requires_grad)
    else:
        made.requires_grad_(tensor.requires_grad)
    try:
        torch.utils.swap_tensors(tensor, made)  # type: ignore[no-untyped-call]
    except RuntimeError as error:
        raise CheckpointError(
            f"{name} is on the meta device, and cannot be given memory as something holds on to it ({error}):"
            f" make it on {device}"
        ) from error
