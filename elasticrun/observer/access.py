"""Who may see the page, and who may give orders.

Theory. There are two rights. *Orders*, and what holds the workers' own output (logs, stacks), need the job's
token: as ``Authorization: Bearer``, or once in the login form, which gives a cookie with a random name of a
session; the token itself is in no cookie. *Reading* the rest needs it too, unless the page is served on the
loopback interface only, or the user said that anybody may.

A stranger on the network who may not read learns that a page is there, and no more. Guessing is slow: an
address has ``TRIES`` wrong tokens in a ``SPAN``, all addresses together ``ALL_TRIES``, and the comparison
takes the same time whatever is wrong. A browser of an entitled user that shows a hostile page gives that page
nothing: the cookie is SameSite=Strict, orders are JSON from our own origin, and a name that is not ours (DNS
rebinding) is refused. Numeric addresses cannot be rebound, so all of them are taken.
"""

from __future__ import annotations

import hmac
import ipaddress
import secrets
from collections import deque
from enum import Enum

#: Wrong tokens that one address, and all together, may give in so many seconds.
TRIES = 5
ALL_TRIES = 100
SPAN = 60.0
#: Addresses that are remembered, sessions at a time, and seconds that one lasts.
MOST_ADDRESSES = 1000
MOST_SESSIONS = 1000
LASTS = 12 * 3600.0


class Reading(Enum):
    """Who may read without the token."""

    AUTO = "auto"  # everybody on the loopback interface, else nobody
    TOKEN = "token"  # nobody
    ANYONE = "anyone"


class Door:
    """Checks tokens and sessions. ``now`` is any clock that does not run back, in seconds."""

    def __init__(self, token: str | None, is_open: bool) -> None:
        self.can_login = token is not None
        self.is_open = is_open  # anybody may read
        self._token = (token or "").encode()
        self._sessions: dict[str, float] = {}  # until when, oldest first
        self._failures: dict[str, deque[float]] = {}
        self._all: deque[float] = deque()

    def is_throttled(self, address: str, now: float) -> bool:
        """Whether this address has to wait before it may try a token."""
        _forget(self._all, now)
        own = self._failures.get(address)
        if own is not None:
            _forget(own, now)
        return len(self._all) >= ALL_TRIES or (own is not None and len(own) >= TRIES)

    def takes(self, token: str, address: str, now: float) -> bool:
        """Whether this is the token. Call ``is_throttled`` before."""
        if self.can_login and hmac.compare_digest(token.encode(errors="replace"), self._token):
            return True
        self._all.append(now)
        self._failures.setdefault(address, deque(maxlen=TRIES)).append(now)
        while len(self._failures) > MOST_ADDRESSES:
            del self._failures[next(iter(self._failures))]
        return False

    def open_session(self, now: float) -> str:
        """The name of a new session."""
        while len(self._sessions) >= MOST_SESSIONS:
            del self._sessions[next(iter(self._sessions))]
        name = secrets.token_urlsafe(32)
        self._sessions[name] = now + LASTS
        return name

    def close_session(self, name: str) -> None:
        """End a session."""
        self._sessions.pop(name, None)

    def knows(self, session: str, now: float) -> bool:
        """Whether this session is open. Names are random, so a look-up tells nothing by its time."""
        until = self._sessions.get(session)
        return until is not None and now < until


def _forget(failures: deque[float], now: float) -> None:
    while failures and failures[0] <= now - SPAN:
        failures.popleft()


def host_name(header: str) -> str:
    """The name in a Host header, in lower case and without its port."""
    name = header.strip().lower()
    if name.startswith("["):
        return name[1:].partition("]")[0]
    return name.partition(":")[0]


def is_our_name(name: str, ours: frozenset[str]) -> bool:
    """Whether a page under this name is this one: a number cannot be another's, as a name can."""
    if name in ours or name == "localhost" or name.endswith(".localhost"):
        return True
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def is_own_origin(origin: str | None, site: str | None, host: str, scheme: str) -> bool:
    """Whether a request that changes something comes from our own page, or from no page at all."""
    if site is not None and site not in ("same-origin", "none"):
        return False
    return origin is None or origin == f"{scheme}://{host}"


def is_loopback(host: str) -> bool:
    """Whether nobody but this host reaches what listens there."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
