"""The page in which workers tell their agent of their progress.

The page is a memfd, so no file is ever left behind; a worker reaches it, and its pipes for stacks and for the
bell, through /proc/<agent>/fd. Its size is sealed: nobody can make our reads fail. ``worker/reporter.py`` and
what that imports are the other side and have the same layout; they run in the worker's interpreter and may
not import this one.
"""

from __future__ import annotations

import contextlib
import fcntl
import mmap
import os
import struct
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from elasticrun.agent.monitors.stacks import Target, open_pipe
from elasticrun.agent.programs import INJECTED
from elasticrun.core.progress.silence import WorkerProgress
from elasticrun.core.protocol.bounds import SECONDS, STEPS
from elasticrun.core.protocol.round_progress import Milestone
from elasticrun.core.protocol.usage import Pace
from elasticrun.dataclass import dataclass

if TYPE_CHECKING:
    from elasticrun.core.progress.own_time import Measured

VARIABLE = "ELASTICRUN_PROGRESS"
VERSION = "3"
#: owner, steps, step, sign, longest, pause, busy since, signal, listens, checksum
SLOT = struct.Struct("=QQqQQQQQQQ")
#: behind a slot, once steps are timed: owner, number of timed steps, their nanoseconds in all, checksum
TIMES = struct.Struct("=QQQQ")
#: behind those: owner, imported, connected, restored, first step, nanoseconds that saves held up training,
#: steps done at the anchor, steps counted then, how many of these make a step (0: see anchor), checksum
MARKS = struct.Struct("=QQQQQQqQQQ")
#: behind those: owner, number of measured steps, nanoseconds of their own, nanoseconds in all, checksum
OWN = struct.Struct("=QQQQQ")
SLOT_SIZE = SLOT.size + TIMES.size + MARKS.size + OWN.size
HEADER = struct.Struct("=8sQ")  # token, drain deadline
HEADER_SIZE = 128
NAME = "elasticrun-progress"
_MASK = 2**64 - 1
_NS = 1e9
_MILESTONES = (Milestone.IMPORTED, Milestone.CONNECTED, Milestone.RESTORED, Milestone.FIRST_STEP)
_READS = 100  # attempts at a slot that is being written; each takes a microsecond


def checksum(fields: tuple[int, ...]) -> int:
    """As the worker computes it."""
    return (sum(field * (2 * index + 3) for index, field in enumerate(fields)) ^ _MASK) & _MASK


@dataclass(frozen=True, slots=True)
class Slot:
    """What a worker has written; instants are seconds of the host's monotonic clock."""

    owner: int  # the pid that reports: the worker, or a process below it; 0: nobody
    progress: WorkerProgress
    signum: int  # signal on which the owner writes its stacks; 0: none
    listens: bool  # it looks for drain requests by itself


@dataclass(frozen=True, slots=True)
class Marks:
    """How far a worker is in its round; instants are seconds of the host's monotonic clock."""

    reached: Mapping[Milestone, float]  # when
    stalled: float  # seconds that saves have held up training
    done: int  # the number of steps that are done; -1: it has made none
    done_at: float  # when it made the last one, or took a batch since then


class ProgressPage:
    """One slot for each worker of this node, and a header for all. OSError if the kernel has no room.

    A task that is added to a round has a local rank beyond these, and no slot: it cannot report.
    """

    def __init__(self, local_world_size: int) -> None:
        self._token = os.urandom(8)
        size = HEADER_SIZE + SLOT_SIZE * local_world_size
        self._fd = os.memfd_create(NAME, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        self._pipes: list[tuple[int, int]] = []
        self.bell = self._ring = -1  # our end, and the workers', of a pipe: there is something to look at
        try:
            self.bell, self._ring = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
            os.ftruncate(self._fd, size)
            fcntl.fcntl(self._fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)
            self._map = mmap.mmap(self._fd, size)
            for _ in range(local_world_size):
                self._pipes.append(open_pipe())
        except OSError:
            self._close_files()
            raise
        self._slots: list[Slot | None] = []
        self._marks: list[tuple[int, ...]] = []
        self.reset()

    def reset(self) -> None:
        """Clear the page; no worker runs."""
        self._map[:] = bytes(len(self._map))
        HEADER.pack_into(self._map, 0, self._token, 0)
        self._slots = [None] * len(self._pipes)
        self._marks = [()] * len(self._pipes)

    def clear(self, local_rank: int) -> None:
        """Forget one worker, which has ended and is about to start again."""
        if self._has(local_rank):
            offset = _offset(local_rank)
            self._map[offset : offset + SLOT_SIZE] = bytes(SLOT_SIZE)
            self._slots[local_rank], self._marks[local_rank] = None, ()

    def _has(self, local_rank: int) -> bool:
        return local_rank < len(self._pipes)

    def environment(self, local_rank: int, inherited: Mapping[str, str], auto: bool) -> dict[str, str]:
        """What one worker's environment needs on top of ``inherited``.

        ``auto``: workers that use torch report by themselves, and the variables are removed before the
        script's first line. Otherwise there is only one variable, which stays.
        """
        if not self._has(local_rank):
            return {}
        stacks, inode = self._pipes[local_rank][1], os.fstat(self._ring).st_ino
        fields = (VERSION, os.getpid(), self._fd, self._token.hex(), local_rank, stacks, self._ring, inode)
        value = ":".join(map(str, fields))
        if not auto or not os.path.isdir(INJECTED) or os.pathsep in INJECTED:
            return {VARIABLE: f"{value}:"}
        before = inherited.get("PYTHONPATH")
        path = os.pathsep.join(filter(None, (INJECTED, before)))
        return {VARIABLE: f"{value}:{'unset' if before is None else 'set'}", "PYTHONPATH": path}

    def read(self, local_rank: int) -> Slot | None:
        """A worker's slot as it is, or was a moment ago; None if nobody has written it."""
        if not self._has(local_rank):
            return None
        offset = _offset(local_rank)
        for _ in range(_READS):
            *fields, check = SLOT.unpack_from(self._map, offset)
            if not fields[0]:
                self._slots[local_rank] = None
                break
            if checksum(tuple(fields)) == check:
                self._slots[local_rank] = _slot(local_rank, fields)
                break
        return self._slots[local_rank]

    def pace(self, local_rank: int) -> Pace | None:
        """A worker's steps and their times; None if nobody has written anything."""
        slot = self.read(local_rank)
        if slot is None:
            return None
        *fields, check = TIMES.unpack_from(self._map, _offset(local_rank) + SLOT.size)
        owner, timed, nanoseconds = fields
        if owner != slot.owner or checksum(tuple(fields)) != check:
            return Pace(slot.owner, slot.progress.step)  # it times no steps, or is writing
        return Pace(slot.owner, slot.progress.step, timed, nanoseconds / _NS)

    def own_time(self, local_rank: int) -> Measured | None:
        """What a worker has measured of its steps until now; None: nothing, or it is writing."""
        slot = self.read(local_rank)
        if slot is None:
            return None
        *fields, check = OWN.unpack_from(self._map, _offset(local_rank) + SLOT_SIZE - OWN.size)
        owner, steps, own, whole = fields
        if owner != slot.owner or checksum(tuple(fields)) != check:
            return None
        from elasticrun.core.progress.own_time import Measured  # few measure it

        return Measured(owner, steps, own / _NS, whole / _NS)

    def marks(self, local_rank: int) -> Marks | None:
        """How far a worker is; None if it reports nothing."""
        slot = self.read(local_rank)
        if slot is None:
            return None
        offset = _offset(local_rank) + SLOT.size + TIMES.size
        for _ in range(_READS):
            *fields, check = MARKS.unpack_from(self._map, offset)
            if fields[0] != slot.owner:  # it has reached nothing, or an earlier process had
                self._marks[local_rank] = ()
                break
            if checksum(tuple(fields)) == check:
                self._marks[local_rank] = tuple(fields)
                break
        return _marks(slot, self._marks[local_rank])

    def workers(self) -> tuple[WorkerProgress, ...]:
        """The progress of all workers that report."""
        slots = [self.read(local_rank) for local_rank in range(len(self._pipes))]
        return tuple(slot.progress for slot in slots if slot is not None)

    def target(self, local_rank: int, worker: int) -> Target:
        """The process to ask for stacks: the reporter if it is in the worker's session, else the worker."""
        slot = self.read(local_rank)
        pipe = self._pipes[local_rank][0] if self._has(local_rank) else -1
        if slot is not None and _is_in_session(slot.owner, worker):
            return Target(local_rank, slot.owner, slot.signum, pipe)
        return Target(local_rank, worker, 0, pipe)

    def request_drain(self, deadline: float) -> None:
        """Ask all workers to save their state and exit; ``deadline`` is on the host's monotonic clock."""
        HEADER.pack_into(self._map, 0, self._token, max(1, round(deadline * _NS)))

    def close(self) -> None:
        """Close the page and its pipes."""
        self._map.close()
        self._close_files()

    def _close_files(self) -> None:
        for fd in (self._fd, self.bell, self._ring, *(end for pipe in self._pipes for end in pipe)):
            if fd >= 0:
                os.close(fd)
        self._pipes = []


def _offset(local_rank: int) -> int:
    return HEADER_SIZE + local_rank * SLOT_SIZE


def _slot(local_rank: int, fields: Sequence[int]) -> Slot:
    owner, steps, step, sign, longest, pause, busy, signum, listens = fields
    busy_since = busy / _NS if busy else None
    told = STEPS.clip(step)  # the worker may have written any number
    progress = WorkerProgress(local_rank, steps, told, sign / _NS, longest / _NS, pause / _NS, busy_since)
    return Slot(owner, progress, signum, bool(listens))


def _marks(slot: Slot, fields: tuple[int, ...]) -> Marks:
    """What the two say together; a worker may have written anything."""
    told = slot.progress
    _, *reached, stalled, anchor, at, per = fields or (slot.owner, 0, 0, 0, 0, 0, 0, 0, 1)
    done = anchor + ((told.steps - at) // per if per else told.step)
    return Marks(
        {each: instant / _NS for each, instant in zip(_MILESTONES, reached, strict=True) if instant},
        SECONDS.clip(stalled / _NS),
        STEPS.clip(done) if told.steps else -1,
        told.sign_at,
    )


def _is_in_session(pid: int, worker: int) -> bool:
    with contextlib.suppress(OSError):
        return pid == worker or os.getsid(pid) == worker
    return False
