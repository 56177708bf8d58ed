"""Directories for the copies that parameter servers keep of their variables (``elasticrun.tf.PeerBackup``).

    /dev/shm/elasticrun_ps_<tag of the job>_<random>/<port of a ps>/...

Theory. A copy must outlive the process of a ps, because the next one starts with it, but it takes memory, so
it must not outlive the agent: the agent removes the directory at its end, and the spawner does if the agent
was killed. If both were killed, an agent that starts on the host later does: each holds a lock on a file in
its directory, so if the lock is free, the owner is dead.

The directory's name is random, and the chief, which may run under another agent on another host, does not
know it. The chief knows the ports and the pattern, in which the job's part is a tag that the master's host
drew at random. Each agent gets the tag with its assignment. So only a member of the job could foresee the
pattern and make a directory that fits, and the name tells nothing about the job's token.

Without a directory there are no copies. That is no reason for a job to fail.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator

from elasticrun.config import TaskRole
from elasticrun.core.protocol.messages import Assignment
from elasticrun.core.protocol.tasks import Task
from elasticrun.core.tensorflow.cluster import is_served
from elasticrun.core.tensorflow.ps_backup import ROOTS_VARIABLE

logger = logging.getLogger(__name__)

SHARED_MEMORY = "/dev/shm"
#: A place with fewer free bytes counts as full: containers are often given 64 MiB.
LEAST_ROOM = 1 << 30
_PREFIX = "elasticrun_ps_"
_LOCK = "lock"
#: The job's tag becomes a part of paths, and of patterns of them.
_TAG = re.compile(r"[0-9a-z]{16,64}")


class PsBackupDirs:
    """The directories of the parameter servers of one agent. The first is made when it is needed."""

    def __init__(
        self,
        on_made: Callable[[str], object] = lambda path: None,
        bases: tuple[str, ...] | None = None,
    ) -> None:
        """``on_made`` is called with the path of each new directory, which somebody else may have to remove.

        ``bases``: where it may lie, the best place first; by default in memory, else where temporary files
        are.
        """
        self._bases = (SHARED_MEMORY, tempfile.gettempdir()) if bases is None else bases
        self._on_made = on_made
        self._directory: str | None = None  # "" if none can be made
        self._lock = -1

    def prepare(self, task: Task | None, assignment: Assignment) -> dict[str, str]:
        """Make the directory of a ps that is to start; return the environment variables for a task."""
        tag = assignment.tag
        if task is None or not is_served(assignment.cluster) or not _TAG.fullmatch(tag):
            return {}
        prefix = f"{_PREFIX}{tag}_"
        if task.role is TaskRole.PS:
            self._make(prefix, str(task.port))
        elif all(task.role is not TaskRole.PS for task in assignment.tasks):
            self.close()  # the ps that was here is elsewhere: nobody reads these copies any more
        if task.role is not TaskRole.CHIEF:
            return {}
        return {ROOTS_VARIABLE: os.pathsep.join(f"{base}/{prefix}*" for base in self._bases)}

    def close(self) -> None:
        """Remove everything: no process uses it any more. A new directory can be made."""
        if self._directory:
            shutil.rmtree(self._directory, ignore_errors=True)
        if self._lock >= 0:
            os.close(self._lock)
        self._directory, self._lock = None, -1

    def _make(self, prefix: str, port: str) -> None:
        if self._directory and not os.path.basename(self._directory).startswith(prefix):
            self.close()  # its master lost the journal: nobody would find these copies
        if self._directory is None:
            self._directory = self._make_directory(prefix)
        if self._directory:
            try:
                os.mkdir(os.path.join(self._directory, port), 0o700)
            except FileExistsError:
                return  # left by the attempt before this one, for this one
            except OSError as error:
                logger.warning("no directory for copies of a ps can be made (%s)", error.strerror)

    def _make_directory(self, prefix: str) -> str:
        problem = "no place has room"
        for base in _roomy(self._bases):
            remove_orphans(base)
            try:
                made = tempfile.mkdtemp(prefix=prefix, dir=base)
            except OSError as error:
                problem = f"{base}: {error.strerror}"
                continue
            self._on_made(made)
            with contextlib.suppress(OSError):  # without a lock no later agent removes it, that is all
                self._lock = _hold(made)
            return made
        logger.warning("parameter servers keep no copies of their variables here (%s)", problem)
        return ""


def _roomy(bases: Iterable[str]) -> list[str]:
    """The bases, those with room first; the others will do where little is kept."""

    def lacks_room(base: str) -> bool:
        try:
            status = os.statvfs(base)
        except OSError:
            return True
        return status.f_bavail * status.f_frsize < LEAST_ROOM

    return sorted(bases, key=lacks_room)


def _hold(directory: str) -> int:
    """Lock a directory for as long as this process lives. Its lock file is never visible unlocked."""
    path = os.path.join(directory, _LOCK)
    lock = os.open(f"{path}.new", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.rename(f"{path}.new", path)
    except OSError:
        os.close(lock)
        raise
    return lock


def remove_orphans(base: str) -> None:
    """Remove the directories of agents that died together with their spawner."""
    for directory in list(_ours(base)):
        with contextlib.suppress(OSError):  # no lock yet, or its owner is alive
            lock = os.open(os.path.join(directory, _LOCK), os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(directory, ignore_errors=True)
            finally:
                os.close(lock)


def _ours(base: str) -> Iterator[str]:
    with contextlib.suppress(OSError), os.scandir(base) as entries:
        for entry in entries:
            if not entry.name.startswith(_PREFIX) or not entry.is_dir(follow_symlinks=False):
                continue
            if entry.stat(follow_symlinks=False).st_uid == os.geteuid():
                yield entry.path
