"""What ``ps`` shows for a process of ours.

The kernel reads a process's command line from that process's own memory, between two addresses that
/proc/self/stat tells. So a title is written over the old arguments through /proc/self/mem, which needs
neither ctypes nor privileges. The short name (``comm``: ``top``, ``pgrep``) is a file as well. It has no
spaces: some programs read /proc/PID/stat as words, and then lose a process, and those below it, as Slurm's
proctrack/linuxproc does, whose signals would not arrive.

Invariant: nothing outside the argument area is written. The environment lies right behind it and could
give more room, but libc's ``getenv`` points into it and /proc/PID/environ shows it; so a title that is
too long is cut instead. There is room for 20 characters if the interpreter and the script were started by
path, as a console script always is.
"""

from __future__ import annotations

import os

_COMM_BYTES = 15  # the kernel's limit
_ARG_START, _ARG_END = 45, 46  # fields of /proc/PID/stat, counted behind the command's ")"


def set_title(title: str) -> None:
    """Show ``title`` as this process's command line; without a usable /proc nothing happens."""
    text = os.fsencode(title)
    try:
        _overwrite_arguments(text)
        _write("/proc/self/comm", text.replace(b" ", b"")[:_COMM_BYTES])
    except (OSError, ValueError, IndexError):
        return  # no /proc, or one that differs from Linux's: the title is optional


def _overwrite_arguments(text: bytes) -> None:
    start, end = _argument_area()
    room = end - start
    if room <= 1:
        return
    # The last byte stays NUL: otherwise the kernel takes the environment for a part of the title.
    _write("/proc/self/mem", text[: room - 1].ljust(room, b"\0"), offset=start)


def _argument_area() -> tuple[int, int]:
    fd = os.open("/proc/self/stat", os.O_RDONLY | os.O_CLOEXEC)
    try:
        stat = os.read(fd, 4096)
    finally:
        os.close(fd)
    fields = stat[stat.rindex(b")") + 1 :].split()
    return int(fields[_ARG_START]), int(fields[_ARG_END])


def _write(path: str, data: bytes, offset: int = 0) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        if offset:
            os.lseek(fd, offset, os.SEEK_SET)
        os.write(fd, data)
    finally:
        os.close(fd)
