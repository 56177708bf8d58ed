"""Copies from GPUs into the agent's memory: pinned, and beside the training's own work.

Theory. A GPU copies at full speed, and without stopping the host, only into memory that its driver has
*pinned*. The agent's buffers are ordinary shared memory. So a buffer is pinned once, when the first tensor of
a GPU is copied into it, and let go before it is unmapped. Else the driver would take what is mapped there
next for the same memory, and copies to it would arrive in the old one. So a pinned buffer stays mapped until
it is released, whoever drops it. Where the driver refuses, copies go through a small pinned buffer of its
own: slower, and right.

A copy that does not stop the host is complete once its stream is. So ``Devices.beside`` ends by waiting for
the streams that it opened, and nothing may be concluded from the copied bytes before that.
"""

from __future__ import annotations

import contextlib
import logging
import mmap
import os
import weakref
from collections.abc import Iterable, Iterator
from typing import Any

import torch

logger = logging.getLogger("elasticrun")

#: Pinned for all GPUs of this process, not only the current one (CUDA's cudaHostRegisterPortable).
_FOR_ALL_GPUS = 1


class Pins:
    """Buffers of the agent that the driver has pinned; by their addresses. Dropping it releases them."""

    def __init__(self) -> None:
        self._pinned: dict[int, mmap.mmap | None] = {}  # None: the driver has refused
        self._owner = os.getpid()  # a process that it forks cannot use CUDA, and has pinned nothing
        at_the_end = weakref.finalize(self, _release_all, self._pinned, self._owner)
        at_the_end.atexit = False  # the process ends anyway

    def pin(self, memory: mmap.mmap) -> None:
        """Pin a buffer. If the driver refuses, say so once; copies are slower then."""
        address = _address(memory)
        if address in self._pinned:
            return
        refused = int(_runtime().cudaHostRegister(address, len(memory), _FOR_ALL_GPUS))
        if refused:
            _forget_error()
            if None not in self._pinned.values():
                logger.warning(
                    "the driver does not pin the agent's memory (CUDA error %d), so saves from the GPU take"
                    " longer; is there enough free memory, and no limit on locked memory (ulimit -l)?",
                    refused,
                )
        self._pinned[address] = None if refused else memory

    def release(self, memory: mmap.mmap) -> None:
        """Let a buffer go that is about to be unmapped."""
        address = _address(memory)
        if self._pinned.pop(address, None) is not None and self._owner == os.getpid():
            _unpin(address)


class Devices:
    """The GPUs that tensors are on, and what was queued there when they were to be copied."""

    def __init__(self, tensors: Iterable[torch.Tensor]) -> None:
        found = {each.device for each in tensors if each.is_cuda}
        self._queued = {device: torch.cuda.current_stream(device).record_event() for device in found}

    @contextlib.contextmanager
    def beside(self) -> Iterator[None]:
        """Run copies beside the training's own work, after what was queued. Ends when they are done."""
        with contextlib.ExitStack() as stack:
            for device, queued in self._queued.items():
                stream: Any = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
                stream.wait_event(queued)
                stack.enter_context(torch.cuda.stream(stream))
                stack.callback(stream.synchronize)
            yield


def _release_all(pinned: dict[int, mmap.mmap | None], owner: int) -> None:
    while pinned and owner == os.getpid():
        address, memory = pinned.popitem()
        if memory is not None:
            _unpin(address)


def _unpin(address: int) -> None:
    if int(_runtime().cudaHostUnregister(address)):
        _forget_error()


def _address(memory: mmap.mmap) -> int:
    return torch.frombuffer(memory, dtype=torch.uint8).data_ptr()


def _runtime() -> Any:
    return torch.cuda.cudart()  # type: ignore[no-untyped-call]


def _forget_error() -> None:
    """CUDA reports a refusal again at the next launch of a kernel, whoever launches it: launch one."""
    with contextlib.suppress(RuntimeError):
        torch.zeros(1, device="cuda").add_(1)
        torch.cuda.synchronize()
