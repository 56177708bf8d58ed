"""Copies what only an optimizer changes while the next step computes: ``Checkpointer(overlap=True)``.

Theory. From one step of an optimizer to the next, its parameters and its own state stay as they are: forward
and backward passes only read them. So a thread copies these tensors, and the next step of any optimizer waits
for it, by a hook that torch calls. Everything else that is saved is copied at once. A captured CUDA graph may
have such a step in it, of which torch calls no hook and counts no change: so the next graph waits as well,
when it is replayed, whatever is in it; and when it is captured, as CUDA allows no copy by others meanwhile.

A loop may change such a tensor in another way. Torch counts the changes of each tensor; one that is not as it
was when its copy ends is found, and that save is given up. What changes memory behind torch's back, as
``tensor.data`` or numpy do, is not counted.
"""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_pre_hook

from elasticrun.checkpoint.gpu import Devices
from elasticrun.checkpoint.parts import Item
from elasticrun.errors import CheckpointError

#: Of ``torch.cuda.CUDAGraph``: those that may change tensors, or stop copies of others.
GRAPH_METHODS = ("replay", "capture_begin")

Placed = tuple[Item, torch.Tensor]  # an item with its place in a part, and what to copy there


class Changed(CheckpointError):
    """A tensor was changed while it was copied."""


def steady_tensors(state: Mapping[str, Any]) -> frozenset[int]:
    """Where the memory of all tensors begins that only the optimizers in ``state`` change."""
    tensors = (each for value in state.values() if isinstance(value, Optimizer) for each in _of(value))
    return frozenset(address_of(each) for each in tensors)


def is_steady(tensor: torch.Tensor, steady: frozenset[int]) -> bool:
    """Whether a tensor lies in the memory of one of these."""
    return bool(steady) and tensor.numel() > 0 and address_of(tensor) in steady


def _of(optimizer: Optimizer) -> Iterator[torch.Tensor]:
    for group in optimizer.param_groups:
        yield from group["params"]
    for entry in optimizer.state.values():
        yield from (each for each in entry.values() if isinstance(each, torch.Tensor))


def address_of(tensor: torch.Tensor) -> int:
    """Where the memory of a tensor begins; of a DTensor, that of its shard here."""
    here = tensor.to_local() if isinstance(tensor, DTensor) else tensor
    return here.untyped_storage().data_ptr()


class Later:
    """Tensors that are still to be copied, as they are now."""

    def __init__(self, placed: Iterable[Placed]) -> None:
        self._placed = [(item, tensor, tensor._version) for item, tensor in placed]
        self._devices = Devices(tensor for _, tensor, _ in self._placed)
        self._done = threading.Event()

    def copy(self, write: Callable[[list[Placed], Devices], object]) -> None:
        """Copy all, by ``write``, beside what the GPUs do. Called by the thread.

        Raises:
            Changed: one of them was changed meanwhile.
        """
        try:
            if self._placed:
                write([(item, tensor) for item, tensor, _ in self._placed], self._devices)
            for item, tensor, version in self._placed:  # only now all bytes are there
                if tensor._version != version:
                    raise Changed(
                        f"{item.name} was changed while it was copied: with overlap=True only the step of"
                        " an optimizer may change what the optimizer has; save without it"
                    )
        finally:
            self._done.set()

    def give_up(self) -> None:
        """Nobody copies them: let the next step go."""
        self._done.set()

    def wait(self) -> float:
        """Wait until all are copied. Returns for how many seconds."""
        if self._done.is_set():
            return 0.0
        began = time.monotonic()
        self._done.wait()
        return time.monotonic() - began


class Overlap:
    """Has the next step of any optimizer wait for the copies that are under way."""

    def __init__(self, waited: Callable[[float], None]) -> None:
        """``waited``: hears for how many seconds a step was held up."""
        self._waited = waited
        self._later: Later | None = None
        self._hook = register_optimizer_step_pre_hook(lambda *_: self._catch_up())
        self._undo = [_before(torch.cuda.CUDAGraph, name, self._catch_up) for name in GRAPH_METHODS]

    def begin(self, placed: Iterable[Placed]) -> Later:
        """Take these tensors up. Whoever calls it has to call ``Later.copy`` in a thread, or to give up."""
        self._later = Later(placed)
        return self._later

    def give_up(self) -> None:
        """Nobody copies what was taken up: let the next step go."""
        if self._later is not None:
            self._later.give_up()

    def close(self) -> None:
        """Let optimizers and graphs alone."""
        self._hook.remove()
        for undo in self._undo:
            undo()

    def _catch_up(self) -> None:
        if self._later is not None:
            self._waited(self._later.wait())
            self._later = None


def _before(kind: Any, name: str, action: Callable[[], None]) -> Callable[[], None]:
    """Call ``action`` before each call of a method of a class. Returns what ends that."""
    method = getattr(kind, name)
    actions = [action]

    @functools.wraps(method)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        for each in actions:
            each()
        return method(*args, **kwargs)

    setattr(kind, name, wrapper)

    def undo() -> None:
        actions.clear()
        if getattr(kind, name) is wrapper:  # else somebody has wrapped it since
            setattr(kind, name, method)

    return undo
