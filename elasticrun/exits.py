"""The end of a process as the interpreter ends it, but without its teardown.

Threads are waited for, what was registered with ``atexit`` is called, and what was printed or written to
files that are still open is flushed. What is not done is the destruction of all that modules hold.

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
from itertools import compress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing import NoReturn

#: Files that hold back some of what was written to them.
_BUFFERED = frozenset({io.TextIOWrapper, io.BufferedWriter, io.BufferedRandom})


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
    for file in (sys.stdout, sys.stderr, *compress(everything, is_file)):
        with contextlib.suppress(BaseException):  # closed, or its disk is full
            file.flush()
