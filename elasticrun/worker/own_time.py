"""How long a worker's steps take, and how much of that it waits for no other rank: behind its marks.

Theory. Ranks that train together step together, so all of them take the same time for a step, and only what
a rank needs *for itself* tells who is slow. A script may say it (``report_step(seconds=...)``). Else, with a
``DistributedDataParallel`` over all ranks, it is the time from the first ``step`` of an optimizer until the
next backward pass begins: the update, the next batch, and the forward pass. Why these two instants: ranks
exchange gradients in the backward pass, so they have just met when the update begins, whoever was slow
before. If they wait for one another in between after all (buffers, a loss that is summed up), then the fast
ones seem as slow as the slow one, and nobody is blamed. The backward pass itself is where they wait. No other
kind of training is measured: ranks may differ by intention there, as stages of a pipeline, or meet elsewhere.

Steps are told in batches, without the longest of each batch: a save, an evaluation or a pause of the machine
is no property of a node. The first batch is left out, as it compiles and warms up.

Invariants. Nothing here raises into the script, waits, or touches a device. A step costs one or two
microseconds. Within torch.compile nothing is measured: the compiler sees no more than a test of that. It
needs the standard library only, as ``reporter.py``, and is loaded by its path before it.
"""

from __future__ import annotations

import functools
import os
import struct
import sys
import time
from typing import TYPE_CHECKING

from elasticrun.worker.marks import MASK, checksum

if TYPE_CHECKING:
    import mmap
    from collections.abc import Callable
    from typing import Any, Protocol

    class Reporter(Protocol):
        """The one of ``reporter.py``."""

        own_time: OwnTime


#: The agent's module has the same; a test compares them.
#: Owner, how many steps the script has timed, nanoseconds of all of them, checksum.
TIMES = struct.Struct("=QQQQ")
#: Owner, how many steps were measured, nanoseconds of their own, nanoseconds in all, checksum.
OWN = struct.Struct("=QQQQQ")
#: Steps that are told together, and how many of them are: the longest are not.
BATCH, KEPT = 8, 6
#: Nanoseconds from the begin of one batch to that of the next one: not all of many short steps are measured.
PERIOD = 250_000_000


class OwnTime:
    """The part of the page that has it. Instants are nanoseconds of the host's monotonic clock."""

    def __init__(self, page: mmap.mmap, times: int, own: int, is_owner: Callable[[], bool]) -> None:
        """``times`` and ``own`` are where the two begin; ``is_owner``: whether this process may write."""
        self._page = page
        self._at = times, own
        self._is_owner = is_owner
        self._times = (os.getpid(), 0, 0)
        self._told = (os.getpid(), 0, 0, 0)
        self.is_explicit = False  # the script times its steps
        self._is_warm = False
        self._began = 0  # when ranks had exchanged their gradients; 0: they have not since the last backward
        self._last = 0  # the end of the step before; 0: it was not measured
        self._next = 0  # when the next batch may begin
        self._depth = 0  # of backward passes within backward passes
        self._own: list[int] = []
        self._whole: list[int] = []

    def timed(self, seconds: float, now: int) -> None:
        """The script says that a step, which ends now, took it so long by itself."""
        nanoseconds = int(seconds * 1e9)
        _, count, total = self._times
        self._times = (self._times[0], count + 1, (total + nanoseconds) & MASK)
        TIMES.pack_into(self._page, self._at[0], *self._times, checksum(self._times))
        if not self.is_explicit:
            self.is_explicit, self._last = True, 0
            self._own, self._whole = [], []
        self._add(nanoseconds, now)

    def exchanged(self) -> None:
        """An optimizer begins its step. What is called within a backward pass says nothing."""
        if not self._began and not self._depth:
            now = time.monotonic_ns()
            if now >= self._next:
                self._began = now
            else:
                self._last = 0

    def begin_backward(self) -> None:
        """A backward pass begins: from now on this rank may wait for others."""
        self._depth += 1
        if self._began:
            now = time.monotonic_ns()
            own, self._began = now - self._began, 0
            if not self.is_explicit:
                self._add(own, now)

    def end_backward(self) -> None:
        """It has ended, or failed."""
        self._depth -= 1

    def _add(self, own: int, now: int) -> None:
        """A step has ended now."""
        before, self._last = self._last, now
        if not before:
            return
        self._own.append(own)
        self._whole.append(now - before)
        if len(self._own) >= BATCH:
            self._next = now - sum(self._whole) + PERIOD
            self._tell()

    def _tell(self) -> None:
        own, whole = (sum(sorted(each)[:KEPT]) for each in (self._own, self._whole))
        self._own, self._whole = [], []
        if self._is_warm and self._told[0] == os.getpid() and self._is_owner():
            pid, steps, before, all_before = self._told
            self._told = (pid, steps + KEPT, (before + own) & MASK, (all_before + whole) & MASK)
            OWN.pack_into(self._page, self._at[1], *self._told, checksum(self._told))
        self._is_warm = True


# -- hooks


def hook_parallel(current: Callable[[], Reporter | None]) -> Callable[[Any], None]:
    """A hook that measures a process from its first ``DistributedDataParallel`` over all ranks on.

    ``current``: the reporter of this process; None if it reports nothing.
    """

    def hook(module: Any) -> None:
        parallel, is_on = module.DistributedDataParallel, False
        made = parallel.__init__

        @functools.wraps(made)
        def wrapper(self: Any, *args: Any, **kwargs: Any) -> None:
            nonlocal is_on
            made(self, *args, **kwargs)
            reporter = None if is_on else current()
            is_on = is_on or (reporter is not None and begin(module.torch, self, reporter.own_time))

        parallel.__init__ = wrapper

    return hook


def begin(torch: Any, model: Any, own: OwnTime) -> bool:
    """Measure from now on, if all ranks exchange the gradients of this model; whether that is so.

    A GPU computes later than Python says so: what is waited for there would be taken for work.
    """
    try:
        size = torch.distributed.get_world_size()
        is_measurable: bool = 1 < size == model.process_group.size() and model.device_type == "cpu"
        if is_measurable:
            watch(torch, own)
    except Exception:  # noqa: BLE001 of another version of torch: nothing is measured
        return False
    return is_measurable


def watch(torch: Any, own: OwnTime) -> None:
    """Hear of each backward pass and of each step of an optimizer; both go on with what they were.

    Within a function that torch.compile takes apart, each Python function that is called is compiled as well:
    the two here are left out, and do nothing there.
    """
    backward, is_compiling = torch.autograd.backward, torch.compiler.is_compiling
    frames = torch._C._dynamo.eval_frame
    compiler = frames.get_eval_frame_callback

    @functools.wraps(backward)
    def wrapper(*args: Any, **kwargs: Any) -> None:
        if is_compiling() or compiler() is not None:
            return backward(*args, **kwargs)  # type: ignore[no-any-return]
        own.begin_backward()
        try:
            return backward(*args, **kwargs)  # type: ignore[no-any-return]
        finally:
            own.end_backward()

    def before_step(optimizer: object, args: object, kwargs: object) -> None:
        if not is_compiling() and compiler() is None:
            own.exchanged()

    leave_out(frames, wrapper)
    leave_out(frames, before_step)
    optimizers: Any = sys.modules["torch.optim.optimizer"]  # torch.optim hides it
    optimizers.register_optimizer_step_pre_hook(before_step)
    torch.autograd.backward = wrapper  # Tensor.backward looks it up at each call


def leave_out(frames: Any, function: Any) -> None:
    """Have the compiler leave a function's own code as it is; without an import of torch._dynamo."""
    if hasattr(frames, "skip_code"):  # an earlier torch
        frames.skip_code(function.__code__)
    else:
        action = frames._FrameAction
        strategy = frames._FrameExecStrategy(action.SKIP, action.DEFAULT)
        frames.set_code_exec_strategy(function.__code__, strategy)
