"""What the tasks of this node use, read when a heartbeat is due anyway.

A task is the session of its process, whose id is its pid: processes that it starts count with it, unless
they make sessions of their own. The kernel tells a process's session without a file to read, and all its
counters in one line of text, so a look costs microseconds for each process of the host, and some tens more
for each of the tasks. Memory is resident memory; pages that several processes of a task share count for each
of them. CPU time of children that ended counts once their parent has reaped them.

A process that ends meanwhile, or cannot be looked at, is left out; so is everything if the host has no
descriptor left. None of it is an error: a heartbeat needs no figures.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from contextlib import suppress

from elasticrun.core.protocol.usage import Pace, Reading, TaskUsage, UsageMeter

#: In /proc/<pid>/stat, behind the name: ticks of CPU, also of children it has reaped; pages in memory.
_TICKS = slice(11, 15)
_PAGES = 21


class UsageSampler:
    """Samples the tasks of one node."""

    def __init__(
        self,
        pids: Callable[[], Mapping[int, int]],
        pace: Callable[[int], Pace | None],
        now: Callable[[], float],
        proc: str = "/proc",
    ) -> None:
        """``pids`` gives the tasks that run, by local rank, and ``pace`` what one reports of its steps.

        ``now`` is the host's monotonic clock in seconds. ``proc`` is an argument for the sake of tests.
        """
        self._pids = pids
        self._pace = pace
        self._now = now
        self._proc = proc
        self._meter = UsageMeter()
        self._second = os.sysconf("SC_CLK_TCK")  # in ticks
        self._page = os.sysconf("SC_PAGE_SIZE")  # in bytes

    def sample(self) -> tuple[TaskUsage, ...]:
        """The figures of all tasks that run."""
        pids = self._pids()
        now = self._now()
        totals = self._totals(set(pids.values())) if pids else {}
        return self._meter.measure(
            {
                local_rank: Reading(now, pid, *totals[pid], self._pace_of(local_rank, pid))
                for local_rank, pid in pids.items()
                if pid in totals
            }
        )

    def _pace_of(self, local_rank: int, pid: int) -> Pace | None:
        """The pace of this attempt; None if an earlier one wrote it."""
        pace = self._pace(local_rank)
        return pace if pace is not None and _session_of(pace.owner) == pid else None

    def _totals(self, sessions: set[int]) -> dict[int, tuple[float, int]]:
        """Seconds of CPU and bytes of memory by session; without sessions that are gone."""
        found: dict[int, tuple[float, int]] = {}
        try:
            for name in os.listdir(self._proc):
                if name.isdigit() and (session := _session_of(int(name))) in sessions:
                    cpu, memory = self._of_process(name)
                    before = found.get(session, (0.0, 0))
                    found[session] = (before[0] + cpu, before[1] + memory)
        except OSError:  # no descriptor is left: a part of a sum would look like a fall
            return {}
        return found

    def _of_process(self, name: str) -> tuple[float, int]:
        try:
            with open(f"{self._proc}/{name}/stat", "rb") as file:
                stat = file.read()
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            return 0.0, 0
        fields = stat[stat.rindex(b")") + 1 :].split()
        return sum(map(int, fields[_TICKS])) / self._second, int(fields[_PAGES]) * self._page


def _session_of(pid: int) -> int:
    """The session of a process; 0 if it has ended."""
    with suppress(OSError):
        return os.getsid(pid)
    return 0
