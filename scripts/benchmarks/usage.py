"""What processes use, as the kernel counts it: memory, and CPU time.

RSS counts each page that a process has mapped, PSS its share of it: a page that n processes map counts 1/n to
each, so the PSS of several processes can be summed up. USS is what would be free again if this process alone
ended: its private pages and its page tables. So where other workers run already, the USS of one is
what one more of them adds.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

KB = 1024  # what the kernel calls kB
_SCHEDULED = 2  # the kind of a process' clock, in the lowest bits of its number (clock_getcpuclockid(3))
MB = 1e6


@dataclass(frozen=True, slots=True)
class Memory:
    """The memory of one process, in MB of a million bytes."""

    rss: float
    pss: float
    uss: float


def memory(pid: int) -> Memory:
    """What a process holds now; FileNotFoundError or ProcessLookupError if it has ended."""
    proc = Path(f"/proc/{pid}")
    return parsed((proc / "smaps_rollup").read_text(), (proc / "status").read_text())


def parsed(rollup: str, status: str) -> Memory:
    """The same from the text of the two files."""
    pages = _kilobytes(rollup)
    private = pages["Private_Clean"] + pages["Private_Dirty"] + pages["Private_Hugetlb"]
    tables = _kilobytes(status)["VmPTE"]
    return Memory(*(KB * it / MB for it in (pages["Rss"], pages["Pss"], private + tables)))


def cpu_seconds(pid: int) -> float:
    """The CPU time of all threads that a process ever had, to the nanosecond; OSError if it has ended.

    It is that of the process' own clock, as ``/proc/PID/stat`` counts in hundredths of a second: as much as a
    master needs in ten.
    """
    return time.clock_gettime(~pid << 3 | _SCHEDULED)


def _kilobytes(text: str) -> dict[str, int]:
    fields = (line.split() for line in text.splitlines())
    return {it[0].rstrip(":"): int(it[1]) for it in fields if len(it) == 3 and it[2] == "kB"}
