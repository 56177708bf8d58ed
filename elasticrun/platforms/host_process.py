"""The process here that stands for one host: its ssh, or the program of ``remote.py`` itself.

It has a session of its own, so that Ctrl-C reaches this launch alone, which then tells each host what to do.
Its standard input is the line on which that is said, and nobody else holds its other end.
"""

from __future__ import annotations

import asyncio
import os
import resource
import signal
import subprocess
from collections.abc import Callable, Sequence

from elasticrun.core.hosts.events import Ended
from elasticrun.core.hosts.fates import LOST
from elasticrun.core.protocol.plain import one_line
from elasticrun.platforms.children import kill_group, open_reader, wait_end
from elasticrun.platforms.output import Sink, copy_lines
from elasticrun.platforms.remote import BEAT, HELLO, signal_line

#: Seconds that a killed host's process gets to report the end, and output to come after an end.
_LAST_WORDS = 5.0
_SHOWN = 300  # characters
_NOT_EXECUTED = 127
#: Descriptors of one host process, and of everything else in this launch.
_EACH, _OTHERS = 4, 64


class HostProcess:
    """A started process. ``signal``, ``kill`` and ``beat`` may be called at any time."""

    def __init__(self, name: str, process: subprocess.Popen[bytes], pidfd: int) -> None:
        self.name = name
        self._process = process
        self._pidfd = pidfd
        self._is_up = self._killed = False
        self._said = b""  # the last line before it was up
        self._stdin: asyncio.WriteTransport | None = None
        self._killing: asyncio.TimerHandle | None = None

    async def run(self, request: bytes, out: Sink, err: Sink, on_up: Callable[[], None]) -> Ended:
        """Have it started there, and copy its output; returns when it has ended."""
        loop, process = asyncio.get_running_loop(), self._process
        assert process.stdin is not None and process.stdout is not None and process.stderr is not None
        self._stdin, _ = await loop.connect_write_pipe(asyncio.BaseProtocol, process.stdin)
        self._stdin.write(request)

        def take_hello(line: bytes) -> bool:
            if self._is_up:
                return False
            if HELLO in line:  # a login may print a line without an end before it
                self._is_up = True
                on_up()
            elif text := line.strip():
                self._said = text
            return True

        prefix = f"[{self.name}] ".encode()
        out_pipe, printed = await open_reader(process.stdout)
        err_pipe, said = await open_reader(process.stderr)
        copies = [
            asyncio.create_task(copy_lines(printed, out, prefix, lambda _: False)),
            asyncio.create_task(copy_lines(said, err, prefix, take_hello)),
        ]
        code = await self._ended()
        # A process that it left behind may hold the pipes; who reads our output may be slow.
        _, late = await asyncio.wait(copies, timeout=_LAST_WORDS)
        while late and not self._killed and (out.is_busy or err.is_busy):
            _, late = await asyncio.wait(late, timeout=_LAST_WORDS)
        for copy in late:
            copy.cancel()
        out_pipe.close()
        err_pipe.close()
        return Ended(self.name, code, one_line(self._said.decode(errors="replace"))[:_SHOWN])

    async def _ended(self) -> int:
        try:
            await wait_end(self._pidfd)
        finally:
            os.close(self._pidfd)
        if self._killing is not None:
            self._killing.cancel()
        if self._stdin is not None and not self._stdin.is_closing():
            self._stdin.abort()
        code = self._process.wait()
        return code if code >= 0 else LOST  # killed here: what that means for the host is the same

    def beat(self) -> None:
        """Say that this launch is alive."""
        self._write(BEAT)

    def signal(self, signum: int) -> None:
        """Pass a signal on to the launcher on the host."""
        self._write(signal_line(signum))

    def kill(self) -> None:
        """Kill the launcher on the host, and soon whatever stands for it here, such as ssh and its proxy."""
        self._killed = True
        self.signal(signal.SIGKILL)
        if self._killing is None:
            self._killing = asyncio.get_running_loop().call_later(_LAST_WORDS, kill_group, self._process)

    def _write(self, data: bytes) -> None:
        if self._stdin is not None and not self._stdin.is_closing():
            self._stdin.write(data)


def start(name: str, words: Sequence[str]) -> HostProcess | Ended:
    """Start the process, or say why that failed."""
    try:
        pipe = subprocess.PIPE
        process = subprocess.Popen(words, stdin=pipe, stdout=pipe, stderr=pipe, start_new_session=True)
    except OSError as error:
        return Ended(name, _NOT_EXECUTED, f"{words[0]} cannot be executed: {error.strerror}")
    try:
        return HostProcess(name, process, os.pidfd_open(process.pid))
    except OSError as error:
        with process:
            kill_group(process)
        return Ended(name, _NOT_EXECUTED, f"{words[0]} cannot be watched: {error.strerror}")


def allow_descriptors(processes: int) -> None:
    """Raise this process's limit of descriptors if so many host processes may need more, and it may rise."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _OTHERS + processes * _EACH
    if soft == resource.RLIM_INFINITY or wanted <= soft:
        return
    wanted = 2 * wanted if hard == resource.RLIM_INFINITY else min(2 * wanted, hard)
    if wanted > soft:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
