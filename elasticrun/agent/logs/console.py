"""The agent's own stdout and stderr, written without ever blocking the agent.

A console may be a terminal stopped with ctrl-S, a pipe into a pager, or a reader that is gone. The agent
must keep hearing signals and its master, so nothing here waits for a write. The flag O_NONBLOCK belongs
to the open file, which the agent shares with the shell and with its workers, so it is never set on the
descriptor that we were given: a pipe or a terminal is opened a second time through /proc. Where that is
not allowed, short writes follow a poll.

Order and whole lines: everything that this process shows goes through one Console per open file (stdout
and stderr share one where they are the same), in the order of the calls to ``write``; one call's bytes
are never mixed with another's.

Below the output may stand one line of ours that does not last (``draw``). The next ``write`` erases it, in
one piece with what it shows; so the line is never mixed with output of this process.

What does not fit waits in memory. ``is_full`` asks the sources to stop until ``when_room`` calls them; they
may still write the little that they hold.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import select
import stat
from collections import deque
from collections.abc import Callable

HIGH_WATER = 1024 * 1024  # bytes waiting above which sources are asked to stop
LOW_WATER = 256 * 1024  # bytes waiting below which they go on
_SAFE_WRITE = select.PIPE_BUF  # what a pipe that polls as writable takes without blocking

# After these the console will never take anything again; any other error (a full disk) may pass.
_GONE = {errno.EPIPE, errno.EIO, errno.EBADF, errno.ENXIO, errno.ECONNRESET}


class Console:
    """One open file that humans read. Belongs to the running event loop."""

    def __init__(self, fd: int, name: str, report: Callable[[str], None]) -> None:
        self.name = name
        self.is_terminal = os.isatty(fd)
        self._loop = asyncio.get_running_loop()
        self._report = report
        self._given_fd = fd
        self._fd, self._own_fd, self._piecewise = _open_nonblocking(fd)
        self._waiting: deque[memoryview] = deque()
        self._size = 0
        self._sources: deque[Callable[[], None]] = deque()
        self._idle: list[asyncio.Future[None]] = []
        self._is_writing = False  # a writer callback is registered
        self._complained = False
        self._gone = False
        self.on_erased: Callable[[], None] | None = None  # called when a write has erased the drawn line
        self._drawn: tuple[int, int] | None = None  # cells of the drawn line, and those of a row
        self._is_line_open = False  # the last line that was written has no end yet

    @property
    def fd(self) -> int:
        """The descriptor this console was made from; a worker may inherit it."""
        return self._given_fd

    @property
    def is_full(self) -> bool:
        return self._size >= HIGH_WATER

    def write(self, data: bytes) -> None:
        """Show ``data`` after everything written before. Never blocks and never raises OSError."""
        if self._gone or not data:
            return
        was_drawn, ends_line = self._drawn is not None, data.endswith(b"\n")
        if was_drawn:
            data = self._take_eraser() + data
        self._is_line_open = not ends_line
        self._put(data)
        if was_drawn and self.on_erased is not None:
            self.on_erased()

    def draw(self, line: bytes, cells: int, width: int) -> None:
        """Show a line that does not last, unless output waits, or its last line has no end yet.

        Args:
            line: Its bytes, without an end.
            cells: How many cells it takes, fewer than a row.
            width: Of a row.
        """
        if self._gone or self._waiting or self._is_line_open:
            return
        before = self._take_eraser()
        self._drawn = cells, width
        self._put(before + line)

    def erase(self) -> None:
        """Erase the drawn line, if there is one."""
        if not self._gone:
            self._put(self._take_eraser())

    def _take_eraser(self) -> bytes:
        """What erases the drawn line, also if the window became narrower and broke it. Then there is none."""
        drawn, self._drawn = self._drawn, None
        if drawn is None:
            return b""
        cells, width = drawn
        with contextlib.suppress(OSError):
            width = os.get_terminal_size(self._given_fd).columns or width
        above = max(0, cells - 1) // width
        return b"\r" + (b"\x1b[%dA" % above if above else b"") + b"\x1b[J"

    def _put(self, data: bytes) -> None:
        view = memoryview(data)
        if not self._waiting:
            view = self._write_now(view)
        if view:
            self._waiting.append(view)
            self._size += len(view)
            if not self._is_writing:
                self._is_writing = True
                self._loop.add_writer(self._fd, self._on_writable)

    def when_room(self, source: Callable[[], None]) -> None:
        """Call ``source`` once, soon, when the console takes data again (or is gone)."""
        self._sources.append(source)
        if not self._waiting:
            self._loop.call_soon(self._wake_sources)

    async def flush(self, timeout: float) -> bool:
        """Wait until all is shown, at most ``timeout`` seconds; False if something is still unshown."""
        if self._is_idle():
            return True
        done: asyncio.Future[None] = self._loop.create_future()
        self._idle.append(done)
        finished, _ = await asyncio.wait([done], timeout=timeout)
        return bool(finished)

    def close(self) -> None:
        """Drop what is not yet shown; leave the given descriptor open."""
        self.on_erased = None
        self._drop_all()
        self._gone = True
        if self._own_fd:
            os.close(self._fd)
            self._own_fd = False

    def _write_now(self, view: memoryview) -> memoryview:
        try:
            while view:
                view = view[self._write_some(view) :]
        except BlockingIOError:
            pass
        except OSError as error:
            self._complain(error)
            return view[len(view) :]
        return view

    def _write_some(self, view: memoryview) -> int:
        if not self._piecewise:
            return os.write(self._fd, view)
        if not _is_writable(self._fd):
            raise BlockingIOError
        return os.write(self._fd, view[:_SAFE_WRITE])

    def _complain(self, error: OSError) -> None:
        if error.errno in _GONE:
            self._gone = True
            self._drop_all()
        if not self._complained:
            self._complained = True
            self._report(
                f"{self.name} cannot be written ({error.strerror}); the workers go on, but "
                "what they print is not shown there"
            )

    def _unwatch(self) -> None:
        if self._is_writing:
            self._is_writing = False
            self._loop.remove_writer(self._fd)

    def _on_writable(self) -> None:
        while self._waiting:
            view = self._waiting.popleft()
            rest = self._write_now(view)
            if self._gone:
                return
            self._size -= len(view) - len(rest)
            if rest:
                self._waiting.appendleft(rest)
                break
        if not self._waiting:
            self._unwatch()
        if self._size < LOW_WATER:
            self._wake_sources()

    def _wake_sources(self) -> None:
        for _ in range(len(self._sources)):  # a source that asks again waits for the next turn
            if self.is_full:
                return
            if self._sources:
                self._sources.popleft()()
        self._tell_idle()

    def _drop_all(self) -> None:
        self._waiting.clear()
        self._size = 0
        self._unwatch()
        if self._sources:
            self._loop.call_soon(self._wake_sources)
        self._tell_idle()

    def _is_idle(self) -> bool:
        return not self._waiting and not self._sources

    def _tell_idle(self) -> None:
        if self._is_idle():
            for done in self._idle:
                if not done.done():
                    done.set_result(None)
            self._idle.clear()


def open_consoles(stdout_fd: int, stderr_fd: int, report: Callable[[str], None]) -> tuple[Console, Console]:
    """Consoles for the agent's stdout and stderr: the same one twice if both are the same open file."""
    out = Console(stdout_fd, "stdout", report)
    if _same_file(stdout_fd, stderr_fd):
        return out, out
    return out, Console(stderr_fd, "stderr", report)


def _same_file(one: int, other: int) -> bool:
    try:
        return os.path.sameopenfile(one, other)
    except OSError:
        return False


def _open_nonblocking(fd: int) -> tuple[int, bool, bool]:
    """(descriptor to write to, whether we own it, whether to write short pieces after a poll)."""
    try:
        mode = os.fstat(fd).st_mode
    except OSError:
        return fd, False, False  # closed: the first write reports it
    if stat.S_ISREG(mode):
        return fd, False, False  # never blocks, and the offset is shared with the workers
    if stat.S_ISFIFO(mode) or stat.S_ISCHR(mode):
        try:
            flags = os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
            return os.open(f"/proc/self/fd/{fd}", flags), True, False
        except OSError:
            pass  # not ours (su, sudo), or no /proc
    return fd, False, True


def _is_writable(fd: int) -> bool:
    poll = select.poll()
    poll.register(fd, select.POLLOUT)
    return bool(poll.poll(0))
