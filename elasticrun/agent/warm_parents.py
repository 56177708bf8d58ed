"""The warm parents below a spawner: processes that have imported torch and fork workers.

Theory. There is one for each *key*: a command line and the part of the environment that imports may read. A
spawn request that names a key waits while its parent imports, as one import and many forks are never slower
than many imports; it starts cold if there is no such parent, if the import takes too long, and if anything
goes wrong before the worker's first line.

Invariants.

- A parent gives birth to one worker at a time. The worker is the spawner's own child before it answers, so
  nothing lives below a parent but while a birth is under way; whoever sweeps then kills that parent as well.
- Every request that was taken is answered: by ``born``, by ``start_cold``, or by a failure if a sweep comes.
- The agent is told whenever it changes whether some parent still imports: others need not wait for it.
- Requests wait as well while a parent that was idle imports more. If that goes wrong, its successor does not.
- A parent that was killed is replaced, while it imports once only: memory may be too short for it. One that
  cannot import, or says that it cannot fork soundly, is not.
"""

from __future__ import annotations

import json
import os
import socket
import time
from collections import deque

from elasticrun.agent.spawner_exec import Prctl, fork_program
from elasticrun.agent.spawner_wire import Message
from elasticrun.agent.warm_birth import Birth, Host, Parent, State, memory_files, readable

VARIABLE = "ELASTICRUN_WARM"
#: Seconds that workers wait for an import before they start cold.
IMPORT_TIMEOUT = 60.0
#: Seconds for a birth: a hundred times what a busy machine needs.
BIRTH_TIMEOUT = 15.0
#: Births that may fail one after the other before a parent is given up.
MAX_MISCARRIAGES = 3
_ANSWER_BYTES = 4096  # a pipe takes that in one piece


class WarmParents:
    """All warm parents of one spawner."""

    def __init__(self, host: Host, prctl: Prctl) -> None:
        self._host = host
        self._prctl = prctl
        self._parents: dict[str, Parent] = {}
        self._dying: list[Parent] = []  # replaced or given up, not reaped yet
        self._is_closed = False
        self._told: bool | None = False  # whether imports are under way; None: that has to be told

    @property
    def pids(self) -> set[int]:
        """Of the parents that a sweep has to spare."""
        return {parent.pid for parent in self._parents.values() if parent.pid and not parent.is_killed}

    # -- requests

    def prepare(self, request: Message, fds: list[int]) -> None:
        """Start the parent of a key. ``fds`` is the stdin of its workers."""
        self._told = None  # the agent supposes that they are
        if fds:  # otherwise the process has too many files open: workers start cold
            parent = self._parents[request["key"]] = Parent(request, fds[0])
            self._start(parent)
        self._tell()

    def take(self, request: Message, fds: list[int]) -> bool:
        """Take charge of a spawn request; False: it has to start cold."""
        parent = self._parents.get(request.get("warm") or "")
        if parent is None or not parent.takes_requests:
            return False
        parent.waiting.append(Birth(parent, request, fds))
        self._go_on(parent)
        return True

    def signal(self, worker: int, signum: int) -> None:
        """Signal a worker that has no pid yet; one that waits is started cold for it."""
        for parent in self._all():
            if parent.birth is not None and parent.birth.worker == worker:
                parent.birth.signals.append(signum)
            for birth in [birth for birth in parent.waiting if birth.worker == worker]:
                parent.waiting.remove(birth)
                birth.signals.append(signum)
                birth.start_cold(self._host)

    def stop(self, for_good: bool) -> None:
        """A sweep begins: no worker may come to life any more. ``for_good``: nor may a parent stay."""
        self._is_closed = self._is_closed or for_good
        for parent in self._all():
            births = list(parent.waiting)
            parent.waiting.clear()
            if parent.birth is not None:
                births.append(parent.birth)
                self._forget_birth(parent)
                parent.kill()
            if for_good:
                parent.kill()
            for birth in births:
                birth.close()
                self._host.report_failure(birth.worker, 0, "it was stopped before it had started")

    # -- what happens

    def buried(self, pid: int, exit_code: int) -> None:
        """A child ended that the spawner does not know: a parent, or a worker whose answer is unread."""
        for parent in self._all():
            if parent.pid == pid:
                self._ended(parent, exit_code)
                return
        for parent in self._all():
            if parent.birth is not None and readable(parent.birth.answer):
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
                if parent.state is State.IMPORTING:
                    parent.import_no_more()
                parent.kill()  # that closes the pipe, and the worker starts cold
            elif parent.state is State.IMPORTING:
                _say(
                    self._host,
                    False,
                    f"workers start cold: after {IMPORT_TIMEOUT:g} s the warm parent still imports",
                )
                parent.start_all_cold(self._host)
        self._tell()

    # -- a parent's life

    def _all(self) -> list[Parent]:
        return [*self._parents.values(), *self._dying]

    def _start(self, parent: Parent) -> None:
        try:
            ours, error_pipe = _fork(parent, self._prctl)
        except OSError as error:
            self._give_up(parent, f"the warm parent cannot be started: {error.strerror}")
            return
        ours.setblocking(False)
        parent.control = ours
        parent.deadline = time.monotonic() + IMPORT_TIMEOUT
        self._host.poller.watch(ours.fileno(), lambda: self._heard(parent))
        self._host.poller.watch(error_pipe, lambda: self._executed(parent, error_pipe))

    def _executed(self, parent: Parent, error_pipe: int) -> None:
        self._host.poller.unwatch(error_pipe)
        with open(error_pipe, "rb") as file:
            problem = file.read()
        if problem:
            self._give_up(parent, json.loads(problem)["text"])

    def _heard(self, parent: Parent) -> None:
        assert parent.control is not None
        try:
            words = parent.control.recv(_ANSWER_BYTES)
        except ConnectionError:
            words = b""
        if not words:
            parent.hang_up(self._host.poller)  # its end follows
            return
        message = json.loads(words)
        if parent.state is State.GONE:
            return  # it was given up meanwhile
        if "importing" in message:
            parent.state, parent.deadline = State.IMPORTING, time.monotonic() + IMPORT_TIMEOUT
        elif "refused" not in message:
            done = parent.become_ready(time.monotonic() + BIRTH_TIMEOUT)
            seconds, shared = message["seconds"], message["shared"] / 2**20
            _say(
                self._host,
                True,
                f"{done}, ready after {seconds:.1f} s; {shared:.0f} MiB of its memory are shared",
            )
            self._go_on(parent)
        elif parent.was_ready:  # its end follows, and a successor
            parent.import_no_more()
            _say(self._host, False, f"the warm parent is replaced: {message['refused']}")
        else:
            self._give_up(parent, message["refused"])
        self._tell()

    def _ended(self, parent: Parent, exit_code: int) -> None:
        """It was reaped."""
        parent.pid = 0
        while parent.control is not None and readable(parent.control.fileno()):
            self._heard(parent)  # its last words
        parent.hang_up(self._host.poller)
        if parent.state is State.IMPORTING and not parent.is_killed:
            parent.import_no_more()
        if parent in self._dying:
            if parent.birth is None:
                self._dying.remove(parent)
        elif parent.may_be_replaced(exit_code) and not self._is_closed:
            self._replace(parent)
        else:
            self._give_up(parent, f"the warm parent ended while it imported (exit code {exit_code})")

    def _replace(self, parent: Parent) -> None:
        new = Parent(parent.recipe, parent.stdin, is_second_try=not parent.was_ready)
        self._parents[parent.recipe["key"]] = new
        new.waiting, parent.waiting = parent.waiting, deque()
        for birth in new.waiting:
            birth.parent = new
        parent.state = State.GONE
        if parent.birth is not None:
            self._dying.append(parent)  # the end of its pipe is still to come
        self._start(new)
        self._tell()

    def _give_up(self, parent: Parent, reason: str) -> None:
        """Start the workers of this key cold from now on."""
        if parent.state is not State.GONE and not self._is_closed:
            _say(self._host, False, f"workers start cold: {reason}")
        parent.state, parent.deadline = State.GONE, None
        parent.kill()
        parent.start_all_cold(self._host)
        self._tell()

    def _tell(self) -> None:
        """Tell the agent whether a worker that started now would wait, if that has changed."""
        under_way = any(parent.imports for parent in self._parents.values())
        if under_way is not self._told:
            self._told = under_way
            self._host.report(event="imports", under_way=under_way)

    # -- births

    def _go_on(self, parent: Parent) -> None:
        """Ask for the next worker, if the parent is free."""
        while parent.state is State.READY and parent.birth is None and parent.waiting:
            birth = parent.waiting.popleft()
            if parent.ask(birth):
                parent.deadline = time.monotonic() + BIRTH_TIMEOUT
                self._host.poller.watch(birth.answer, lambda: self._answered(parent))
            else:
                birth.start_cold(self._host)

    def _answered(self, parent: Parent) -> None:
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
            parent.miscarriages += 1
            reason = message.get("refused", "the new process ended before the program's first line")
            if parent.miscarriages >= MAX_MISCARRIAGES:
                self._give_up(parent, reason)
            else:
                _say(self._host, False, f"one worker is started cold: {reason}")
            birth.start_cold(self._host)
        self._go_on(parent)

    def _forget_birth(self, parent: Parent) -> None:
        assert parent.birth is not None
        self._host.poller.unwatch(parent.birth.answer)
        os.close(parent.birth.answer)
        parent.birth = None
        if parent.state is not State.IMPORTING:
            parent.deadline = None
        if parent in self._dying and not parent.pid:
            self._dying.remove(parent)


def _say(host: Host, is_warm: bool, text: str) -> None:
    host.report(event="warm", is_warm=is_warm, text=text)


def _fork(parent: Parent, prctl: Prctl) -> tuple[socket.socket, int]:
    """Start the process; our end of its control socket, and its error pipe."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs, memory_files("elasticrun-stdout", "elasticrun-stderr") as output:
        os.set_inheritable(theirs.fileno(), True)  # until the end of this block, so by this child alone
        env = {**parent.recipe["env"], VARIABLE: f"{theirs.fileno()}:{parent.recipe['terms']}"}
        request = {**parent.recipe, "env": env}
        parent.pid, error_pipe = fork_program(request, [parent.stdin, *output], prctl)
    return ours, error_pipe
