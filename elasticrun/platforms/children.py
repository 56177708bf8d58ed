"""Programs that are started here, waited for on the loop, and killed with all that they have started.

Theory. asyncio's own subprocesses are reaped as soon as they end. Then the number of their group may belong
to somebody else, and whoever holds their pipes still can delay the news of their end. So here a program is
reaped by who started it, after its group was dealt with.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess


async def wait_end(pidfd: int) -> None:
    """Wait until the process behind this descriptor has ended. It is not reaped."""
    loop, ended = asyncio.get_running_loop(), asyncio.Event()
    loop.add_reader(pidfd, ended.set)
    try:
        await ended.wait()
    finally:
        loop.remove_reader(pidfd)


async def open_reader(pipe: object) -> tuple[asyncio.ReadTransport, asyncio.StreamReader]:
    """Read what comes through a pipe; close the transport in the end."""
    reader = asyncio.StreamReader()
    protocol = asyncio.StreamReaderProtocol(reader)
    transport, _ = await asyncio.get_running_loop().connect_read_pipe(lambda: protocol, pipe)
    return transport, reader


def kill_group(process: subprocess.Popen[bytes]) -> None:
    """SIGKILL the group of a leader that is not reaped, so that the number is still its own."""
    if process.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
