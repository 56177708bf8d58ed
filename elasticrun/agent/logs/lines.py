"""Bytes of a worker's output as lines: split, prefixed, filtered, and the last of them remembered.

Nothing here reads or writes. What is kept per stream is bounded whatever the worker prints: an
unfinished line by ``LINE_LIMIT``, the tail by twice ``TAIL_LIMIT``.

A carriage return ends a line like a newline does, as in torchrun's tee: a progress bar becomes one line
per step instead of one that is never finished. The log file itself is never touched by this.
"""

from __future__ import annotations

from collections.abc import Sequence
from string import Template

LINE_LIMIT = 64 * 1024  # bytes of an unfinished line that are held back before it is broken in two
TAIL_LIMIT = 8 * 1024  # bytes of a stream's end that a failure report shows


class LineSplitter:
    """Cuts a stream into blocks of whole lines and holds back the unfinished rest."""

    def __init__(self, limit: int = LINE_LIMIT) -> None:
        self._held = bytearray()
        self._limit = limit

    def feed(self, data: bytes) -> bytes:
        """The lines that ``data`` completes, each ended by one newline; often nothing."""
        if b"\r" in data or self._held.endswith(b"\r"):
            data = self._join(data)
        cut = data.rfind(b"\n") + 1
        if not cut:
            self._held += data
            return self._break_if_too_long()
        lines = bytes(self._held) + data[:cut]
        self._held[:] = data[cut:]
        return lines + self._break_if_too_long()

    def flush(self) -> bytes:
        """Return the unfinished line, ended by a newline."""
        rest = bytes(self._held)
        self._held.clear()
        return rest.removesuffix(b"\r") + b"\n" if rest else b""

    def _join(self, data: bytes) -> bytes:
        # A return at the very end may be the first half of "\r\n": it waits for what follows.
        data = bytes(self._held) + data
        waiting = data.endswith(b"\r")
        body = data[:-1] if waiting else data
        self._held.clear()
        return body.replace(b"\r\n", b"\n").replace(b"\r", b"\n") + (b"\r" if waiting else b"")

    def _break_if_too_long(self) -> bytes:
        return self.flush() if len(self._held) >= self._limit else b""


def prefix_lines(lines: bytes, prefix: bytes) -> bytes:
    """Put ``prefix`` in front of each line of a block that is empty or ends with a newline."""
    if not lines:
        return b""
    return prefix + lines[:-1].replace(b"\n", b"\n" + prefix) + b"\n"


def matching_lines(lines: bytes, needles: Sequence[bytes]) -> bytes:
    """Those lines of a block that contain one of the needles."""
    if not any(needle in lines for needle in needles):
        return b""
    kept = (line for line in lines.splitlines(keepends=True) if any(needle in line for needle in needles))
    return b"".join(kept)


def line_prefix(template: str | None, role: str, rank: int, local_rank: int, host: str) -> bytes:
    """What marks a worker's lines: ``[<role><local_rank>]:`` unless a template says otherwise."""
    if not template:
        return f"[{role}{local_rank}]:".encode(errors="surrogateescape")
    values = {"role_name": role, "rank": str(rank), "local_rank": str(local_rank), "hostname": host}
    return Template(template).safe_substitute(values).encode(errors="surrogateescape")


class Tail:
    """The last bytes of a stream."""

    def __init__(self, limit: int = TAIL_LIMIT) -> None:
        self._kept = bytearray()
        self._limit = limit

    def add(self, data: bytes) -> None:
        wanted = self._limit + 1  # one byte more tells whether the tail begins inside a line
        self._kept += data[-wanted:]
        if len(self._kept) > 2 * wanted:  # trimmed now and then, not at each short write
            del self._kept[:-wanted]

    def text(self) -> str:
        """The tail from the start of a line on, undecodable bytes replaced."""
        return tail_text(bytes(self._kept), self._limit)


def tail_text(data: bytes, limit: int = TAIL_LIMIT) -> str:
    """The last ``limit`` bytes as text; a line cut in two by the limit is left out if others remain."""
    if len(data) > limit:
        data = data[-limit:]
        first_break = data.find(b"\n", 0, -1)
        data = data[first_break + 1 :]
    return data.decode(errors="replace")
