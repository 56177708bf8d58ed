"""The agent's side of the spawner: start, signal and sweep workers, report their ends.

Order of calls in the agent: ``SignalInbox``, then ``fork_spawner()`` while there is one thread and little
memory, then the imports of asyncio and grpc, then ``Spawner(handle, on_event)`` inside the running loop.
This module therefore imports asyncio only where a loop is needed.

Invariant: every ``spawn`` is answered by exactly one of ``Started`` or ``SpawnFailed``, and every
``Started`` by one ``Exited``, in this order; unless ``SpawnerDied`` comes: what is open then stays open.
"""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import socket
from array import array
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

from elasticrun.agent.spawner.process import spawner_main
from elasticrun.agent.spawner.wire import READ_BYTES, Frames, Message, encode
from elasticrun.dataclass import dataclass
from elasticrun.errors import NodeFaultError

if TYPE_CHECKING:
    import asyncio

    from elasticrun.agent.spawner.exec import Preloaded


@dataclass(frozen=True, slots=True)
class Command:
    """A program to start; the file descriptors stay the caller's and may be closed after ``spawn``."""

    argv: Sequence[str]
    env: Mapping[str, str]  # the whole environment; its PATH is searched for the program
    cwd: str | None  # None: the agent's
    stdin: int
    stdout: int
    stderr: int
    cpus: frozenset[int] | None = None  # None: the agent's affinity
    warm: str | None = None  # the key of the recipe that its warm parent was started with
    program: str | None = None  # what a fork of that parent runs in place of the parent's own script
    waits: bool = True  # wait for a parent that still imports; else start cold
    preloaded: bool = False  # called in a fork of the spawner, if that has a function for it
    alone: bool = False  # nothing of its process group outlives it: it may be started again before a sweep


@dataclass(frozen=True, slots=True)
class WarmRecipe:
    """A warm parent to start: a command that is held before its program's first line."""

    key: str
    argv: Sequence[str]
    env: Mapping[str, str]
    cpus: frozenset[int] | None
    terms: str  # for ``worker/warm.py``, which runs in the parent


@dataclass(frozen=True, slots=True)
class Started:
    """The program runs, in a session and process group of its own whose number is ``pid``."""

    worker: int
    pid: int


@dataclass(frozen=True, slots=True)
class SpawnFailed:
    """The program could not be started; ``message`` says what was tried and why it failed."""

    worker: int
    errno: int
    message: str


@dataclass(frozen=True, slots=True)
class Exited:
    """The worker ended and was reaped; its descendants may live on until a sweep.

    If it was started ``alone``, nothing of its process group is left.
    """

    worker: int
    exit_code: int  # as in subprocess: negative is the number of the signal
    told: Sequence[int] = ()  # signals sent to it at our request while it lived


@dataclass(frozen=True, slots=True)
class Swept:
    """The sweep is over: all is dead but what it spared, and ``left`` processes of another user."""

    count: int  # children and orphans that ended during the sweep
    left: int = 0


@dataclass(frozen=True, slots=True)
class SpawnerDied:
    """The spawner ended unasked; the kernel has killed the workers, their descendants may live."""


@dataclass(frozen=True, slots=True)
class LeftAlone:
    """Processes that workers left behind and that live on after a good end (``detached.py``)."""

    processes: Sequence[tuple[int, str]]  # pid and command


@dataclass(frozen=True, slots=True)
class WarmNews:
    """A warm parent is ready, or why there is none."""

    is_warm: bool
    text: str
    over: str = ""  # the key of a parent that was given up
    replacement: str = ""  # the key of a parent whose replacement has taken its place


@dataclass(frozen=True, slots=True)
class Imports:
    """Whether a worker that started now would wait for the imports of a warm parent."""

    under_way: bool


SpawnerEvent = Started | SpawnFailed | Exited | Swept | LeftAlone | SpawnerDied | WarmNews | Imports


class WorkerStarter(Protocol):
    """The part of ``Spawner`` that the agent needs to start workers."""

    def spawn(self, worker: int, command: Command) -> None:
        """Start a program under a number that was never used before."""

    def signal(self, worker: int, signum: int) -> None:
        """Signal the worker's process group, unless the worker has ended."""

    def sweep(self, spares_detached: bool = False, spare: Sequence[int] = ()) -> None:
        """Kill everything that is left except the workers numbered in ``spare``; ``Swept`` follows.
        ``spares_detached``: also spare what workers left behind (``detached.py``).
        """


@dataclass(frozen=True, slots=True)
class SpawnerHandle:
    """A running spawner, before there is a loop to talk to it.

    A process that the agent forks later without exec must close ``control``.
    """

    pid: int
    control: socket.socket


def fork_spawner(preloaded: Preloaded | None = None) -> SpawnerHandle:
    """Fork the spawner; call it first of all, while this process has one thread.

    ``preloaded``: runs a command that asks for it in a fork of the spawner, see ``exec.py``.

    Raises NodeFaultError if the host refuses another process.
    """
    agent_end, spawner_end = socket.socketpair()
    agent = os.getpid()
    # Signals are blocked: one to the group would run the agent's handlers in the child as well.
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    try:
        pid = os.fork()
        if pid == 0:
            spawner_main(agent_end, spawner_end, agent, preloaded)
    except OSError as error:
        agent_end.close()
        raise NodeFaultError(f"cannot start the spawner process: {error.strerror}") from error
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        spawner_end.close()
    return SpawnerHandle(pid, agent_end)


def start_warm_parents(handle: SpawnerHandle, recipes: Iterable[WarmRecipe], stdin: int) -> None:
    """Have the spawner start these, before there is a loop. ``stdin`` is that of the workers."""
    for recipe in recipes:
        data = encode(
            {
                "op": "prepare",
                "key": recipe.key,
                "argv": list(recipe.argv),
                "env": dict(recipe.env),
                "cwd": None,
                "cpus": None if recipe.cpus is None else sorted(recipe.cpus),
                "terms": recipe.terms,
            }
        )
        ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array("i", [stdin]))]
        try:
            handle.control.sendall(data[handle.control.sendmsg([data], ancillary) :])
        except OSError:
            return  # it has ended; the agent hears of that soon


@dataclass(slots=True)
class _Unsent:
    """What the socket had no room for; ``fds`` are duplicates of ours."""

    data: bytes
    fds: list[int]
    worker: int | None  # of a spawn request

    def drop(self) -> None:
        for fd in self.fds:
            os.close(fd)
        self.fds = []


class Spawner:
    """Talks to the spawner on the running loop; ``on_event`` is called by the loop, never within a call."""

    def __init__(self, handle: SpawnerHandle, on_event: Callable[[SpawnerEvent], None]) -> None:
        import asyncio

        self._loop = asyncio.get_running_loop()
        self._pid = handle.pid
        self._control = handle.control
        self._on_event = on_event
        self._frames = Frames()
        self._unsent: deque[_Unsent] = deque()
        self._closing = False
        self._ended: asyncio.Future[None] = self._loop.create_future()
        self._control.setblocking(False)
        self._loop.add_reader(self._control, self._read)

    @property
    def pid(self) -> int:
        """The spawner's pid."""
        return self._pid

    def spawn(self, worker: int, command: Command) -> None:
        """Start ``command`` as ``worker``, a number that this spawner was never given before."""
        request: Message = {
            "op": "spawn",
            "worker": worker,
            "argv": list(command.argv),
            "env": dict(command.env),
            "cwd": command.cwd,
            "cpus": None if command.cpus is None else sorted(command.cpus),
            "warm": command.warm,
            "program": command.program,
            "waits": command.waits,
            "alone": command.alone,
            "preloaded": command.preloaded,
        }
        try:
            self._send(request, [command.stdin, command.stdout, command.stderr])
        except OSError as error:
            self._refused(worker, error)

    def signal(self, worker: int, signum: int) -> None:
        """Signal the process group of ``worker``; nothing happens once it has ended."""
        self._send_quietly({"op": "signal", "worker": worker, "signum": int(signum)})

    def sweep(self, spares_detached: bool = False, spare: Sequence[int] = ()) -> None:
        """SIGKILL every process below the spawner except the workers numbered in ``spare``; later requests
        wait until ``Swept``. Detached processes that are spared outlive the spawner as well, unless another
        worker is started.
        """
        self._send_quietly({"op": "sweep", "spares": spares_detached, "spare": list(spare)})

    def inherit(self, temporary: str, whole: bool = False) -> None:
        """Have the spawner clear a temporary directory of ours if we end without closing it.

        It keeps one path of each kind. Unless ``whole``, a directory with logs or stacks is not removed.
        """
        self._send_quietly({"op": "inherit", "path": temporary, "whole": whole})

    async def close(self) -> None:
        """Let the spawner kill what is left and end; return once it has. May be called again.

        This takes as long as the kernel needs to kill; a caller may bound or cancel it.
        """
        import asyncio

        if not self._closing and not self._ended.done():
            self._closing = True
            self._drop_unsent()
            with contextlib.suppress(OSError):  # it has just died; the reader reports that
                self._control.shutdown(socket.SHUT_WR)
        await asyncio.shield(self._ended)

    # -- to the spawner ------------------------------------------------------------------------

    def _send_quietly(self, message: Message) -> None:
        try:
            self._send(message, [])
        except ConnectionError:
            return  # the reader is about to report the spawner's end

    def _send(self, message: Message, fds: list[int]) -> None:
        if self._closing or self._ended.done():
            raise BrokenPipeError(errno.EPIPE, "it has ended")
        data = encode(message)
        sent = 0 if self._unsent else self._transmit(data, fds)
        if sent < len(data):
            kept = [] if sent else [os.dup(fd) for fd in fds]
            worker = message["worker"] if message["op"] == "spawn" else None
            self._unsent.append(_Unsent(data[sent:], kept, worker))
            self._loop.add_writer(self._control, self._flush)

    def _transmit(self, data: bytes, fds: list[int]) -> int:
        """Send; return how many bytes the socket took. ``fds`` go with the first one."""
        ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array("i", fds))] if fds else []
        try:
            return self._control.sendmsg([data], ancillary)
        except BlockingIOError:
            return 0

    def _flush(self) -> None:
        while self._unsent:
            first = self._unsent[0]
            sent = self._transmit_again(first)
            if sent:
                first.drop()
            first.data = first.data[sent:]
            if first.data:
                return
            self._unsent.popleft()
        self._loop.remove_writer(self._control)

    def _transmit_again(self, unsent: _Unsent) -> int:
        """Like ``_transmit``, but what can never be sent counts as sent."""
        try:
            return self._transmit(unsent.data, unsent.fds)
        except OSError as error:  # the spawner's end, or the kernel's limit on descriptors under way
            if unsent.worker is not None and not isinstance(error, ConnectionError):
                self._refused(unsent.worker, error)
            return len(unsent.data)

    def _refused(self, worker: int, error: OSError) -> None:
        failed = SpawnFailed(worker, error.errno or 0, f"cannot reach the spawner: {error.strerror}")
        self._loop.call_soon(self._on_event, failed)

    def _drop_unsent(self) -> None:
        while self._unsent:
            self._unsent.popleft().drop()
        self._loop.remove_writer(self._control)

    # -- from the spawner ----------------------------------------------------------------------

    def _read(self) -> None:
        try:
            data = self._control.recv(READ_BYTES)
        except BlockingIOError:
            return
        except ConnectionError:
            data = b""
        if not data:
            self._gone()
            return
        for message in self._frames.feed(data):
            self._loop.call_soon(self._on_event, _event(message))

    def _gone(self) -> None:
        self._drop_unsent()
        self._loop.remove_reader(self._control)
        self._control.close()
        # Its socket is closed, so it is exiting: this waits for microseconds.
        with contextlib.suppress(ChildProcessError):  # where SIGCHLD is ignored, the kernel reaps
            os.waitpid(self._pid, 0)
        if not self._closing:
            self._loop.call_soon(self._on_event, SpawnerDied())
        self._ended.set_result(None)


def _event(message: Message) -> SpawnerEvent:
    kind = message.pop("event")
    return _EVENTS[kind](**message)


_EVENTS: dict[str, Callable[..., SpawnerEvent]] = {
    "started": Started,
    "spawn_failed": SpawnFailed,
    "exited": Exited,
    "swept": Swept,
    "left_alone": LeftAlone,
    "warm": WarmNews,
    "imports": Imports,
}
