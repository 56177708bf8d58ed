"""As much HTTP/2 as an attacker needs: several gRPC streams on one connection, said in bytes of one's own.

gRPC's client keeps rules that an attacker does not: it ends what it begins, and comes from one address.
This one sends whatever it is given from any address of the loopback, and notes what each stream was answered.
"""

from __future__ import annotations

import asyncio
import contextlib
import struct
from dataclasses import dataclass, field

from elasticrun.config import Endpoint

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, RST_STREAM, SETTINGS, GOAWAY = 0, 1, 3, 4, 7
END_STREAM, END_HEADERS = 1, 4
_LARGEST_FRAME = 16_384


def frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    """One frame, well formed."""
    return struct.pack(">I", len(payload))[1:] + struct.pack(">BBI", kind, flags, stream) + payload


def call(stream: int, path: str) -> bytes:
    """The beginning of a gRPC call, its header block without any compression."""
    block = b"\x83\x86" + b"\x04" + _text(path) + b"\x01" + _text("localhost")
    block += b"\x0f\x10" + _text("application/grpc") + b"\x00" + _text("te") + _text("trailers")
    return frame(HEADERS, END_HEADERS, stream, block)


def message(stream: int, data: bytes, promised: int | None = None) -> bytes:
    """One gRPC message; ``promised`` is the length that its prefix tells, if not the true one."""
    length = len(data) if promised is None else promised
    whole = b"\0" + struct.pack(">I", length) + data
    parts = [whole[start : start + _LARGEST_FRAME] for start in range(0, len(whole), _LARGEST_FRAME)]
    return b"".join(frame(DATA, 0, stream, part) for part in parts)


def _text(value: str) -> bytes:
    return bytes([len(value)]) + value.encode()


@dataclass
class Heard:
    """What came back on a connection."""

    messages: dict[int, list[bytes]] = field(default_factory=dict)  # by stream
    ended: set[int] = field(default_factory=set)
    gone: bool = False  # the server hung up, or said that it would

    def judged(self, streams: set[int]) -> bool:
        """Whether each of the streams has an answer or an end."""
        return self.gone or streams <= self.ended | self.messages.keys()


async def attack(endpoint: Endpoint, source: str, data: bytes, wait_for: set[int], timeout: float) -> Heard:
    """Sends ``data`` after a preface and listens until the streams of ``wait_for`` are judged."""
    heard = Heard()
    try:
        reader, writer = await asyncio.open_connection(endpoint.host, endpoint.port, local_addr=(source, 0))
    except OSError:
        heard.gone = True
        return heard
    try:
        writer.write(PREFACE + frame(SETTINGS, 0, 0, b"") + data)
        listening = _listen(reader, heard, wait_for)
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            await asyncio.wait_for(listening, timeout)
    finally:
        writer.transport.abort()
    return heard


async def _listen(reader: asyncio.StreamReader, heard: Heard, wait_for: set[int]) -> None:
    buffers: dict[int, bytes] = {}
    while not heard.judged(wait_for):
        try:
            header = await reader.readexactly(9)
        except (asyncio.IncompleteReadError, OSError):
            heard.gone = True
            return
        kind, flags, stream = struct.unpack(">BBI", header[3:])
        payload = await reader.readexactly(int.from_bytes(header[:3], "big"))
        if kind == GOAWAY:
            heard.gone = True
        if kind == RST_STREAM or (kind in (DATA, HEADERS) and flags & END_STREAM):
            heard.ended.add(stream)
        if kind == DATA:
            rest = buffers.get(stream, b"") + payload
            while len(rest) >= 5 and len(rest) >= 5 + int.from_bytes(rest[1:5], "big"):
                end = 5 + int.from_bytes(rest[1:5], "big")
                heard.messages.setdefault(stream, []).append(rest[5:end])
                rest = rest[end:]
            buffers[stream] = rest
