"""Somebody who serves a master's port, welcomes each agent and then sends it away: ``thief.py HOST PORT``.

Prints a line once it serves, and ends with its stdin.
"""

from __future__ import annotations

import asyncio
import sys

from elasticrun.core.protocol.messages import (
    AttachedMessage,
    Hello,
    RejectCode,
    Rejected,
    Welcome,
)
from elasticrun.rpc.server import MasterServer, Session


class Thief:
    """A ``SessionHandler`` that is no master's."""

    def attached(self, session: Session, hello: Hello) -> None:
        session.send(Welcome(hello.epoch + 1000, 10.0))
        session.send(Rejected(RejectCode.EXCLUDED, "so says the thief"))
        session.close()

    def received(self, session: Session, message: AttachedMessage) -> None:
        pass

    def detached(self, session: Session, why: str) -> None:
        pass


async def main(host: str, port: int) -> None:
    server = MasterServer(Thief(), lambda hello: None)
    await server.start(host, port)
    print("serving", flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    await server.stop(0.0)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2])))
