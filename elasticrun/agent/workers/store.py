"""The workers' store of the rounds in which this node is node 0: served by a process of the launcher.

Theory. A store that rank 0 serves ends with rank 0, is missing until rank 0 starts it, and listens at a port
that another program can bind first. So a process of its own, the *store server*, serves it on a socket that
this agent bound before it offered the port and never releases: early connections wait in the kernel's queue.
The server is forked from the warm parent, which has imported torch, together with the first workers, and
nobody waits for it. It outlives its rounds: each one gets a store of its own in it, so a restart
costs neither a fork nor the end of a process.

A replacement of the warm parent shares less memory with what the parent has forked. So as soon as it is
there, while nobody waits, the next round's server is forked from it. The old one is killed at the end of its
round, and no sweep waits for that: freeing so much memory takes as long as a restart, and a killed process
accepts no connection any more.

Where there is no warm parent, or the user wants it so, rank 0 serves the store, as torch has it by default.
If a parent is lost after this node has offered to serve, the server is started cold: it is late then, but so
are the workers.

A server that ends by itself, or cannot be started, has served nobody, for example because this torch cannot
do it. Many programs never use the store, and must not be stopped for that. So such a loss is reported only
once a worker connects, and gets no answer.

Invariants. After a round, every server but that of the next one has been killed. The end of the one that
serves is reported once, by ``on_lost``; the agent's machine decides whether it still matters. Events of
servers are never passed on as a worker's.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import sys
import time
from array import array
from collections.abc import Callable
from dataclasses import dataclass

from elasticrun.agent.programs import STORE_SERVER
from elasticrun.agent.spawner.client import Command, Exited, SpawnFailed, Started, WarmNews, WorkerStarter
from elasticrun.agent.workers.error_file import exit_sentence
from elasticrun.agent.workers.warm_recipes import torch_key
from elasticrun.config import WorkerConfig
from elasticrun.core.agent.events import StoreLost
from elasticrun.core.protocol.messages import Assignment, Failure, FailureKind, NodeInfo

#: The numbers of servers, downward: workers' are not negative, probes' start at -1.
FIRST_NUMBER = -(2**40)
#: Set by a user whose rank 0 has to serve stores of its own, as for torchrun.
NOT_SHARED = ("TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "1")
#: What a server is told when its round is over.
CLOSE = b"-"
_STDERR_BYTES = 65_536
_MAX_LAST_WORDS = 300


@dataclass(slots=True)
class _Server:
    """A process that has not been reported as ended."""

    number: int
    control: socket.socket
    stderr: int  # the read end of a pipe
    pid: int = 0

    def send(self, order: bytes, *fds: int) -> None:
        ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array("i", fds))] if fds else []
        self.control.sendmsg([order], ancillary)

    def close(self) -> str:
        """Close our ends; return the last line of its output."""
        self.control.close()
        said = b""
        with contextlib.suppress(BlockingIOError):  # somebody has inherited the other end
            said = os.read(self.stderr, _STDERR_BYTES)
        os.close(self.stderr)
        lines = said.decode(errors="replace").strip().splitlines()
        return f"; its last line: {lines[-1][:_MAX_LAST_WORDS]}" if lines else ""


class RoundStore:
    """Starts store servers, tells them which round to serve, and reports their end."""

    def __init__(
        self,
        config: WorkerConfig,
        node: NodeInfo,
        starter: WorkerStarter,
        on_lost: Callable[[StoreLost], None],
    ) -> None:
        self._config = config
        self._node = node
        self._starter = starter
        self._on_lost = on_lost
        self._key = None if NOT_SHARED in config.env else torch_key(config)
        self._next_number = FIRST_NUMBER
        self._servers: dict[int, _Server] = {}
        self._next: _Server | None = None  # serves the next round
        self._serving: tuple[_Server, Assignment] | None = None
        self._listener: socket.socket | None = None  # of the round that is served
        self._awaited = -1  # its descriptor while we wait for the first connection, else -1

    @property
    def is_able(self) -> bool:
        """The next round's store could be served here."""
        return self._next is not None or self._key is not None

    def start(self, assignment: Assignment, listener: socket.socket) -> None:
        """Serve a round's store on this socket, which stays the caller's. OSError if files run out."""
        order = str(assignment.store_port).encode()
        server = self._next or self._spawn()
        try:
            server.send(order, listener.fileno())
        except ConnectionError:  # it has ended; we hear of that soon
            server = self._spawn()
            server.send(order, listener.fileno())
        self._serving, self._listener = (server, assignment), listener

    def end_round(self) -> tuple[int, ...]:
        """End the round as a sweep begins; return the numbers of the servers to spare."""
        self._await_nobody()
        if self._serving is not None:
            server, self._serving = self._serving[0], None
            if server is self._next:
                with contextlib.suppress(OSError):  # it has ended
                    server.send(CLOSE)
            else:
                self._starter.signal(server.number, signal.SIGKILL)
        return tuple(self._servers)

    def on_warm_news(self, news: WarmNews) -> None:
        """Handle a parent that was given up, or a replacement, which then forks the next round's server."""
        if self._key is not None and news.replacement == self._key and self._next is not None:
            old = self._next
            self._spawn()
            if self._serving is None or self._serving[0] is not old:
                self._starter.signal(old.number, signal.SIGKILL)
        if self._key is not None and news.over == self._key:
            self._key = None

    def on_started(self, event: Started) -> bool:
        """Note that a server runs; False if the event is about another process."""
        server = self._servers.get(event.worker)
        if server is not None:
            server.pid = event.pid
        return server is not None

    def on_spawn_failed(self, event: SpawnFailed) -> bool:
        """Handle a server that could not be started; False if the event is about another process."""
        return self._ended(event.worker, 1, f"its process could not be started: {event.message}")

    def on_exited(self, event: Exited) -> bool:
        """Handle the end of a server; False if the event is about another process."""
        return self._ended(event.worker, event.exit_code, exit_sentence(event.exit_code))

    def close(self) -> None:
        """Kill all servers: no round follows."""
        self._await_nobody()
        self._serving = self._next = None
        for number in [*self._servers]:
            self._starter.signal(number, signal.SIGKILL)
            self._servers.pop(number).close()

    def _spawn(self) -> _Server:
        """Start a server for the next round."""
        with contextlib.ExitStack() as theirs:
            ours, control = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            theirs.callback(control.close)
            stderr, write_end = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)  # read at its end: excess is lost
            theirs.callback(os.close, write_end)
            ours.setblocking(False)
            server = self._servers[self._next_number] = _Server(self._next_number, ours, stderr)
            self._next_number -= 1
            self._next = server
            self._starter.spawn(server.number, self._command(control.fileno(), write_end))
        return server

    def _command(self, control: int, output: int) -> Command:
        return Command(
            argv=[self._config.entrypoint.python or sys.executable, STORE_SERVER],
            env=dict(self._config.env),
            cwd=None,
            stdin=control,
            stdout=output,
            stderr=output,
            cpus=frozenset(os.sched_getaffinity(0)),  # the warm parent's may be fewer
            warm=self._key,
            program=STORE_SERVER,
        )

    def _ended(self, number: int, exit_code: int, ending: str) -> bool:
        server = self._servers.pop(number, None)
        if server is None:
            return False
        if self._next is server:
            self._next = None
        last_words = server.close()
        if self._serving is not None and self._serving[0] is server:
            assignment, self._serving = self._serving[1], None
            lost = StoreLost(
                assignment.round, self._failure(assignment, server.pid, exit_code, ending + last_words)
            )
            if exit_code >= 0:
                self._key = None  # torch cannot do it here, and would fail again
                self._await_somebody(lost)
            else:
                self._on_lost(lost)
        return True

    def _await_somebody(self, lost: StoreLost) -> None:
        """Report the loss once a worker connects to the store."""
        assert self._listener is not None
        self._awaited = self._listener.fileno()
        asyncio.get_running_loop().add_reader(self._awaited, self._knocked, lost)

    def _await_nobody(self) -> None:
        if self._awaited >= 0:
            asyncio.get_running_loop().remove_reader(self._awaited)
            self._awaited = -1

    def _knocked(self, lost: StoreLost) -> None:
        self._await_nobody()
        self._on_lost(lost)

    def _failure(self, assignment: Assignment, pid: int, exit_code: int, message: str) -> Failure:
        return Failure(
            node=self._node.node,
            host=self._node.host,
            rank=assignment.first_rank,
            local_rank=0,
            role=self._node.role,
            pid=pid,
            kind=FailureKind.STORE_LOST,
            exit_code=exit_code,
            message=message,
            timestamp=time.time(),
        )
