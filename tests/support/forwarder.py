"""A TCP forwarder that is late: it stands between a host and the network, which has no other way to be slow.

    python forwarder.py MARK DELAY RATE

Connections that the packet filter redirects here are made again to where they wanted to go, and every byte
of either direction is passed on DELAY seconds after it came, at most RATE bytes a second (0: any number).
Its own connections carry MARK, so that the filter lets them pass. It prints the port that it listens on, and
ends with its stdin.

It delays what programs send, not the kernel's handshake: connecting succeeds at once, and only then waits.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
import sys
from collections import deque

_SO_ORIGINAL_DST = 80  # linux/netfilter_ipv4.h
_CHUNK = 16_384  # bytes


class Lane:
    """One direction of a connection: bytes come in, wait for their time, and go out in order."""

    def __init__(self, writer: asyncio.StreamWriter, delay: float, rate: float) -> None:
        self._writer = writer
        self._delay = delay
        self._rate = rate
        self._waiting: deque[tuple[float, bytes]] = deque()
        self._free = 0.0  # when the line has sent what was given to it before
        self._loop = asyncio.get_running_loop()

    def put(self, data: bytes) -> None:
        """Pass ``data`` on when its time has come; b"" ends the direction."""
        now = self._loop.time()
        self._free = max(self._free, now) + (len(data) / self._rate if self._rate else 0.0)
        self._waiting.append((self._free + self._delay, data))
        if len(self._waiting) == 1:
            self._loop.call_at(self._waiting[0][0], self._pass_on)

    def _pass_on(self) -> None:
        _, data = self._waiting.popleft()
        with contextlib.suppress(OSError):
            self._writer.write(data) if data else self._writer.write_eof()
        if self._waiting:
            self._loop.call_at(self._waiting[0][0], self._pass_on)

    async def follow(self, reader: asyncio.StreamReader) -> None:
        """Put in everything that comes."""
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(_CHUNK):
                self.put(data)
        self.put(b"")


def original_target(link: socket.socket) -> tuple[str, int]:
    """Where a redirected connection wanted to go."""
    raw = link.getsockopt(socket.SOL_IP, _SO_ORIGINAL_DST, 16)
    port, address = struct.unpack_from("!2xH4s", raw)
    return socket.inet_ntoa(address), port


async def connect(target: tuple[str, int], mark: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    link = socket.socket()
    link.setblocking(False)
    link.setsockopt(socket.SOL_SOCKET, socket.SO_MARK, mark)
    try:
        await asyncio.get_running_loop().sock_connect(link, target)
    except OSError:
        link.close()
        raise
    return await asyncio.open_connection(sock=link)


async def forward(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, mark: int, delay: float, rate: float
) -> None:
    try:
        far_reader, far_writer = await connect(original_target(writer.get_extra_info("socket")), mark)
    except OSError:
        writer.transport.abort()  # as the target refuses us, we refuse the source
        return
    forth, back = Lane(far_writer, delay, rate), Lane(writer, delay, rate)
    await asyncio.gather(forth.follow(reader), back.follow(far_reader))


async def main(mark: int, delay: float, rate: float) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await forward(reader, writer, mark, delay, rate)

    server = await asyncio.start_server(serve, "0.0.0.0", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    over = asyncio.Event()
    asyncio.get_running_loop().add_reader(sys.stdin.fileno(), over.set)
    await over.wait()


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]), float(sys.argv[2]), float(sys.argv[3])))
