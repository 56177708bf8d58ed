"""The caller's side of the fork server: start it, and ask it for launchers.

The server is a program of its own, so this process is never forked, whatever it has loaded. It ends with
this process, however that ends. ``Server.ask`` may be called from any thread.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import socket
import subprocess
import sys
from array import array
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from elasticrun.agent.spawner.descriptors import is_open
from elasticrun.errors import NodeFaultError
from elasticrun.launching.call import import_path

#: The modules come from where this process has them, whatever its directory.
_CODE = """\
import sys
sys.path[:] = path = {path!r}
from elasticrun.cli.isolation import isolate_as
isolate_as(path)
"""
_SERVE = """\
from elasticrun.cli.fork_server import serve
serve()
"""
#: With it ``torch.cuda.is_available()`` asks the driver's library of measurements. Without it that call
#: begins to use CUDA, and no fork of the process can.
_ASKS_SOFTLY = {"PYTORCH_NVML_BASED_CUDA_CHECK": "1"}
_END_TIMEOUT = 5.0  # seconds


class Server:
    """A running fork server of this process."""

    def __init__(self, code: str = _SERVE, output: int | None = None, early: bool = False) -> None:
        """Start it. ``code``: what it runs in the end; ``output``: a descriptor for what it prints itself.

        ``early``: a job of one node that went well is over once its workers have ended; its launcher tidies
        up beside the next job.

        Raises NodeFaultError if the host refuses a process.
        """
        self.pid = os.getpid()  # of its caller: a fork of that has to start its own
        self._early = early
        #: Modules that ranks had to import themselves: those of the next jobs find them imported.
        self.learned: set[str] = set()
        if output is None and not (is_open(2) and os.get_inheritable(2)):  # it is closed, or another file
            output = subprocess.DEVNULL
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        number = fcntl.fcntl(theirs, fcntl.F_DUPFD_CLOEXEC, 3)  # this process may have closed 0 to 2
        theirs.close()
        path = [each or str(Path.cwd()) for each in import_path()]
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-u", "-c", _CODE.format(path=path) + code, str(number), str(self.pid)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL if output is None else output,
                stderr=output,
                pass_fds=(number,),
                env={**_ASKS_SOFTLY, **os.environ},  # launchers and workers get their own
                start_new_session=True,
            )
        except OSError as error:
            self._control.close()
            raise NodeFaultError(f"cannot start the fork server: {error.strerror}") from error
        finally:
            os.close(number)

    @property
    def process(self) -> int:
        """Its pid."""
        return self._process.pid

    @property
    def is_alive(self) -> bool:
        """Whether it can be asked. One that is about to end has closed its socket before."""
        try:
            self._control.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
        except BlockingIOError:  # it never says anything, so this is no end
            return self._process.poll() is None
        except OSError:
            return False
        return False

    def ask(self, request: Mapping[str, Any], outcome: int, std: Sequence[int]) -> socket.socket:
        """Start a launcher; returns the channel to it. ``outcome``: the file it tells its end in.

        Raises NodeFaultError if the server is gone.
        """
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        learned = sorted(self.learned) if request["learns"] else []
        told = {"preload": [*request["preload"], *learned], "early": self._early and request["is_alone"]}
        text = _written({**request, **told})
        try:
            fds = array("i", [text, outcome, *std, theirs.fileno()])
            self._control.sendmsg([b"+"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, fds)])
        except OSError as error:
            ours.close()
            raise NodeFaultError(f"the fork server is gone: {error.strerror}") from error
        finally:
            theirs.close()
            os.close(text)
        return ours

    def tell(self, what: object) -> None:
        """Hand it what its code waits for before it serves, as JSON, unless it is gone."""
        text = _written(what)
        with contextlib.suppress(OSError):
            socket.send_fds(self._control, [b"!"], [text])
        os.close(text)

    def close(self, patience: float = _END_TIMEOUT) -> None:
        """End it, with all its launchers; in a fork of its caller, only let go of it.

        ``patience``: seconds that it has before it is killed.
        """
        if os.getpid() != self.pid:
            self._control.close()
            return
        with contextlib.suppress(OSError):  # forks of this process have copies, which do not count
            self._control.shutdown(socket.SHUT_RDWR)
        self._control.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(patience)
            return
        self._process.kill()
        self._process.wait()


def _written(what: object) -> int:
    """A file in memory with this as JSON."""
    text = os.memfd_create("elasticrun-request", os.MFD_CLOEXEC)
    with open(text, "wb", closefd=False) as file:
        file.write(json.dumps(what).encode())
    return text
