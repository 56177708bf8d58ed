"""Orphans that become the agent's children: killing those of a dead spawner, reaping those of a container.

The spawner finds everything that workers start because it is their subreaper. If it is killed itself (the
kernel's OOM killer spares nobody), orphans go to the next subreaper above. That is the agent, so even then
nothing goes to init and is lost.

The first process of a container is its init. What ``docker exec`` or a probe of Kubernetes leaves behind
becomes its child, and until it is reaped it counts against the container's limit of processes.
"""

from __future__ import annotations

import contextlib
import logging
import os
import select
import signal
from collections.abc import Collection

from elasticrun.agent.spawner.exec import PR_SET_CHILD_SUBREAPER, load_prctl
from elasticrun.agent.spawner.process_tree import children_of

logger = logging.getLogger(__name__)

#: Seconds that the kernel has to end a process after SIGKILL.
KILL_TIMEOUT = 5.0


def adopt_orphans() -> None:
    """Make this process the subreaper of everything below it; harmless to repeat."""
    try:
        load_prctl()(PR_SET_CHILD_SUBREAPER, 1)
    except OSError as error:
        logger.debug("cannot become a subreaper: %s", error)


def kill_orphans(spared: Collection[int]) -> None:
    """SIGKILL all children but ``spared``, then whatever becomes a child by that, until none is left.

    Wait for each, as its children become ours only once it has ended; give up on those that belong to
    another user, or that the kernel does not let die.
    """
    hopeless: set[int] = set(spared)
    while children := [pid for pid in children_of(os.getpid()) if pid not in hopeless]:
        for pid in children:
            if not _kill(pid):
                hopeless.add(pid)


def reap_strangers(own: Collection[int]) -> None:
    """Reap children that have ended and that this process did not start; it never waits.

    ``own``: children that whoever started them reaps. Any other child of our own is in our session, and a
    stranger is not: a container's runtime gives each command a session of its own.
    """
    for pid in children_of(os.getpid()):
        with contextlib.suppress(ChildProcessError, ProcessLookupError):  # it was reaped meanwhile
            if pid not in own and os.getsid(pid) != os.getsid(0):
                os.waitpid(pid, os.WNOHANG)


def _kill(pid: int) -> bool:
    """Kill a child; return whether it has ended."""
    try:
        pidfd = os.pidfd_open(pid)
    except OSError as error:
        logger.warning("cannot watch the orphan %d (%s); it may be left behind", pid, error.strerror)
        return False
    try:
        os.kill(pid, signal.SIGKILL)
        ended, _, _ = select.select([pidfd], [], [], KILL_TIMEOUT)
        if ended:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, 0)
        return bool(ended)
    except PermissionError:
        return False
    finally:
        os.close(pidfd)
