"""The end of a process as the interpreter ends it, but without its teardown.

Threads are waited for, what was registered with ``atexit`` is called, and what was printed or written to
files that are still open is flushed. What is not done is the destruction of all that modules hold.

A flush may wait for ever: for a reader that does not read, or for a daemon thread that waits for one and
holds the file's lock, of which the interpreter takes no heed. So files are flushed in a thread; if one takes
long, another thread goes on with the others; and all of that has a bound.

What was frozen with ``gc.freeze`` is not looked at: in a fork it is the parent's, and so is what its files
hold back.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import io
import os
import sys
import threading
import time
from itertools import compress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any, NoReturn

#: Files that hold back some of what was written to them.
_BUFFERED = frozenset({io.TextIOWrapper, io.BufferedWriter, io.BufferedRandom})
#: Seconds before the other files are flushed beside one, and for all of them; how many may be stuck.
_MOMENT, _PATIENCE, _MOST_STUCK = 0.5, 30.0, 8


def leave(status: int) -> NoReturn:
    """End this process with this exit status."""
    waits_for_threads = getattr(threading, "_shutdown", bool)
    for step in (waits_for_threads, atexit._run_exitfuncs, _flush_files):
        with contextlib.suppress(BaseException):  # nothing of it is worth a process that does not end
            step()
    os._exit(status)


def _flush_files() -> None:
    """Write what is in the buffers of open files, as the interpreter does when it destroys them."""
    everything = gc.get_objects()
    is_file = map(_BUFFERED.__contains__, map(type, everything))  # no loop, as tensorflow has half a million
    files = iter((sys.stdout, sys.stderr, *compress(everything, is_file)))
    over, flushers = time.monotonic() + _PATIENCE, list[threading.Thread]()
    while len(flushers) < _MOST_STUCK:
        flusher = threading.Thread(target=_flush, args=(files,), daemon=True)
        try:
            flusher.start()
        except RuntimeError:  # there can be no more threads
            _flush(files)
            break
        flushers.append(flusher)
        with contextlib.suppress(BaseException):  # a signal's handler may raise: the rest still counts
            flusher.join(_MOMENT)
        if not flusher.is_alive():  # it was through with all of them
            break
    for flusher in flushers:
        flusher.join(max(0.0, over - time.monotonic()))


def _flush(files: Iterator[Any]) -> None:
    """Flush those that nobody has begun with, in their order."""
    for file in files:
        with contextlib.suppress(BaseException):  # closed, or its disk is full
            file.flush()
