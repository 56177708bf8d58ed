"""The page, and the API behind it, over HTTP.

Each request passes ``guard``: the Host header must name this server, a request that changes something must
come from our own origin as JSON, and the answer tells browsers to take nothing from elsewhere. Then its
handler asks for the right that it needs (``access.py``). Errors are JSON: ``{"error": sentence}``.
"""

from __future__ import annotations

import asyncio
import json
import logging
import socket
import struct
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from aiohttp import web

from elasticrun.core.protocol.plain import plain
from elasticrun.dataclass import dataclass
from elasticrun.errors import ElasticRunError, ExitCode, OrderDeclinedError, UsageError
from elasticrun.observer import access, asking
from elasticrun.observer.access import Door
from elasticrun.observer.hub import FullError, Reader
from elasticrun.observer.live import Live
from elasticrun.rpc.records import to_json

logger = logging.getLogger(__name__)

HERE = Path(__file__).parent
ASSETS = {
    "/": ("page.html", "text/html"),
    "/page.css": ("page.css", "text/css"),
    "/page.js": ("page.js", "text/javascript"),
    "/nodes.js": ("nodes.js", "text/javascript"),
    "/timeline.js": ("timeline.js", "text/javascript"),
    "/icon.svg": ("icon.svg", "image/svg+xml"),
}
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self';"
    " img-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
#: Most bytes of a request's body, and of what the kernel holds for one reader.
MAX_BODY = 16 << 10
SEND_BUFFER = 256 << 10
#: Seconds between signs of life to a reader, and until one that takes nothing is given up.
ALIVE = 15.0
STUCK = 60.0
#: Seconds that the body of a request may take.
SAID = 10.0
#: The end of a connection is an error for the other side, and nothing waits to be sent any more.
_NOW = struct.pack("ii", 1, 0)

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Refusal(Exception):
    """A request that is not granted; the text is one sentence."""

    def __init__(self, status: int, text: str, **headers: str) -> None:
        super().__init__(text)
        self.status = status
        self.headers = headers


@dataclass(frozen=True, slots=True)
class Names:
    """Under which names this server is known."""

    ours: frozenset[str]
    scheme: str
    cookie: str


class Pages:
    """The handlers. ``metrics`` returns the body and content type of /metrics; see ``extras.py``."""

    def __init__(
        self, live: Live, control: Callable[[], Awaitable[Any]], door: Door, names: Names, metrics: Any = None
    ) -> None:
        self._live = live
        self._control = control
        self._door = door
        self._names = names
        self._metrics = metrics
        self._assets = {path: (HERE / name).read_bytes() for path, (name, _) in ASSETS.items()}

    def app(self) -> web.Application:
        """An application that serves them."""

        @web.middleware
        async def guard(request: web.Request, handler: Handler) -> web.StreamResponse:
            return await self._guard(request, handler)

        app = web.Application(middlewares=[guard], client_max_size=MAX_BODY)
        for path in ASSETS:
            app.router.add_get(path, self._asset)
        app.router.add_get("/api/session", self._session)
        app.router.add_post("/api/session", self._login)
        app.router.add_delete("/api/session", self._logout)
        app.router.add_get("/api/state", self._state)
        app.router.add_get("/api/events", self._events)
        app.router.add_post("/api/orders", self._orders)
        app.router.add_get("/api/stacks", self._stacks)
        app.router.add_get("/api/log", self._log)
        app.router.add_get("/metrics", self._show_metrics)
        return app

    # -- what holds for all

    async def _guard(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        try:
            self._check_origin(request)
            answer = await handler(request)
        except web.HTTPException as error:
            answer = _error(error.status, error.reason)
        except Refusal as refusal:
            answer = _error(refusal.status, str(refusal))
            answer.headers.update(refusal.headers)
        except ConnectionError:  # the peer has gone: there is nobody to answer
            raise
        except Exception:
            logger.exception("internal error; please report this traceback")
            answer = _error(500, "an internal error; the log of the launcher has its traceback")
        if not answer.prepared:
            answer.headers.update(HEADERS)
        return answer

    def _check_origin(self, request: web.Request) -> None:
        host = request.headers.get("Host", "")
        name = access.host_name(host)
        if not access.is_our_name(name, self._names.ours):
            known = "use its address, or give the name as HOST of --web"
            raise Refusal(421, f"this server does not go by the name {name[:80]!r}: {known}")
        if request.method in ("GET", "HEAD"):
            return
        headers = request.headers
        origin, site = headers.get("Origin"), headers.get("Sec-Fetch-Site")
        if not access.is_own_origin(origin, site, host, self._names.scheme):
            raise Refusal(403, "this request comes from another site: use the page itself")
        if request.method == "POST" and request.content_type != "application/json":
            raise Refusal(415, "a request must be JSON: give Content-Type: application/json")

    def _is_entitled(self, request: web.Request) -> bool:
        """Whether whoever asks has proved to know the token. Raises Refusal for a wrong one."""
        kind, _, given = request.headers.get("Authorization", "").partition(" ")
        if kind.lower() == "bearer":
            self._check_token(request, given.strip())
            return True
        return self._door.knows(request.cookies.get(self._names.cookie, ""), _now())

    def _check_token(self, request: web.Request, token: str) -> None:
        address = request.remote or ""
        if self._door.is_throttled(address, _now()):
            wait = str(int(access.SPAN))
            raise Refusal(429, f"too many wrong tokens: try again in {wait} s", **{"Retry-After": wait})
        if not self._door.can_login:
            raise Refusal(403, "this job has no token, so nobody can log in: start it with --token-file")
        if not self._door.takes(token, address, _now()):
            raise Refusal(401, "this is not the job's token")

    def _check_reading(self, request: web.Request) -> None:
        if not self._is_entitled(request) and not self._door.is_open:
            raise Refusal(401, "this page needs a login with the job's token")

    def _check_orders(self, request: web.Request) -> None:
        if self._is_entitled(request):
            return
        if not self._door.can_login:
            instead = "use elastic-ctl on the master's host"
            raise Refusal(403, f"this job has no token, so nobody can log in: {instead}")
        raise Refusal(401, "this needs a login with the job's token")

    # -- the page, and who looks at it

    async def _asset(self, request: web.Request) -> web.StreamResponse:
        _, kind = ASSETS[request.path]
        answer = web.Response(body=self._assets[request.path], content_type=kind, charset="utf-8")
        answer.enable_compression()
        return answer

    async def _session(self, request: web.Request) -> web.StreamResponse:
        orders = self._is_entitled(request)
        rights = {"reads": orders or self._door.is_open, "orders": orders, "login": self._door.can_login}
        return web.json_response(rights)

    async def _login(self, request: web.Request) -> web.StreamResponse:
        given = await _body(request)
        token = given.get("token") if isinstance(given, dict) else None
        if not isinstance(token, str):
            raise Refusal(400, "a login is a JSON object with the job's token as 'token'")
        self._check_token(request, token.strip())
        answer = web.json_response({"reads": True, "orders": True, "login": True})
        answer.set_cookie(
            self._names.cookie,
            self._door.open_session(_now()),
            max_age=int(access.LASTS),
            httponly=True,
            samesite="Strict",
            secure=self._names.scheme == "https",
            path="/",
        )
        return answer

    async def _logout(self, request: web.Request) -> web.StreamResponse:
        self._door.close_session(request.cookies.get(self._names.cookie, ""))
        rights = {"reads": self._door.is_open, "orders": False, "login": self._door.can_login}
        answer = web.json_response(rights)
        answer.del_cookie(self._names.cookie, path="/")
        return answer

    # -- the state

    async def _state(self, request: web.Request) -> web.StreamResponse:
        self._check_reading(request)
        answer = web.json_response(to_json(await self._live.current()))
        answer.enable_compression()
        return answer

    async def _events(self, request: web.Request) -> web.StreamResponse:
        self._check_reading(request)
        try:
            reader = self._live.join()
        except FullError as error:
            raise Refusal(503, str(error), **{"Retry-After": "10"}) from None
        try:
            answer = web.StreamResponse(headers={**HEADERS, "Content-Type": "text/event-stream"})
            await answer.prepare(request)
            _bound_buffer(request)
            with suppress(ConnectionError):
                await _feed(answer, reader)
        except asyncio.TimeoutError:
            _cut_off(request)  # else what it does not take would wait for it without end
        finally:
            self._live.hub.leave(reader)
        return answer

    async def _show_metrics(self, request: web.Request) -> web.StreamResponse:
        self._check_reading(request)
        try:
            if self._metrics is None:
                raise ImportError
            await self._live.current()  # asks for the status now and then
            body, kind = self._metrics()
        except ImportError:
            needed = "metrics need prometheus-client: pip install 'elasticrun[metrics]'"
            raise Refusal(404, needed) from None
        return web.Response(body=body, headers={"Content-Type": kind})

    # -- orders

    async def _orders(self, request: web.Request) -> web.StreamResponse:
        self._check_orders(request)
        order = await _body(request)
        text = await _answer(self._give(order))
        self._live.take()
        return web.json_response({"text": plain(text)})

    async def _give(self, order: Any) -> str:
        return await asking.give(await self._control(), order)

    async def _stacks(self, request: web.Request) -> web.StreamResponse:
        return await self._ask_worker(request, asking.stacks_of)

    async def _log(self, request: web.Request) -> web.StreamResponse:
        return await self._ask_worker(request, asking.log_of)

    async def _ask_worker(
        self, request: web.Request, ask: Callable[..., Awaitable[str]]
    ) -> web.StreamResponse:
        self._check_orders(request)

        async def answer() -> str:
            rank = asking.rank_of(request.query.get("rank"))
            return await ask(await self._control(), rank)

        return web.json_response({"text": await _answer(answer())})


async def _feed(answer: web.StreamResponse, reader: Reader) -> None:
    """Send what a reader gets, until it goes. Raises ConnectionError, or TimeoutError if it takes nothing."""
    while True:
        try:
            told = await asyncio.wait_for(reader.next(), ALIVE)
        except asyncio.TimeoutError:
            told = b": still here\n\n"
        await asyncio.wait_for(answer.write(told), STUCK)


async def _answer(asked: Awaitable[str]) -> str:
    """What the job answers; its refusals as those of the request."""
    try:
        return await asked
    except OrderDeclinedError as error:
        raise Refusal(409, str(error)) from None
    except UsageError as error:
        raise Refusal(400, str(error)) from None
    except ElasticRunError as error:
        raise Refusal(403 if error.exit_code is ExitCode.UNAUTHENTICATED else 502, str(error)) from None


async def _body(request: web.Request) -> Any:
    try:
        return json.loads(await asyncio.wait_for(request.read(), SAID))
    except asyncio.TimeoutError:
        raise Refusal(408, f"the request did not come within {SAID:g} s") from None
    except (ValueError, RecursionError, web.RequestPayloadError):
        raise Refusal(400, "the request is not valid JSON") from None


def _error(status: int, text: str) -> web.Response:
    return web.json_response({"error": plain(text)}, status=status)


def _bound_buffer(request: web.Request) -> None:
    if request.transport is not None:
        own: socket.socket | None = request.transport.get_extra_info("socket")
        if own is not None and own.family in (socket.AF_INET, socket.AF_INET6):
            with suppress(OSError):
                own.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER)


def _cut_off(request: web.Request) -> None:
    """End a connection, with what waits to be sent here and in the kernel."""
    if request.transport is not None:
        own: socket.socket | None = request.transport.get_extra_info("socket")
        if own is not None:
            with suppress(OSError):
                own.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _NOW)
        request.transport.abort()


def _now() -> float:
    return asyncio.get_running_loop().time()
