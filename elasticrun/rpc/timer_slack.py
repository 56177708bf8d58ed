"""Lets the timers of gRPC's threads be late, so that an idle job sleeps.

gRPC's core keeps a pool of 4 to 16 threads, by the cores of the host, and each that has nothing to do looks
for work by itself: 15 ms after it did some, then less and less often. A ping is work, so an idle job of two
nodes woke up 90 times a second, and no option or variable of gRPC's changes that. But the kernel may end a
thread's wait for a *time* late, by the slack of that thread. Events still wake it at once: a message, a
closed connection, or work from another thread.

Not from the start: core measures the clock of the CPU once in each process, with sleeps of 1 and 2 ms, when
its threads first contend, which is while they connect. With slack that took 2 s.

A thread may only set its own slack, unless the process has CAP_SYS_NICE. Without it the job wakes up more
often, and all else is the same. Invariant: no thread but gRPC's own is ever touched, so
asyncio's timers, and whatever this process forks, are exact.
"""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path

#: Seconds by which a timer of gRPC's may be late: keepalive, handshake timeouts, idle connections.
TIMER_SLACK = 1.0
#: Seconds until that holds, after a stream is attached or a server serves.
RELAX_AFTER = 3.0
#: What core calls its threads; they are made early, and threads that they make inherit from them.
_NAMES = frozenset({"event_engine", "lifeguard", "grpc_global_tim"})


def relax_soon() -> None:
    """Call ``relax`` after ``RELAX_AFTER`` seconds; threads that gRPC's make later inherit the slack."""
    asyncio.get_running_loop().call_later(RELAX_AFTER, relax)


def relax(proc: Path = Path("/proc")) -> None:
    """Let timers of gRPC's threads be late from now on, if the kernel allows that."""
    try:
        tasks = list((proc / "self" / "task").iterdir())
    except OSError:  # no descriptor is left, or there is no such folder: timers stay exact
        return
    for task in tasks:
        # The kernel refuses, has no such file, or this thread has ended.
        with contextlib.suppress(OSError):
            if (task / "comm").read_text().strip() in _NAMES:
                (proc / task.name / "timerslack_ns").write_text(str(int(TIMER_SLACK * 1e9)))
