"""Lines of a meeting that only a member of this check can have written.

Every probe of a check gets one secret from its agent, which has it from the master. Rank 0 greets whoever
connects with a challenge; each line after that begins with an HMAC of the secret over who says it, the
other end's challenge and the line itself. It is looked at before anything of the line is parsed. So somebody
else who finds the port can say nothing, repeat nothing and be taken for nobody: he is ignored.
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
    """What a line says; ConnectionError if it is not of a member of this check."""
    mac, body = line[:_SIZE], line[_SIZE:].removesuffix(b"\n")
    if not hmac.compare_digest(mac, _mac(secret, who, challenge, body)):
        raise ConnectionError("whoever answers there does not take part in this check")
    return parse_line(body)


def ring_tag(secret: bytes, check: int, slot: int) -> int:
    """A number that tells the ring of one all-gather from any other, and members from strangers."""
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
