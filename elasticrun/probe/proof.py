"""Lines of a meeting that only a member of this check can have written.

Every probe of a check gets one secret from its agent, which has it from the master. Rank 0 sends a challenge
on each new connection; each line after that begins with an HMAC, keyed with the secret, over the role of the
speaker, the other end's challenge and the line itself. The HMAC is checked before the line is parsed. So a
stranger that finds the port cannot say or repeat a line, nor pose as a member: it is ignored.
"""

from __future__ import annotations

import hmac
import json
import os
from collections.abc import Mapping
from typing import Any

from .sockets import parse_line

GUEST, HOST = b"guest", b"host"
_SIZE = 64  # of an HMAC in hex


def fresh() -> str:
    """A challenge that was never used before, in hex."""
    return os.urandom(16).hex()


def sealed(secret: bytes, who: bytes, challenge: str, message: Mapping[str, Any]) -> bytes:
    """A line that says ``message`` in answer to a challenge."""
    body = json.dumps(message).encode()
    return _mac(secret, who, challenge, body) + body + b"\n"


def unsealed(secret: bytes, who: bytes, challenge: str, line: bytes) -> dict[str, Any]:
    """What a line says; ConnectionError if no member of this check wrote it."""
    mac, body = line[:_SIZE], line[_SIZE:].removesuffix(b"\n")
    if not hmac.compare_digest(mac, _mac(secret, who, challenge, body)):
        raise ConnectionError("the peer there is not a member of this health check")
    return parse_line(body)


def ring_tag(secret: bytes, check: int, slot: int) -> int:
    """A number that only members know, different for each slot of each check."""
    mac = hmac.digest(secret, b"ring|%d|%d" % (check, slot), "sha256")
    return int.from_bytes(mac[:7], "big")


def _mac(secret: bytes, who: bytes, challenge: str, body: bytes) -> bytes:
    return hmac.new(secret, b"|".join((who, challenge.encode(), body)), "sha256").hexdigest().encode()


def number(value: object, low: int, high: int) -> int:
    """A whole number within bounds; ValueError for anything else."""
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
        raise ValueError(f"{value!r} is no number between {low} and {high}")
    return value


def words(value: object, most: int, length: int) -> tuple[str, ...]:
    """A list of short texts; ValueError for anything else."""
    if not isinstance(value, list) or len(value) > most:
        raise ValueError("it is no short list")
    return tuple(text(item, length) for item in value)


def text(value: object, length: int) -> str:
    """A text, cut to ``length``; ValueError for anything else."""
    if not isinstance(value, str):
        raise ValueError(f"{type(value).__name__} is no text")
    return value[:length]
