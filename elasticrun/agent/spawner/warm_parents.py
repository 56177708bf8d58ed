"""The warm parents below a spawner: processes that have imported torch and fork workers.

Theory. There is one for each *key*: a command line and the part of the environment that imports may read. A
spawn request that names a key waits while its parent imports, as one import and many forks are never slower
than many imports; it starts cold if there is no such parent, if the import takes too long, and if anything
goes wrong before the worker's first line.

Invariants.

- A worker is the spawner's own child before it answers, so nothing lives below a parent but while a birth is
  under way; whoever sweeps then kills that parent as well.
- Every request that was taken is answered: by ``born``, by ``start_cold``, or by a failure if a sweep comes.
- The agent is told whenever it changes whether some parent still imports: others need not wait for it.
- A parent that has forked workers gets an heir (``warm_heirs.py``), and serves until the heir has taken over.
- A parent that was killed is replaced, while it imports once only: memory may be too short for it. One that
  cannot import, or says that it cannot fork soundly, is not.
"""

from __future__ import annotations

import functools
import json
import os
import socket
import time

from elasticrun.agent.spawner.exec import Prctl, fork_program
from elasticrun.agent.spawner.warm_births import Birth, Host, Parent, State, memory_files, readable, say
from elasticrun.agent.spawner.warm_heirs import Heirs
from elasticrun.agent.spawner.wire import Message

VARIABLE = "ELASTICRUN_WARM"
#: Seconds that workers wait for an import before they start cold.
IMPORT_TIMEOUT = 60.0
#: Seconds for a birth: a hundred times what a busy machine needs.
BIRTH_TIMEOUT = 15.0
#: Births under way at once, in one go as far as they are asked for meanwhile: the socket has room for that.
MAX_BIRTHS = 16
#: Seconds without a birth after which a parent that has forked workers gets an heir.
IDLE = 1.0
#: Births that may fail one after the other, or goes of them, before a parent is given up.
MAX_MISCARRIAGES = 3
_ANSWER_BYTES = 4096  # a pipe takes that in one piece


class WarmParents:
    """All warm parents of one spawner."""

    def __init__(self, host: Host, prctl: Prctl) -> None:
        self._host = host
        self._prctl = prctl
        self._parents: dict[str, Parent] = {}
        self._dying: list[Parent] = []  # replaced; not reaped yet, or with a birth under way
        self._heirs = Heirs(host, self._take_over)
        self._is_closed = False
        self._told: bool | None = False  # whether imports are under way; None: that has to be told

    @property
    def pids(self) -> set[int]:
        """Of the parents that a sweep has to spare: none of them, if it is the last one."""
        spared = [] if self._is_closed else [*self._parents.values(), *self._heirs]
        return {parent.pid for parent in spared if parent.pid and not parent.is_killed}

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
        if parent is None or not parent.takes_requests or (parent.imports and not request["waits"]):
            return False
        parent.waiting.append(Birth(parent, request, fds))
        self._go_on(parent)
        return True

    def signal(self, worker: int, signum: int) -> None:
        """Signal a worker that has no pid yet; one that waits is started cold for it."""
        for parent in self._all():
            for birth in [birth for birth in parent.births if birth.worker == worker]:
                birth.signals.append(signum)
            for birth in [birth for birth in parent.waiting if birth.worker == worker]:
                parent.waiting.remove(birth)
                birth.signals.append(signum)
                birth.start_cold(self._host)

    def stop(self, for_good: bool) -> None:
        """A sweep begins: no worker may come to life any more. ``for_good``: nor may a parent stay."""
        self._is_closed = self._is_closed or for_good
        self._heirs.listen()  # who has told its pid is spared
        for parent in self._all():
            births = [*parent.waiting]
            parent.waiting.clear()
            for birth in parent.told():
                self._answered(parent, birth)  # it runs already, and the sweep kills it as it does others
            if for_good or parent.births:
                parent.kill()
            births += parent.births
            for birth in [*parent.births]:
                parent.forget(birth, self._host.poller)
            for birth in births:
                birth.close()
                self._host.report_failure(birth.worker, 0, "it was stopped before it had started")

    # -- what happens

    def buried(self, pid: int, exit_code: int) -> None:
        """A child ended that the spawner does not know: a parent, or a worker whose answer is unread."""
        self._heirs.listen()  # it may be one of them that has just told its pid
        for parent in self._all():
            if parent.pid == pid:
                self._ended(parent, exit_code)
                return
        self.listen()

    def listen(self) -> None:
        """Read the answers that have come: a worker that has ended may be one of them."""
        for parent in self._all():
            for birth in parent.told():
                self._answered(parent, birth)

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
            if parent.births and (parent.is_killed or not parent.pid):
                self._give_up(self._parents[parent.recipe["key"]], "forks of the warm parent hang")
                parent.start_births_cold(self._host)
            elif parent.births:
                parent.kill()  # that closes the pipes, and the workers start cold, unless a fork hangs itself
                parent.deadline = now + BIRTH_TIMEOUT
            elif parent.state is State.READY:
                self._heirs.expect(parent)
            elif parent.state is State.IMPORTING:
                late = f"after {IMPORT_TIMEOUT:g} s the warm parent still imports"
                say(self._host, False, f"workers start cold: {late}")
                parent.start_all_cold(self._host)
        self._tell()

    # -- a parent's life

    def _all(self) -> list[Parent]:
        self._dying = [parent for parent in self._dying if parent.pid or parent.births]
        return [*self._parents.values(), *self._dying, *self._heirs]

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
        """It was reaped."""
        parent.pid = 0
        if parent in self._heirs:
            self._heirs.ended(parent, exit_code)
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
        parent.bequeath(new)
        self._dying.append(parent)  # the end of a birth may be still to come
        self._start(new)
        self._tell()

    def _take_over(self, heir: Parent, message: Message) -> None:
        """An heir has imported all there is: it answers requests from now on."""
        key = heir.recipe["key"]
        old, self._parents[key] = self._parents[key], heir
        old.bequeath(heir)
        self._dying.append(old)
        old.hang_up(self._host.poller)  # so it ends, but not before the births that are under way
        if not old.births:
            old.deadline = None
            old.kill()
        heir.become_ready()
        assert heir.control is not None
        self._host.poller.watch(heir.control.fileno(), lambda: self._heard(heir))
        say(self._host, True, f"the warm parent has imported more, {_describe(message)}", heir=key)
        self._go_on(heir)
        self._tell()

    def _give_up(self, parent: Parent, reason: str) -> None:
        """Start the workers of this key cold from now on."""
        if parent.state is not State.GONE and not self._is_closed:
            say(self._host, False, f"workers start cold: {reason}", over=parent.recipe["key"])
            self._heirs.abandon(parent.recipe["key"])
        parent.state = State.GONE
        if not parent.births:
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

    # -- births

    def _go_on(self, parent: Parent) -> None:
        """Ask for the next workers, as far as the parent is free."""
        while parent.state is State.READY and len(parent.births) < MAX_BIRTHS and parent.waiting:
            birth = parent.waiting.popleft()
            if parent.ask(birth):
                self._host.poller.watch(birth.answer, functools.partial(self._answered, parent, birth))
            else:
                birth.start_cold(self._host)
        if parent.births:
            parent.deadline = time.monotonic() + BIRTH_TIMEOUT

    def _answered(self, parent: Parent, birth: Birth) -> None:
        """The worker has said its pid or what is wrong, or nobody is left who could."""
        words = os.read(birth.answer, _ANSWER_BYTES)
        parent.forget(birth, self._host.poller)
        parent.deadline = None
        message = json.loads(words) if words else {}
        if "pid" in message:
            parent.bear()
            birth.close()
            self._host.born(birth.worker, message["pid"])
            for signum in birth.signals:
                self._host.signal(birth.worker, signum)
            parent.has_borne = parent.has_borne or birth.request["program"] is None
            if parent.has_borne and self._heirs.may_come(parent):
                parent.deadline = time.monotonic() + IDLE
        else:
            parent.miscarry(birth)
            reason = message.get("refused", "the new process ended before the program's first line")
            if message.get("for_good") or parent.miscarriages >= MAX_MISCARRIAGES:
                self._give_up(parent, reason)
            elif parent.state is not State.GONE or parent in self._dying:  # not if it was given up
                say(self._host, False, f"one worker is started cold: {reason}")
            birth.start_cold(self._host)
        self._go_on(parent)


def _describe(message: Message) -> str:
    """What a parent says of itself once it is ready."""
    shared = message["shared"] / 2**20
    return f"ready after {message['seconds']:.1f} s; {shared:.0f} MiB of its memory are shared"


def _fork(parent: Parent, prctl: Prctl) -> tuple[socket.socket, int]:
    """Start the process; our end of its control socket, and its error pipe."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs, memory_files("elasticrun-stdout", "elasticrun-stderr") as output:
        os.set_inheritable(theirs.fileno(), True)  # until the end of this block, so by this child alone
        env = {**parent.recipe["env"], VARIABLE: f"{theirs.fileno()}:{parent.recipe['terms']}"}
        request = {**parent.recipe, "env": env}
        parent.pid, error_pipe = fork_program(request, [parent.stdin, *output], prctl)
    return ours, error_pipe
