"""A relay between a node and the master, which can hold back what passes: a network that is cut.

Theory. Nothing is lost and no connection breaks, as where a cable is out: both sides just hear nothing. What
was held back passes once the relay is open again, in order. A connection that is begun meanwhile is accepted,
as by a kernel's queue, and waits.
"""

from __future__ import annotations

import asyncio
import os
import socket
import struct
import threading
from collections.abc import Coroutine
from typing import Any

from elasticrun.clock import pause
from elasticrun.launching.shortage import PAUSE, Shortage

_RESET = struct.pack("ii", 1, 0)  # for SO_LINGER: wait for nothing as it is closed
_PIECE = 64 << 10  # bytes
_LOOPBACK = "127.0.0.1"


class Relay:
    """Listens on a port of its own, and hands on to another port of this host. To be closed."""

    def __init__(self, target: int) -> None:
        """``target``: the port where the master listens, now or later."""
        self._target = target
        self._owner = os.getpid()
        self._listener = socket.create_server((_LOOPBACK, 0))
        self._listener.setblocking(False)
        #: Where it listens.
        self.port: int = self._listener.getsockname()[1]
        self._loop = asyncio.new_event_loop()
        self._is_open = asyncio.Event()
        self._is_open.set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._thread = threading.Thread(target=self._run, daemon=True, name="elasticrun-relay")
        self._thread.start()

    def cut(self) -> None:
        """Hold back what comes from now on.

        What was in flight may still pass: what the relay was just handing on, up to 64 KiB each way of a
        connection, and what it had handed to the kernel before.
        """
        self._do(self._is_open.clear)

    def mend(self) -> None:
        """Let all pass again."""
        self._do(self._is_open.set)

    def close(self) -> None:
        """Break all connections, and end; a fork of its process has no part in it."""
        if os.getpid() != self._owner or self._loop.is_closed():
            return
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._listener.close()
        self._loop.close()

    def _do(self, what: Any) -> None:
        async def do() -> None:
            what()

        asyncio.run_coroutine_threadsafe(do(), self._loop).result()

    def _run(self) -> None:
        self._begin(self._accept())
        self._loop.run_forever()
        for task in self._tasks:
            task.cancel()
        self._loop.run_until_complete(asyncio.gather(*self._tasks, return_exceptions=True))

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _accept(self) -> None:
        shortage = Shortage("the relay to the master")
        while True:
            try:
                node, _ = await self._loop.sock_accept(self._listener)
            except OSError as error:
                if not shortage.explains(error):
                    raise
                await pause(PAUSE)
            else:
                self._begin(self._serve(node))

    async def _serve(self, node: socket.socket) -> None:
        with node:
            try:
                with socket.socket() as master:
                    await self._hand_on_to(master, node)
            except OSError:  # a reset, for who sees a mere end takes the relay for another program
                _reset_as_it_closes(node)

    async def _hand_on_to(self, master: socket.socket, node: socket.socket) -> None:
        master.setblocking(False)
        try:
            await self._is_open.wait()
            await self._loop.sock_connect(master, (_LOOPBACK, self._target))
            await self._hand_on_both(node, master)
        except OSError:
            _reset_as_it_closes(master)
            raise

    async def _hand_on_both(self, node: socket.socket, master: socket.socket) -> None:
        ways = [asyncio.ensure_future(self._hand_on(*ends)) for ends in ((node, master), (master, node))]
        try:
            await asyncio.gather(*ways)
        finally:  # one of them is broken: the loop must not wait for descriptors that others get next
            for way in ways:
                way.cancel()
            await asyncio.gather(*ways, return_exceptions=True)

    async def _hand_on(self, source: socket.socket, sink: socket.socket) -> None:
        while data := await self._loop.sock_recv(source, _PIECE):
            await self._is_open.wait()
            await self._loop.sock_sendall(sink, data)
        await self._is_open.wait()
        sink.shutdown(socket.SHUT_WR)


def _reset_as_it_closes(end: socket.socket) -> None:
    end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
