"""Where the list of hosts comes from: an option, a file, or what a program prints.

A program that fails, hangs or prints garbage gives no answer; who asked decides what that means. It runs in
a session of its own, and when its time is over everything in that session's group is killed. A program that
has ended has answered, even if something that it left in the background holds its output.

A file may hang as well, on a server that is away, and the loop must not: hosts that hear nothing of this
launch stop their workers. So it is read in a thread, by at most one at a time.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import stat
import subprocess
import threading
from collections.abc import Callable
from dataclasses import field

from elasticrun.core.hosts.names import Host, parse_hosts
from elasticrun.core.protocol.plain import one_line
from elasticrun.dataclass import dataclass
from elasticrun.errors import UsageError
from elasticrun.platforms.children import kill_group, open_reader, wait_end

_MOST_BYTES = 1 << 20
_MOST_SAID = 4096  # of stderr
_SHOWN = 200
_KILLED = 5.0  # seconds that the end of a killed program may take
_LAST_WORDS = 1.0  # seconds for output to come after an end


@dataclass(frozen=True, slots=True)
class Source:
    """One of the three, the others are empty. Its answers change unless it is the option."""

    option: str = ""  # the value of -H
    file: str = ""
    script: str = ""
    timeout: float = 30.0  # seconds for the file, or the script
    _hanging: list[asyncio.Future[bytes]] = field(default_factory=list)

    @property
    def is_fixed(self) -> bool:
        """Whether the answer never changes."""
        return bool(self.option)

    async def ask(self) -> tuple[Host, ...]:
        """The hosts now, at least one. Raises UsageError that says why there is no good answer."""
        if self.option:
            hosts = parse_hosts(self.option.split(","), "-H, host")
        elif self.file:
            hosts = parse_hosts(_text(await self._content(), self.file).splitlines(), f"{self.file}, line")
        else:
            answer = await _run(self.script, self.timeout)
            hosts = parse_hosts(_text(answer, self.script).splitlines(), f"{self.script}, line")
        if not hosts:
            raise UsageError(f"{self.option or self.file or self.script!r} names no host: give at least one")
        return hosts

    async def _content(self) -> bytes:
        reading = self._hanging.pop() if self._hanging else _aside(lambda: _read(self.file))
        self._hanging.append(reading)  # until it has answered, no other one is begun
        done, _ = await asyncio.wait([reading], timeout=self.timeout)
        if not done:
            raise UsageError(f"{self.file} cannot be read within {self.timeout:g} s")
        self._hanging.remove(reading)
        return reading.result()


def _aside(work: Callable[[], bytes]) -> asyncio.Future[bytes]:
    """What it returns, or the UsageError that it raises, in a thread that nobody waits for in the end."""
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[bytes] = loop.create_future()

    def report(data: bytes, error: UsageError | None) -> None:
        if answer.cancelled():
            return
        if error is None:
            answer.set_result(data)
        else:
            answer.set_exception(error)

    def run() -> None:
        data = b""
        failed: UsageError | None = None
        try:
            data = work()
        except UsageError as error:
            failed = error
        with contextlib.suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(report, data, failed)

    threading.Thread(target=run, daemon=True, name="reads the list of hosts").start()
    return answer


def _read(path: str) -> bytes:
    try:
        file = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)  # a pipe would never open
        with os.fdopen(file, "rb") as stream:
            if not stat.S_ISREG(os.fstat(file).st_mode):
                raise UsageError(f"{path} is no regular file: name a file with a host on each line")
            return stream.read(_MOST_BYTES + 1)
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}") from None


def _text(data: bytes, source: str) -> str:
    if len(data) > _MOST_BYTES:
        raise UsageError(f"{source} gives more than {_MOST_BYTES} bytes: give a host on each line")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise UsageError(f"{source} gives no text in UTF-8: give a host on each line") from None


async def _run(program: str, timeout: float) -> bytes:
    """What a program prints. Raises UsageError."""
    process, pidfd = _started(program)
    try:
        printed, said = await asyncio.wait_for(_both(process, pidfd), timeout)
    except asyncio.TimeoutError:
        raise UsageError(f"{program} did not end within {timeout:g} s") from None
    finally:
        if process.returncode is None:
            kill_group(process)
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(wait_end(pidfd), _KILLED)
            process.poll()
        os.close(pidfd)
    if process.returncode:
        why = f": {said}" if said else ""
        raise UsageError(f"{program} ended with {process.returncode}{why}")
    return printed


def _started(program: str) -> tuple[subprocess.Popen[bytes], int]:
    """The process and a descriptor for its end. Raises UsageError."""
    pipe, null = subprocess.PIPE, subprocess.DEVNULL
    try:
        process = subprocess.Popen([program], stdin=null, stdout=pipe, stderr=pipe, start_new_session=True)
    except OSError as error:
        raise UsageError(f"{program} cannot be started: {error.strerror}{_hint(program, error)}") from None
    try:
        return process, os.pidfd_open(process.pid)
    except OSError as error:
        with process:
            kill_group(process)
        raise UsageError(f"{program} cannot be watched: {error.strerror}") from None


def _hint(program: str, error: OSError) -> str:
    if error.errno == errno.EACCES:
        return "; chmod +x it"
    if error.errno == errno.ENOEXEC:
        return "; begin it with a line such as #!/bin/sh"
    if error.errno == errno.ENOENT and len(program.split()) > 1:
        return "; it is no line for a shell: put arguments into a script"
    if error.errno == errno.ENOENT and "/" not in program:
        return f"; give its path, such as ./{program}"
    return ""


async def _both(process: subprocess.Popen[bytes], pidfd: int) -> tuple[bytes, str]:
    """What it prints, and the last line of what it says on stderr."""
    (out_pipe, out), (err_pipe, err) = await open_reader(process.stdout), await open_reader(process.stderr)
    printed, said = bytearray(), bytearray()
    reading = [
        asyncio.create_task(_keep(out, printed, _MOST_BYTES + 1)),
        asyncio.create_task(_keep(err, said, _MOST_SAID)),
    ]
    try:
        await wait_end(pidfd)
        await asyncio.wait(reading, timeout=_LAST_WORDS)
    finally:
        for task in reading:
            task.cancel()
        out_pipe.close()
        err_pipe.close()
    process.wait()
    lines = said.decode(errors="replace").strip().splitlines()
    return bytes(printed), one_line(lines[-1][:_SHOWN]) if lines else ""


async def _keep(reader: asyncio.StreamReader, kept: bytearray, most: int) -> None:
    """Read to the end, and keep the beginning."""
    while chunk := await reader.read(1 << 16):
        kept += chunk[: most - len(kept)]
