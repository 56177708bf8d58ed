"""What the processes below each worker have used, for ``core/progress/activity.py`` to compare.

Read only when a silence is judged: one pass over ``/proc``, some 20 us a process, then four more files for
each process below a worker. A process is below a worker if it descends from it or is in its session: if its
parent has ended, it has lost its ancestors, but not its session. What cannot be read, such as another user's
process, counts as nothing; a process that ends meanwhile is left out, and is missing in the next footprint.
"""

from __future__ import annotations

import os
import re
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import suppress

from elasticrun.core.progress.activity import Footprint
from elasticrun.dataclass import dataclass

#: System call numbers by machine: calls that read a descriptor, and calls that wait for several.
_READS = {"x86_64": (0, 19), "aarch64": (63, 65)}
_SELECTS = {"x86_64": (23, 270), "aarch64": (72,)}
_IO = re.compile(rb"^[rw]char: (\d+)$", re.MULTILINE)
_TRACER = re.compile(rb"^TracerPid:\s+(\d+)$", re.MULTILINE)
#: Device files of accelerators: a process that uses one has it open.
_DEVICE = re.compile(r"/dev/(nvidia|kfd|dri/render|accel|davinci|habanalabs|neuron|vfio/)")


@dataclass(frozen=True, slots=True)
class _Process:
    """One line of /proc/<pid>/stat."""

    pid: int
    state: bytes
    parent: int
    session: int
    ticks: int  # of CPU, also of children it has waited for
    born: int


class FootprintReader:
    """Reads footprints on this host."""

    def __init__(self, proc: str = "/proc") -> None:
        """``proc`` is an argument for the sake of tests."""
        self._proc = proc
        self._second = os.sysconf("SC_CLK_TCK")  # in ticks
        machine = os.uname().machine
        self._reads, self._selects = _READS.get(machine, ()), _SELECTS.get(machine, ())

    def read(self, workers: Mapping[int, int]) -> dict[int, Footprint]:
        """Footprints by local rank, for the pids in ``workers``; without those that are gone."""
        if not workers:
            return {}
        processes = {process.pid: process for process in self._all()}
        families = defaultdict(set)
        for process in processes.values():
            families[process.parent].add(process.pid)
        sessions = defaultdict(set)
        for process in processes.values():
            sessions[process.session].add(process.pid)
        return {
            local_rank: self._footprint(pid, [processes[each] for each in _below(pid, families, sessions)])
            for local_rank, pid in workers.items()
            if pid in processes
        }

    def _all(self) -> Iterator[_Process]:
        with suppress(OSError):
            for name in os.listdir(self._proc):
                if name.isdigit() and (stat := self._file(int(name), "stat")):
                    fields = stat[stat.rindex(b")") + 1 :].split()
                    ticks = sum(map(int, fields[11:15]))
                    yield _Process(
                        int(name), fields[0], int(fields[1]), int(fields[3]), ticks, int(fields[19])
                    )

    def _footprint(self, worker: int, processes: list[_Process]) -> Footprint:
        states = {process.state for process in processes}
        pids = [process.pid for process in processes]
        stdin = _target(f"{self._proc}/{worker}/fd/0")
        return Footprint(
            at=time.monotonic(),
            cpu=sum(process.ticks for process in processes) / self._second,
            io=sum(sum(map(int, _IO.findall(self._file(pid, "io")))) for pid in pids),
            processes=frozenset((process.pid, process.born) for process in processes),
            is_running=bool(states & {b"R", b"D"}),
            is_stopped=bool(states & {b"T"}),
            is_traced=any(_TRACER.findall(self._file(pid, "status")) not in ([b"0"], []) for pid in pids),
            reads_stdin=any(self._reads_stdin(pid, stdin) for pid in pids),
            has_device=any(map(self._has_device, pids)),
        )

    def _reads_stdin(self, pid: int, stdin: str) -> bool:
        """Whether the main thread waits for a line from ``stdin``; readline waits for descriptors below 1.

        A program that reads what a worker writes to it has another file as its stdin.
        """
        if _target(f"{self._proc}/{pid}/fd/0") != stdin:
            return False
        call, *arguments = self._file(pid, "syscall").split()[:2] or [b""]
        if not call.isdigit() or not arguments:
            return False  # it runs, is blocked outside a system call, or cannot be read
        number, first = int(call), int(arguments[0], 16)
        return (number in self._reads and first == 0) or (number in self._selects and first == 1)

    def _has_device(self, pid: int) -> bool:
        folder = f"{self._proc}/{pid}/fd"
        with suppress(OSError):
            return any(_DEVICE.match(_target(f"{folder}/{name}")) for name in os.listdir(folder))
        return False

    def _file(self, pid: int, name: str) -> bytes:
        """b"" if it cannot be read."""
        try:
            with open(f"{self._proc}/{pid}/{name}", "rb") as file:
                return file.read()
        except OSError:
            return b""


def _target(path: str) -> str:
    with suppress(OSError):
        return os.readlink(path)
    return ""


def _below(pid: int, families: Mapping[int, set[int]], sessions: Mapping[int, set[int]]) -> set[int]:
    """The pids of a worker and of the processes below it."""
    found: set[int] = set()
    todo = {pid} | sessions.get(pid, set())
    while todo:
        found |= todo
        todo = {child for each in todo for child in families.get(each, ())} - found
    return found
