"""The socket by which workers reach the memory for their state. Behind it is nothing until one of them comes.

Most jobs save nothing here, and a launch should not pay for those that do, so the first connection loads the
rest.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import Callable
from typing import TYPE_CHECKING

from elasticrun.core.protocol.messages import Assignment, CommitId, Holding

if TYPE_CHECKING:
    from elasticrun.agent.memory.server import MemoryServer

logger = logging.getLogger(__name__)

#: Tells a worker where to find us: version, name of the socket, token, local rank; or version and "none".
VARIABLE = "ELASTICRUN_MEMORY"
VERSION = "1"
_BACKLOG = 64
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

    def judge(self, kept: CommitId | None, void: CommitId | None) -> None:
        """Nothing is saved."""

    def close(self) -> None:
        """Nothing is open."""


class MemoryGate:
    """Listens for the workers of one node. Made inside the running loop; OSError if it cannot listen."""

    def __init__(self, local_world_size: int, on_holdings: Callable[[tuple[Holding, ...]], None]) -> None:
        """``on_holdings`` is called from the loop with all that this node holds, whenever that changes."""
        self._size = local_world_size
        self._on_holdings = on_holdings
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

    def judge(self, kept: CommitId | None, void: CommitId | None) -> None:
        """Hear what became of the commits of the round that runs."""
        if self._server is not None:
            self._server.judge(kept, void)

    def close(self) -> None:
        """Close everything. The memory is freed once no worker maps it."""
        if self._later is not None:
            self._later.cancel()
        self._loop.remove_reader(self._listener)
        self._listener.close()
        if self._server is not None:
            self._server.close()

    def _knocked(self) -> None:
        if self._server is None:
            from elasticrun.agent.memory.server import MemoryServer

            self._server = MemoryServer(self._size, self._token, self._on_holdings)
            if self._assignment is not None:
                self._server.begin(self._assignment)
        try:
            self._server.accept(self._listener)
        except OSError as error:  # no descriptor is left: look again later, as the worker still waits
            logger.warning("a worker that wants to save its state has to wait: %s", error.strerror)
            self._loop.remove_reader(self._listener)
            self._later = self._loop.call_later(_PAUSE, self._loop.add_reader, self._listener, self._knocked)
