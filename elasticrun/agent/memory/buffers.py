"""Makes the memory that outlives workers: one memfd for each buffer.

A memfd has no name in any file system, so nothing is left behind whoever is killed, and it lives as long as
any process has it open. The pages of a buffer are there before anybody gets it: the kernel clears them, which
takes longer than to write them, so a thread does that. It writes zeros: the kernel clears pages that are only
allocated once somebody maps them, which would be a worker in the middle of a save.
"""

from __future__ import annotations

import asyncio
import errno
import mmap
import os
from collections.abc import Callable

from elasticrun.agent.memory.room import free_bytes
from elasticrun.core.state.events import BufferMade, BufferRefused, DropBuffer, MakeBuffer

MEMFD = "elasticrun-state"
#: Bytes of pages that are made at a time, in less than a millisecond.
_STRIDE = 1 << 20


class Pending:
    """How many bytes were promised, by all users of this, and are not taken yet."""

    def __init__(self) -> None:
        self.size = 0


class Buffers:
    """The buffers of one shelf. Made inside the running loop."""

    def __init__(self, on_event: Callable[[BufferMade | BufferRefused], None], pending: Pending) -> None:
        """``on_event`` is called from the loop once a buffer is there, or cannot be."""
        self.fds: dict[int, int] = {}  # by buffer
        self.sizes: dict[int, int] = {}  # of buffers that are there or being made
        self._on_event = on_event
        self._pending = pending
        self._loop = asyncio.get_running_loop()

    def carry_out(self, effect: MakeBuffer | DropBuffer) -> None:
        """Make or drop a buffer."""
        match effect:
            case MakeBuffer(buffer, size):
                self._make(buffer, size)
            case DropBuffer(buffer):
                self.sizes.pop(buffer, None)
                if buffer in self.fds:
                    os.close(self.fds.pop(buffer))

    def view(self, buffer: int, length: int) -> memoryview:
        """The first ``length`` bytes of a buffer, to be written."""
        mapped = mmap.mmap(self.fds[buffer], max(1, length), mmap.MAP_SHARED)
        return memoryview(mapped)[:length]

    def close(self) -> None:
        """Drop all; one that is being made is closed once it is there."""
        for fd in self.fds.values():
            os.close(fd)
        self.fds.clear()
        self.sizes.clear()

    def _make(self, buffer: int, size: int) -> None:
        room = free_bytes()
        if room is None:
            self._miss(buffer, f"{size} bytes are needed, and the kernel does not say how many can be taken")
            return
        if size + self._pending.size > room:
            left = max(0, room - self._pending.size)
            self._miss(buffer, f"{size} bytes are needed, and {left} bytes of memory can be taken")
            return
        self.sizes[buffer] = size
        self._pending.size += size
        try:
            self._loop.run_in_executor(None, self._fill, buffer, size)
        except RuntimeError as error:
            self._pending.size -= size
            self._miss(buffer, f"the buffer cannot be made: {error}")

    def _fill(self, buffer: int, size: int) -> None:
        """Make a buffer, in a thread.

        The loop is told of it here, not by what this returns: if no thread could be started for it, another
        one may still come to it later, and nobody would close what it returns.
        """
        try:
            made: int | OSError = make_buffer(size, lambda: buffer in self.sizes)
        except OSError as error:
            made = error
        self._loop.call_soon_threadsafe(self._made, buffer, size, made)

    def _made(self, buffer: int, size: int, made: int | OSError) -> None:
        self._pending.size -= size
        if isinstance(made, OSError):
            self._miss(buffer, f"the kernel gives no memory: {made.strerror}")
        elif buffer not in self.sizes:  # it was refused meanwhile, or all is closed
            os.close(made)
        else:
            self.fds[buffer] = made
            self._on_event(BufferMade(buffer))

    def _miss(self, buffer: int, reason: str) -> None:
        """Tell that there will be no such buffer."""
        self.sizes.pop(buffer, None)
        self._loop.call_soon(self._on_event, BufferRefused(buffer, reason))


def make_buffer(size: int, is_wanted: Callable[[], bool] = lambda: True) -> int:
    """A memfd of this size whose pages are there; nobody can make it smaller.

    Raises:
        OSError: there is no memory, or ``is_wanted`` says that nobody needs the buffer any more.
    """
    import fcntl

    fd = os.memfd_create(MEMFD, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.ftruncate(fd, max(1, size))
        written, zeros = 0, memoryview(bytes(_STRIDE))
        while written < size:
            if not is_wanted():  # the agent's end does not wait for gigabytes of pages
                raise OSError(errno.ECANCELED, os.strerror(errno.ECANCELED))
            written += os.pwrite(fd, zeros[: size - written], written)
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
    except OSError:
        os.close(fd)
        raise
    return fd
