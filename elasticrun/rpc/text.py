"""Makes texts fit the wire: what UTF-8 can express, and no longer than a message has room for."""

from __future__ import annotations

from elasticrun.core.protocol.bounds import MAX_FAILURE_TEXT


def clean(text: str) -> str:
    """The text with every lone surrogate replaced, since UTF-8 has no bytes for one."""
    if text.isascii():
        return text
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def head(text: str, limit: int = MAX_FAILURE_TEXT) -> str:
    """The beginning of a text, at most ``limit`` bytes of UTF-8."""
    return clean(text[:limit]).encode()[:limit].decode(errors="ignore")


def tail(text: str, limit: int = MAX_FAILURE_TEXT) -> str:
    """The end of a text, at most ``limit`` bytes of UTF-8: a traceback's end says what happened."""
    return clean(text[-limit:]).encode()[-limit:].decode(errors="ignore")
