"""The warm parents below a spawner: processes that have imported torch and fork workers.

Theory. There is one for each *key*: a command line and the part of the environment that imports may read. A
spawn request that names a key waits while its parent imports, as one import and many forks are never slower
than many imports; it starts cold if there is no such parent, if the import takes too long, and if anything
goes wrong before the worker's first line.

Invariants.

- A parent gives birth to one worker at a time. The worker is the spawner's own child before it answers, so
  nothing lives below a parent but while a birth is under way; whoever sweeps then kills that parent as well.
- Every request that was taken is answered: by ``born``, by ``start_cold``, or by a failure if a sweep comes.
- A parent that was killed is replaced. One that cannot import, or says that it cannot fork soundly, is not.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import time
from array import array
from collections import deque
from collections.abc import Iterator
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Protocol

from elasticrun.agent.spawner_exec import Prctl, fork_program
from elasticrun.agent.spawner_poll import Poller
from elasticrun.agent.spawner_wire import Message

VARIABLE = "ELASTICRUN_WARM"
#: Seconds that workers wait for an import before they start cold.
IMPORT_TIMEOUT = 60.0
#: Seconds for a birth: a hundred times what a busy machine needs.
BIRTH_TIMEOUT = 15.0
#: Births that may fail one after the other before a parent is given up.
MAX_MISCARRIAGES = 3
_ANSWER_BYTES = 4096  # a pipe takes that in one piece


class Host(Protocol):
    """What this module needs of the spawner."""

    poller: Poller

    def start_cold(self, request: Message, fds: list[int]) -> None:
        """Execute the program."""

    def born(self, worker: int, pid: int) -> None:
        """A worker runs."""

    def signal(self, worker: int, signum: int) -> None:
        """Signal a worker."""

    def report(self, **event: object) -> None:
        """Tell the agent."""

    def report_failure(self, worker: int, code: int, text: str) -> None:
        """Tell the agent that a worker cannot be started."""


class _State(Enum):
    IMPORTING = auto()
    READY = auto()
    GONE = auto()  # no more requests for it


@dataclass(slots=True, eq=False)
class _Parent:
    recipe: Message
    stdin: int
    pid: int = 0  # 0: none is left
    state: _State = _State.IMPORTING
    is_killed: bool = False
    control: socket.socket | None = None
    waiting: deque[_Birth] = field(default_factory=deque)
    birth: _Birth | None = None
    miscarriages: int = 0
    deadline: float | None = None


@dataclass(slots=True, eq=False)
class _Birth:
    """A spawn request on its way."""

    parent: _Parent
    request: Message
    fds: list[int]
    answer: int = -1  # the pipe; -1 until the parent was asked
    signals: list[int] = field(default_factory=list)  # for a worker whose pid we do not know yet

    @property
    def worker(self) -> int:
        number: int = self.request["worker"]
        return number

    def close(self) -> None:
        for fd in self.fds:
            os.close(fd)
        self.fds = []


class WarmParents:
    """All warm parents of one spawner."""

    def __init__(self, host: Host, prctl: Prctl) -> None:
        self._host = host
        self._prctl = prctl
        self._parents: dict[str, _Parent] = {}
        self._dying: list[_Parent] = []  # replaced or given up, not reaped yet
        self._is_closed = False

    @property
    def pids(self) -> set[int]:
        """Of the parents that a sweep has to spare."""
        return {parent.pid for parent in self._parents.values() if parent.pid and not parent.is_killed}

    # -- requests

    def prepare(self, request: Message, fds: list[int]) -> None:
        """Start the parent of a key. ``fds`` is the stdin of its workers."""
        if not fds:
            return  # the process has too many files open: workers start cold
        parent = _Parent(request, fds[0])
        self._parents[request["key"]] = parent
        self._start(parent)

    def take(self, request: Message, fds: list[int]) -> bool:
        """Take charge of a spawn request; False: it has to start cold."""
        parent = self._parents.get(request.get("warm") or "")
        if parent is None or parent.state is _State.GONE or self._is_late(parent):
            return False
        parent.waiting.append(_Birth(parent, request, fds))
        self._go_on(parent)
        return True

    def signal(self, worker: int, signum: int) -> None:
        """A signal for a worker that has no pid yet: one that waits is started cold, as it may be meant to end."""
        for parent in self._all():
            if parent.birth is not None and parent.birth.worker == worker:
                parent.birth.signals.append(signum)
            for birth in [birth for birth in parent.waiting if birth.worker == worker]:
                parent.waiting.remove(birth)
                birth.signals.append(signum)
                self._start_cold(birth)

    def stop(self, for_good: bool) -> None:
        """A sweep begins: no worker may come to life any more. ``for_good``: nor may a parent stay."""
        self._is_closed = self._is_closed or for_good
        for parent in self._all():
            births = list(parent.waiting)
            parent.waiting.clear()
            if parent.birth is not None:
                births.append(parent.birth)
                self._forget_birth(parent)
                self._kill(parent)
            if for_good:
                self._kill(parent)
            for birth in births:
                birth.close()
                self._host.report_failure(birth.worker, 0, "it was stopped before it had started")

    # -- what happens

    def buried(self, pid: int, exit_code: int) -> None:
        """A child ended that the spawner does not know: a parent, or a worker whose answer is still unread."""
        for parent in self._all():
            if parent.pid == pid:
                self._ended(parent, exit_code)
                return
        for parent in self._all():
            if parent.birth is not None and _readable(parent.birth.answer):
                self._answered(parent)

    def time_left(self) -> float | None:
        """Seconds until ``expire`` has to be called; None: not at all."""
        deadlines = [parent.deadline for parent in self._all() if parent.deadline is not None]
        return max(0.0, min(deadlines) - time.monotonic()) if deadlines else None

    def expire(self) -> None:
        """Give up what took too long."""
        now = time.monotonic()
        for parent in self._all():
            if parent.deadline is None or parent.deadline > now:
                continue
            parent.deadline = None
            if parent.birth is not None:
                self._kill(parent)  # that closes the pipe, and the worker starts cold
            elif parent.state is _State.IMPORTING:
                self._say(False, f"the import takes longer than {IMPORT_TIMEOUT:g} s")
                self._all_cold(parent)

    # -- a parent's life

    def _all(self) -> list[_Parent]:
        return [*self._parents.values(), *self._dying]

    @staticmethod
    def _is_late(parent: _Parent) -> bool:
        return parent.state is _State.IMPORTING and parent.deadline is None

    def _start(self, parent: _Parent) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        os.set_inheritable(theirs.fileno(), True)
        env = {**parent.recipe["env"], VARIABLE: f"{theirs.fileno()}:{parent.recipe['terms']}"}
        try:
            with _memory_files("elasticrun-stdout", "elasticrun-stderr") as output:
                request = {**parent.recipe, "env": env}
                parent.pid, error_pipe = fork_program(request, [parent.stdin, *output], self._prctl)
        except OSError as error:
            ours.close()
            self._give_up(parent, f"it cannot be started: {error.strerror}")
            return
        finally:
            theirs.close()
        ours.setblocking(False)
        parent.control = ours
        parent.deadline = time.monotonic() + IMPORT_TIMEOUT
        self._host.poller.watch(ours.fileno(), lambda: self._heard(parent))
        self._host.poller.watch(error_pipe, lambda: self._executed(parent, error_pipe))

    def _executed(self, parent: _Parent, error_pipe: int) -> None:
        self._host.poller.unwatch(error_pipe)
        with open(error_pipe, "rb") as file:
            problem = file.read()
        if problem:
            self._give_up(parent, json.loads(problem)["text"])

    def _heard(self, parent: _Parent) -> None:
        assert parent.control is not None
        try:
            words = parent.control.recv(_ANSWER_BYTES)
        except ConnectionError:
            words = b""
        if not words:
            self._hang_up(parent)  # its end follows
            return
        message = json.loads(words)
        if parent.state is not _State.IMPORTING:
            return  # it was given up meanwhile
        if "refused" in message:
            self._give_up(parent, message["refused"])
            return
        parent.state, parent.deadline = _State.READY, None
        shared = message["shared"] / 2**20
        self._say(True, f"ready after {message['seconds']:.1f} s, with {shared:.0f} MiB that workers share")
        self._go_on(parent)

    def _ended(self, parent: _Parent, exit_code: int) -> None:
        """It was reaped."""
        parent.pid = 0
        self._hang_up(parent)
        if parent in self._dying:
            if parent.birth is None:
                self._dying.remove(parent)
        elif parent.state is _State.READY and not self._is_closed:
            self._replace(parent)
        else:
            self._give_up(parent, f"it ended while it imported (exit code {exit_code})")

    def _replace(self, parent: _Parent) -> None:
        new = _Parent(parent.recipe, parent.stdin)
        self._parents[parent.recipe["key"]] = new
        new.waiting, parent.waiting = parent.waiting, deque()
        for birth in new.waiting:
            birth.parent = new
        parent.state = _State.GONE
        if parent.birth is not None:
            self._dying.append(parent)  # the end of its pipe is still to come
        self._start(new)

    def _give_up(self, parent: _Parent, reason: str) -> None:
        """Start the workers of this key cold from now on."""
        if parent.state is not _State.GONE and not self._is_closed:
            self._say(False, reason)
        parent.state, parent.deadline = _State.GONE, None
        self._kill(parent)
        self._all_cold(parent)

    def _kill(self, parent: _Parent) -> None:
        if parent.pid:
            os.kill(parent.pid, signal.SIGKILL)
            parent.is_killed = True

    def _hang_up(self, parent: _Parent) -> None:
        if parent.control is not None:
            self._host.poller.unwatch(parent.control.fileno())
            parent.control.close()
            parent.control = None

    def _say(self, is_warm: bool, text: str) -> None:
        self._host.report(event="warm", is_warm=is_warm, text=text)

    # -- births

    def _go_on(self, parent: _Parent) -> None:
        """Ask for the next worker, if the parent is free."""
        while parent.state is _State.READY and parent.birth is None and parent.waiting:
            self._ask(parent, parent.waiting.popleft())

    def _ask(self, parent: _Parent, birth: _Birth) -> None:
        body = {"argv": birth.request["argv"], "env": birth.request["env"], "spawner": os.getpid()}
        try:
            birth.answer, write_end = os.pipe()
        except OSError:
            self._start_cold(birth)
            return
        try:
            with _memory_files("elasticrun-request") as (request,):
                _write_all(request, json.dumps(body).encode("ascii"))
                fds = array("i", [request, *birth.fds, write_end])
                assert parent.control is not None
                parent.control.sendmsg([b"?"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, fds)])
        except (OSError, AssertionError):  # it is gone; its end is about to be heard of
            os.close(birth.answer)
            birth.answer = -1
            self._start_cold(birth)
            return
        finally:
            os.close(write_end)
        parent.birth = birth
        parent.deadline = time.monotonic() + BIRTH_TIMEOUT
        self._host.poller.watch(birth.answer, lambda: self._answered(parent))

    def _answered(self, parent: _Parent) -> None:
        """The worker has said its pid or what is wrong, or nobody is left who could."""
        birth = parent.birth
        assert birth is not None
        words = os.read(birth.answer, _ANSWER_BYTES)
        self._forget_birth(parent)
        message = json.loads(words) if words else {}
        if "pid" in message:
            parent.miscarriages = 0
            birth.close()
            self._host.born(birth.worker, message["pid"])
            for signum in birth.signals:
                self._host.signal(birth.worker, signum)
        else:
            self._miscarried(parent, message.get("refused", "the worker ended before its first line"))
            self._start_cold(birth)
        self._go_on(parent)

    def _miscarried(self, parent: _Parent, reason: str) -> None:
        parent.miscarriages += 1
        if parent.miscarriages >= MAX_MISCARRIAGES:
            self._give_up(parent, reason)

    def _forget_birth(self, parent: _Parent) -> None:
        assert parent.birth is not None
        self._host.poller.unwatch(parent.birth.answer)
        os.close(parent.birth.answer)
        parent.birth, parent.deadline = None, None
        if parent in self._dying and not parent.pid:
            self._dying.remove(parent)

    def _all_cold(self, parent: _Parent) -> None:
        while parent.waiting:
            self._start_cold(parent.waiting.popleft())

    def _start_cold(self, birth: _Birth) -> None:
        fds, birth.fds = birth.fds, []
        self._host.start_cold(birth.request, fds)
        for signum in birth.signals:
            self._host.signal(birth.worker, signum)


def _readable(fd: int) -> bool:
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    return bool(poll.poll(0))


def _write_all(fd: int, data: bytes) -> None:
    while data:
        data = data[os.write(fd, data) :]


@contextlib.contextmanager
def _memory_files(*names: str) -> Iterator[list[int]]:
    """Files in memory of these names, closed at the end."""
    with contextlib.ExitStack() as stack:
        fds = [os.memfd_create(name) for name in names]
        for fd in fds:
            stack.callback(os.close, fd)
        yield fds
