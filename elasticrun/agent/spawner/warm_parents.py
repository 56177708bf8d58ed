"""The warm parents below a spawner: processes that have imported torch and fork workers.

Theory. There is one for each *key*: a command line and the part of the environment that imports may read. A
spawn request that names a key waits while its parent imports, as one import and many forks are never slower
than many imports; it starts cold if there is no such parent, if the import takes too long, and if anything
goes wrong before the worker's first line.

Invariants.

- A worker is the spawner's own child before it answers, so a parent has children only while a fork is under
  way; a sweep at that moment kills the parent as well.
- Every request that was taken is answered: by ``forked``, by ``start_cold``, or by a failure if a sweep
  comes.
- The agent is told when imports begin and when none is left: a world need not wait for a node that imports.
- A parent that has forked workers gets a replacement (``replacements.py``), and serves until that takes over.
- A parent that was killed is started again; if it was still importing, only once: memory may be too short.
  A parent that cannot import, or says that it cannot fork soundly, is not.
"""

from __future__ import annotations

import functools
import json
import os
import socket
import time

from elasticrun.agent.spawner.exec import Prctl, fork_program
from elasticrun.agent.spawner.fork_requests import (
    ForkRequest,
    Host,
    Parent,
    State,
    memory_files,
    readable,
    say,
)
from elasticrun.agent.spawner.replacements import Replacements
from elasticrun.agent.spawner.wire import Message

VARIABLE = "ELASTICRUN_WARM"
#: Seconds that workers wait for an import before they start cold.
IMPORT_TIMEOUT = 60.0
#: Seconds for a fork: a hundred times what a busy machine needs.
FORK_TIMEOUT = 15.0
#: The most forks under way at once; the socket has room for that many requests.
MAX_FORKS = 16
#: Seconds without a fork after which a parent that has forked workers gets a replacement.
IDLE = 1.0
#: Failed forks in a row after which a parent is given up; those asked for together count once.
MAX_FAILED_FORKS = 3
_ANSWER_BYTES = 4096  # a pipe takes that many in one piece


class WarmParents:
    """All warm parents of one spawner."""

    def __init__(self, host: Host, prctl: Prctl) -> None:
        self._host = host
        self._prctl = prctl
        self._parents: dict[str, Parent] = {}
        self._dying: list[Parent] = []  # replaced; not reaped yet, or with a fork under way
        self._replacements = Replacements(host, self._take_over)
        self._is_closed = False
        self._told: bool | None = False  # the last ``imports`` event; None: send another

    @property
    def pids(self) -> set[int]:
        """The pids of the parents that a sweep spares; the last sweep spares none."""
        spared = [] if self._is_closed else [*self._parents.values(), *self._replacements]
        return {parent.pid for parent in spared if parent.pid and not parent.is_killed}

    # -- requests

    def prepare(self, request: Message, fds: list[int]) -> None:
        """Start the parent of a key. ``fds`` is the stdin of its workers."""
        self._told = None  # the agent assumes that imports are under way
        if fds:  # otherwise the process has too many files open: workers start cold
            parent = self._parents[request["key"]] = Parent(request, fds[0])
            self._start(parent)
        self._tell()

    def take(self, request: Message, fds: list[int]) -> bool:
        """Take charge of a spawn request; False: it has to start cold."""
        parent = self._parents.get(request.get("warm") or "")
        if parent is None or not parent.takes_requests or (parent.imports and not request["waits"]):
            return False
        parent.waiting.append(ForkRequest(parent, request, fds))
        self._go_on(parent)
        return True

    def signal(self, worker: int, signum: int) -> None:
        """Signal a worker that has no pid yet; one that still waits is started cold first."""
        for parent in self._all():
            for fork in [fork for fork in parent.forks if fork.worker == worker]:
                fork.signals.append(signum)
            for fork in [fork for fork in parent.waiting if fork.worker == worker]:
                parent.waiting.remove(fork)
                fork.signals.append(signum)
                fork.start_cold(self._host)

    def stop(self, for_good: bool) -> None:
        """Begin a sweep: let no more workers start. ``for_good``: kill all parents too."""
        self._is_closed = self._is_closed or for_good
        self._replacements.listen()  # one that has told its pid is spared
        for parent in self._all():
            forks = [*parent.waiting]
            parent.waiting.clear()
            for fork in parent.told():
                self._answered(parent, fork)  # it runs already; the sweep kills it
            if for_good or parent.forks:
                parent.kill()
            forks += parent.forks
            for fork in [*parent.forks]:
                parent.forget(fork, self._host.poller)
            for fork in forks:
                fork.close()
                self._host.report_failure(fork.worker, 0, "it was stopped before it had started")

    # -- what happens

    def buried(self, pid: int, exit_code: int) -> None:
        """Handle the end of an unknown child: a parent, or a worker whose answer is unread."""
        self._replacements.listen()  # the child may be one that has just told its pid
        for parent in self._all():
            if parent.pid == pid:
                self._ended(parent, exit_code)
                return
        self.listen()

    def listen(self) -> None:
        """Read the answers that have come: one may be from a worker that has ended."""
        for parent in self._all():
            for fork in parent.told():
                self._answered(parent, fork)

    def time_left(self) -> float | None:
        """Seconds until ``expire`` has to be called; None: not at all."""
        deadlines = [parent.deadline for parent in self._all() if parent.deadline is not None]
        return max(0.0, min(deadlines) - time.monotonic()) if deadlines else None

    def expire(self) -> None:
        """Act on deadlines that have passed."""
        now = time.monotonic()
        for parent in self._all():
            if parent.deadline is None or parent.deadline > now:
                continue
            parent.deadline = None
            if parent.forks and (parent.is_killed or not parent.pid):
                self._give_up(self._parents[parent.recipe["key"]], "forks of the warm parent hang")
                parent.start_births_cold(self._host)
            elif parent.forks:
                parent.kill()  # that closes the pipes, and workers start cold, unless a fork hangs
                parent.deadline = now + FORK_TIMEOUT
            elif parent.state is State.READY:
                self._replacements.expect(parent)
            elif parent.state is State.IMPORTING:
                late = f"after {IMPORT_TIMEOUT:g} s the warm parent still imports"
                say(self._host, False, f"workers start cold: {late}")
                parent.start_all_cold(self._host)
        self._tell()

    # -- a parent's life

    def _all(self) -> list[Parent]:
        self._dying = [parent for parent in self._dying if parent.pid or parent.forks]
        return [*self._parents.values(), *self._dying, *self._replacements]

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
        if "refused" in message:
            self._give_up(parent, message["refused"])
        else:
            parent.become_ready()
            say(self._host, True, f"workers are forked from a warm parent, {_describe(message)}")
            self._go_on(parent)
        self._tell()

    def _ended(self, parent: Parent, exit_code: int) -> None:
        """Handle a parent that was reaped."""
        parent.pid = 0
        if parent in self._replacements:
            self._replacements.ended(parent, exit_code)
            return
        while parent.control is not None and readable(parent.control.fileno()):
            self._heard(parent)  # its last words
        parent.hang_up(self._host.poller)
        if parent in self._dying:
            return
        if self._is_closed or not parent.may_be_replaced(exit_code):
            self._give_up(parent, f"the warm parent ended while it imported (exit code {exit_code})")
            return
        new = Parent(parent.recipe, parent.stdin, is_second_try=not parent.was_ready)
        self._parents[parent.recipe["key"]] = new
        parent.hand_over_to(new)
        self._dying.append(parent)  # a fork of it may still be under way
        self._start(new)
        self._tell()

    def _take_over(self, replacement: Parent, message: Message) -> None:
        """Let a replacement that has imported everything answer requests from now on."""
        key = replacement.recipe["key"]
        old, self._parents[key] = self._parents[key], replacement
        old.hand_over_to(replacement)
        self._dying.append(old)
        old.hang_up(self._host.poller)  # so it ends once its forks under way are done
        if not old.forks:
            old.deadline = None
            old.kill()
        replacement.become_ready()
        assert replacement.control is not None
        self._host.poller.watch(replacement.control.fileno(), lambda: self._heard(replacement))
        say(self._host, True, f"the warm parent has imported more, {_describe(message)}", replacement=key)
        self._go_on(replacement)
        self._tell()

    def _give_up(self, parent: Parent, reason: str) -> None:
        """Start the workers of this key cold from now on."""
        if parent.state is not State.GONE and not self._is_closed:
            say(self._host, False, f"workers start cold: {reason}", over=parent.recipe["key"])
            self._replacements.abandon(parent.recipe["key"])
        parent.state = State.GONE
        if not parent.forks:
            parent.deadline = None
        parent.kill()
        parent.start_all_cold(self._host)
        self._tell()

    def _tell(self) -> None:
        """Tell the agent whether a worker that started now would wait, if that has changed."""
        under_way = any(parent.imports for parent in self._parents.values())
        if under_way is not self._told:
            self._told = under_way
            self._host.report(event="imports", under_way=under_way)

    # -- forks

    def _go_on(self, parent: Parent) -> None:
        """Ask for the next workers, as far as the parent is free."""
        while parent.state is State.READY and len(parent.forks) < MAX_FORKS and parent.waiting:
            fork = parent.waiting.popleft()
            if parent.ask(fork):
                self._host.poller.watch(fork.answer, functools.partial(self._answered, parent, fork))
            else:
                fork.start_cold(self._host)
        if parent.forks:
            parent.deadline = time.monotonic() + FORK_TIMEOUT

    def _answered(self, parent: Parent, fork: ForkRequest) -> None:
        """Handle a fork's answer: the worker's pid, what is wrong, or an end of file."""
        words = os.read(fork.answer, _ANSWER_BYTES)
        parent.forget(fork, self._host.poller)
        parent.deadline = None
        message = json.loads(words) if words else {}
        if "pid" in message:
            parent.bear()
            fork.close()
            self._host.forked(fork.worker, message["pid"])
            for signum in fork.signals:
                self._host.signal(fork.worker, signum)
            parent.has_forked = parent.has_forked or fork.request["program"] is None
            if parent.has_forked and self._replacements.may_come(parent):
                parent.deadline = time.monotonic() + IDLE
        else:
            parent.fail_fork(fork)
            reason = message.get("refused", "the new process ended before the program's first line")
            if message.get("for_good") or parent.failed_forks >= MAX_FAILED_FORKS:
                self._give_up(parent, reason)
            elif parent.state is not State.GONE or parent in self._dying:  # not if it was given up
                say(self._host, False, f"one worker starts cold: {reason}")
            fork.start_cold(self._host)
        self._go_on(parent)


def _describe(message: Message) -> str:
    """What a parent says of itself once it is ready."""
    shared = message["shared"] / 2**20
    return f"ready after {message['seconds']:.1f} s; each worker shares {shared:.0f} MiB of its memory"


def _fork(parent: Parent, prctl: Prctl) -> tuple[socket.socket, int]:
    """Start the process; return our end of its control socket, and its error pipe."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs, memory_files("elasticrun-stdout", "elasticrun-stderr") as output:
        os.set_inheritable(theirs.fileno(), True)  # closed after this block, so only this child inherits it
        env = {**parent.recipe["env"], VARIABLE: f"{theirs.fileno()}:{parent.recipe['terms']}"}
        request = {**parent.recipe, "env": env}
        parent.pid, error_pipe = fork_program(request, [parent.stdin, *output], prctl)
    return ours, error_pipe
