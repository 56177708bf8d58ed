"""Output of many hosts on one stream: whole lines, each with its host in front.

Theory. A terminal that is stopped with Ctrl-S, or a slow pager, blocks whoever writes. Nobody may block the
loop, or hosts would hear nothing of this launch and give up. So each stream has a thread of its own, and who
reads from a host waits until what it read was written: the host's output waits in its pipe, as it should.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import queue
import select
import threading
from collections.abc import Callable, Iterator
from typing import Any

#: A longer line is cut into several.
LONGEST = 1 << 16


class Sink:
    """A stream that others write whole lines to. Output that cannot be written is dropped."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._loop = asyncio.get_running_loop()
        self._waiting = 0
        self._queue: queue.SimpleQueue[tuple[bytes, asyncio.Future[None] | None]] = queue.SimpleQueue()
        threading.Thread(target=self._write, daemon=True, name=f"writes to {fd}").start()

    async def write(self, data: bytes) -> None:
        """Write these lines; returns once they are written."""
        written = self._loop.create_future()
        self._waiting += 1
        self._queue.put((data, written))
        try:
            await written
        finally:
            self._waiting -= 1

    @property
    def is_busy(self) -> bool:
        """Whether somebody waits for what is read slowly, or not at all."""
        return self._waiting > 0

    def tell(self, text: str) -> None:
        """Write a line soon."""
        self._queue.put((text.encode(errors="replace") + b"\n", None))

    def _write(self) -> None:
        while True:
            data, written = self._queue.get()
            with contextlib.suppress(OSError):  # nobody reads it, or a disk is full, which may pass
                _write_all(self._fd, data)
            if written is not None:
                self._report(written)

    def _report(self, written: asyncio.Future[None]) -> None:
        def done() -> None:
            if not written.done():
                written.set_result(None)

        with contextlib.suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(done)


def _write_all(fd: int, data: bytes) -> None:
    """Write, and wait as long as it takes, even if somebody who shares the stream made it non-blocking."""
    while data:
        try:
            data = data[os.write(fd, data) :]
        except BlockingIOError:
            poll = select.poll()
            poll.register(fd, select.POLLOUT)
            poll.poll()


async def flush(hurry: asyncio.Event, *sinks: Sink) -> None:
    """Wait until everything is written, or for the event: perhaps nobody reads it."""
    written = asyncio.gather(*(sink.write(b"") for sink in sinks))
    either: list[asyncio.Future[Any]] = [written, asyncio.ensure_future(hurry.wait())]
    try:
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for each in either:
            each.cancel()


class _Handler(logging.Handler):
    def __init__(self, sink: Sink, before: logging.Handler) -> None:
        super().__init__(before.level)
        self.setFormatter(before.formatter)
        self._sink = sink

    def emit(self, record: logging.LogRecord) -> None:
        try:
            self._sink.tell(self.format(record))
        except Exception:  # noqa: BLE001 who logs is not to blame for it
            self.handleError(record)


@contextlib.contextmanager
def logging_to(sink: Sink) -> Iterator[None]:
    """Have the lines of the log written to a sink, soon: who logs does not wait for who reads."""
    root = logging.getLogger()
    before = root.handlers
    root.handlers = [_Handler(sink, each) for each in before]
    try:
        yield
    finally:
        root.handlers = before


class Lines:
    """Makes whole lines of what comes in pieces, and writes them to a stream with a prefix."""

    def __init__(self, sink: Sink, prefix: bytes, takes: Callable[[bytes], bool]) -> None:
        """``takes`` is asked of each line, and True means that it is not to be shown."""
        self._sink = sink
        self._prefix = prefix
        self._takes = takes
        self._rest = b""

    async def feed(self, chunk: bytes) -> None:
        """Show the lines that are whole now; returns once they are written."""
        *lines, self._rest = (self._rest + chunk).split(b"\n")
        if len(self._rest) > LONGEST:
            lines, self._rest = [*lines, self._rest], b""
        await self._show(lines)

    async def end(self) -> None:
        """Show a last line that has no end."""
        if self._rest:
            await self._show([self._rest])

    async def _show(self, lines: list[bytes]) -> None:
        if shown := [self._prefix + line + b"\n" for line in lines if not self._takes(line)]:
            await self._sink.write(b"".join(shown))


async def copy_lines(
    reader: asyncio.StreamReader, sink: Sink, prefix: bytes, takes: Callable[[bytes], bool]
) -> None:
    """Copy until the end, as ``Lines`` shows it."""
    lines = Lines(sink, prefix, takes)
    while chunk := await reader.read(LONGEST):
        await lines.feed(chunk)
    await lines.end()
