"""Where the rendezvous endpoint is, seen from this host, and where this host is, seen from others.

Nothing is guessed from host names. Trying to bind the endpoint shows whether it is ours; a name is never
looked up in reverse. Other nodes are told the source address of this host's packets to the endpoint, or, on
the endpoint's own host, the endpoint as the user wrote it: every node must be able to reach that anyway.
While the endpoint's name cannot be resolved, they are told the source address on the default route.
"""

from __future__ import annotations

import errno
import ipaddress
import socket
from collections.abc import Sequence
from enum import Enum

from elasticrun.config import Endpoint
from elasticrun.dataclass import dataclass
from elasticrun.errors import UsageError

Address = tuple[socket.AddressFamily, tuple[str, int] | tuple[str, int, int, int] | tuple[int, bytes]]

#: Any port does: connecting a datagram socket sends nothing, it only asks the kernel for the route.
_ROUTE_PORT = 9
#: Addresses set aside for documentation (RFC 5737, RFC 3849): the default route applies to them.
_FAR_AWAY: list[Address] = [
    (socket.AF_INET, ("192.0.2.1", _ROUTE_PORT)),
    (socket.AF_INET6, ("2001:db8::1", _ROUTE_PORT, 0, 0)),
]
_LOOPBACK = "127.0.0.1"


class Place(Enum):
    """Where the endpoint is."""

    HERE = "here"  # an address of this host, and its port is free
    OCCUPIED = "occupied"  # an address of this host, but somebody listens there
    ELSEWHERE = "elsewhere"
    UNKNOWN = "unknown"  # the name cannot be resolved (yet)


@dataclass(frozen=True, slots=True)
class Survey:
    """What was found out about an endpoint."""

    place: Place
    listen_host: str = ""  # where a master on this host has to listen
    is_local: bool = False  # the endpoint is an address of this host


def survey(endpoint: Endpoint, is_host: bool | None) -> Survey:
    """Find the endpoint. ``is_host`` is the user's word: True hosts even behind an address translation.

    Raises:
        UsageError: the port may not be bound by this user.
    """
    if is_host is False:
        return Survey(Place.ELSEWHERE)
    try:
        addresses = _resolve(endpoint)
    except (socket.gaierror, UnicodeError):
        return Survey(Place.HERE, _any_address()) if is_host else Survey(Place.UNKNOWN)
    refusals = [_try_to_bind(address, endpoint) for address in addresses]
    if errno.EADDRINUSE in refusals:
        return Survey(Place.OCCUPIED, is_local=True)
    if 0 in refusals:
        ours = [address for address, refusal in zip(addresses, refusals, strict=True) if refusal == 0]
        return Survey(Place.HERE, _listen_host(endpoint, ours), is_local=True)
    return Survey(Place.HERE, _any_address()) if is_host else Survey(Place.ELSEWHERE)


def own_position(endpoints: Sequence[Endpoint], is_host: bool | None) -> tuple[int, Survey]:
    """Which of several endpoints a master on this host would listen at, or -1; with what was found there.

    Of several addresses of this host it is the first whose port is free. ``is_host`` is the user's word:
    False never hosts; True hosts the first endpoint if none is an address of this host. With -1 the place
    is unknown while a name cannot be resolved, as it may be this host's.

    Raises:
        UsageError: the port of one may not be bound by this user.
    """
    found = [survey(endpoint, False if is_host is False else None) for endpoint in endpoints]
    for place in (Place.HERE, Place.OCCUPIED):
        for position, each in enumerate(found):
            if each.place is place:
                return position, each
    if is_host:
        return 0, survey(endpoints[0], True)
    return -1, next((each for each in found if each.place is Place.UNKNOWN), found[0])


def address_for_others(endpoint: Endpoint, found: Survey) -> str:
    """The address at which other nodes reach this one; the loopback address if there is no route."""
    if found.is_local:
        return _LOOPBACK if _is_wildcard(endpoint.host) else endpoint.host
    try:
        addresses = _resolve(endpoint)
    except (socket.gaierror, UnicodeError):
        addresses = _FAR_AWAY
    return next((source for address in addresses if (source := _source(address))), _LOOPBACK)


def _source(target: Address) -> str:
    """The address from which this host talks to the target; "" if there is no route."""
    family, address = target
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((address[0], _ROUTE_PORT, *address[2:]))
            return str(probe.getsockname()[0])
    except OSError:  # from socket() as well: a host without IPv6 may resolve IPv6 addresses
        return ""


def _resolve(endpoint: Endpoint) -> list[Address]:
    found = socket.getaddrinfo(endpoint.host, endpoint.port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys((family, address) for family, _, _, _, address in found))


def _listen_host(endpoint: Endpoint, ours: Sequence[Address]) -> str:
    """Where a master on this host listens: at the endpoint's own host, and nowhere else.

    With one exception: many Debian hosts resolve their own name to 127.0.1.1, which no other node can reach,
    and this host cannot know which of its addresses others find under it. Then it is all addresses.
    """
    if endpoint.host == "localhost" or _ip(endpoint.host) is not None:
        return endpoint.host
    is_reachable = any(not _is_loopback(str(address[0])) for _, address in ours)
    return endpoint.host if is_reachable else _any_address()


def _is_loopback(host: str) -> bool:
    address = _ip(host)
    return address is not None and address.is_loopback


def _ip(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return None


def _is_wildcard(host: str) -> bool:
    address = _ip(host)
    return address is not None and address.is_unspecified


def _any_address() -> str:
    return "::" if socket.has_dualstack_ipv6() else "0.0.0.0"


def _try_to_bind(target: Address, endpoint: Endpoint) -> int:
    """0 if the address is ours and the port free, else the errno. Never listens, so nobody notices."""
    refusal = _bind_error(target)
    if refusal == errno.EACCES and _bind_error(_with_port(target, 0)) == 0:  # IPv6 looks at the port first
        raise UsageError(
            f"port {endpoint.port} of the rendezvous endpoint {endpoint} may only be bound by root;"
            " give a port of 1024 or higher"
        )
    return refusal


def _bind_error(target: Address) -> int:
    family, address = target
    try:
        with socket.socket(family, socket.SOCK_STREAM) as trial:
            # As the master does: connections in TIME_WAIT are no obstacle.
            trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            trial.bind(address)
    except OSError as error:
        return error.errno or errno.EINVAL
    return 0


def _with_port(target: Address, port: int) -> Address:
    family, address = target
    return family, (address[0], port, *address[2:])
