"""Whether anything below a worker has done something between two looks.

Theory. A process that can still get on by itself computes, or moves bytes, or starts or ends processes. The
kernel counts all three, so two *footprints* of a worker's whole tree tell whether it did. Three sources of
noise are no progress, and two thresholds, far above these and far below work, keep them apart:

- Threads that only wait wake up now and then: watchdogs and heartbeats of torch, NCCL and gloo, monitors of
  progress bars, ten times a second at most, for some 20 us each. That is 0.1 % of a CPU; a tree with several
  of them stays below ``CPU_IDLE``. Even slow work, such as a copy of 10 MB a second, takes as much.
- Wake-ups by descriptors, and a store that answers heartbeats, move some bytes a second: ``IO_IDLE``. The
  kernel does not count the bytes of ``send`` and ``recv``, but it counts their CPU time.
- Taking a stack makes a worker write it. So one footprint is taken before and one after, and only the time
  *between* two looks counts.

A process that waits for one that is not below it (a job elsewhere, a person) leaves no footprint. So an idle
tree shows only that it does not work on what its ranks wait for.
"""

from __future__ import annotations

from elasticrun.dataclass import dataclass

CPU_IDLE = 0.01  # seconds of CPU time in a second, for all processes below a worker
CPU_GRAIN = 0.02  # seconds: the kernel counts in steps of half of that
IO_IDLE = 1024  # bytes a second, likewise


@dataclass(frozen=True, slots=True)
class Footprint:
    """What the processes below one worker have used until now, the worker included."""

    at: float  # seconds of the host's monotonic clock
    cpu: float  # seconds, with those of children that ended and were waited for
    io: int  # bytes read and written; 0 where that cannot be read
    processes: frozenset[tuple[int, int]]  # pid and time of birth
    is_running: bool = False  # one of them is on a CPU, is kept from one, or waits for a disk
    is_stopped: bool = False  # one of them is, as by SIGSTOP
    is_traced: bool = False  # a debugger is attached to one of them
    reads_stdin: bool = False  # one of them waits for a line
    has_device: bool = False  # one of them has opened an accelerator


def activity(before: Footprint, after: Footprint) -> str:
    """What was done between two footprints of one worker, in words; "" if nothing was."""
    if before.processes != after.processes:
        return "has started or ended processes"
    seconds = after.at - before.at
    if after.cpu - before.cpu > CPU_GRAIN + CPU_IDLE * seconds:
        return "uses CPU time"
    if after.is_running:
        return "runs"
    if after.io - before.io > IO_IDLE * seconds:
        return "reads or writes"
    return ""
