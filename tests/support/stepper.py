"""A worker that makes steps together with its peers and reports them, and does one odd thing on the way.

    stepper.py STEPS [RANK:STEP:WHAT:SECONDS]

It needs no torch: the ranks wait for one another by a socket with a name. Before that step, in round 0
only, that rank does WHAT:

    stick     waits for a lock that nobody gives back
    evaluate  works for so many seconds without a sign of life
    save      saves a checkpoint that takes so many seconds
    pause     waits for so many seconds
    train     as pause, while steps are reported by an optimizer instead
"""

from __future__ import annotations

import os
import random
import socket
import sys
import threading

import elasticrun

STEP = 0.02  # seconds
RETRY = 0.05


def wait(seconds: float) -> None:
    threading.Event().wait(seconds)


class Peers:
    """All ranks of the world; rank 0 collects a byte from each, then answers each."""

    def __init__(self) -> None:
        # By a name that is as much their own as the store's port, at which the launcher may serve the store.
        self._place = f"\0stepper.{os.environ['MASTER_ADDR']}.{os.environ['MASTER_PORT']}"
        rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        if rank == 0:
            with socket.socket(socket.AF_UNIX) as listener:
                listener.bind(self._place)
                listener.listen()
                self._links = [listener.accept()[0] for _ in range(size - 1)]
        else:
            self._links = [self._reach()]
        self._leads = rank == 0

    def _reach(self) -> socket.socket:
        while True:
            link = socket.socket(socket.AF_UNIX)
            try:
                link.connect(self._place)
            except OSError:
                link.close()
                wait(RETRY)
            else:
                return link

    def barrier(self) -> None:
        """Return once everybody is here."""
        if not self._leads:
            self._links[0].sendall(b".")
        for link in self._links:
            if not link.recv(1):
                sys.exit("a peer is gone")
        if self._leads:
            for link in self._links:
                link.sendall(b".")


def stick() -> None:
    lock = threading.Lock()
    lock.acquire()
    print("stuck", flush=True)
    lock.acquire()


def evaluate(seconds: float) -> None:
    """Each time one looks, it is at another depth."""
    for _ in range(round(seconds / STEP)):
        descend(random.randrange(100))


def descend(depth: int) -> None:
    if depth:
        descend(depth - 1)
    else:
        wait(STEP)


def misbehave(what: str, seconds: float) -> None:
    match what:
        case "stick":
            stick()
        case "evaluate":
            evaluate(seconds)
        case "save":
            with elasticrun.checkpointing():
                wait(seconds)
        case _:
            wait(seconds)
    print("on it goes", flush=True)


def main() -> None:
    steps = int(sys.argv[1])
    rank, at, what, seconds = (sys.argv[2] if len(sys.argv) > 2 else "-1:-1:nothing:0").split(":")
    is_odd = os.environ["RANK"] == rank and os.environ["ELASTICRUN_ROUND"] == "0"
    report = elasticrun.report_step
    if what == "train":
        from torch.optim.optimizer import step as report  # type: ignore[attr-defined,no-redef]  # a fake one
    peers = Peers()
    for step in range(steps):
        if is_odd and step == int(at):
            misbehave(what, float(seconds))
        wait(STEP)
        peers.barrier()
        report()


if __name__ == "__main__":
    main()
