"""How a worker tells its agent that it is alive: a slot in a shared page, and the hooks that write it.

Theory. The agent owns a page of memory with one slot for each worker, and names it in one environment
variable. A worker maps it through /proc, so no file can be left behind or fill a disk. A slot has one writer
and no lock; its last field is a checksum of the others, so a reader that comes in between sees that it did.

*Signs of life* are steps, batches taken from a data loader, and the begin and end of checkpoints. Every call
of an optimizer's ``step`` counts, so a script with two counts double, which does no harm: silence is judged
and not the number. ``report_step`` takes the numbering over.

Invariants. Nothing here ever raises into the script (but for the script's own ``on_drain`` callbacks), and
nothing acts in a process that the worker forks. The last process to claim a slot owns it; the others fall
silent. This module needs the standard library only and is loaded by its path, with those that it imports, as
``elasticrun`` may be missing here. Steps that run no Python cannot be seen: within
torch.compile they are not counted, and from the first that a CUDA graph captures this worker reports no more.
"""

from __future__ import annotations

import functools
import mmap
import os
import struct
import sys
import threading
import time
from typing import TYPE_CHECKING

from elasticrun.worker.dumps import arm_stacks
from elasticrun.worker.marks import FIRST_STEP, IMPORTED, MARKS, MASK, RESTORED, Marks, checksum
from elasticrun.worker.own_time import OWN, TIMES, OwnTime, hook_parallel

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType
    from typing import Any

VARIABLE = "ELASTICRUN_PROGRESS"
VERSION = "3"
#: owner, steps, step, sign, longest, pause, busy since, signal, listens, checksum; the agent has the same
SLOT = struct.Struct("=QQqQQQQQQQ")
SLOT_SIZE = SLOT.size + TIMES.size + MARKS.size + OWN.size  # in this order
HEADER = struct.Struct("=8sQ")  # token, drain deadline
HEADER_SIZE = 128
MEMFD = "/memfd:elasticrun-progress"  # what the kernel calls the page

#: Silences before the second step are start-up (compilation, autotuning) and teach nothing.
LEARN_AFTER = 2
#: A silence longer than the longest by this factor is a pause, if the last one was so many signs ago.
PAUSE, RARE = 8, 10


class Reporter:
    """Writes the slot of this process. Instants are nanoseconds of the host's monotonic clock."""

    def __init__(self, page: mmap.mmap, slot: int, stacks: str, bell: str = "", inode: int = 0) -> None:
        self.pid = os.getpid()
        self._page = page
        self._offset = HEADER_SIZE + slot * SLOT_SIZE
        times = self._offset + SLOT.size
        marks = times + TIMES.size
        self._marks = Marks(page, marks, bell, inode)
        self.own_time = OwnTime(page, times, marks + MARKS.size, lambda: self._is_owner)
        self._stacks = stacks  # where a dump of our stacks goes, as a path
        self._main = threading.main_thread().ident
        self._owns = False
        self._steps = 0
        self._step = -1
        self._explicit = False  # the script numbers its steps
        self._sign = time.monotonic_ns()
        self._longest = 0
        self._pause = 0
        self._since_pause = 0  # how many signs
        self._busy_since = 0
        self._depth = 0  # of checkpoints within checkpoints
        self._is_new = True  # it has made no step
        self._signum = 0
        self._listens = False
        self._callbacks: list[Callable[[], object]] = []

    def claim(self) -> None:
        """Take the slot, and be ready to show our stacks. May be repeated."""
        if self._owns:
            return
        self._owns = True
        try:
            self._signum = arm_stacks(self._stacks)
        except (OSError, ValueError, RuntimeError):
            self._signum = 0  # then there are no stacks by signal
        self._page[self._offset : self._offset + 8] = struct.pack("=Q", self.pid)
        self._write()

    def step(self) -> None:
        """A step that an optimizer made."""
        self._live()
        if not self._explicit:
            self._steps += 1
            self._step += 1
        self._write()
        if self._is_new:
            self.reach(FIRST_STEP)

    def numbered_step(self, number: int | None, seconds: float | None = None) -> None:
        """A step that the script reports, and its time; from now on optimizers' are signs of life only."""
        self.claim()
        self._live()
        self._steps += 1
        self._step = self._step + 1 if number is None else number
        self._write()
        if not self._explicit:
            self._explicit = True
            if self._is_owner:
                self._marks.numbered(self._step)
        if self._is_new:
            self.reach(FIRST_STEP)
        if seconds is not None and 0 <= seconds < MASK / 1e9 and self._is_owner:
            self.own_time.timed(seconds, self._sign)

    def live(self) -> None:
        """Any other sign of life; counts in the main thread only, as a helper may go on without it."""
        if self._is_main:
            self._live()
            self._write()

    def begin_checkpoint(self) -> None:
        """Allow silence until the end. Counts in the main thread only: others save in the background."""
        if not self._is_main:
            return
        self._depth += 1
        if self._depth == 1:
            self._live()
            self._busy_since = self._sign
            self._write()

    def end_checkpoint(self) -> None:
        """End a checkpoint; after the outermost one silence counts again."""
        if not self._is_main:
            return
        self._depth -= 1
        if self._depth == 0:
            self._sign = time.monotonic_ns()  # it was no silence to learn from
            lasted, self._busy_since = self._sign - self._busy_since, 0
            self._write()
            self.stalled(lasted)

    def reach(self, milestone: int) -> None:
        """Tell the agent, once, how far this worker is."""
        self._is_new &= milestone != FIRST_STEP
        if not self._marks.has(milestone):
            self.claim()
            if self._is_owner:
                self._marks.reach(milestone)

    def restored(self, step: int) -> None:
        """A saved state was loaded, or there was none: then ``step`` is 0."""
        self._marks.restored(step, self._steps)
        self.reach(RESTORED)

    def saved(self, step: int, nanoseconds: int) -> None:
        """A save has held up the main thread. ``step``: how many steps are done, as the script counts."""
        if self._is_main and self._is_owner:
            self._marks.saved(step, self._steps, self._step)
            self.stalled(nanoseconds)

    def stalled(self, nanoseconds: int) -> None:
        """Training has waited for a save; within ``Checkpointing`` that is counted at its end."""
        if self._is_main and self._is_owner and self._depth == 0:
            self._marks.stall(nanoseconds)

    def release(self) -> None:
        """Clear the slot and report no more, as if this worker had never begun."""
        if self._is_owner:
            self._page[self._offset : self._offset + SLOT_SIZE] = bytes(SLOT_SIZE)
        self.pid = -1

    def drain_deadline(self) -> int:
        """When this worker has to be gone; 0: it may stay."""
        return int(HEADER.unpack_from(self._page, 0)[1])

    def listen(self, callback: Callable[[], object] | None) -> None:
        """Tell the agent that a drain needs no signal to this worker; keeps the callback, if any."""
        if callback is not None:
            self._callbacks.append(callback)
        self.claim()
        self._listens = True
        self._write()

    def due_callbacks(self) -> list[Callable[[], object]]:
        """The callbacks to call now, each only once."""
        if not self._callbacks or not self.drain_deadline():
            return []
        due, self._callbacks = self._callbacks, []
        return due

    @property
    def _is_main(self) -> bool:
        return threading.get_ident() == self._main

    @property
    def _is_owner(self) -> bool:
        """False once another process below the worker has claimed the slot."""
        return self._owns and struct.unpack_from("=Q", self._page, self._offset)[0] == self.pid

    def _live(self) -> None:
        now = time.monotonic_ns()
        if self._steps >= LEARN_AFTER:
            self._learn(now - self._sign)
        elif not self._marks.has(IMPORTED) and self._is_owner:
            self._marks.reach(IMPORTED)
        self._sign = now

    def _learn(self, silence: int) -> None:
        self._since_pause += 1
        if silence > PAUSE * self._longest and self._since_pause > RARE:
            self._pause = max(self._pause, silence)
            self._since_pause = 0
        else:
            self._longest = max(self._longest, silence)

    def _write(self) -> None:
        if not self._is_owner:
            return
        fields: tuple[int, ...] = (self.pid, self._steps, self._step, self._sign, self._longest, self._pause)
        fields += (self._busy_since, self._signum, int(self._listens))
        SLOT.pack_into(self._page, self._offset, *fields, checksum(fields))


# -- finding the page


class _State:
    """Of this process: whether it has looked for a page, and what it found."""

    reporter: Reporter | None = None
    is_known = False


def current() -> Reporter | None:
    """The reporter of this process; None outside elastic-run, and in children of a worker."""
    if not _State.is_known:
        _State.is_known = True
        try:
            _State.reporter = connect(described_page())
        except (OSError, ValueError):
            _State.reporter = None  # an agent that is out of reach
    reporter = _State.reporter
    return reporter if reporter is not None and reporter.pid == os.getpid() else None


def described_page() -> str:
    """The variable's value, which sitecustomize has kept if it ran; "" if there is none for this process."""
    keeper = sys.modules.get("_elasticrun_sitecustomize")
    if keeper is None:
        return os.environ.get(VARIABLE, "")
    return keeper.page if keeper.pid == os.getpid() else ""


def connect(description: str) -> Reporter | None:
    """Map the page; None if there is none. OSError or ValueError if it is not what it should be."""
    fields = description.split(":")
    if fields[0] != VERSION:
        return None
    _, agent, page_fd, token, slot, stacks_fd, bell_fd, inode, _ = fields
    path = f"/proc/{agent}/fd/{page_fd}"
    # In another PID namespace that may be anybody's file: look before opening, then at the token.
    if not os.readlink(path).startswith(MEMFD):  # noqa: PTH115 pathlib takes milliseconds
        return None
    fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        page = map_page(fd, HEADER_SIZE + SLOT_SIZE * (int(slot) + 1))
    finally:
        os.close(fd)
    if HEADER.unpack_from(page, 0)[0] != bytes.fromhex(token):
        page.close()
        return None
    files = f"/proc/{agent}/fd/"
    return Reporter(page, int(slot), files + stacks_fd, files + bell_fd, int(inode))


def map_page(fd: int, size: int) -> mmap.mmap:
    """The beginning of the page; before Python 3.13 this keeps a copy of the descriptor open."""
    if sys.version_info >= (3, 13):
        return mmap.mmap(fd, size, trackfd=False)
    return mmap.mmap(fd, size)


# -- hooks


class Checkpointing:
    """The script is saving its state: silence is fine meanwhile."""

    def __enter__(self) -> None:
        self._reporter = current()
        if self._reporter is not None:
            self._reporter.begin_checkpoint()

    def __exit__(self, *_: object) -> None:
        if self._reporter is not None and self._reporter is current():  # not in a child forked meanwhile
            self._reporter.end_checkpoint()


def reach(milestone: int) -> None:
    """This worker got to a milestone of ``marks.py``."""
    reporter = current()
    if reporter is not None:
        reporter.reach(milestone)


def report(number: int | None = None, seconds: float | None = None) -> None:
    """The script's own report of a step."""
    reporter = current()
    if reporter is not None:
        reporter.numbered_step(number, seconds)
        drain(reporter)


def drain(reporter: Reporter) -> None:
    """Call the script's callbacks if the agent has asked; what they raise is the script's."""
    for callback in reporter.due_callbacks():
        callback()


def imported(name: str, module: ModuleType) -> None:
    """Hook a module that was executed, for the signs of life in it."""
    if current() is not None:
        HOOKS[name](module)


def hook_optimizers(module: Any) -> None:
    """Hear of every step of every optimizer."""
    torch = module.torch

    def after_step(optimizer: object, args: object, kwargs: object) -> None:
        if torch.compiler.is_compiling():
            return  # the compiler traces this function, and must see no more than this line
        reporter = current()
        if reporter is None:
            return
        if torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing():
            reporter.release()
            return
        reporter.step()
        drain(reporter)

    module.register_optimizer_step_post_hook(after_step)
    reporter = current()
    if reporter is not None:
        reporter.claim()


def hook_saving(*names: str) -> Callable[[Any], None]:
    """A hook that takes these functions for checkpoints, also where packages above export them."""

    def hook(module: Any) -> None:
        above = [sys.modules.get(module.__name__.rsplit(".", depth)[0]) for depth in range(1, 4)]
        for name, function in [(name, getattr(module, name)) for name in names if hasattr(module, name)]:
            saver = marked(function)
            for holder in (module, *above):
                if getattr(holder, name, None) is function:
                    setattr(holder, name, saver)

    return hook


def marked(function: Callable[..., Any]) -> Callable[..., Any]:
    """The same function, within ``Checkpointing``."""

    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        with Checkpointing():
            return function(*args, **kwargs)

    return wrapper


def hook_batches(module: Any) -> None:
    """Count each batch from a data loader as a sign of life: an evaluation makes no steps."""
    iterator = module._BaseDataLoaderIter
    following = iterator.__next__

    @functools.wraps(following)
    def wrapper(self: Any) -> Any:
        batch = following(self)
        reporter = current()
        if reporter is not None:
            reporter.live()
        return batch

    iterator.__next__ = wrapper


HOOKS: dict[str, Callable[[Any], None]] = {
    "torch.optim.optimizer": hook_optimizers,
    "torch.nn.parallel.distributed": hook_parallel(current),
    "torch.serialization": hook_saving("save"),
    "torch.utils.data.dataloader": hook_batches,
    "torch.distributed.checkpoint.state_dict_saver": hook_saving("save"),
    "safetensors.torch": hook_saving("save_file", "save_model"),
}
