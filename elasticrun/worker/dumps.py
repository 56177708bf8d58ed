"""Has a signal write the stacks of all threads to a pipe of the agent's, even if no Python runs any more.

It needs the standard library only, as ``reporter.py``, and is loaded by its path before it.
"""

from __future__ import annotations

import faulthandler
import fcntl
import functools
import os
import signal

#: The pipe's descriptor goes up here, out of the way of scripts that count on the lowest numbers.
HIGH_FD = 900
#: Signals of the C library and of profilers lie at both ends of the real-time range.
KEPT_SIGNALS = 8


def move_up(fd: int) -> int:
    """The same file under a high number, if the limits allow one."""
    try:
        moved = fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, HIGH_FD)
    except OSError:
        return fd
    os.close(fd)
    return moved


def arm_stacks(path: str) -> int:
    """Have a signal write the stacks of all threads to a pipe of the agent's; the signal, 0 if none is free.

    The pipe does not block: nobody has to wait for an agent that does not read.
    """
    signum = free_signal()
    if signum:
        fd = move_up(os.open(path, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC))
        faulthandler.register(signum, file=fd, all_threads=True, chain=False)
    return signum


def free_signal() -> int:
    """A real-time signal that nobody catches, ignores or blocks; 0 if there is none."""
    with open("/proc/self/status", "rb") as status:  # noqa: PTH123 pathlib takes milliseconds
        masks = [line.split()[1] for line in status if line.startswith((b"SigBlk", b"SigIgn", b"SigCgt"))]
    taken = functools.reduce(lambda all_, mask: all_ | int(mask, 16), masks, 0)
    for signum in range(signal.SIGRTMAX - KEPT_SIGNALS, signal.SIGRTMIN + KEPT_SIGNALS, -1):
        if not taken >> (signum - 1) & 1:
            return signum
    return 0
