"""Blocking sockets whose every wait ends at a deadline, and the one error of this package."""

from __future__ import annotations

import errno
import json
import os
import re
import select
import socket
import threading
import time
from typing import Any

#: Seconds between two attempts to reach a peer that is not there yet.
RETRY = 0.1
#: Seconds for one attempt; the kernel would repeat a lost SYN for minutes.
ATTEMPT = 3.0
#: Longest line of the handshake in bytes.
MAX_LINE = 65_536


class ProbeError(Exception):
    """What is wrong, as one sentence for the report."""


def remaining(deadline: float) -> float:
    """Seconds until ``deadline`` of the monotonic clock; TimeoutError once it has passed."""
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError(errno.ETIMEDOUT, os.strerror(errno.ETIMEDOUT))
    return left


def pause(deadline: float, seconds: float = RETRY) -> None:
    """Wait before the next attempt; TimeoutError after ``deadline``."""
    threading.Event().wait(min(seconds, remaining(deadline)))


def why(error: BaseException) -> str:
    """The first sentence of an error, without the number of an OSError and the place in gloo's sources.

    Of an error of NCCL, what the library has said last.
    """
    if isinstance(error, TimeoutError):
        return os.strerror(errno.ETIMEDOUT)
    number = getattr(error, "errno", None)
    if isinstance(number, int) and number > 0:  # negative: a resolver's error
        return os.strerror(number)
    said, _, of_nccl = str(error).strip().partition("\nLast error:\n")
    line = (of_nccl.strip() or said).partition("\n")[0].partition(". ")[0]
    return re.sub(r"^\[\S+:\d+\] ", "", line) or type(error).__name__


def plain_address(sockaddr: Any) -> str:
    """The host of a socket's address; IPv4 seen through an IPv6 socket is IPv4 again."""
    return str(sockaddr[0]).removeprefix("::ffff:")


def listen(host: str, port: int) -> socket.socket:
    """A listening socket; no ``host`` means every address of IPv4 and IPv6. Raises OSError."""
    if not host and socket.has_dualstack_ipv6():
        return socket.create_server(("", port), family=socket.AF_INET6, dualstack_ipv6=True)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    return socket.create_server((host, port), family=family)


def connect(host: str, port: int, deadline: float) -> socket.socket:
    """A connection, made in one attempt. Raises OSError."""
    connection = socket.create_connection((host, port), timeout=min(ATTEMPT, remaining(deadline)))
    return tuned(connection)


def accept(listener: socket.socket, deadline: float) -> socket.socket:
    """The next connection. Raises OSError."""
    listener.settimeout(remaining(deadline))
    connection, _ = listener.accept()
    return tuned(connection)


def tuned(connection: socket.socket) -> socket.socket:
    """Make a connection send small messages at once and never block."""
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setblocking(False)
    return connection


def receive(connection: socket.socket, deadline: float) -> bytes:
    """Receive one line, not too long; OSError if there is none."""
    line = bytearray()
    while not line.endswith(b"\n"):
        wait_for([connection], [], deadline)
        line += received(connection.recv(1))
        if len(line) > MAX_LINE:
            raise ConnectionError("the peer speaks another protocol")
    return bytes(line)


def parse_line(line: bytes) -> dict[str, Any]:
    """The JSON object on a line; ConnectionError if it is something else."""
    try:
        message = json.loads(line)
    except ValueError:
        message = None
    if not isinstance(message, dict):
        raise ConnectionError("the peer speaks another protocol")
    return message


def exchange(
    right: socket.socket,
    outgoing: memoryview,
    left: socket.socket,
    incoming: memoryview,
    deadline: float,
) -> None:
    """Send all of ``outgoing`` to the right while all of ``incoming`` is filled from the left."""
    while outgoing or incoming:
        readable, writable = wait_for([left] if incoming else [], [right] if outgoing else [], deadline)
        if writable:
            outgoing = outgoing[right.send(outgoing) :]
        if readable:
            incoming = incoming[received(left.recv_into(incoming)) :]


def received(taken: Any) -> Any:
    """The result of a read; ConnectionResetError at the end of the stream."""
    if not taken:
        raise ConnectionResetError("the connection was closed")
    return taken


def wait_for(
    readers: list[socket.socket], writers: list[socket.socket], deadline: float
) -> tuple[list[socket.socket], list[socket.socket]]:
    """Those that are ready, at least one; TimeoutError if there is none before ``deadline``."""
    readable, writable, _ = select.select(readers, writers, [], remaining(deadline))
    if not readable and not writable:
        raise TimeoutError(errno.ETIMEDOUT, os.strerror(errno.ETIMEDOUT))
    return readable, writable
