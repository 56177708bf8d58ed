"""One process of a master, from its start to its end, as the agent beside it sees it.

The agent writes one line, the settings, and keeps the pipe open for as long as it needs the master; the
master answers with one line, which says whether it serves. A node that is alone also has a pair of sockets,
whose other end the master inherits: it carries the stream, once.

The agent's first master is forked from it: the agent has imported most of what a master needs, and that is
then shared, in memory too. This saves a launch of one node a quarter of its CPU time.
Only a process with one thread may fork: a lock that another thread holds at that moment stays locked in the
child. An agent soon has several threads, and may have them from the start if the site's own Python code has
started some; then masters are executed.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import os
import select
import signal
import socket
import subprocess
from collections.abc import Callable, Sequence
from io import FileIO
from typing import Any, NoReturn, Protocol

from elasticrun.agent.spawner.descriptors import close_files

_READ_LIMIT = 65_536
_CRASHED = 70  # EX_SOFTWARE


class Process(Protocol):
    """The part of ``subprocess.Popen`` used here."""

    pid: int
    returncode: int | None

    def poll(self) -> int | None: ...

    def wait(self) -> int: ...

    def kill(self) -> None: ...


class Forked:
    """A forked child that executes no other program; only this class reaps it."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None

    def poll(self) -> int | None:
        return self._wait(os.WNOHANG)

    def wait(self) -> int:
        status = self._wait(0)
        assert status is not None
        return status

    def kill(self) -> None:
        if self.poll() is None:
            os.kill(self.pid, signal.SIGKILL)

    def _wait(self, options: int) -> int | None:
        if self.returncode is None:
            try:
                pid, status = os.waitpid(self.pid, options)
            except ChildProcessError:  # SIGCHLD is ignored: the kernel reaped it, its status is lost
                pid, status = self.pid, 0
            if pid:
                self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode


class MasterProcess:
    """A master that was started."""

    def __init__(
        self, process: Process, stdin: FileIO, stdout: FileIO, channel: socket.socket | None
    ) -> None:
        self.process = process
        self.answered = False  # it has said whether it serves, or has ended
        self._stdin = stdin
        self._stdout = stdout
        self._channel = channel
        self._heard = b""  # the beginning of its answer

    @property
    def is_alive(self) -> bool:
        return self.process.poll() is None

    def take_channel(self) -> socket.socket | None:
        """Our end of the stream, once; then None."""
        channel, self._channel = self._channel, None
        return channel

    def tell(self, settings: dict[str, object]) -> None:
        with contextlib.suppress(BrokenPipeError):  # it died at once; ``hear`` finds out
            self._stdin.write(json.dumps(settings).encode() + b"\n")

    async def hear(self) -> dict[str, Any]:
        """The master's answer; {} once it has ended without one. May be cancelled and called again."""
        while True:
            line, newline, rest = self._heard.partition(b"\n")
            if newline:
                self._heard = rest
                if answer := _parse_answer(line):
                    self.answered = True
                    return answer
            elif chunk := await _read(self._stdout.fileno()):
                self._heard += chunk
            else:
                await self.ended(None, asyncio.Event())
                self.answered = True
                return {}

    def let_go(self) -> None:
        """Release the master: it ends unless other agents need it."""
        self._stdin.close()

    def ends_within(self, seconds: float) -> bool:
        """Whether it ends within ``seconds``. Blocks."""
        pidfd = self._watch()
        if pidfd is None:
            return True
        try:
            ended, _, _ = select.select([pidfd], [], [], seconds)
        finally:
            os.close(pidfd)
        return bool(ended)

    async def ended(self, timeout: float | None, attention: asyncio.Event) -> bool:
        """Whether it has ended within ``timeout`` seconds, or by the time ``attention`` is set."""
        pidfd = self._watch()
        if pidfd is None:
            return True
        loop = asyncio.get_running_loop()
        loop.add_reader(pidfd, attention.set)
        try:
            await asyncio.wait_for(attention.wait(), timeout)
        except asyncio.TimeoutError:
            pass
        finally:
            loop.remove_reader(pidfd)
            os.close(pidfd)
        return not self.is_alive

    def _watch(self) -> int | None:
        """A pidfd to wait for its end; None if it has ended, as its pid may be another's by now."""
        if not self.is_alive:
            return None
        try:
            return os.pidfd_open(self.process.pid)
        except ProcessLookupError:  # where SIGCHLD is ignored the kernel has reaped it just now
            return None

    async def end(self) -> None:
        """Kill it: unlike one that is let go, a killed master does not remove a temporary journal."""
        self.process.kill()
        await self.ended(None, asyncio.Event())

    def close(self) -> None:
        """Close the channel and the pipes, and wait for its end."""
        if self._channel is not None:
            self._channel.close()
        self._stdin.close()
        self._stdout.close()
        self.process.wait()


def execute(
    argv: Sequence[str], settings: dict[str, object], is_private: bool, passed: tuple[int, ...] = ()
) -> MasterProcess:
    """Start ``argv`` as a master; it inherits the files ``passed``. Raises OSError if that fails."""
    with contextlib.ExitStack() as theirs:
        ours, channel = _channel(is_private, theirs)
        # In a session of its own from the start: a terminal's signals are meant for agents.
        process = subprocess.Popen(
            argv,
            bufsize=0,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
            pass_fds=passed if channel < 0 else (*passed, channel),
        )
        assert isinstance(process.stdin, FileIO) and isinstance(process.stdout, FileIO)
        made = MasterProcess(process, process.stdin, process.stdout, ours)
        made.tell({**settings, "channel": channel})
    return made


def may_fork() -> bool:
    """Whether this process has one thread only, counting those that Python does not know."""
    try:
        return len(os.listdir("/proc/self/task")) == 1
    except OSError:
        return False


def fork(main: Callable[[], int], settings: dict[str, object], is_private: bool) -> MasterProcess:
    """Fork a master, which runs ``main``, from this process of one thread. Raises OSError."""
    with contextlib.ExitStack() as theirs:
        ours, channel = _channel(is_private, theirs)
        stdin, write_end = os.pipe()
        theirs.callback(os.close, stdin)
        read_end, stdout = os.pipe()
        theirs.callback(os.close, stdout)
        # Blocked, or a signal to the group would run the agent's handlers in the child as well.
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        try:
            pid = os.fork()
            if pid == 0:
                _be_master(main, stdin, stdout, channel)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        made = MasterProcess(Forked(pid), FileIO(write_end, "wb"), FileIO(read_end, "rb"), ours)
        made.tell({**settings, "channel": channel})
    return made


def _channel(is_private: bool, theirs: contextlib.ExitStack) -> tuple[socket.socket | None, int]:
    """Our end of a channel, and the number of the other end, which ``theirs`` closes."""
    if not is_private:
        return None, -1
    ours, other = socket.socketpair()
    theirs.callback(other.close)
    return ours, other.fileno()


def _be_master(main: Callable[[], int], stdin: int, stdout: int, channel: int) -> NoReturn:
    """Turn a forked child into a master, as if it had been executed; never return."""
    status = _CRASHED
    try:
        gc.freeze()  # a collection would copy every page shared with the agent
        os.setsid()
        os.dup2(stdin, 0)
        os.dup2(stdout, 1)
        close_files(keep=(0, 1, 2, channel))
        _forget_handlers()
        status = main()
    except BaseException:  # noqa: BLE001 the frames below belong to the agent: report, then leave without unwinding
        import traceback

        traceback.print_exc()
    finally:
        os._exit(status)


def _forget_handlers() -> None:
    signal.set_wakeup_fd(-1)
    for signum in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
        if callable(signal.getsignal(signum)):
            signal.signal(signum, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def _parse_answer(line: bytes) -> dict[str, Any]:
    """Parse a line of the master's stdout; {} if it is no answer: startup files may print as well."""
    try:
        answer = json.loads(line)
    except (ValueError, RecursionError):
        return {}
    known = isinstance(answer, dict) and answer.keys() & {"port", "taken", "error", "url"}
    return answer if known else {}


async def _read(fd: int) -> bytes:
    """Wait for data and return it; b"" at the end of the file."""
    loop = asyncio.get_running_loop()
    ready = asyncio.Event()
    loop.add_reader(fd, ready.set)
    try:
        await ready.wait()
        return os.read(fd, _READ_LIMIT)
    finally:
        loop.remove_reader(fd)
