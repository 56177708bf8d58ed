"""The random state of one rank, for ``Checkpointer``: after a restart the same numbers are drawn."""

from __future__ import annotations

import ctypes
import hashlib
import os
import random
import sys
from collections.abc import Mapping
from typing import Any

import torch

_CUDA: Any = torch.cuda  # much of it has no annotations


class RandomState:
    """The generators of Python, torch (the current GPU's too) and, if it is imported, numpy.

    Each rank has its own, and gets its own back. A rank that was not there when the state was saved gets
    seeds that follow from another rank's state and its own number, so that no two ranks draw the same.
    """

    def state_dict(self) -> dict[str, Any]:
        """The generators as they are, as plain values."""
        numpy = sys.modules.get("numpy")
        kind, keys, *rest = numpy.random.get_state() if numpy is not None else ("", None)
        return {
            "generators": (  # a tuple, so that it is saved as one value
                _rank(),
                random.getstate(),
                _bytes(torch.get_rng_state()),
                # None and not b"", which torch would not load with ``weights_only``
                _bytes(_CUDA.get_rng_state()) if _CUDA.is_initialized() else None,
                (kind, None if keys is None else keys.tobytes(), *rest),
            )
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Set the generators as ``state``, what ``state_dict`` gave, says."""
        rank, python, cpu, gpu, numbers = state["generators"]
        if rank != _rank():
            _seed(int.from_bytes(hashlib.sha256(cpu + str(_rank()).encode()).digest()[:4], "little"))
            return
        random.setstate(python)
        torch.set_rng_state(_tensor(cpu))
        if gpu and _CUDA.is_available():
            _CUDA.set_rng_state(_tensor(gpu))
        numpy = sys.modules.get("numpy")
        if numpy is not None and numbers[1] is not None:
            kind, keys, *rest = numbers
            numpy.random.set_state((kind, numpy.frombuffer(keys, numpy.uint32), *rest))


def _seed(number: int) -> None:
    random.seed(number)
    torch.manual_seed(number)
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed(number)


def _rank() -> int:
    return int(os.environ.get("RANK", "0"))


def _bytes(tensor: torch.Tensor) -> bytes:
    return ctypes.string_at(tensor.data_ptr(), tensor.numel())


def _tensor(data: bytes) -> torch.Tensor:
    return torch.frombuffer(bytearray(data), dtype=torch.uint8)
