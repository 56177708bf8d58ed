"""How much memory can still be taken on this host, within the limits of our cgroup and those above it.

A memfd beyond that would not fail when it is made: the kernel would kill some process when it is written. So
the room is asked for first. Each source may be missing, and sets no limit then. If none can be read, the room
is unknown: nothing is saved in memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress

#: The share of each limit that is left free: for page tables, the page cache and the growth of the script.
MARGIN = 0.05


def free_bytes(proc: str = "/proc", cgroups: str = "/sys/fs/cgroup") -> int | None:
    """Bytes that can be taken; None if the kernel does not say. The arguments are for tests."""
    rooms = [*_host(proc), *_cgroup(proc, cgroups)]
    return max(0, min(rooms)) if rooms else None


def _host(proc: str) -> Iterator[int]:
    with suppress(OSError, ValueError, IndexError):
        lines = _read(proc, "meminfo").splitlines()
        kilobytes = {line.split(":")[0]: int(line.split()[1]) for line in lines}
        if kilobytes.keys() >= {"MemAvailable", "MemTotal"}:
            yield (kilobytes["MemAvailable"] - int(MARGIN * kilobytes["MemTotal"])) << 10


def _cgroup(proc: str, cgroups: str) -> Iterator[int]:
    with suppress(OSError, ValueError, IndexError):
        for line in _read(proc, "self/cgroup").splitlines():
            _, controllers, path = line.split(":", 2)
            if not controllers:
                yield from _rooms(cgroups, path, "memory.max", "memory.current", "memory.stat")
            elif "memory" in controllers.split(","):
                names = "memory.limit_in_bytes", "memory.usage_in_bytes", "memory.stat"
                yield from _rooms(f"{cgroups}/memory", path, *names)


def _rooms(root: str, path: str, limit: str, usage: str, stat: str) -> Iterator[int]:
    """The room below the limit of a cgroup, and of each one above it. Page cache counts as free."""
    names = [name for name in path.split("/") if name]
    for depth in range(len(names), -1, -1):
        folder = "/".join([root, *names[:depth]])
        with suppress(OSError, ValueError):
            most = int(_read(folder, limit))
            counters = dict(line.split() for line in _read(folder, stat).splitlines())
            cache = int(counters.get("total_inactive_file", counters.get("inactive_file", 0)))
            yield most - int(_read(folder, usage)) + cache - int(MARGIN * most)


def _read(folder: str, name: str) -> str:
    with open(f"{folder}/{name}") as file:
        return file.read()
