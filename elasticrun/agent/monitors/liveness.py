"""The endpoint of TORCHELASTIC_HEALTH_CHECK_PORT, for a load balancer's or Kubernetes' probe.

``GET /`` (``/health``, ``/healthz``) answers 200 as long as the agent's loop turns::

    {"status": "alive", "alive_seconds": 12.3, "phase": "round 2 runs"}

It says that the *agent* is alive, nothing about the workers: a probe that fails makes Kubernetes kill
the pod, which is the last thing a job in the middle of a restart needs.

Invariant: a probe never harms the job. A port that is taken is a warning; a client that sends too much,
nonsense, or nothing at all is cut off.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import json
import logging
from collections.abc import Callable
from http import HTTPStatus

_log = logging.getLogger(__name__)

_PATHS = frozenset({"/", "/health", "/healthz"})
_METHODS = frozenset({"GET", "HEAD"})
_MAX_REQUEST = 8192  # bytes, all headers together
_MAX_PORT = 65535
_PATIENCE = 5.0  # seconds for a whole request to arrive

Reply = tuple[HTTPStatus, dict[str, object]]


class HealthServer:
    """Answers probes; ``phase`` says in words what the agent does."""

    def __init__(self, port: int, phase: Callable[[], str], host: str | None = None) -> None:
        self._host = host  # None: every address of this host
        self._asked_port = port
        self._phase = phase
        self._server: asyncio.Server | None = None
        self._started = 0.0

    @property
    def port(self) -> int | None:
        """The listening port; None: not listening."""
        return None if self._server is None else int(self._server.sockets[0].getsockname()[1])

    async def start(self) -> None:
        """Listen; if that fails, warn and go on without."""
        self._started = asyncio.get_running_loop().time()
        port = self._asked_port
        try:
            if not 0 <= port <= _MAX_PORT:  # asyncio would leak the socket
                raise OSError(errno.EINVAL, f"a port is a number from 0 to {_MAX_PORT}")
            self._server = await asyncio.start_server(self._serve, self._host, port, limit=_MAX_REQUEST)
        except OSError as error:
            _log.warning("no health check: cannot listen on port %d: %s", port, error.strerror or error)

    async def close(self) -> None:
        """Stop listening."""
        if self._server is not None:
            self._server.close()
            self._server = None

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            try:
                head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), _PATIENCE)
                reply, body_wanted = self._answer(head), not head.startswith(b"HEAD ")
            except asyncio.TimeoutError:
                reply, body_wanted = _problem(HTTPStatus.REQUEST_TIMEOUT), True
            except (asyncio.LimitOverrunError, asyncio.IncompleteReadError):
                reply, body_wanted = _problem(HTTPStatus.BAD_REQUEST), True
            writer.write(_http(reply, body_wanted))
            await writer.drain()
        writer.close()

    def _answer(self, head: bytes) -> Reply:
        words = head.split(b"\r\n", 1)[0].decode("latin-1").split(" ")
        if len(words) != 3 or not words[1].startswith("/") or not words[2].startswith("HTTP/1."):
            return _problem(HTTPStatus.BAD_REQUEST)
        if words[0] not in _METHODS:
            return _problem(HTTPStatus.METHOD_NOT_ALLOWED)
        if words[1].split("?", 1)[0] not in _PATHS:
            return _problem(HTTPStatus.NOT_FOUND)
        alive = asyncio.get_running_loop().time() - self._started
        return HTTPStatus.OK, {"status": "alive", "alive_seconds": round(alive, 3), "phase": self._phase()}


def _problem(status: HTTPStatus) -> Reply:
    return status, {"error": status.phrase}


def _http(reply: Reply, body_wanted: bool) -> bytes:
    status, content = reply
    body = json.dumps(content).encode("ascii") + b"\n"
    fields = ["Content-Type: application/json", f"Content-Length: {len(body)}", "Connection: close"]
    if status is HTTPStatus.METHOD_NOT_ALLOWED:
        fields.append("Allow: GET, HEAD")
    head = "\r\n".join([f"HTTP/1.1 {status.value} {status.phrase}", *fields, "", ""])
    return head.encode("ascii") + (body if body_wanted else b"")
