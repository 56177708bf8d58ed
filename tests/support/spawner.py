"""A spawner whose process has been nothing else before, as that of an agent.

A test's own process may not be forked without an exec. Once it has had a store of torch, or a server of gRPC,
each fork of it, and each fork of those, closes two files by their numbers and opens others in their place:
libuv and gRPC do that in ``pthread_atfork``. Which numbers these are depends on the tests that ran before.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys

from elasticrun.agent.spawner import warm_parents
from elasticrun.agent.spawner.client import SpawnerHandle
from elasticrun.errors import NodeFaultError

_TIMES = ("IMPORT_TIMEOUT", "FORK_TIMEOUT", "IDLE")
_CODE = """
import json, socket, sys
from elasticrun.agent.spawner import process, warm_parents
for name, seconds in json.loads(sys.argv[3]).items():
    setattr(warm_parents, name, seconds)
process.spawner_main(socket.socket(), socket.socket(fileno=int(sys.argv[1])), int(sys.argv[2]), None)
"""


def clean_spawner() -> SpawnerHandle:
    """Start a spawner as a child of this process, with the times of ``warm_parents`` as they are here.

    Raises NodeFaultError as ``fork_spawner`` does.
    """
    ours, theirs = socket.socketpair()
    with theirs:
        theirs.set_inheritable(True)
        times = json.dumps({name: getattr(warm_parents, name) for name in _TIMES})
        argv = [sys.executable, "-c", _CODE, str(theirs.fileno()), str(os.getpid()), times]
        try:
            blocked = signal.valid_signals()  # until it is ready for them, as by ``fork_spawner``
            pid = os.posix_spawn(sys.executable, argv, os.environ, setsigmask=blocked)
        except OSError as error:
            ours.close()
            raise NodeFaultError(f"cannot start a spawner: {error.strerror}") from error
    return SpawnerHandle(pid, ours)
