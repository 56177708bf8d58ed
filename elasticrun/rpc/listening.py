"""Which addresses of this host a server can listen on.

gRPC binds whatever part of a name it can and explains a failure badly, on stderr; so the name is resolved
and each address tried here first, without listening, so that no client takes the trial for a server. Two
masters that start at the same moment both find the port free; a claim tells them apart before gRPC does.
"""

from __future__ import annotations

import asyncio
import errno
import socket
from typing import Any

from elasticrun.config import Endpoint
from elasticrun.errors import EndpointTakenError
from elasticrun.rpc import claims

_SocketAddress = tuple[Any, ...]  # (host, port) or, for IPv6, (host, port, flow, zone)


async def local_addresses(endpoint: Endpoint) -> list[str]:
    """The addresses named by the endpoint that can be bound here, at least one.

    Raises EndpointTakenError if the port is in use on any of them, OSError if none is of this host or the
    port may not be bound.
    """
    found = await asyncio.get_running_loop().getaddrinfo(
        endpoint.host, endpoint.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )
    bindable = []
    refused: OSError | None = None
    for family, _, _, _, address in dict.fromkeys(found):
        try:
            _try_to_bind(family, address)
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                raise taken(endpoint) from None
            refused = error
        else:
            bindable.append(numeric_host(address))
    if refused is not None and not bindable:
        raise refused
    return bindable


def claim(endpoint: Endpoint) -> socket.socket:
    """Claims this address against every other master of this user that is about to listen there.

    The claim holds until the socket is closed, or the process is gone. Raises EndpointTakenError.
    """
    try:
        return claims.claim(f"master.{endpoint}")
    except claims.ClaimedError:
        raise taken(endpoint) from None


def numeric_host(address: _SocketAddress) -> str:
    """The host of a socket's address; an IPv6 one keeps its zone: fe80::1%2."""
    host = str(address[0])
    zone = address[3] if len(address) == 4 else 0
    return f"{host}%{zone}" if zone and "%" not in host else host


def taken(endpoint: Endpoint) -> EndpointTakenError:
    """The error for a port that somebody else listens on."""
    return EndpointTakenError(
        f"{endpoint} is in use by another program; stop that program, or give another port in --rdzv-endpoint"
    )


def _try_to_bind(family: int, address: _SocketAddress) -> None:
    with socket.socket(family, socket.SOCK_STREAM) as trial:
        # As gRPC does: connections of an earlier master that linger in TIME_WAIT are no obstacle.
        trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        trial.bind(address)
