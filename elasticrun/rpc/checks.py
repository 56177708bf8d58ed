"""What a field of a decoded message may be; each check returns the value or raises ProtocolError.

The sentences name the field and show the value (of texts: the length), because they end up in front of
whoever has to find out which of two programs is wrong.
"""

from __future__ import annotations

import math

from elasticrun.core.bounds import Number, Range
from elasticrun.core.protocol import MAX_FAILURE_TEXT
from elasticrun.errors import ProtocolError

#: No message is larger, in bytes; an encoded one never is, and the receiver refuses one that is.
MAX_MESSAGE_BYTES = 1 << 20
#: Longest name (job, node, incarnation, host, role) in characters.
MAX_NAME = 512
#: Longest address of a node in bytes: a message, and an environment, has room for those of many tasks.
MAX_ADDRESS = 200
#: Longest path of an error file in characters.
MAX_PATH = 4096
#: Longest sentence about a part of a probe or a row of a table in characters.
MAX_SENTENCE = 400
#: Longest answer to an operator in characters.
MAX_REPLY = 500_000
#: Longest nonce or proof in bytes.
MAX_TOKEN = 64
MAX_PORT = 65535
MAX_INT64 = 2**63 - 1


def name(field: str, value: str) -> str:
    """An identifier: neither empty nor longer than MAX_NAME."""
    if not value:
        raise ProtocolError(f"{field} must not be empty")
    return text(field, value, MAX_NAME)


def address(field: str, value: str) -> str:
    """Where a node is reached, which all others may be told for each of its tasks."""
    if len(name(field, value).encode()) > MAX_ADDRESS:
        raise ProtocolError(f"{field} must have at most {MAX_ADDRESS} bytes, got {len(value.encode())}")
    return value


def text(field: str, value: str, limit: int = MAX_FAILURE_TEXT) -> str:
    """A text of at most ``limit`` characters."""
    if len(value) > limit:
        raise ProtocolError(f"{field} must have at most {limit} characters, got {len(value)}")
    return value


def integer(field: str, value: int, low: int, high: int = MAX_INT64) -> int:
    """An integer with low <= value <= high."""
    if not low <= value <= high:
        raise ProtocolError(f"{field} must be between {low} and {high}, got {value}")
    return value


def within(field: str, value: Number, allowed: Range[Number]) -> Number:
    """A number of the range that ``core/bounds.py`` declares for it."""
    if value not in allowed:
        raise ProtocolError(f"{field} must be between {allowed.low} and {allowed.high}, got {value}")
    return value


def port(field: str, value: int) -> int:
    """A TCP port, or 0 for none."""
    return integer(field, value, 0, MAX_PORT)


def rank(field: str, value: int, size: int) -> int:
    """A rank in a world of ``size``."""
    if not 0 <= value < size:
        raise ProtocolError(f"{field} must be in a world of {size}, got {value}")
    return value


def finite(field: str, value: float) -> float:
    """A float that is neither infinite nor NaN."""
    if not math.isfinite(value):
        raise ProtocolError(f"{field} must be a finite number, got {value}")
    return value


def measure(field: str, value: float) -> float:
    """A finite float of 0 or more."""
    if finite(field, value) < 0:
        raise ProtocolError(f"{field} must be 0 or more, got {value}")
    return value


def positive(field: str, value: float) -> float:
    """A finite float above 0."""
    if finite(field, value) <= 0:
        raise ProtocolError(f"{field} must be above 0, got {value}")
    return value
