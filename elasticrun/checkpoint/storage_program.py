"""The process that writes saved states to a storage: ``python storage_program.py < SOCKET``.

It is started by its path, mostly in a fork of the warm parent, with the job's interpreter. The agent talks to
it on that socket (``storage_writer.py``), and it ends with the agent. It ignores signals that a user or a
scheduler sends to all processes: the agent decides how long it may write.
"""

from __future__ import annotations

import importlib
import os
import signal
import socket
import sys

#: What a terminal, a scheduler or a script may send to all processes.
IGNORED = ("SIGHUP", "SIGINT", "SIGQUIT", "SIGTERM", "SIGUSR1", "SIGUSR2", "SIGPIPE", "SIGTSTP", "SIGALRM")


def main() -> None:
    """Do what the agent says; what goes wrong here ends this process with a traceback."""
    for name in IGNORED:
        signal.signal(getattr(signal, name), signal.SIG_IGN)
    folder = os.path.dirname(os.path.abspath(__file__))  # noqa: PTH100, PTH120 pathlib takes milliseconds
    root = os.path.dirname(os.path.dirname(folder))  # noqa: PTH120
    # The modules beside this file could hide others; this interpreter may not have the package installed.
    sys.path[:] = [*(entry for entry in sys.path if entry != folder), root]
    control = socket.socket(fileno=os.dup(0))
    control.setblocking(True)  # whatever the imports have made the default
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    os.close(null)
    importlib.import_module("elasticrun.checkpoint.storage_writer").serve(control)


if __name__ == "__main__":
    main()
