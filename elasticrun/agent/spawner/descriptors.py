"""The open files of a child that is forked without exec."""

from __future__ import annotations

import os
from collections.abc import Collection

_FILES_WITHOUT_PROC = 4096  # no higher number is tried: the limit may be a billion


def open_files() -> list[int]:
    """The descriptors of this process, or more: closing one that is not there does no harm."""
    try:
        return [int(name) for name in os.listdir("/proc/self/fd")]
    except FileNotFoundError:
        return list(range(_FILES_WITHOUT_PROC))


def close_files(keep: Collection[int]) -> None:
    """Close every descriptor of this process but those in ``keep``."""
    for number in open_files():
        if number not in keep:
            os.closerange(number, number + 1)


def is_open(number: int) -> bool:
    """Whether there is such a descriptor."""
    try:
        os.fstat(number)
    except OSError:
        return False
    return True


def open_null(number: int) -> None:
    """Have a descriptor that is closed, or may be, read nothing and write nowhere."""
    null = os.open(os.devnull, os.O_RDWR)
    if null != number:
        os.dup2(null, number)
        os.close(null)
