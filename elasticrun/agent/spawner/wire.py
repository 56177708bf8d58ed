"""The messages between agent and spawner, as bytes.

Each message is a 4-byte length and a JSON object. Both ends are the same program, one forked from the
other, so a message is never checked. File descriptors travel as SCM_RIGHTS with the first byte of the
message they belong to; one ``recvmsg`` never returns those of two messages.
"""

from __future__ import annotations

import json
import socket
from array import array
from collections.abc import Iterator
from typing import Any

Message = dict[str, Any]

#: A spawn request carries the worker's stdin, stdout and stderr.
STD_FDS = 3
#: How much either end reads at once.
READ_BYTES = 65536


def encode(message: Message) -> bytes:
    """One message as it goes over the wire; undecodable bytes (surrogates) survive JSON's escapes."""
    body = json.dumps(message).encode("ascii")
    return len(body).to_bytes(4, "big") + body


class Frames:
    """Cuts a byte stream into messages; keeps what is not complete yet."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[Message]:
        """The messages that ``data`` completes."""
        self._buffer += data
        while (message := self._take()) is not None:
            yield message

    def _take(self) -> Message | None:
        end = 4 + int.from_bytes(self._buffer[:4], "big")
        if len(self._buffer) < 4 or len(self._buffer) < end:
            return None
        message: Message = json.loads(self._buffer[4:end])
        del self._buffer[:end]
        return message


def receive(control: socket.socket) -> tuple[bytes, list[int], bool]:
    """Receive bytes, their descriptors, and whether some descriptors could not be taken in.

    Not ``socket.recv_fds``: it ignores its flags, and descriptors without CLOEXEC leak into workers.
    """
    room = socket.CMSG_SPACE(STD_FDS * array("i").itemsize)
    data, ancillary, flags, _ = control.recvmsg(READ_BYTES, room, socket.MSG_CMSG_CLOEXEC)
    fds = array("i")
    for _, _, raw in ancillary:
        fds.frombytes(raw[: len(raw) - len(raw) % fds.itemsize])
    return data, fds.tolist(), bool(flags & socket.MSG_CTRUNC)
