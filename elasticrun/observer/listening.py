"""The socket at which pages are served, made before anything is started.

An observer that is killed leaves it open in its launcher, so the next one serves at the same port, and
nobody can take the port in between.
"""

from __future__ import annotations

import errno
import socket

from elasticrun.config import Endpoint
from elasticrun.errors import EndpointTakenError, UsageError

#: Connections that may wait while an observer is started again.
BACKLOG = 256


def listen(at: Endpoint, option: str = "--web") -> socket.socket:
    """Listen there, as an option says.

    Raises EndpointTakenError if the port is taken, UsageError for what is no own address.
    """
    try:
        family, kind, proto, _, address = socket.getaddrinfo(
            at.host, at.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except (OSError, UnicodeError):
        raise UsageError(
            f"{option} {at}: the name {at.host!r} is not known here: give an own address"
        ) from None
    made = socket.socket(family, kind, proto)
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind(address)
        made.listen(BACKLOG)
    except OSError as error:
        made.close()
        if error.errno == errno.EADDRINUSE:
            raise EndpointTakenError(
                f"{option} {at}: another program has this port: give another one, or 0 for any that is free"
            ) from None
        why = (error.strerror or str(error)).lower()
        raise UsageError(f"{option} {at} cannot be served ({why}): give an address of this host") from None
    return made


def url_of(listener: socket.socket, host: str, is_secure: bool) -> str:
    """Where a browser finds the page."""
    name = socket.gethostname() if host in ("0.0.0.0", "::", "") else host
    shown = f"[{name}]" if ":" in name else name
    return f"{'https' if is_secure else 'http'}://{shown}:{listener.getsockname()[1]}/"
