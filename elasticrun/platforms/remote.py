"""The program that stands between an ssh connection and the launcher on a host, and what it is told.

``elastic-ctl launch`` starts it on each host, and it starts ``elastic-run`` there. Its standard input stays
open for as long as somebody wants the job on this host. The first line on it is a ``Request``, then come
lines with signals to pass on, and empty lines that only say that the other end is alive.

Theory. A process that sshd started lives on when its connection ends: nobody signals it. So somebody has to
watch the connection, and standard input is the one thing that ends with it, whether the launch, its ssh or
the network in between is killed. A network that silently drops packets is found by the silence. ``ssh -tt``
would send SIGHUP, but mixes stdout with stderr, changes line ends and echoes what is typed. Because
everything is read from there, no argument, variable or token is on a command line, which every user of a host
can read, and no remote shell has to unquote them.

Invariant: once standard input has ended, or was silent for too long, the launcher has had a signal to stop,
and gets SIGKILL after its grace. It gets SIGTERM only if it had none from here: told again, it would kill
workers that save. If this program is killed itself, the kernel sends the launcher SIGTERM.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import math
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import fields

from elasticrun.dataclass import dataclass

#: How the line on stderr begins that says that the launcher runs.
HELLO = b"\x1eelastic-run is up "
#: Says only that the other end is alive.
BEAT = b"\n"
_SIGNAL = b"signal "
_STOPS = frozenset({signal.SIGINT, signal.SIGTERM, signal.SIGHUP})
_LONGEST = 1 << 20  # bytes of a request
_PATIENCE = 60.0  # seconds for the request to come
_PR_SET_PDEATHSIG = 1
_NOT_STARTED = 126
_READ = 1 << 16


@dataclass(frozen=True, slots=True)
class Request:
    """What is to run on a host. Times are in seconds."""

    argv: list[str]
    directory: str
    environment: dict[str, str]  # beside what the host's login gives
    silence: float  # of the other end, after which it counts as dead; inf: only its end says so
    grace: float  # between SIGTERM and SIGKILL then


def encode(request: Request) -> bytes:
    """The first line."""
    values = {field.name: getattr(request, field.name) for field in fields(request)}
    return json.dumps(values).encode() + b"\n"


def decode(line: bytes) -> Request:
    """What the first line asks for. Raises ValueError."""
    try:
        values = json.loads(line)
        return Request(**{field.name: values[field.name] for field in fields(Request)})
    except (KeyError, TypeError, RecursionError) as error:
        raise ValueError(f"no request: {error}") from None


def signal_line(signum: int) -> bytes:
    """The line that has a signal passed on."""
    return _SIGNAL + str(signum).encode() + b"\n"


class Input:
    """Lines from a descriptor that is waited for elsewhere."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self.ended = False
        self._rest = b""

    def lines(self) -> list[bytes]:
        """The lines that have come, once the descriptor is readable. A line without an end is bounded."""
        try:
            data = os.read(self.fd, _READ)
        except OSError:
            data = b""
        *found, self._rest = (self._rest + data).split(b"\n")
        self.ended = not data or len(self._rest) > _LONGEST
        return found


def keep(environ: Mapping[str, str], stdin: int = 0) -> int:
    """Run what is asked for on standard input, for as long as that stays open; returns the exit status."""
    source = Input(stdin)
    try:
        request, rest = _request(source)
        child = _start(request, environ)
    except (ValueError, OSError) as error:
        _say(str(error))
        return _NOT_STARTED
    _say_up(child.pid)
    return Watch(child, source, request).run(rest)


def _request(source: Input) -> tuple[Request, list[bytes]]:
    poll = select.poll()
    poll.register(source.fd, select.POLLIN)
    over = time.monotonic() + _PATIENCE
    while not source.ended and poll.poll(max(0.0, over - time.monotonic()) * 1000):
        if lines := source.lines():
            return decode(lines[0]), lines[1:]
    raise ValueError("nobody said what to start: elastic-ctl launch starts this program")


def _start(request: Request, environ: Mapping[str, str]) -> subprocess.Popen[bytes]:
    if not os.path.isdir(request.directory):  # noqa: PTH112
        raise ValueError(f"there is no directory {request.directory} on this host: give --directory")
    libc, parent = ctypes.CDLL(None, use_errno=True), os.getpid()

    def before_exec() -> None:
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
        if os.getppid() != parent:
            os._exit(_NOT_STARTED)

    return subprocess.Popen(
        request.argv,
        cwd=request.directory,
        env={**environ, **request.environment},
        stdin=subprocess.DEVNULL,
        preexec_fn=before_exec,
    )


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _say_up(pid: int) -> None:
    with contextlib.suppress(OSError):  # nobody listens, so standard input has ended as well
        os.write(2, HELLO + str(pid).encode() + b"\n")


class Watch:
    """Waits for the launcher's end, for lines, and for the end of the connection."""

    def __init__(self, child: subprocess.Popen[bytes], source: Input, request: Request) -> None:
        self._child = child
        self._source = source
        self._request = request
        self._poll = select.poll()
        self._deadline = time.monotonic() + request.silence
        self._is_told = False  # the launcher was told to stop

    def run(self, lines: list[bytes]) -> int:
        """Wait until the launcher has ended; returns the exit status."""
        for signum in _STOPS:
            signal.signal(signum, lambda number, _: self._pass_on(number))
        ended = os.pidfd_open(self._child.pid)
        self._poll.register(ended, select.POLLIN)
        self._poll.register(self._source.fd, select.POLLIN)
        self._obey(lines)
        while self._child.poll() is None:
            remaining = max(0.0, self._deadline - time.monotonic())
            ready = {fd for fd, _ in self._poll.poll(None if math.isinf(remaining) else remaining * 1000)}
            if self._source.fd in ready and ended not in ready:
                self._deadline = time.monotonic() + self._request.silence
                self._obey(self._source.lines())
            if self._source.ended or time.monotonic() >= self._deadline:
                self._let_go()
        code = self._child.returncode
        return code if code >= 0 else 128 - code

    def _obey(self, lines: list[bytes]) -> None:
        for line in lines:
            word, _, number = line.partition(b" ")
            if word == _SIGNAL.strip() and number.isdigit():
                self._pass_on(int(number))

    def _pass_on(self, signum: int) -> None:
        if signum in signal.valid_signals():
            self._is_told = self._is_told or signum in _STOPS
            self._child.send_signal(signum)  # does nothing once it has ended

    def _let_go(self) -> None:
        """Nobody wants the launcher here any more: have it stop the first time, then kill it."""
        if self._source.fd >= 0:
            self._poll.unregister(self._source.fd)
            self._source = Input(-1)
            if not self._is_told:
                self._pass_on(signal.SIGTERM)
            self._deadline = time.monotonic() + self._request.grace
        else:
            self._pass_on(signal.SIGKILL)
            self._deadline = time.monotonic() + self._request.grace
