"""Where the output of a job goes: to this process's own descriptors, or through a pipe to ``sys.stdout``."""

from __future__ import annotations

import io
import os
import sys
import threading
from typing import Any, TextIO

_PIECE = 64 << 10  # bytes


class Output:
    """Stdin, stdout and stderr of a job's launchers."""

    def __init__(self) -> None:
        self._null = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
        self._opened: list[int] = []  # our copies of what launchers write to
        self._threads: list[threading.Thread] = []
        self.descriptors = (self._null, self._open(sys.stdout), self._open(sys.stderr))

    def hand_over(self) -> None:
        """The launchers have their descriptors: let go of ours, so that pipes end with theirs."""
        while self._opened:
            os.close(self._opened.pop())
        if self._null >= 0:
            os.close(self._null)
            self._null = -1

    def finish(self) -> None:
        """Wait for the last of the output."""
        for thread in self._threads:
            thread.join()

    def close(self) -> None:
        """Let go of all. Threads end with the last writer."""
        self.hand_over()

    def _open(self, stream: Any) -> int:
        number = _descriptor(stream)
        if number is not None:
            stream.flush()
            self._opened.append(os.dup(number))
            return self._opened[-1]
        reader, writer = os.pipe2(os.O_CLOEXEC)
        self._opened.append(writer)
        thread = threading.Thread(target=_copy, args=(reader, stream), daemon=True, name="elasticrun-output")
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


def _copy(reader: int, stream: TextIO) -> None:
    with open(reader, "rb", buffering=0) as file:
        while data := file.read(_PIECE):
            stream.write(data.decode(errors="replace"))
            stream.flush()
