"""A worker under remote control: it says hello to the test's director and does as it is told.

Standard library only, so that it starts in milliseconds. Each command is one line; the answer, if it has
one, is a line of JSON. The end of the connection is the end of the process.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import socket
import subprocess
import sys
from typing import Any

PAUSE = "import signal; signal.pause()"


def child(detached: bool) -> int:
    """A process that outlives everything but SIGKILL; ``detached``: an orphan in a session of its own."""
    stubborn = "import signal\nfor s in (1, 2, 3, 15): signal.signal(s, signal.SIG_IGN)\n"
    stubborn += "print('is stubborn', flush=True)\n" + PAUSE
    if not detached:
        process = subprocess.Popen([sys.executable, "-c", stubborn], stdout=subprocess.PIPE)
        assert process.stdout is not None
        process.stdout.readline()  # until then the kernel may not show its environment yet
        return process.pid
    code = f"import subprocess, sys; process = subprocess.Popen([sys.executable, '-c', {stubborn!r}], "
    code += "start_new_session=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL); "
    code += "process.stdout.readline(); print(process.pid)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return int(done.stdout)


def listen(port: int) -> str:
    """Serve, as rank 0's store does, or a task of a TensorFlow cluster; "" or why not."""
    listener = socket.socket()
    try:
        listener.bind(("", port))
        listener.listen()
    except OSError as error:
        return str(error)
    KEPT.append(listener)
    return ""


KEPT: list[socket.socket] = []


class Remote:
    """The connection to the director."""

    def __init__(self) -> None:
        self.link = socket.socket(socket.AF_UNIX)
        self.link.connect(os.environ["ELASTICRUN_TEST_DIRECTOR"])
        self.keeper: Any = None  # once a state was loaded
        self.state: dict[str, Any] = {}
        self.lines = self.link.makefile("r")

    def say(self, message: Any) -> None:
        self.link.sendall(json.dumps(message).encode() + b"\n")

    def hello(self) -> None:
        """Say who this is."""
        environment = dict(os.environ)
        self.say({"pid": os.getpid(), "argv": sys.argv, "cwd": os.getcwd(), "env": environment})  # noqa: PTH109

    def obey(self, command: str, rest: str) -> None:
        match command:
            case "exit":
                sys.exit(int(rest))
            case "raise":
                raise RuntimeError(rest)
            case "kill":
                os.kill(os.getpid(), int(rest))
            case "out" | "err":
                print(rest, file=sys.stdout if command == "out" else sys.stderr, flush=True)
                self.say("printed")
            case "ignore":
                for number in map(int, rest.split()):
                    signal.signal(number, signal.SIG_IGN)
                self.say("ignored")
            case "note":  # say which signals come, and live on
                for number in map(int, rest.split()):
                    signal.signal(number, lambda signum, _: self.say({"signal": signum}))
                self.say("noting")
            case "child":
                self.say(child(rest == "detached"))
            case "orphan":  # one that ends at once, and that somebody else has to reap
                code = "import subprocess, sys; subprocess.Popen([sys.executable, '-c', ''])"
                subprocess.run([sys.executable, "-c", code], check=True)
                self.say("orphaned")
            case "step":  # of this number, which took so many seconds
                import elasticrun

                step, seconds = rest.split()
                elasticrun.report_step(int(step), seconds=float(seconds))
                self.say("reported")
            case "load":  # the newest saved state: its step
                import elasticrun

                # A plain import would have torch imported before any worker starts, for all tests.
                torch = importlib.import_module("torch")
                self.keeper, self.state = elasticrun.Checkpointer(), {"weight": torch.zeros(3)}
                self.say(self.keeper.load(self.state))
            case "save":  # as this step, until the master has confirmed it
                while not self.keeper.save(int(rest), self.state):
                    pass
                self.keeper.wait()
                self.say("saved")
            case "stdin":
                self.say(sys.stdin.readline())
            case "bind":
                self.say(listen(int(os.environ["MASTER_PORT"])))
            case "listen":
                self.say(listen(int(rest)))
            case _:
                raise ValueError(command)


def main() -> None:
    remote = Remote()
    remote.hello()
    for line in remote.lines:
        command, _, rest = line.rstrip("\n").partition(" ")
        remote.obey(command, rest)


if __name__ == "__main__":
    main()
