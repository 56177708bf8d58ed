"""Where the list of hosts comes from: an option, a file, or what a program prints.

A program that fails, hangs or prints garbage gives no answer; who asked decides what that means. It runs in
a session of its own, and when its time is over everything in that session's group is killed.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import stat

from elasticrun.core.hosts.names import Host, parse_hosts
from elasticrun.core.protocol.plain import one_line
from elasticrun.dataclass import dataclass
from elasticrun.errors import UsageError

_MOST_BYTES = 1 << 20
_MOST_SAID = 4096  # of stderr
_SHOWN = 200
_KILLED = 5.0  # seconds that the end of a killed program may take


@dataclass(frozen=True, slots=True)
class Source:
    """One of the three, the others are empty. Its answers change unless it is the option."""

    option: str = ""  # the value of -H
    file: str = ""
    script: str = ""
    timeout: float = 30.0  # seconds for the script

    @property
    def is_fixed(self) -> bool:
        """Whether the answer never changes."""
        return bool(self.option)

    async def ask(self) -> tuple[Host, ...]:
        """The hosts now, at least one. Raises UsageError that says why there is no good answer."""
        if self.option:
            hosts = parse_hosts(self.option.split(","), "-H, host")
        elif self.file:
            hosts = parse_hosts(_text(_read(self.file), self.file).splitlines(), f"{self.file}, line")
        else:
            answer = await _run(self.script, self.timeout)
            hosts = parse_hosts(_text(answer, self.script).splitlines(), f"{self.script}, line")
        if not hosts:
            raise UsageError(f"{self.option or self.file or self.script!r} names no host: give at least one")
        return hosts


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
        return data.decode()
    except UnicodeDecodeError:
        raise UsageError(f"{source} gives no text in UTF-8: give a host on each line") from None


async def _run(program: str, timeout: float) -> bytes:
    """What a program prints. Raises UsageError."""
    try:
        process = await asyncio.create_subprocess_exec(
            program,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            start_new_session=True,
        )
    except OSError as error:
        hint = "; chmod +x it" if isinstance(error, PermissionError) else ""
        raise UsageError(f"{program} cannot be started: {error.strerror}{hint}") from None
    try:
        printed, said = await asyncio.wait_for(_both(process), timeout)
    except asyncio.TimeoutError:
        raise UsageError(f"{program} did not end within {timeout:g} s") from None
    finally:
        if process.returncode is None:  # not reaped, so the group's number is still its own
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(process.wait(), _KILLED)
    if process.returncode:
        why = f": {said}" if said else ""
        raise UsageError(f"{program} ended with {process.returncode}{why}")
    return printed


async def _both(process: asyncio.subprocess.Process) -> tuple[bytes, str]:
    assert process.stdout is not None and process.stderr is not None
    printed, said = await asyncio.gather(
        _bounded(process.stdout, _MOST_BYTES + 1), _bounded(process.stderr, _MOST_SAID)
    )
    await process.wait()
    lines = said.decode(errors="replace").strip().splitlines()
    return printed, one_line(lines[-1][:_SHOWN]) if lines else ""


async def _bounded(reader: asyncio.StreamReader, most: int) -> bytes:
    """All that comes, of which only the beginning is kept."""
    kept = b""
    while chunk := await reader.read(1 << 16):
        kept = (kept + chunk)[:most]
    return kept
