"""Writes what an agent has in memory to a storage, in a process of its own.

The agent (``agent/workers/storage_writers.py``) sends one order, as JSON, and then, for each number that is
asked for, a piece of a part with the descriptor of its memory. The answers tell that something was written,
and in the end that all is done, or what was in the way. So the agent sees a storage that hangs, and nothing
that goes wrong here reaches it, or a worker.
"""

from __future__ import annotations

import array
import json
import mmap
import os
import socket
import time
from collections.abc import Mapping
from typing import Any

import torch

from elasticrun.checkpoint.distcp import Share, finish, write_part
from elasticrun.checkpoint.parts import Part
from elasticrun.core.protocol.commits import CommitId
from elasticrun.core.state.retrying import Trouble
from elasticrun.errors import ElasticRunError
from elasticrun.storage.catalog import prune
from elasticrun.storage.disk import DiskStore
from elasticrun.storage.errors import StorageError, StorageGoneError
from elasticrun.storage.opening import open_store
from elasticrun.storage.priority import lower_priority
from elasticrun.storage.records import CommitName
from elasticrun.storage.store import Store

MAX_MESSAGE = 64 << 10
#: Seconds between two messages that something was written, at least.
PACE = 0.5


class Agent:
    """The agent, as this process sees it. An end of the connection ends this process: nobody needs it."""

    def __init__(self, control: socket.socket) -> None:
        self._control = control
        self._told = 0.0

    def order(self) -> dict[str, Any]:
        """What is to be done."""
        return self._receive()[0]

    def piece(self, number: int) -> Part:
        """One rank's part, in place."""
        self.tell(ask=number)
        found, fd = self._receive()
        try:
            memory = mmap.mmap(fd, found["length"], mmap.MAP_SHARED, mmap.PROT_READ)
        finally:
            os.close(fd)
        return Part(found["rank"], memoryview(memory), found["digest"])

    def moved(self, count: int) -> None:
        """Tell that something was written, now and then."""
        if count and time.monotonic() - self._told > PACE:
            self._told = time.monotonic()
            self.tell(moved=count)

    def tell(self, **message: Any) -> None:
        """Say something."""
        self._control.sendall(json.dumps(message).encode())

    def _receive(self) -> tuple[dict[str, Any], int]:
        room = socket.CMSG_SPACE(array.array("i").itemsize)
        data, ancillary, _, _ = self._control.recvmsg(MAX_MESSAGE, room, socket.MSG_CMSG_CLOEXEC)
        if not data:
            raise SystemExit(0)
        fds = array.array("i")
        for _, _, raw in ancillary:
            fds.frombytes(raw)
        return json.loads(data), fds[0] if fds else -1


def serve(control: socket.socket) -> None:
    """Carry out one order, and say how it went."""
    torch.set_num_threads(1)
    agent = Agent(control)
    order = agent.order()
    if not order["urgent"]:
        lower_priority()
    try:
        store = open_here(order["url"], order["device"])
        note = carry_out(store, order, agent)
    except StorageError as error:
        agent.tell(trouble=error.trouble.value, reason=str(error))
    except ElasticRunError as error:
        agent.tell(trouble=Trouble.DAMAGED.value, reason=str(error))
    except Exception as error:  # noqa: BLE001 the agent says it, and tries again
        agent.tell(trouble=Trouble.OTHER.value, reason=f"{type(error).__name__}: {error}")
    else:
        agent.tell(done=True, note=note, device=device_of(store))


def open_here(url: str, device: int | None) -> Store:
    """The store at a URL. ``device``: the file system that it was on before; None: nobody has written there.

    Raises:
        StorageError: it cannot be opened, or another file system is there now: a disk was unmounted.
        UsageError: there is nothing that could read such a URL.
    """
    store = open_store(url, make=device is None)
    if device is not None and device_of(store) != device:
        raise StorageGoneError(
            f"cannot write to {url}: another file system is there than before; {StorageGoneError.advice}"
        )
    return store


def device_of(store: Store) -> int:
    """The number of the file system of a directory; 0 for a URL."""
    return store.device if isinstance(store, DiskStore) else 0


def carry_out(store: Store, order: Mapping[str, Any], agent: Agent) -> str:
    """Write the parts that are ordered, or finish the commit. Returns what did not matter but failed.

    Raises:
        StorageError: the storage fails.
        CheckpointError: what is in memory is damaged.
    """
    name = CommitName(CommitId(*order["commit"]), order["run"])
    number = 0
    for part in order["parts"]:
        pieces = [agent.piece(each) for each in range(number, number + part["pieces"])]
        number += len(pieces)
        write_part(store, name, part["number"], pieces, Share(part["which"], part["of"]), agent.moved)
    if order["parts"]:
        return ""
    finish(store, name, order["files"], partial=order["partial"])
    return _prune(store, order["keep_last"], order["keep_for"])


def _prune(store: Store, keep_last: int | None, keep_for: float | None) -> str:
    """Remove what is not kept. A storage that fails at that has the commit all the same."""
    try:
        prune(store, time.time(), keep_last=keep_last, keep_for=keep_for)
    except StorageError as error:
        return f"old saved states are not removed: {error}"
    return ""
