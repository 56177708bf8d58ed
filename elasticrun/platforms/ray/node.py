"""What runs in the cluster for each node of a job: an actor that holds the place, and runs the launcher.

The launcher is a child of ``platforms/remote.py``, which watches the pipe from this process: if the actor is
killed, as by the end of its driver, the launcher is told to stop, and has its grace.

Theory of its output. Ray shows a driver what actors print, but loses what came just before a job's end, and
folds lines that look alike. So the driver asks for it here, and Ray's own log files get it as well. What is
not asked for yet is kept, up to a bound; then the launcher's pipes fill, and it deals with that.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Sequence
from typing import IO

from elasticrun.platforms.remote import HELLO, signal_line
from elasticrun.platforms.ssh import PROGRAM

#: Bytes that are kept for the driver, and that are read at once.
_MOST, _CHUNK = 1 << 20, 1 << 16


class Output:
    """What the launcher has printed and the driver has not got yet."""

    def __init__(self) -> None:
        self._news = threading.Condition()
        self._kept = deque[tuple[int, bytes]]()
        self._size = 0
        self._open = 2  # streams

    def copy(self, pipe: IO[bytes], number: int) -> None:
        """Take what comes through a pipe until it ends; ``number``: 1 or 2, whose own stream gets it too."""
        with pipe:
            self._copy(pipe.fileno(), number)

    def _copy(self, fd: int, number: int) -> None:
        while chunk := os.read(fd, _CHUNK):
            with contextlib.suppress(OSError):
                os.write(number, chunk)
            with self._news:
                self._news.wait_for(lambda: self._size < _MOST)
                self._kept.append((number, chunk))
                self._size += len(chunk)
                self._news.notify_all()
        with self._news:
            self._open -= 1
            self._news.notify_all()

    def take(self) -> list[tuple[int, bytes]]:
        """Wait for what comes next, by stream; [] once both have ended."""
        with self._news:
            self._news.wait_for(lambda: self._kept or not self._open)
            taken = list(self._kept)
            self._kept.clear()
            self._size = 0
            self._news.notify_all()
            return taken


class Node:
    """Its methods are called by the driver, several at a time."""

    def __init__(self) -> None:
        self._child: subprocess.Popen[bytes] | None = None
        self._lock = threading.Lock()  # of the start, and of the child's input
        self._output = Output()

    def ping(self) -> None:
        """Answer."""

    def run(self, request: bytes, without: Sequence[str]) -> int:
        """Run the launcher, once: a second call waits for the end of the same one. Returns its exit code."""
        with self._lock:
            if self._child is None:
                self._child = self._start(request, without)
            child = self._child
        code = child.wait()
        with self._lock:
            assert child.stdin is not None
            child.stdin.close()
        return code

    def _start(self, request: bytes, without: Sequence[str]) -> subprocess.Popen[bytes]:
        unset = [word for name in without for word in ("-u", name)]
        words = ["env", *unset, sys.executable, "-m", PROGRAM]
        pipe = subprocess.PIPE
        child = subprocess.Popen(words, stdin=pipe, stdout=pipe, stderr=pipe)
        for number, stream in ((1, child.stdout), (2, child.stderr)):
            threading.Thread(target=self._output.copy, args=(stream, number), daemon=True).start()
        self._write(child, request)
        return child

    def read(self) -> list[tuple[int, bytes]]:
        """What the launcher has printed since the last call, by stream; waits for some. [] at the end."""
        return self._output.take()

    def signal(self, signum: int) -> None:
        """Pass a signal on to the launcher, if it has started."""
        with self._lock:
            if self._child is not None:
                self._write(self._child, signal_line(signum))

    def _write(self, child: subprocess.Popen[bytes], line: bytes) -> None:
        assert child.stdin is not None
        with contextlib.suppress(OSError, ValueError):  # it has ended
            child.stdin.write(line)
            child.stdin.flush()


def is_hello(line: bytes) -> bool:
    """Whether the launcher only says that it is up."""
    return HELLO in line
