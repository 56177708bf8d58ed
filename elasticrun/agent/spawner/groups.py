"""The end of a worker that is started again alone: nothing of its process group outlives it.

Theory. Its next attempt may need what a helper process of this one still holds: a port, a file, a device. No
sweep comes between the two attempts, so when such a worker ends the spawner kills what is left of its process
group, and reports the end only once all of that has ended too. A descendant in a session or group of its own
is not found that way; it lives on until the round's sweep.

Invariants.

- The group is signalled while its dead leader is not reaped yet, so no other group can have its number.
- SIGKILL reaches all members at once, and none of them can fork any more; those seen after it are all there
  will ever be. A pidfd tells the end of each one, whoever its parent is.
- A member that belongs to another user is not waited for: it could not be killed.
"""

from __future__ import annotations

import contextlib
import functools
import os
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from elasticrun.agent.spawner.poll import Poller

#: pidfds of the members of a group that were killed and are still to end.
Rest = frozenset[int]


def kill_group(leader: int) -> Rest:
    """Kill the group of a leader that has ended and is not reaped yet; return its members still to end."""
    with contextlib.suppress(ProcessLookupError, PermissionError):  # no group yet; another user's processes
        os.killpg(leader, signal.SIGKILL)
    return frozenset(fd for pid in living_members(leader) if (fd := _open(pid)) >= 0)


class GroupEnds:
    """Groups that were killed and have not ended yet, each with a callback for its end."""

    def __init__(self, poller: Poller) -> None:
        self._poller = poller
        self._waits: list[_Wait] = []

    def wait(self, rest: Rest, then: Callable[[], None]) -> None:
        """Call ``then`` once all have ended: at once if there are none."""
        if not rest:
            then()
            return
        wait = _Wait(set(rest), then)
        self._waits.append(wait)
        for fd in rest:
            self._poller.watch(fd, functools.partial(self._ended, wait, fd))

    def conclude(self) -> None:
        """End all waits: a sweep has found that nothing is left."""
        for wait in [*self._waits]:
            for fd in [*wait.rest]:
                self._ended(wait, fd)

    def _ended(self, wait: _Wait, fd: int) -> None:
        self._poller.unwatch(fd)
        os.close(fd)
        wait.rest.discard(fd)
        if not wait.rest:
            self._waits.remove(wait)
            wait.then()


@dataclass(slots=True, eq=False)
class _Wait:
    rest: set[int]
    then: Callable[[], None]


def _open(pid: int) -> int:
    """A pidfd of a process that we may signal, or -1."""
    try:
        os.kill(pid, 0)
        return os.pidfd_open(pid)
    except (AttributeError, OSError):
        return -1  # it has ended, is another user's, or the kernel is too old to tell: not waited for


def living_members(group: int, proc: str = "/proc") -> Iterator[int]:
    """The processes of a process group that have not ended."""
    for name in os.listdir(proc):
        if name.isdigit() and _is_living_member(f"{proc}/{name}/stat", group):
            yield int(name)


def _is_living_member(path: str, group: int) -> bool:
    try:
        with open(path, "rb") as file:
            stat = file.read()
    except OSError:  # it ended meanwhile
        return False
    state, _, of_group = stat[stat.rindex(b")") + 1 :].split()[:3]
    return state not in (b"Z", b"X") and int(of_group) == group
