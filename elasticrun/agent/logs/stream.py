"""One stream of one worker on its way through the agent.

    worker -> pipe or pty -> Relay -> log file      every byte, unchanged
                                   -> console       every byte at once, or whole lines with a prefix
                                   -> filtered log  the lines that match
                                   -> tail          the last 8 KiB

Nothing is lost to a slow console, and memory stays bounded: with a log file, what the console cannot take
yet is read back from the file later, and the worker never notices; without one, the worker's pipe is left
unread until there is room, so that the worker waits exactly as it would with the console itself.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import fcntl
import os
import termios
from collections.abc import Callable, Sequence

from elasticrun.agent.logs.console import Console
from elasticrun.agent.logs.files import LogFile
from elasticrun.agent.logs.lines import LineSplitter, Tail, matching_lines, prefix_lines
from elasticrun.dataclass import dataclass

READ_SIZE = 64 * 1024
#: The most that is read when a round ends: more than a pipe holds, so that only a grandchild that still
#: writes can exceed it.
DRAIN_LIMIT = 2 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Filter:
    """Lines that contain one of ``needles`` are copied to ``file``, which the node's workers share."""

    file: LogFile
    needles: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class Destinations:
    """Where a stream goes."""

    console: Console  # where it is shown, or would be if the file failed
    shown: bool = True
    prefix: bytes = b""
    by_lines: bool = False  # whole lines with the prefix; else raw bytes
    file: LogFile | None = None
    filter: Filter | None = None


class Source:
    """The two ends of what carries a stream: a pty if the worker should see a terminal, else a pipe."""

    def __init__(self, terminal: Console | None) -> None:
        """OSError if no descriptor is left."""
        self.is_pty = terminal is not None
        self.worker_fd = -1
        if terminal is None:
            self.fd, self.worker_fd = os.pipe()
        else:
            self.fd, self.worker_fd = os.openpty()
            _make_raw(self.worker_fd)
            self.copy_window_size(terminal)
        os.set_blocking(self.fd, False)

    def copy_window_size(self, terminal: Console) -> None:
        """Give the pty the size of the console."""
        if self.is_pty:
            with contextlib.suppress(OSError):  # the terminal has gone
                size = fcntl.ioctl(terminal.fd, termios.TIOCGWINSZ, bytes(8))
                fcntl.ioctl(self.fd, termios.TIOCSWINSZ, size)

    def read(self) -> bytes | None:
        """The available bytes; b"" at the end, None if there are none yet."""
        try:
            return os.read(self.fd, READ_SIZE)
        except BlockingIOError:
            return None
        except OSError as error:
            if error.errno == errno.EIO:  # how a pty says that its other end is closed
                return b""
            raise

    def release(self) -> None:
        """Close our copy of the worker's end."""
        if self.worker_fd >= 0:
            os.close(self.worker_fd)
            self.worker_fd = -1

    def close(self) -> None:
        self.release()
        os.close(self.fd)


def _make_raw(fd: int) -> None:
    """No translation of newlines and no echo: every byte passes as it is."""
    attributes = termios.tcgetattr(fd)
    attributes[1] &= ~termios.OPOST
    attributes[3] &= ~(termios.ECHO | termios.ICANON | termios.ISIG)
    termios.tcsetattr(fd, termios.TCSANOW, attributes)


class Relay:
    """Carries one stream until its end."""

    def __init__(
        self, source: Source, to: Destinations, on_data: Callable[[bytes], None] = lambda _: None
    ) -> None:
        """``on_data``: hears all, once it is in the file if there is one."""
        self.tail = Tail()
        self._on_data = on_data
        self._source: Source | None = source
        self._to = to
        self._loop = asyncio.get_running_loop()
        self._shown_lines = LineSplitter()
        self._filtered_lines = LineSplitter()
        self._behind: int | None = None  # offset in the file of the first byte the console has not got
        self._is_file_failing = False  # the console stands in for the file
        self._loop.add_reader(source.fd, self._on_readable)

    def release(self) -> None:
        """Close our copy of the worker's end, which the worker holds now."""
        if self._source is not None:
            self._source.release()

    def copy_window_size(self) -> None:
        """Give the worker's terminal the new size of the console's."""
        if self._source is not None:
            self._source.copy_window_size(self._to.console)

    def pump(self) -> None:
        """Take what is available now, up to about ``DRAIN_LIMIT``; close at the end of the stream."""
        taken = 0
        while self._source is not None and taken < DRAIN_LIMIT:
            data = self._source.read()
            if data is None:
                return
            self._take(data)
            taken += len(data)

    def drain(self) -> None:
        """Take the rest after the worker's end, then close, even if others hold the other end."""
        self.pump()
        self._end()

    def _on_readable(self) -> None:
        if self._source is None:
            return
        data = self._source.read()
        if data is None:
            return
        self._take(data)
        if self._needs_console() and self._to.console.is_full:
            self._pause()

    def _pause(self) -> None:
        if self._source is not None:
            self._loop.remove_reader(self._source.fd)
            self._to.console.when_room(self._resume)

    def _needs_console(self) -> bool:
        return self._is_file_failing if self._to.file else self._to.shown

    def _resume(self) -> None:
        if self._source is not None:
            self._loop.add_reader(self._source.fd, self._on_readable)

    def _take(self, data: bytes) -> None:
        if not data:
            self._end()
            return
        self.tail.add(data)
        self._filter(self._filtered_lines.feed(data) if self._to.filter else b"")
        if self._to.file is not None:
            self._take_to_file(self._to.file, data)
        elif self._to.shown:
            self._show(data)
        self._on_data(data)

    def _take_to_file(self, file: LogFile, data: bytes) -> None:
        start = file.size
        unwritten = file.write(data)
        self._is_file_failing = bool(unwritten)
        if self._to.shown and self._behind is None:
            if self._to.console.is_full and not unwritten:
                self._fall_behind(start)
            else:
                self._show(data)
        elif unwritten:  # the rest is in the file: shown from there, or not at all
            self._show(unwritten)

    def _show(self, data: bytes) -> None:
        if self._to.by_lines:
            data = prefix_lines(self._shown_lines.feed(data), self._to.prefix)
        self._to.console.write(data)

    def _filter(self, lines: bytes) -> None:
        if self._to.filter and lines:
            matched = matching_lines(lines, self._to.filter.needles)
            if matched:
                self._to.filter.file.write(prefix_lines(matched, self._to.prefix))

    def _fall_behind(self, offset: int) -> None:
        self._behind = offset
        self._to.console.when_room(self._catch_up)

    def _catch_up(self) -> None:
        """Show the part of the file that the console had no room for."""
        file, offset = self._to.file, self._behind
        if file is None or offset is None:
            return
        data = file.read(offset, READ_SIZE)
        self._show(data)
        self._behind = offset + len(data)
        if data and self._behind < file.size:
            self._to.console.when_room(self._catch_up)
            return
        self._behind = None
        if self._source is None:
            self._finish_shown()

    def _end(self) -> None:
        if self._source is None:
            return
        self._loop.remove_reader(self._source.fd)
        self._source.close()
        self._source = None
        if self._to.filter:
            self._filter(self._filtered_lines.flush())
        if self._behind is None:
            self._finish_shown()

    def _finish_shown(self) -> None:
        self._to.console.write(prefix_lines(self._shown_lines.flush(), self._to.prefix))
        if self._to.file is not None:
            self._to.file.close()


def encode_filters(filters: Sequence[str]) -> tuple[bytes, ...]:
    """Filter strings as the bytes they are in a worker's output."""
    return tuple(text.encode(errors="surrogateescape") for text in filters)
