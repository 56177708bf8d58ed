"""How a chief ends that an error ends: at once, and not after tensorflow has been taken down.

Theory. As the interpreter ends, it destroys tensorflow's runtime, which still talks to the servers. If one of
them is lost, that takes from a third of a second to one, on both cores, and the whole job waits: the next
chief starts once this one is gone. Nobody needs it. A chief that is killed leaves just as much behind, and
the next one goes on from there.

So once an error has been shown that nobody has caught, the rest of an orderly end follows: threads are waited
for, what was registered with ``atexit`` is called, and what was printed or written to files that are still
open is flushed. Then the process ends, with the interpreter's own status for an error.

Invariant. Only an end is made shorter. The interpreter calls the hook in the main thread with no frame below
only where the error has left the whole program, or what was typed at a prompt; and where there is a prompt,
nothing changes. A hook that is called by a program that goes on changes nothing either.
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
    from types import TracebackType
    from typing import NoReturn

_FAILED = 1  # the interpreter's status for an error that nobody has caught
#: Files that hold back some of what was written to them.
_BUFFERED = frozenset({io.TextIOWrapper, io.BufferedWriter, io.BufferedRandom})


def end_at_once_on_errors() -> None:
    """From now on, end this process without a teardown if an error ends it."""
    show = sys.excepthook

    def show_and_end(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        show(kind, error, trace)
        is_main = threading.get_ident() == threading.main_thread().ident
        is_the_end = sys._getframe().f_back is None and is_main and not _has_prompt()
        if is_the_end and isinstance(error, Exception):  # others have a status of their own
            _end()

    sys.excepthook = show_and_end


def _has_prompt() -> bool:
    """Whether somebody may type what to do next, now or once the program has ended (``python -i``)."""
    return hasattr(sys, "ps1") or bool(sys.flags.inspect or os.environ.get("PYTHONINSPECT"))


def _end() -> NoReturn:
    waits_for_threads = getattr(threading, "_shutdown", bool)
    for step in (waits_for_threads, atexit._run_exitfuncs, _flush_files):
        with contextlib.suppress(BaseException):  # nothing of it is worth a chief that does not end
            step()
    os._exit(_FAILED)


def _flush_files() -> None:
    """Write what is in the buffers of open files, as the interpreter does when it destroys them."""
    everything = gc.get_objects()
    is_file = map(_BUFFERED.__contains__, map(type, everything))  # no loop, as tensorflow has half a million
    for file in (sys.stdout, sys.stderr, *compress(everything, is_file)):
        with contextlib.suppress(BaseException):  # closed, or its disk is full
            file.flush()
