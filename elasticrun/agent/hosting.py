"""The master's process, seen from the agent that hosts it.

Whether this agent hosts is decided each time a master is needed: if the endpoint is an address of this
host and its port is free, this agent starts one, and whoever binds the port first *is* the master. So two
agents of one host need not agree beforehand, and a master that died is started again by any agent of
its host; the one that had it finds its journal in the same state directory.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import IO

from elasticrun.agent.whereabouts import Place, Survey, survey
from elasticrun.config import Endpoint, RendezvousConfig
from elasticrun.errors import UsageError

_READ_LIMIT = 65_536


@dataclass(frozen=True, slots=True)
class MasterCommand:
    """How to start a master; made by the composition root, as agents know nothing of masters."""

    argv: Sequence[str]
    settings: Callable[[str, int, str], dict[str, object]]  # listening host, port, state directory


class MasterHost:
    """Starts the master's process if it is this agent's turn."""

    def __init__(self, config: RendezvousConfig, command: MasterCommand) -> None:
        self._config = config
        self._command = command
        self._endpoint = config.endpoint
        self._process: subprocess.Popen[bytes] | None = None
        self._answered = True  # the process has said whether it serves
        self._temporary: str | None = None
        self.found = Survey(Place.UNKNOWN)
        self.resume = False  # the job has begun: a master started from now on takes it up again

    @property
    def hosts(self) -> bool:
        """A master that this agent started is alive."""
        return self._process is not None and self._process.poll() is None

    def begin(self) -> None:
        """Start a master at once if one is needed here. Blocks for a name lookup at most.

        Raises:
            UsageError: the endpoint's port may not be bound, or there is no room for the journal.
        """
        if self.hosts:
            return
        self._reap()
        self.found = survey(self._endpoint, self._config.is_host)
        if self.found.place is Place.HERE:
            self._launch()

    async def endpoint(self) -> Endpoint:
        """Where to reach the master, once it serves if it is ours.

        Raises:
            MasterRefusedError: our master cannot serve, and says why.
        """
        if not self.hosts:
            await asyncio.get_running_loop().run_in_executor(None, self.begin)
        process = self._process
        if process is not None and not self._answered:
            assert process.stdout is not None
            self._take_answer(await _read_line(process.stdout))
        return self._endpoint

    async def close(self, timeout: float) -> None:
        """Let go of the master: it ends unless other agents need it. Waits ``timeout`` seconds for that."""
        process = self._process
        if process is None:
            return
        if process.stdin is not None:
            process.stdin.close()
        if await _ended(process, timeout):
            self._reap()
            if self._temporary is not None:
                shutil.rmtree(self._temporary, ignore_errors=True)

    def _launch(self) -> None:
        settings = {
            **self._command.settings(self.found.listen_host, self._endpoint.port, self._state_dir()),
            "resume": self.resume,
        }
        self._process = subprocess.Popen(
            self._command.argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, close_fds=True
        )
        self._answered = False
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it died at once; its silence says so
            self._process.stdin.write(json.dumps(settings).encode() + b"\n")
            self._process.stdin.flush()

    def _state_dir(self) -> str:
        if self._config.state_dir is not None:
            return self._config.state_dir
        if self._temporary is None:
            try:
                self._temporary = tempfile.mkdtemp(prefix="elasticrun_master_")
            except OSError as error:
                raise UsageError(
                    f"no temporary directory for the master's journal can be made ({error.strerror});"
                    " name a writable --state-dir"
                ) from error
        return self._temporary

    def _take_answer(self, line: bytes) -> None:
        self._answered = True
        answer = json.loads(line) if line.endswith(b"\n") else {}
        if "port" in answer:
            self._endpoint = Endpoint(self._endpoint.host, answer["port"])
        elif "error" in answer:
            raise MasterRefusedError(answer["error"])
        # Otherwise the port was taken in between, or the master died: whoever holds the port is asked.

    def _reap(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    with contextlib.suppress(BrokenPipeError):
                        pipe.close()
            process.wait()


class MasterRefusedError(UsageError):
    """The master that this agent started cannot serve; the sentence is the master's."""


async def _read_line(pipe: IO[bytes]) -> bytes:
    """The next line, or what there is before the end of the file."""
    loop = asyncio.get_running_loop()
    ready = asyncio.Event()
    os.set_blocking(pipe.fileno(), False)
    loop.add_reader(pipe.fileno(), ready.set)
    line = b""
    try:
        while not line.endswith(b"\n"):
            await ready.wait()
            ready.clear()
            with contextlib.suppress(BlockingIOError):
                chunk = os.read(pipe.fileno(), _READ_LIMIT)
                if not chunk:
                    break
                line += chunk
    finally:
        loop.remove_reader(pipe.fileno())
    return line


async def _ended(process: subprocess.Popen[bytes], timeout: float) -> bool:
    """Whether the process ends within ``timeout`` seconds."""
    loop = asyncio.get_running_loop()
    ended = asyncio.Event()
    pidfd = os.pidfd_open(process.pid)
    loop.add_reader(pidfd, ended.set)
    try:
        await asyncio.wait_for(ended.wait(), timeout)
    except asyncio.TimeoutError:
        return False
    finally:
        loop.remove_reader(pidfd)
        os.close(pidfd)
    return True
