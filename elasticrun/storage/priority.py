"""Lets a process take only what training leaves over."""

from __future__ import annotations

import contextlib
import os

_LOWEST = 19


def lower_priority() -> None:
    """Give this process the lowest priority that still makes progress on a busy host, for CPU and disk.

    The lowest niceness, and batch scheduling, so that it does not interrupt others when it wakes up. The
    kernel derives the priority of reads and writes from the niceness: the lowest of the best-effort class.
    The idle classes are not for a writer that has to end: under full load they may get nothing for minutes.
    It cannot be undone without privileges, so call it in a process made for the purpose.
    """
    os.nice(_LOWEST)
    with contextlib.suppress(OSError):  # where seccomp forbids it, niceness has to be enough
        os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
