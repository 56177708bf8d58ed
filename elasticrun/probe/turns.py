"""Agents that share a host measure one after the other.

Probes of one check begin at the same moment. On a host of several agents they would measure one another: a
core that two of them use is half a core to each, and which node gets more of it is chance. So a probe that
measures its compute has the host to itself among probes: no other one measures, and heavy work of another
(importing torch, an all-gather) waits until it is over, or is waited for. Work other than a probe's is not
held up, and slows the node down in the report as it does in training.

The turn is an flock on a directory that all processes of a host see: exclusive for measuring, shared for the
rest. It needs no file, so none can be left behind, and it ends with the process, however that ends. The
directory is never on a network's file system, where the turns would be those of all hosts.

Turns are a courtesy. A probe that does not get one in time, or cannot have one (another system, another
container), goes on without it.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator

from .sockets import pause

#: In memory and the same for all of a host, on every Linux.
PLACE = "/dev/shm"
#: Seconds between two attempts.
RETRY = 0.02


@contextlib.contextmanager
def alone(deadline: float, place: str = PLACE) -> Iterator[bool]:
    """Keep other probes from measuring and heavy work; False if no turn came before ``deadline``."""
    with _turn(fcntl.LOCK_EX, deadline, place) as granted:
        yield granted


@contextlib.contextmanager
def beside(deadline: float, place: str = PLACE) -> Iterator[bool]:
    """Keep other probes from measuring; False if no turn came before ``deadline``."""
    with _turn(fcntl.LOCK_SH, deadline, place) as granted:
        yield granted


@contextlib.contextmanager
def _turn(kind: int, deadline: float, place: str) -> Iterator[bool]:
    try:
        directory = os.open(place, os.O_RDONLY | os.O_DIRECTORY)
    except OSError:
        yield False
        return
    try:
        yield _locked(directory, kind, deadline)
    finally:
        os.close(directory)


def _locked(directory: int, kind: int, deadline: float) -> bool:
    while True:
        try:
            fcntl.flock(directory, kind | fcntl.LOCK_NB)
        except BlockingIOError:
            try:
                pause(deadline, RETRY)
            except TimeoutError:
                return False
        except OSError:
            return False
        else:
            return True
