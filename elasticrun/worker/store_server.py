"""Serves the workers' store of one round after the other: ``python store_server.py < SOCKET``.

Each order on that socket is a port and a descriptor, a socket that listens there; or a dash: the round is
over. Each round has a store of its own. The server is started by its path, mostly in a fork of the warm
parent, and needs nothing but torch: the interpreter is the job's and may not have elasticrun. It never
touches a device, and ends with the process that gives the orders. It ignores signals that a user or a
scheduler sends to all processes: workers that are told to stop may need the store for that.
"""

from __future__ import annotations

import array
import importlib
import os
import signal
import socket
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

#: What a terminal, a scheduler or a script may send to all processes.
IGNORED = ("SIGHUP", "SIGINT", "SIGQUIT", "SIGTERM", "SIGUSR1", "SIGUSR2", "SIGPIPE", "SIGTSTP", "SIGALRM")
#: Where torch connects to the store that it has just opened.
HERE = "127.0.0.1"
ORDER_BYTES = 16
CLOSE = b"-"


def main() -> None:
    """Serve until nobody gives orders; what goes wrong ends this process with a traceback."""
    for name in IGNORED:
        signal.signal(getattr(signal, name), signal.SIG_IGN)
    folder = os.path.dirname(os.path.abspath(__file__))  # noqa: PTH100, PTH120 pathlib takes milliseconds
    sys.path[:] = [entry for entry in sys.path if entry != folder]  # its modules could hide others
    control = socket.socket(fileno=os.dup(0))
    control.setblocking(True)  # whatever the imports have made the default
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    os.close(null)
    distributed: Any = importlib.import_module("torch.distributed")
    stores: list[Any] = []
    for order, fds in orders(control):
        stores.clear()  # before the next one opens: it may be at the same port
        if order != CLOSE:
            stores.append(open_store(distributed, int(order), *fds))


def orders(control: socket.socket) -> Iterator[tuple[bytes, list[int]]]:
    """Each order with its descriptors, until the other end is closed."""
    room = socket.CMSG_SPACE(array.array("i").itemsize)
    while True:
        order, ancillary, _, _ = control.recvmsg(ORDER_BYTES, room, socket.MSG_CMSG_CLOEXEC)
        if not order:
            return
        fds = array.array("i")
        for _, _, raw in ancillary:
            fds.frombytes(raw)
        yield order, fds.tolist()


def open_store(distributed: Any, port: int, listener: int) -> Any:
    """Torch's store; threads of torch's serve it as long as this value lives."""
    terms: dict[str, Any] = {"is_master": True, "wait_for_workers": False, "master_listen_fd": listener}
    try:
        return distributed.TCPStore(HERE, port, **terms)
    except NotImplementedError:  # torch 2.4: only its older backend serves on a socket that is given
        return distributed.TCPStore(HERE, port, use_libuv=False, **terms)


if __name__ == "__main__":
    main()
