"""Where the output of a job goes: to this process's own descriptors, or through a pipe to ``sys.stdout``."""

from __future__ import annotations

import codecs
import contextlib
import io
import os
import selectors
import sys
import threading
from typing import Any

from elasticrun.launching.lines import Lines

_PIECE = 64 << 10  # bytes: as many as a pipe holds


class Output:
    """Stdin, stdout and stderr of a job's launchers."""

    def __init__(self, lines: Lines | None = None) -> None:
        """``lines``: takes what they print, in place of this process's stdout and stderr."""
        self._lines = lines
        self._null = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
        self._opened: list[int] = []  # our copies of what launchers write to
        self._threads: list[threading.Thread] = []
        self._running: list[int] = []  # a thread ends soon after this end of its second pipe is closed
        out, err = (sys.stdout, sys.stderr) if lines is None else (lines.out, lines.err)
        self.descriptors = (self._null, self._open(out), self._open(err))

    def hand_over(self) -> None:
        """The launchers have their descriptors: let go of ours, so that pipes end with theirs."""
        while self._opened:
            os.close(self._opened.pop())
        if self._null >= 0:
            os.close(self._null)
            self._null = -1

    def finish(self) -> None:
        """The workers have ended: wait for the last of their output, and for nobody whom they have left."""
        self.close()
        for thread in self._threads:
            thread.join()
        if self._lines is not None:
            self._lines.finish()

    def close(self) -> None:
        """Let go of all. Threads end once they have handed on what is there."""
        self.hand_over()
        while self._running:
            os.close(self._running.pop())
        if self._lines is not None:
            self._lines.close()

    def _open(self, stream: Any) -> int:
        number = _descriptor(stream)
        if number is not None:
            with contextlib.suppress(OSError):  # the stream's own next write meets it again
                stream.flush()
            self._opened.append(os.dup(number))
            return self._opened[-1]
        reader, writer = os.pipe2(os.O_CLOEXEC)
        over, running = os.pipe2(os.O_CLOEXEC)
        self._opened.append(writer)
        self._running.append(running)
        thread = threading.Thread(
            target=_copy, args=(reader, over, stream), daemon=True, name="elasticrun-output"
        )
        thread.start()
        self._threads.append(thread)
        return writer


def _descriptor(stream: Any) -> int | None:
    """What a stream writes to; None: it is no file, or not only one."""
    if not isinstance(stream, io.TextIOWrapper):
        return None
    try:
        return stream.fileno()
    except (OSError, ValueError):
        return None


def _copy(reader: int, over: int, stream: Any) -> None:
    """Hand on what comes, until its last writer is gone, or until ``over`` ends and the pipe is empty.

    What the stream refuses is dropped: writers must not fail for that.
    """
    decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")  # a piece may end within a character
    left = None  # bytes that the pipe may still hold, once it is over
    with selectors.DefaultSelector() as selector:
        selector.register(reader, selectors.EVENT_READ)
        selector.register(over, selectors.EVENT_READ)
        while left is None or left > 0:
            ready = [key.fd for key, _ in selector.select()]
            if left is None and over in ready:
                left = _PIECE
            data = os.read(reader, _PIECE) if reader in ready else b""
            with contextlib.suppress(Exception):  # it is closed, or no stream at all
                stream.write(decoder.decode(data, final=not data))
                stream.flush()
            if not data:
                break
            if left is not None:
                left -= len(data)
    os.close(reader)
    os.close(over)
