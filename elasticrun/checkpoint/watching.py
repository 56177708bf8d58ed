"""Finds a state that does not change: see ``core/state/sameness.py``. Reads no tensor.

The digests of a part cover only this rank's share of what all ranks have alike. Of the rest the numbers by
which torch counts changes tell whether training goes on, so a share that is never used, as a layer without
gradients, is no false alarm.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import torch
from torch.optim import Optimizer

from elasticrun.checkpoint.overlap import address_of
from elasticrun.checkpoint.parts import Item, digest_of
from elasticrun.core.state.sameness import Watch

Shape = tuple[int, ...]


class Watcher:
    """Watches what one rank saves."""

    def __init__(self) -> None:
        self._watch = Watch()

    def after(
        self,
        step: int,
        state: Mapping[str, Any],
        tensors: Mapping[str, Any],
        items: Sequence[Item],
        paths: Mapping[str, Sequence[str | int]],
        fixed: Collection[str],
    ) -> str:
        """Take in one more save. Returns a warning in a sentence, or "".

        ``tensors``: all values by name, of which ``items`` are those that this rank has written. ``paths``:
        of each name, the way in the state. ``fixed``: names that training may leave as they are.
        """
        mine = {item.name for item in items}
        found: dict[str, list[object]] = {}
        for item in items:
            if item.dtype and item.name not in fixed:
                found.setdefault(str(paths[item.name][0]), []).append((item.name, item.offset, item.sum))
        for name, tensor in tensors.items():
            if isinstance(tensor, torch.Tensor) and name not in mine and name not in fixed:
                version = 0 if tensor.is_inference() else tensor._version
                found.setdefault(str(paths[name][0]), []).append((name, version))
        digests = {entry: digest_of(repr(each).encode()) for entry, each in found.items()}
        same = self._watch.after(step, digests)
        if not same:
            return ""
        trained = _trained_but_not_saved(state, tensors)
        copies = [entry for entry in same if _is_copy(entry, state, tensors, paths, trained)]
        return self._watch.warning(step, same, copies)


def _trained_but_not_saved(state: Mapping[str, Any], tensors: Mapping[str, Any]) -> Counter[Shape]:
    """The shapes of all parameters of the optimizers that are not among the saved tensors."""
    saved = {address_of(each) for each in tensors.values() if isinstance(each, torch.Tensor)}
    optimizers = [each for each in state.values() if isinstance(each, Optimizer)]
    parameters = [each for it in optimizers for group in it.param_groups for each in group["params"]]
    return Counter(
        tuple(each.shape) for each in parameters if each.requires_grad and address_of(each) not in saved
    )


def _is_copy(
    entry: str,
    state: Mapping[str, Any],
    tensors: Mapping[str, Any],
    paths: Mapping[str, Sequence[str | int]],
    trained: Counter[Shape],
) -> bool:
    """Whether an entry looks like a copy of parameters that are trained, and not saved."""
    if not trained or isinstance(state.get(entry), Optimizer):
        return False
    mine = [each for name, each in tensors.items() if paths[name][0] == entry]
    return trained <= Counter(tuple(each.shape) for each in mine if isinstance(each, torch.Tensor))
