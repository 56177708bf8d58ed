"""Leads connections to a port of an emulated host to the same port of this box, as a cluster leads pods to
its API server.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import socket
import threading
from pathlib import Path

from tests.support.hosts import Namespace

_NETWORK = 0x40000000  # CLONE_NEWNET


class Relay:
    """Of one port of the loopback, until it is closed."""

    def __init__(self, namespace: Namespace, port: int) -> None:
        self._port = port
        self._listener = _listen(namespace, port)
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                inside, _ = self._listener.accept()
                threading.Thread(target=self._relay, args=(inside,), daemon=True).start()

    def _relay(self, inside: socket.socket) -> None:
        with inside, socket.create_connection(("127.0.0.1", self._port)) as outside:
            back = threading.Thread(target=_pump, args=(outside, inside), daemon=True)
            back.start()
            _pump(inside, outside)
            back.join()

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()


def _listen(namespace: Namespace, port: int) -> socket.socket:
    """A listener of another network, where it stays; made by a thread that goes there for that, and ends."""
    made: list[socket.socket] = []

    def work() -> None:
        home = os.open(Path("/proc") / str(namespace.pid) / "ns" / "net", os.O_RDONLY)
        try:
            if ctypes.CDLL(None, use_errno=True).setns(home, _NETWORK):
                return
            made.append(socket.create_server(("127.0.0.1", port)))
        finally:
            os.close(home)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    return made[0]


def _pump(source: socket.socket, sink: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(65536):
            sink.sendall(data)
    with contextlib.suppress(OSError):
        sink.shutdown(socket.SHUT_WR)
