"""The children of a process, started or inherited: as the kernel lists them, and their ends."""

from __future__ import annotations

import os


def children_of(pid: int, proc: str = "/proc") -> list[int]:
    """The direct children of a single-threaded process; a scan where the kernel keeps no list."""
    try:
        with open(f"{proc}/{pid}/task/{pid}/children", "rb") as file:
            return [int(child) for child in file.read().split()]
    except FileNotFoundError:
        names = (int(name) for name in os.listdir(proc) if name.isdigit())
        return [child for child in names if _parent_of(child, proc) == pid]


def _parent_of(pid: int, proc: str) -> int:
    try:
        with open(f"{proc}/{pid}/stat", "rb") as file:
            stat = file.read()
    except OSError:  # it ended meanwhile
        return -1
    return int(stat[stat.rindex(b")") + 1 :].split()[1])


def kill(pid: int, signum: int) -> bool:
    """Signal a child; return whether we were allowed to."""
    try:
        os.kill(pid, signum)
    except PermissionError:
        return False
    return True


def has_ended(pid: int) -> bool:
    """Whether a child of ours has ended, reaped or not."""
    try:
        return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
    except ChildProcessError:
        return True
