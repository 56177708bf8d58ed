"""What runs in the cluster for each node of a job: an actor that holds the place, and runs the launcher.

The launcher is a child of ``platforms/remote.py``, which watches the pipe from this process. If the actor is
killed, as by the end of its driver, the launcher gets SIGTERM from it or, as Ray may kill it too, from the
kernel; then the launcher stops its workers as it does for any SIGTERM.

Theory of its output. Ray shows a driver what actors print, but loses what came just before a job's end, and
folds lines that look alike. So the driver asks for it here, and Ray's own log files get it as well. What the
driver has not acknowledged is kept, so that nothing is lost with a connection; up to a bound, beyond which
the launcher's pipes fill, and it deals with that.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
from collections import deque
from typing import IO

from elasticrun.platforms.ray.words import Chunk
from elasticrun.platforms.remote import HELLO, signal_line
from elasticrun.platforms.ssh import PROGRAM

#: Bytes that are kept for the driver, and that are read at once.
_MOST, _CHUNK = 1 << 20, 1 << 16
#: Variables that Ray sets for each actor, and of which elastic-run has a better default.
_OF_RAY = ("OMP_NUM_THREADS",)


class Output:
    """What the launcher has printed and the driver has not acknowledged yet: chunks, numbered from 1."""

    def __init__(self) -> None:
        self._news = threading.Condition()
        self._kept = deque[Chunk]()
        self._last = 0  # number of the newest chunk
        self._size = 0
        self._open = 2  # streams
        self._asked = 0  # how often; only the newest question is answered

    def copy(self, pipe: IO[bytes], stream: int) -> None:
        """Take what comes through a pipe until it ends; ``stream``: 1 or 2, our own one that gets it too."""
        with pipe:
            self._copy(pipe.fileno(), stream)

    def _copy(self, fd: int, stream: int) -> None:
        while data := os.read(fd, _CHUNK):
            with contextlib.suppress(OSError):
                os.write(stream, data)
            with self._news:
                self._news.wait_for(lambda: self._size < _MOST)
                self._last += 1
                self._kept.append((self._last, stream, data))
                self._size += len(data)
                self._news.notify_all()
        with self._news:
            self._open -= 1
            self._news.notify_all()

    def close(self) -> None:
        """Nothing will come."""
        with self._news:
            self._open = 0
            self._news.notify_all()

    def take(self, after: int) -> list[Chunk]:
        """Forget the chunks up to this number, and wait for what comes next; [] once both streams have ended.

        A later call ends this one: whoever asked has lost the connection, and asks again.
        """
        with self._news:
            self._asked += 1
            mine = self._asked
            while self._kept and self._kept[0][0] <= after:
                self._size -= len(self._kept.popleft()[2])
            self._news.notify_all()
            self._news.wait_for(lambda: self._kept or not self._open or self._asked != mine)
            return list(self._kept)


class Node:
    """Its methods are called by the driver, several at a time."""

    def __init__(self) -> None:
        self._child: subprocess.Popen[bytes] | None = None
        self._lock = threading.Lock()  # of the start, and of the child's input
        self._output = Output()
        self._signum = 0  # a signal that came before the launcher started

    def ping(self) -> None:
        """Answer."""

    def run(self, request: bytes) -> int:
        """Run the launcher, once: a second call waits for the end of the same one. Returns its exit code."""
        with self._lock:
            if self._child is None and self._signum:
                return 128 + self._signum
            if self._child is None:
                self._child = self._start(request)
            child = self._child
        code = child.wait()
        with self._lock:
            assert child.stdin is not None
            with contextlib.suppress(OSError):  # a signal came too late
                child.stdin.close()
        return code

    def _start(self, request: bytes) -> subprocess.Popen[bytes]:
        unset = [word for name in _OF_RAY for word in ("-u", name)]
        words, pipe = ["env", *unset, sys.executable, "-m", PROGRAM], subprocess.PIPE
        child = subprocess.Popen(words, stdin=pipe, stdout=pipe, stderr=pipe)
        for number, stream in ((1, child.stdout), (2, child.stderr)):
            threading.Thread(target=self._output.copy, args=(stream, number), daemon=True).start()
        self._write(child, request)
        return child

    def read(self, after: int) -> list[Chunk]:
        """What the launcher has printed after the chunk of this number; waits for some. [] at the end."""
        return self._output.take(after)

    def signal(self, signum: int) -> None:
        """Pass a signal on to the launcher; one that has not started will not."""
        with self._lock:
            if self._child is not None:
                self._write(self._child, signal_line(signum))
            else:
                self._signum = signum
                self._output.close()

    def _write(self, child: subprocess.Popen[bytes], line: bytes) -> None:
        assert child.stdin is not None
        with contextlib.suppress(OSError, ValueError):  # it has ended
            child.stdin.write(line)
            child.stdin.flush()


def is_hello(line: bytes) -> bool:
    """Whether the launcher only says that it is up."""
    return HELLO in line
