"""JSON objects that are compressed if they are long, so that each fits into one message of a Unix socket."""

from __future__ import annotations

import binascii
import json
import socket
import zlib
from typing import Any

#: The most bytes of a message. The longest that is needed tells what is left of shared data, with as many
#: pieces as the protocol allows (``core/protocol/data.py``). Linux takes no more by default.
MAX_MESSAGE = 384 << 10
#: The most bytes of JSON that ``unpacked`` reads.
MAX_UNPACKED = 1 << 20
#: Text that is longer is compressed.
LONG = 16 << 10


def make_room(channel: socket.socket) -> None:
    """Have a Unix socket send messages of ``MAX_MESSAGE`` bytes; by default it takes half of that."""
    channel.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, MAX_MESSAGE)


def packed(data: dict[str, Any]) -> dict[str, Any] | str:
    """The same; as a compressed text if it is long."""
    text = json.dumps(data, separators=(",", ":")).encode()
    if len(text) <= LONG:
        return data
    return binascii.b2a_base64(zlib.compress(text), newline=False).decode()


def unpacked(data: dict[str, Any] | str) -> dict[str, Any]:
    """What ``packed`` was given. ValueError if this is no such text, or is too long."""
    if not isinstance(data, str):
        return data
    reader = zlib.decompressobj()
    try:
        text = reader.decompress(binascii.a2b_base64(data), MAX_UNPACKED)
    except zlib.error as error:
        raise ValueError(f"it cannot be unpacked: {error}") from None
    if not reader.eof:
        raise ValueError(f"it is cut off, or has more than {MAX_UNPACKED} bytes when it is unpacked")
    try:
        found = json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    if not isinstance(found, dict):
        raise ValueError("it is no JSON object")
    return found
