"""The HTTP server below the pages: how many may connect, and what a stranger can cost.

Theory. Whoever reaches the port may connect, and nobody knows who it is before it has asked something. So a
connection that has nothing to answer is worth the least: when there are as many as may be, the one that was
silent for the longest goes, and its place is that of the newest. One that asks, or reads along, stays. There
are far fewer than the process may have files open, as it needs some to ask the job. Where each connection is
for one short question, none lasts, whatever it says.

A flood costs one process its time as well. So only some connections are taken in one turn of the loop: then
its other work goes on, and who has asked is answered a few turns later, before those behind put it out.

What a stranger sends may be no HTTP at all. It is answered, and not logged: the log is that of the job.
"""

from __future__ import annotations

import asyncio
import logging
import resource
import socket
import ssl
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack

from aiohttp import web

from elasticrun.dataclass import dataclass
from elasticrun.observer.listening import BACKLOG

#: What is left for other files, if the process may have only few open.
SPARE = 200
#: Seconds that a connection is kept after an answer, and that a handshake of TLS may take.
KEPT = 15.0
HANDSHAKE = 5.0

_NO_LOG = logging.getLogger(f"{__name__}.strangers")
_NO_LOG.disabled = True

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@dataclass(frozen=True, slots=True)
class Limits:
    """What those who connect may take."""

    connections: int = 700  # at a time, unless the process may have only few files open
    lasts: float | None = None  # seconds until a connection is old, and cut off before it is twice so old
    line: int = 8190  # bytes of a request's first line, and of each header
    at_once: int = 100  # that are taken in one turn of the loop; others wait in the kernel


#: For people who read pages.
PAGE = Limits()


def most(limits: Limits) -> int:
    """How many connections there may be, by the files that this process may have open."""
    return max(2, min(limits.connections, resource.getrlimit(resource.RLIMIT_NOFILE)[0] - SPARE))


async def serve(
    app: web.Application,
    listener: socket.socket,
    stack: AsyncExitStack,
    tls: ssl.SSLContext | None = None,
    limits: Limits | None = None,
) -> None:
    """Serve until the stack is closed. ``limits``: those of ``PAGE`` if none are given."""
    limits = limits or PAGE
    entrance = _Entrance(most(limits), 0.0 if tls is None else HANDSHAKE, limits.lasts)

    @web.middleware
    async def watched(request: web.Request, handler: Handler) -> web.StreamResponse:
        return await entrance.answer(request, handler)

    app.middlewares.append(watched)
    # ``handler_cancellation``: a reader that goes is forgotten at once, not at the next change.
    runner = web.AppRunner(
        app,
        access_log=None,
        logger=_NO_LOG,
        handle_signals=False,
        handler_cancellation=True,
        keepalive_timeout=KEPT,
        shutdown_timeout=0.5,
        max_line_size=limits.line,
        max_field_size=limits.line,
    )
    await runner.setup()
    stack.push_async_callback(runner.cleanup)
    entrance.server = runner.server
    timeout = None if tls is None else HANDSHAKE
    server = await asyncio.get_running_loop().create_server(
        entrance, sock=listener, ssl=tls, ssl_handshake_timeout=timeout, backlog=limits.at_once
    )
    listener.listen(BACKLOG)  # asyncio has taken the other number for this one as well
    stack.callback(entrance.close)
    stack.callback(server.close)


class _Entrance:
    """Makes what answers a connection."""

    def __init__(self, most: int, handshake: float, lasts: float | None = None) -> None:
        """``handshake``: seconds for which a connection may be one that the server does not know of yet.

        ``lasts``: as in ``Limits``.
        """
        self.server: web.Server | None = None
        self._most = most
        self._handshake = handshake
        self._begun = dict[asyncio.BaseProtocol, float]()  # when; the server does not know of them yet
        self._silent = dict[asyncio.BaseProtocol, None]()  # nothing is to be answered, the oldest first
        self._lasts = lasts
        self._old = set[asyncio.BaseProtocol]()  # who was here when it was looked last
        self._timer: asyncio.TimerHandle | None = None

    def __call__(self) -> asyncio.BaseProtocol:
        assert self.server is not None
        now = time.monotonic()
        self._prune(now)
        if len(self._begun) >= max(1, self._most // 2):  # else those who never begin would put out readers
            return _Refusal()
        if len(self.server.connections) + len(self._begun) >= self._most and not self._make_room():
            return _Refusal()
        if len(self._silent) > 2 * self._most:  # most of them went without a word
            self._silent = {each: None for each in self._silent if self._may_live(each)}
        made = self.server()
        self._look_later()
        self._silent[made] = None
        self._begun[made] = now
        if not self._handshake:  # then the server knows of it right after this call
            asyncio.get_running_loop().call_soon(self._leave_begun, made)
        return made

    def _leave_begun(self, made: asyncio.BaseProtocol) -> None:
        self._begun.pop(made, None)

    def _prune(self, now: float) -> None:
        """Forget the handshakes that are over, one way or the other."""
        self._begun = {
            each: at
            for each, at in self._begun.items()
            if _transport(each) is None and (now - at < self._handshake or not self._handshake)
        }

    async def answer(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Answer a request."""
        self._silent.pop(request.protocol, None)
        try:
            return await handler(request)
        finally:
            self._silent[request.protocol] = None

    def _look_later(self) -> None:
        if self._lasts is not None and self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(self._lasts, self._look)

    def _look(self) -> None:
        """Cut off who was here at the last look already; one timer for all, however many come and go."""
        assert self.server is not None
        self._timer = None
        here = set[asyncio.BaseProtocol](self.server.connections)
        for each in here & self._old:
            if (transport := _transport(each)) is not None:
                transport.abort()
        self._old = here - self._old
        self._prune(time.monotonic())
        if self._old or self._begun:
            self._look_later()

    def close(self) -> None:
        """Look no more."""
        if self._timer is not None:
            self._timer.cancel()

    def _make_room(self) -> bool:
        """Cut off who was silent for the longest; whether there is one."""
        for oldest in [*self._silent]:
            if not self._may_live(oldest):
                del self._silent[oldest]
            elif (transport := _transport(oldest)) is not None:
                del self._silent[oldest]
                transport.abort()
                return True
        return False

    def _may_live(self, protocol: asyncio.BaseProtocol) -> bool:
        return protocol in self._begun or _transport(protocol) is not None


def _transport(protocol: asyncio.BaseProtocol) -> asyncio.Transport | None:
    """The connection that a protocol answers; None: it has none yet, or none any more."""
    found: asyncio.Transport | None = getattr(protocol, "transport", None)
    return found


class _Refusal(asyncio.Protocol):
    """Answers nothing."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Cut it off."""
        assert isinstance(transport, asyncio.Transport)
        transport.abort()
