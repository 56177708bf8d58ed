"""The master's server: streams of agents, and orders of operators, at one endpoint.

Every stream passes the Gate first, which decides by the other end's address. See ``session.py`` for what a
Session does, and ``control.py`` for orders.
"""

from __future__ import annotations

import asyncio
import itertools
import socket
from collections.abc import Awaitable, Callable, Mapping

import grpc
import grpc.aio

from elasticrun.config import Endpoint, SecurityConfig, TlsConfig
from elasticrun.errors import ElasticRunError
from elasticrun.rpc.control import Orders, obey
from elasticrun.rpc.listening import claim, local_addresses, taken
from elasticrun.rpc.outbox import Pool
from elasticrun.rpc.security.admission import Context, enter
from elasticrun.rpc.security.auth import fresh, keyed
from elasticrun.rpc.security.limits import Gate, Limits
from elasticrun.rpc.security.tickets import TicketIssuer
from elasticrun.rpc.session import Admit, AgentStream, Door, Session, SessionHandler
from elasticrun.rpc.timer_slack import relax_soon
from elasticrun.rpc.transport import CONTROL_METHOD, METHOD, SERVER_OPTIONS, SERVICE

__all__ = ["Admit", "Limits", "MasterServer", "Orders", "Session", "SessionHandler"]

#: Seconds that the tasks of cut streams have to end; they take a moment, unless one is stuck.
CUT_TIMEOUT = 5.0
_NO_SECURITY = SecurityConfig()
_Serve = Callable[[object, Context], Awaitable[None]]


class MasterServer:
    """Listens at an endpoint, keeps one session per agent and passes on orders.

    Without ``orders`` there is no method for them. With a token in ``security`` every agent must prove that
    it knows it, without one no order is obeyed.
    """

    def __init__(
        self,
        handler: SessionHandler,
        admit: Admit,
        limits: Limits | None = None,
        security: SecurityConfig = _NO_SECURITY,
        orders: Orders | None = None,
        key: bytes = b"",
    ) -> None:
        """``key`` makes the tickets of agents; all masters of a journal have the same. b"": a fresh one."""
        self._limits = limits or Limits()
        self._security = security
        self._orders = orders
        pool = Pool(self._limits.queued_bytes, self._limits.queued_bytes_each)
        issuer = TicketIssuer(key or fresh())
        token = None if security.token is None else keyed(security.token)
        self._door = Door(handler, admit, self._limits, token, issuer, pool)
        self._gate = Gate(self._limits)
        self._ids = itertools.count(1)
        self._streams: set[AgentStream] = set()
        self._tasks: set[asyncio.Task[object]] = set()  # of gRPC, one for each call
        self._server: grpc.aio.Server | None = None
        self._claims: list[socket.socket] = []

    async def start(self, host: str, port: int) -> int:
        """Listens on every address of this host that ``host`` names; returns the port, a free one for 0.

        Raises EndpointTakenError if the port is in use, UsageError if the files for TLS cannot be used, and
        OSError if ``host`` names no address of this host or the port may not be bound.
        """
        server = grpc.aio.server(options=SERVER_OPTIONS)
        methods = {METHOD: self._serve}
        if self._orders is not None:
            methods[CONTROL_METHOD] = self._obey
        server.add_generic_rpc_handlers((_generic_handler(methods),))
        self._server = server
        bound = port
        try:
            for address in await local_addresses(Endpoint(host, port)):
                bound = self._listen(server, Endpoint(address, bound))
        except (ElasticRunError, OSError):
            await self.stop(0.0)
            raise
        await server.start()
        relax_soon()
        return bound

    async def stop(self, grace: float) -> None:
        """Stops listening and closes every session after what is queued for it.

        Streams that take longer than ``grace`` seconds are cut; gRPC then writes a line about it on the
        agent's stderr, so 0 is for a server without sessions.
        """
        for stream in self._streams:
            stream.finish("the master stops")
        if self._server is not None:
            await self._server.stop(grace)
            # Core ends a cut call before the task that served it. An event loop that is closed in between
            # cancels the task, and gRPC prints a traceback of that.
            if self._tasks:
                await asyncio.wait(self._tasks, timeout=CUT_TIMEOUT)
        while self._claims:
            self._claims.pop().close()

    def _listen(self, server: grpc.aio.Server, endpoint: Endpoint) -> int:
        if endpoint.port:
            self._claims.append(claim(endpoint))
        if self._security.tls is not None:
            return _listen_with_tls(server, endpoint, self._security.tls)
        try:
            return server.add_insecure_port(str(endpoint))
        except RuntimeError:  # another program took the port after we tried it
            raise taken(endpoint) from None

    def _remember_task(self) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, _requests: object, context: Context) -> None:
        self._remember_task()
        guest = await enter(self._gate, context, self._limits.hello_timeout)
        stream = AgentStream(next(self._ids), context, guest, self._door)
        self._streams.add(stream)
        try:
            await stream.run()
        finally:
            self._streams.discard(stream)
            guest.leave()

    async def _obey(self, _requests: object, context: Context) -> None:
        assert self._orders is not None
        self._remember_task()
        guest = await enter(self._gate, context, self._limits.hello_timeout)
        try:
            await obey(self._orders, context, guest, self._security.token, self._limits.hello_timeout)
        finally:
            guest.leave()


def _listen_with_tls(server: grpc.aio.Server, endpoint: Endpoint, tls: TlsConfig) -> int:
    from elasticrun.rpc.security.tls import server_credentials, unusable

    try:
        return server.add_secure_port(str(endpoint), server_credentials(tls))
    except RuntimeError:
        # Core gives no reason. If the port can be had without TLS, it was not the port.
        try:
            server.add_insecure_port(str(endpoint))
        except RuntimeError:
            raise taken(endpoint) from None
        raise unusable(tls) from None


def _generic_handler(methods: Mapping[str, _Serve]) -> grpc.GenericRpcHandler:
    """Routes methods to coroutines, with payloads as plain bytes."""
    handlers: dict[str, grpc.RpcMethodHandler[bytes, bytes]] = {
        name: grpc.stream_stream_rpc_method_handler(serve) for name, serve in methods.items()
    }
    return grpc.method_handlers_generic_handler(SERVICE, handlers)
