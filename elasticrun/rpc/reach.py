"""Finds out who listens at an endpoint, before gRPC is asked to talk to it.

gRPC reports a refused connection, an HTTP/1 server and a silent program alike, after delays of its own.
Here each gets its own error: the TCP connection is made, the HTTP/2 preface sent, and a server that speaks
HTTP/2 must answer with a SETTINGS frame. Whether it is an elasticrun master, only Hello can tell. The address
that answered is the one to use, so names are resolved once, by the system.

Without an answer, a fresh connection is tried every ``CONNECT_AGAIN`` seconds. The kernel retries as well,
but doubles its pause each time: a partition that heals would be noticed only seconds later.

With TLS nothing can be said before the handshake, which is gRPC's business; then only the TCP connection
is made.
"""

from __future__ import annotations

import asyncio
import os
import socket

from elasticrun.clock import within
from elasticrun.config import Endpoint
from elasticrun.errors import (
    ElasticRunError,
    EndpointTakenError,
    MasterUnreachableError,
    UnauthenticatedError,
)
from elasticrun.rpc.listening import numeric_host

_EMPTY_SETTINGS = b"\0\0\0\4\0\0\0\0\0"
_GREETING = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + _EMPTY_SETTINGS
_FRAME_HEADER = 9  # bytes: length 3, type 1, flags 1, stream 4
#: What gRPC's TLS does to a client without TLS.
_CURT = (
    "it closes connections without a word (as the job's master does if it has TLS and this node was not "
    "given --tls-ca, --tls-cert and --tls-key)"
)
#: Seconds before a second address of the same name is tried beside the first.
_NEXT_ADDRESS_DELAY = 0.25
#: Seconds without an answer after which another connection is tried, beside those that may still succeed.
CONNECT_AGAIN = 2.0

_Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def reach(endpoint: Endpoint, timeout: float, tls: bool = False) -> str:
    """The gRPC target of the HTTP/2 server at the endpoint; with ``tls``, of whoever listens there.

    Raises MasterUnreachableError if nothing answers within ``timeout`` seconds, EndpointTakenError if
    something does that is no HTTP/2 server, or that says nothing at all, and UnauthenticatedError if it
    answers with TLS.
    """
    deadline = asyncio.get_running_loop().time() + timeout
    reader, writer = await _connect(endpoint, timeout)
    try:
        if not tls:
            writer.write(_GREETING)
            left = max(0.0, deadline - asyncio.get_running_loop().time())
            await _expect_http2(endpoint, reader, left)
        return _target(writer.get_extra_info("peername"))
    finally:
        writer.transport.abort()


async def _connect(endpoint: Endpoint, timeout: float) -> _Streams:
    attempts: set[asyncio.Task[_Streams]] = set()
    try:
        return await _first_to_answer(endpoint, timeout, attempts)
    except asyncio.TimeoutError:
        cause = f"no answer within {timeout:.3g} s"
    except socket.gaierror as error:
        cause = f"the name cannot be resolved ({error.strerror})"
    except (OSError, UnicodeError) as error:  # UnicodeError: a name that IDNA refuses
        cause = _words(error)
    finally:
        await _give_up(attempts)
    raise MasterUnreachableError(f"cannot connect to {endpoint}: {cause}")


async def _first_to_answer(
    endpoint: Endpoint, timeout: float, attempts: set[asyncio.Task[_Streams]]
) -> _Streams:
    """The result of the first attempt that succeeds or fails; the others stay in ``attempts``."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + timeout
    while (left := deadline - loop.time()) > 0:
        attempt = asyncio.open_connection(
            endpoint.host, endpoint.port, happy_eyeballs_delay=_NEXT_ADDRESS_DELAY
        )
        attempts.add(loop.create_task(attempt))
        done, _ = await asyncio.wait(
            attempts, timeout=min(left, CONNECT_AGAIN), return_when=asyncio.FIRST_COMPLETED
        )
        if done:
            first = done.pop()
            attempts.discard(first)
            return first.result()
    raise asyncio.TimeoutError


async def _give_up(attempts: set[asyncio.Task[_Streams]]) -> None:
    """Cancel what is under way, and close what succeeded at the last moment."""
    for attempt in attempts:
        attempt.cancel()
    for end in await asyncio.gather(*attempts, return_exceptions=True):
        if isinstance(end, tuple):
            end[1].transport.abort()


async def _expect_http2(endpoint: Endpoint, reader: asyncio.StreamReader, timeout: float) -> None:
    try:
        header = await within(timeout, reader.readexactly(_FRAME_HEADER))
    except asyncio.TimeoutError:
        raise _foreign(endpoint, "it accepts connections but says nothing") from None
    except asyncio.IncompleteReadError as error:
        if _is_tls_alert(error.partial):
            raise _encrypted(endpoint) from None
        raise _foreign(endpoint, f"it answers {error.partial!r}" if error.partial else _CURT) from None
    except OSError as error:  # such as a master that is killed just now
        raise MasterUnreachableError(f"cannot talk to {endpoint}: {_words(error)}") from None
    if _is_tls_alert(header):
        raise _encrypted(endpoint)
    if header[3:] != _EMPTY_SETTINGS[3:]:
        raise _foreign(endpoint, f"it answers {header!r}")


def _foreign(endpoint: Endpoint, what: str) -> EndpointTakenError:
    return EndpointTakenError(
        f"{endpoint} is held by a program that is not an elasticrun master: {what}; "
        "stop that program, or give another port in --rdzv-endpoint"
    )


def _is_tls_alert(data: bytes) -> bool:
    """Whether it is a TLS alert, as to a client without TLS: type 21, version 3.x, two bytes of content."""
    return data[:2] == b"\x15\x03" and data[3:5] == b"\0\2"


def _encrypted(endpoint: Endpoint) -> ElasticRunError:
    return UnauthenticatedError(
        f"{endpoint} answers with TLS: if this is the job's master, give this node --tls-ca, --tls-cert and "
        "--tls-key as well, else another port in --rdzv-endpoint"
    )


def _target(address: tuple[str, int]) -> str:
    host = numeric_host(address)
    if ":" not in host:
        return f"ipv4:{host}:{address[1]}"
    return f"ipv6:[{host.replace('%', '%25')}]:{address[1]}"


def _words(error: Exception) -> str:
    """What went wrong; asyncio folds the causes of several addresses into one text of its own."""
    number = getattr(error, "errno", None)
    return os.strerror(number) if number else str(error)
