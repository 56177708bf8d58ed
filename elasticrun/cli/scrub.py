"""Take the job's token out of this process's environment, and out of sight of the programs that it starts.

The kernel shows the environment with which a process was started in /proc/PID/environ, to every process of
the same user: to each worker, and whatever it imports. It reads that from the process's own memory, between
two addresses given in /proc/self/stat. So removing a variable is not enough: the bytes there are
overwritten, before anything is forked, as a child begins with a copy of them.

This keeps a token from being picked up by accident, or by code that looks at environments. It is no boundary
between processes of one user, which can read one another's memory and files; the user id is the boundary.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

from elasticrun.cli.secrets import TOKEN_VARIABLE

_ENV_START, _ENV_END = 47, 48  # fields of /proc/PID/stat, counted behind the command's ")"


def take_environment() -> Mapping[str, str]:
    """The environment of this launch; the token is left in the returned mapping only."""
    token = os.environ.get(TOKEN_VARIABLE)
    if token is None:
        return os.environ
    import posix

    environ = dict(os.environ)
    del os.environ[TOKEN_VARIABLE]  # from libc's list as well, which points to the bytes below
    posix.environ.pop(os.fsencode(TOKEN_VARIABLE), None)
    _overwrite(os.fsencode(f"{TOKEN_VARIABLE}="))
    return environ


def _overwrite(name: bytes) -> None:
    """Write zeros over the value of each entry with this name; warn if /proc does not allow that."""
    try:
        start, end = _environment_area()
        with open("/proc/self/mem", "r+b", buffering=0) as memory:  # noqa: PTH123
            memory.seek(start)
            area = memory.read(end - start)
            for place, size in _values(area, name):
                memory.seek(start + place)
                memory.write(bytes(size))
    except (OSError, ValueError, IndexError) as error:
        import sys

        print(
            f"elastic-run: {TOKEN_VARIABLE} cannot be overwritten ({error}), so other processes of this user "
            "may see it: give --token-file instead",
            file=sys.stderr,
        )


def _environment_area() -> tuple[int, int]:
    with open("/proc/self/stat", "rb") as file:  # noqa: PTH123
        stat = file.read()
    fields = stat[stat.rindex(b")") + 1 :].split()
    return int(fields[_ENV_START]), int(fields[_ENV_END])


def _values(area: bytes, name: bytes) -> list[tuple[int, int]]:
    """(offset, length) of the values of all entries that begin with ``name``."""
    found, place = [], 0
    for entry in area.split(b"\0"):
        if entry.startswith(name):
            found.append((place + len(name), len(entry) - len(name)))
        place += len(entry) + 1
    return found
