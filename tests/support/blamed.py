"""A worker of a job in which one rank fails, and its peers notice only that it is gone.

    blamed.py CASE DIRECTORY

Rank 0 keeps a connection to every other rank and reads from it, as a collective does; it fails with the words
of gloo once one breaks. What the failing ranks do:

    slow        raises, closes its socket, and takes 0.4 s to end, in an ``atexit`` function
    finally     the same, but the 0.4 s pass in a ``finally`` clause, so that the traceback comes after them
    recorded    as slow, and leaves an error file as torch's ``record`` does, but nothing on stderr
    kill        is killed by SIGKILL
    two         ranks 1 and 2 raise at once
"""

from __future__ import annotations

import atexit
import json
import os
import signal
import socket
import sys
import threading
import time
from pathlib import Path

RANK = int(os.environ["RANK"])
SIZE = int(os.environ["WORLD_SIZE"])
BAD = "the data are bad"
SLOW = 0.4  # seconds that a worker takes to end


def linger() -> None:
    threading.Event().wait(SLOW)


def listen(directory: Path) -> list[socket.socket]:
    """Rank 0: the connections to all others. A FIFO tells them when to come."""
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(directory / "hub"))
        server.listen(SIZE)
        gate = os.open(directory / "gate", os.O_RDWR)
        found = [server.accept()[0] for _ in range(SIZE - 1)]
        os.close(gate)
        return found


def connect(directory: Path) -> socket.socket:
    os.close(os.open(directory / "gate", os.O_RDONLY))
    made = socket.socket(socket.AF_UNIX)
    made.connect(str(directory / "hub"))
    made.recv(1)  # all are there
    return made


def wait_for_all(peers: list[socket.socket]) -> None:
    """What rank 0 does for ever: it fails as soon as one is gone."""
    for peer in peers:
        peer.sendall(b".")
    import select

    gone, _, _ = select.select(peers, [], [])
    raise RuntimeError(f"[/gloo/transport/tcp/pair.cc:598] Connection closed by peer [127.0.0.1]:{len(gone)}")


def fail(case: str, link: socket.socket) -> None:
    match case:
        case "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        case "finally":
            try:
                raise ValueError(BAD)
            finally:
                link.close()
                linger()
        case "recorded":
            extra = {"py_callstack": f"Traceback\nValueError: {BAD}", "timestamp": str(int(time.time()))}
            told = {"message": {"message": f"ValueError: {BAD}", "extraInfo": extra}}
            Path(os.environ["TORCHELASTIC_ERROR_FILE"]).write_text(json.dumps(told))
            link.close()
            linger()
            sys.exit(1)
        case "slow":
            atexit.register(linger)
            link.close()
            raise ValueError(BAD)
        case _:
            raise ValueError(BAD)


def main() -> None:
    case, directory = sys.argv[1], Path(sys.argv[2])
    if RANK == 0:
        wait_for_all(listen(directory))
    else:
        link = connect(directory)
        if RANK == 1 or case == "two":
            fail(case, link)
        threading.Event().wait()


if __name__ == "__main__":
    main()
