"""The socket by which workers reach the memory for their state. Behind it is nothing until one of them comes.

Most jobs save nothing here, and a launch should not pay for those that do, so the first connection loads the
rest.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from typing import TYPE_CHECKING

from elasticrun.agent.memory.peering import OnStock, Peering
from elasticrun.core.protocol.messages import Assignment, JudgeCommits

if TYPE_CHECKING:
    from elasticrun.agent.memory.relay import DataRelay
    from elasticrun.agent.memory.server import MemoryServer
    from elasticrun.agent.memory.storage_access import StorageAccess
    from elasticrun.core.protocol.storing import StoreOrder

logger = logging.getLogger(__name__)

#: Tells a worker where to find us: version, name of the socket, token, local rank; or version and "none".
VARIABLE = "ELASTICRUN_MEMORY"
VERSION = "1"
#: More than all workers of a node may open at once: beyond it Linux refuses who calls.
_BACKLOG = 1024
_PAUSE = 1.0  # seconds


class ShutGate:
    """Stands for a gate that cannot be opened.

    A worker must hear of it: else it would start anew while those of other nodes restore what was saved.
    """

    def environment(self, local_rank: int) -> dict[str, str]:
        """What tells one worker that nobody is here."""
        return {VARIABLE: f"{VERSION}:none"}

    def begin(self, assignment: Assignment) -> None:
        """No worker comes."""

    def judge(self, verdict: JudgeCommits) -> None:
        """Nothing is saved."""

    def store(self, order: StoreOrder | None) -> None:
        """Nothing is here to be written."""

    def close(self) -> None:
        """Nothing is open."""


class MemoryGate:
    """Listens for the workers of one node. Made inside the running loop; OSError if it cannot listen."""

    def __init__(
        self,
        local_world_size: int,
        on_stock: OnStock,
        peering: Peering | None = None,
        relay: DataRelay | None = None,
        storage: StorageAccess | None = None,
    ) -> None:
        """``on_stock`` is called from the loop with what this node holds, where it takes copies in, with
        which order to copy it is done, and how its order for the storage fares, whenever that changes.

        ``peering``: None for no copies. ``relay``: for what workers ask about shared data. ``storage``: None
        if the job has none.
        """
        self._size = local_world_size
        self._on_stock = on_stock
        self._peering = peering
        self._relay = relay
        self._storage = storage
        self._loop = asyncio.get_running_loop()
        self._assignment: Assignment | None = None
        self._server: MemoryServer | None = None
        self._later: asyncio.TimerHandle | None = None
        self._token = os.urandom(16).hex()
        self._name = f"elasticrun-{os.urandom(16).hex()}"
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK)
        try:
            self._listener.bind(f"\0{self._name}")
            self._listener.listen(_BACKLOG)
        except OSError:
            self._listener.close()
            raise
        self._loop.add_reader(self._listener, self._knocked)

    def environment(self, local_rank: int) -> dict[str, str]:
        """What one worker needs in its environment to find us."""
        return {VARIABLE: ":".join((VERSION, self._name, self._token, str(local_rank)))}

    def begin(self, assignment: Assignment) -> None:
        """Workers of a round are about to start; nothing is left of those before."""
        self._assignment = assignment
        if self._server is not None:
            self._server.begin(assignment)

    def judge(self, verdict: JudgeCommits) -> None:
        """Hear what became of the commits of the round that runs."""
        if self._server is not None:
            self._server.judge(verdict)

    def store(self, order: StoreOrder | None) -> None:
        """Hear what has to be written to the storage from now on."""
        if self._server is None and order is not None:
            self._open()
        if self._server is not None:
            self._server.store(order)

    def close(self) -> None:
        """Close everything. The memory is freed once no worker maps it."""
        if self._later is not None:
            self._later.cancel()
        self._loop.remove_reader(self._listener)
        self._listener.close()
        if self._server is not None:
            self._server.close()

    def _knocked(self) -> None:
        server = self._server or self._open()
        try:
            server.accept(self._listener)
        except OSError as error:  # no descriptor is left: look again later, as the worker still waits
            logger.warning("a worker that wants to save its state has to wait: %s", error.strerror)
            self._loop.remove_reader(self._listener)
            self._later = self._loop.call_later(_PAUSE, self._loop.add_reader, self._listener, self._knocked)

    def _open(self) -> MemoryServer:
        from elasticrun.agent.memory.server import MemoryServer

        made = MemoryServer(
            self._size, self._token, self._on_stock, self._peering, self._relay, self._storage
        )
        self._server = made
        if self._assignment is not None:
            made.begin(self._assignment)
        return made
