"""Whether a host has room for copies of variables, by what Linux says of its memory as text.

A copy in a memory file system takes memory from the program that it protects: a container's limit would kill
the parameter server rather than refuse the write. So a copy is made only if four fifths of what is left would
hold it. A figure that cannot be read limits nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from elasticrun.dataclass import dataclass

MEMORY_FILE_SYSTEMS = ("tmpfs", "ramfs")
#: Fraction of the memory left that copies may take.
_SHARE = 0.8
_UNITS = {"k": 1 << 10, "m": 1 << 20, "g": 1 << 30}


@dataclass(frozen=True, slots=True)
class CgroupFiles:
    """The files with a control group's memory limit and usage."""

    limit: str
    usage: str
    stat: str


def cgroup_files(cgroup: str) -> tuple[CgroupFiles, ...]:
    """The files to read, by the text of ``/proc/self/cgroup``: of the group, and of its namespace's root."""
    return tuple(dict.fromkeys(_cgroup_files(cgroup)))


def _cgroup_files(cgroup: str) -> Iterator[CgroupFiles]:
    for line in cgroup.splitlines():
        match line.split(":", 2):
            case ["0", "", path]:
                root, names = "/sys/fs/cgroup", ("memory.max", "memory.current")
            case [_, controllers, path] if "memory" in controllers.split(","):
                root, names = "/sys/fs/cgroup/memory", ("memory.limit_in_bytes", "memory.usage_in_bytes")
            case _:
                continue
        for folder in (root + path.rstrip("/"), root):
            limit, usage = (f"{folder}/{name}" for name in names)
            yield CgroupFiles(limit, usage, f"{folder}/memory.stat")


def left_in_cgroup(limit: str, usage: str, stat: str) -> int | None:
    """How many bytes a control group may still take; file cache that can be dropped counts as free."""
    allowed, used = _number(limit), _number(usage)
    if allowed is None or used is None:
        return None
    fields = dict(line.split(" ", 1) for line in stat.splitlines() if " " in line)
    reclaimable = _number(fields.get("total_inactive_file", fields.get("inactive_file", "0"))) or 0
    return max(0, allowed - used + reclaimable)


def left_on_host(meminfo: str) -> int | None:
    """How many bytes of memory a host has left, from the text of ``/proc/meminfo``."""
    for line in meminfo.splitlines():
        match line.split():
            case ["MemAvailable:", amount, "kB"] if amount.isdigit():
                return int(amount) << 10
    return None


def in_memory(mounts: str, path: str) -> bool:
    """Whether a directory lies in memory, from the text of ``/proc/self/mounts``."""
    return _mount(mounts, path)[0] in MEMORY_FILE_SYSTEMS


def capacity(mounts: str, path: str) -> int | None:
    """How many bytes the memory file system of a directory may hold in all; None if that is not said."""
    kind, options = _mount(mounts, path)
    sizes = [option[len("size=") :] for option in options.split(",") if option.startswith("size=")]
    return _size(sizes[-1]) if kind in MEMORY_FILE_SYSTEMS and sizes else None


def _mount(mounts: str, path: str) -> tuple[str, str]:
    found = ("", "", "")
    for line in mounts.splitlines():
        match line.split():
            case [_, point, kind, options, *_] if f"{path}/".startswith(f"{point.rstrip('/')}/"):
                found = max(found, (point, kind, options), key=lambda mount: len(mount[0]))
    return found[1:]


def _size(text: str) -> int | None:
    number, unit = (text[:-1], _UNITS[text[-1]]) if text[-1:] in _UNITS else (text, 1)
    return int(number) * unit if number.isdigit() else None


def _number(text: str) -> int | None:
    return int(text) if text.strip().isdigit() else None


def lack(needed: int, whole: int, left: Iterable[int | None], caps: Iterable[int | None]) -> str:
    """Why copies that take ``needed`` bytes more, ``whole`` in all, must not be made; "" if they may.

    ``left`` are bytes that may still be taken, ``caps`` bytes that may be taken in all.
    """
    room = min((int(value * _SHARE) for value in left if value is not None), default=needed)
    if needed > room:
        return f"it needs {in_words(needed)} more memory, but may take only {in_words(room)} of what is left"
    space = min((value for value in caps if value is not None), default=whole)
    if whole > space:
        return f"it needs {in_words(whole)}, and the file system holds {in_words(space)} in all"
    return ""


def in_words(size: int) -> str:
    """A number of bytes for a log line."""
    for unit, name in ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if size >= unit:
            return f"{size / unit:.1f} {name}"
    return f"{size} bytes"
