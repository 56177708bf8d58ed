"""What the kernel knows of this process, for warm_report.py, beside which a copy of this lies."""

from __future__ import annotations

import ctypes
import fcntl
import os
import resource
import signal
from pathlib import Path
from typing import Any

STATUS = (
    *(
        "Umask",
        "Groups",
        "Threads",
        "SigQ",
        "SigPnd",
        "ShdPnd",
        "SigBlk",
        "SigIgn",
        "SigCgt",
        "CapEff",
        "CapBnd",
    ),
    *("NoNewPrivs", "Seccomp", "Cpus_allowed_list", "Mems_allowed_list", "THP_enabled", "TracerPid"),
)
PRCTL_VALUES = {
    "dumpable": 3,
    "capabilities": 7,
    "timer slack": 30,
    "no new privileges": 39,
    "huge pages": 42,
}
PRCTL_POINTERS = {"death signal": 2, "subreaper": 37}
#: The first ones, as nobody has drawn any before.
C_RANDOM = [ctypes.CDLL(None).rand() for _ in range(3)]


def status() -> dict[str, str]:
    lines = Path("/proc/self/status").read_text().splitlines()
    values = {name: value.split() for name, _, value in (line.partition(":") for line in lines)}
    values["SigQ"] = values["SigQ"][0].split("/")[1:]  # how many are queued is the whole user's
    return {name: " ".join(values.get(name, ["none"])) for name in STATUS}


def descriptors() -> list[list[Any]]:
    """[number, kind, flags of the file, flags of the descriptor] of all that is open."""
    found = []
    for number in sorted(int(name) for name in os.listdir("/proc/self/fd")):  # noqa: PTH208 the numbers
        try:
            target = os.readlink(f"/proc/self/fd/{number}")  # noqa: PTH115 may be no path
            flags, own = fcntl.fcntl(number, fcntl.F_GETFL), fcntl.fcntl(number, fcntl.F_GETFD)
        except OSError:
            continue  # the one that listed them
        found.append([number, target.partition(":[")[0], flags, own])
    return found


def used_by_children() -> float:
    """Seconds. Importing torch may run programs, as builds for GPUs do; a warm worker has not run them."""
    return resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime


def kernel() -> dict[str, Any]:
    me = Path("/proc/self")
    stat = (me / "stat").read_text().rpartition(")")[2].split()
    parent = Path(f"/proc/{os.getppid()}")
    return {
        **status(),
        "cwd": os.getcwd(),  # noqa: PTH109
        "files": descriptors(),
        "ids": [os.getuid(), os.geteuid(), os.getgid(), os.getegid()],
        "leads": [os.getpgrp() == os.getpid(), os.getsid(0) == os.getpid()],
        "terminal": [stat[4], stat[5], can_open("/dev/tty")],
        "end is told by signal": stat[35],
        "priority": [stat[15], stat[16], stat[38]],
        "scheduling": [os.sched_getscheduler(0), sorted(os.sched_getaffinity(0))],
        "parent": (parent / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip(),
        "children": [(me / f"task/{os.getpid()}/children").read_text(), waits()],
        "limits in /proc": (me / "limits").read_text().splitlines(),
        "resource limits": [resource.getrlimit(number) for number in range(16)],
        "oom": (me / "oom_score_adj").read_text(),
        "personality": (me / "personality").read_text(),
        "cgroup": (me / "cgroup").read_text(),
        "comm": (me / "comm").read_text(),
        "cmdline": (me / "cmdline").read_text().split("\0"),
        "exe": os.readlink(me / "exe"),  # noqa: PTH115
        "root": os.readlink(me / "root"),  # noqa: PTH115
        "namespaces": [os.readlink(entry) for entry in sorted((me / "ns").iterdir())],  # noqa: PTH115
        "timers": [signal.getitimer(which) for which in (0, 1, 2)],
        "prctl": prctl_values(),
        "wakeup": wakeup(),
        "C's random numbers": C_RANDOM,
    }


def can_open(path: str) -> str:
    try:
        os.close(os.open(path, os.O_RDWR))
    except OSError as error:
        return str(error)
    return "yes"


def waits() -> str:
    try:
        return str(os.waitpid(-1, os.WNOHANG))
    except ChildProcessError:
        return "no children"


def wakeup() -> int:
    old = signal.set_wakeup_fd(-1)
    signal.set_wakeup_fd(old)
    return old


def prctl_values() -> dict[str, int]:
    call = ctypes.CDLL(None).prctl
    found = {name: int(call(option, 0, 0, 0, 0)) for name, option in PRCTL_VALUES.items()}
    for name, option in PRCTL_POINTERS.items():
        value = ctypes.c_int(-1)
        call(option, ctypes.byref(value), 0, 0, 0)
        found[name] = value.value
    return found


def environment() -> dict[str, Any]:
    """As Python has it, and as C has it."""
    pointers = ctypes.POINTER(ctypes.c_char_p).in_dll(ctypes.CDLL(None), "environ")
    in_c: list[str] = []
    while entry := pointers[len(in_c)]:
        in_c.append(entry.decode(errors="surrogateescape"))
    return {
        "environment": dict(sorted(os.environ.items())),
        "environment in C": sorted(in_c),
        "twice in the environment": len(in_c) - len(os.environ),
    }
