"""What a warm parent is to the spawner: a process, a socket, and the requests for workers.

A request goes out as one byte with descriptors, its text in a memory file: so sending never blocks, however
large an environment is and whatever the parent does. The answer comes on a pipe of its own, in one piece.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
from array import array
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Protocol

from elasticrun.agent.spawner.poll import Poller
from elasticrun.agent.spawner.wire import Message


class Host(Protocol):
    """What this module needs of the spawner."""

    poller: Poller

    def start_cold(self, request: Message, fds: list[int]) -> None:
        """Execute the program."""

    def forked(self, worker: int, pid: int) -> None:
        """Take over a worker that a parent has forked."""

    def signal(self, worker: int, signum: int) -> None:
        """Signal a worker."""

    def report(self, **event: object) -> None:
        """Tell the agent."""

    def report_failure(self, worker: int, code: int, text: str) -> None:
        """Tell the agent that a worker cannot be started."""


class State(Enum):
    """How far a parent has come."""

    IMPORTING = auto()
    READY = auto()
    GONE = auto()  # no more requests for it


@dataclass(slots=True, eq=False)
class Parent:
    """One process, and the requests for it."""

    recipe: Message
    stdin: int
    pid: int = 0  # 0: none is left
    state: State = State.IMPORTING
    is_killed: bool = False
    is_second_try: bool = False  # the one before it was killed while it imported
    was_ready: bool = False
    is_replacement: bool = False  # it imports, or has imported, more
    has_forked: bool = False  # a worker that runs the script
    control: socket.socket | None = None
    waiting: deque[ForkRequest] = field(default_factory=deque)
    forks: list[ForkRequest] = field(default_factory=list)  # under way, oldest first
    failed_forks: int = 0  # in a row; those asked for together count once
    deadline: float | None = None

    @property
    def takes_requests(self) -> bool:
        """Whether it is not gone, and its import has not taken too long."""
        return self.state is State.READY or (self.state is State.IMPORTING and self.deadline is not None)

    @property
    def imports(self) -> bool:
        """Whether requests wait for its imports."""
        return self.takes_requests and self.state is State.IMPORTING

    def may_be_replaced(self, exit_code: int) -> bool:
        """Whether another parent may be started in its place."""
        was_signalled = exit_code < 0 and not self.is_second_try
        return self.state is not State.GONE and (self.was_ready or was_signalled)

    @property
    def imports_later(self) -> bool:
        """Whether there is more that a replacement of it could import."""
        return not self.is_replacement and ";" in self.recipe["terms"]

    def become_ready(self) -> None:
        """Note that its imports are done."""
        self.was_ready = True
        self.state, self.deadline = State.READY, None

    def kill(self) -> None:
        """SIGKILL it; its end is reported later."""
        if self.pid:
            os.kill(self.pid, signal.SIGKILL)
            self.is_killed = True

    def hang_up(self, poller: Poller) -> None:
        """Close its control socket."""
        if self.control is not None:
            poller.unwatch(self.control.fileno())
            self.control.close()
            self.control = None

    def ask(self, fork: ForkRequest) -> bool:
        """Ask for a worker; False if that cannot be done, and it has to start cold."""
        if self.control is None:
            return False
        try:
            fork.answer = _send(self.control, fork)
        except OSError:
            return False
        fork.failed_forks_before = self.failed_forks
        self.forks.append(fork)
        return True

    def told(self) -> Iterator[ForkRequest]:
        """Pending forks whose reply can be read, which the caller does. Reading one may end them all, if the
        agent turns out to be gone.
        """
        for fork in [*self.forks]:
            if fork in self.forks and readable(fork.answer, even_if_ended=False):
                yield fork

    def bear(self) -> None:
        """Count a fork that went well: the failures before it count no more."""
        self.failed_forks = 0
        for fork in self.forks:
            fork.failed_forks_before = 0

    def fail_fork(self, fork: ForkRequest) -> None:
        """Count a failed fork; forks asked for together count once, as they may fail for one reason."""
        self.failed_forks = max(self.failed_forks, fork.failed_forks_before + 1)

    def forget(self, fork: ForkRequest, poller: Poller) -> None:
        """Drop a fork that has ended or does not matter any more."""
        poller.unwatch(fork.answer)
        os.close(fork.answer)
        self.forks.remove(fork)

    def hand_over_to(self, new: Parent) -> None:
        """Let another parent answer the waiting requests and those to come."""
        new.waiting, self.waiting = self.waiting, deque()
        for fork in new.waiting:
            fork.parent = new
        self.state = State.GONE

    def start_births_cold(self, host: Host) -> None:
        """Start pending forks cold: a worker that is forked after all cannot tell its pid, and ends."""
        forks = [*self.forks]
        for fork in forks:
            self.forget(fork, host.poller)
        for fork in forks:
            fork.start_cold(host)

    def start_all_cold(self, host: Host) -> None:
        """Start the waiting requests cold."""
        while self.waiting:
            self.waiting.popleft().start_cold(host)


@dataclass(slots=True, eq=False)
class ForkRequest:
    """A spawn request on its way."""

    parent: Parent
    request: Message
    fds: list[int]
    answer: int = -1  # the pipe; -1 until the parent was asked
    failed_forks_before: int = 0
    signals: list[int] = field(default_factory=list)  # for a worker whose pid we do not know yet

    @property
    def worker(self) -> int:
        """Its number."""
        number: int = self.request["worker"]
        return number

    def start_cold(self, host: Host) -> None:
        """Execute the program instead."""
        fds, self.fds = self.fds, []
        host.start_cold(self.request, fds)
        for signum in self.signals:
            host.signal(self.worker, signum)

    def close(self) -> None:
        """Let go of the worker's descriptors."""
        for fd in self.fds:
            os.close(fd)
        self.fds = []


def say(host: Host, is_warm: bool, text: str, **keys: str) -> None:
    """Tell the agent how workers start from now on; ``keys`` as in ``WarmNews``."""
    host.report(event="warm", is_warm=is_warm, text=text, **keys)


def readable(fd: int, even_if_ended: bool = True) -> bool:
    """Whether there is something to read now; ``even_if_ended``: or the end of file."""
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    return any(even_if_ended or events & select.POLLIN for _, events in poll.poll(0))


def _send(control: socket.socket, fork: ForkRequest) -> int:
    """Send a request; return the pipe for its answer. OSError if it cannot be sent."""
    request = fork.request
    body = {**{name: request[name] for name in ("argv", "env", "cpus", "program")}, "spawner": os.getpid()}
    answer, write_end = os.pipe()
    try:
        with memory_files("elasticrun-request") as (file,):
            _write_all(file, json.dumps(body).encode("ascii"))
            fds = array("i", [file, *fork.fds, write_end])
            control.sendmsg([b"?"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, fds)])
    except OSError:
        os.close(answer)
        raise
    finally:
        os.close(write_end)
    return answer


def _write_all(fd: int, data: bytes) -> None:
    while data:
        data = data[os.write(fd, data) :]


@contextlib.contextmanager
def memory_files(*names: str) -> Iterator[list[int]]:
    """Files in memory of these names, closed at the end."""
    with contextlib.ExitStack() as stack:
        fds = [os.memfd_create(name) for name in names]
        for fd in fds:
            stack.callback(os.close, fd)
        yield fds
