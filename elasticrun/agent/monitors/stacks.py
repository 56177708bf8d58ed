"""Where the workers are right now: the stacks of their threads, as text.

py-spy, if the user has it, reads them from outside, whatever the worker does. Without it, or where the
kernel forbids it, a worker that has armed itself is sent a signal, and its ``faulthandler`` writes to a pipe
of the agent's. That text has no end mark: it is complete once nothing has come for ``SETTLED``.

Invariants. All workers are asked at once, each within a bound; if one cannot be asked, its file says why. A
signal goes only to a process that catches it at that moment: an armed worker that has replaced itself by
another program would be killed by it.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import logging
import os
import shutil
from collections import defaultdict
from collections.abc import Iterable, Mapping

from elasticrun.dataclass import dataclass

logger = logging.getLogger(__name__)

PY_SPY_TIMEOUT = 5.0  # seconds
SIGNAL_TIMEOUT = 2.0  # seconds until the first line
SETTLED = 0.25  # seconds without another line
_READ_BYTES = 65536
_PIPE_BYTES = 1 << 20  # room for a hundred deep threads
_MOST_READS = 20_000  # of one answer, which comes in small pieces
_MOST_BYTES = 4 << 20  # of one answer
_LATE_READS = 4 * _PIPE_BYTES // _READ_BYTES  # of an answer that came too late


@dataclass(frozen=True, slots=True)
class Target:
    """A worker whose stacks are wanted."""

    local_rank: int
    pid: int
    signum: int  # on which it writes its stacks; 0: none
    pipe: int  # our end of the pipe it writes them to


@dataclass(frozen=True, slots=True)
class Taken:
    """The stacks of one worker, or why there are none."""

    text: str  # "" if nothing
    problem: str = ""  # why not


_SLOW = Taken("", "py-spy took too long and is not used again")


class StackTaker:
    """Takes stacks, on the running loop, and saves them beside the logs of a round."""

    def __init__(self, search_path: str | None) -> None:
        """``search_path``: the value of PATH where py-spy may lie; None: do without."""
        self._py_spy = shutil.which("py-spy", path=search_path) if search_path else None
        self._turns = defaultdict[int, asyncio.Lock](asyncio.Lock)  # a pipe carries one answer at a time
        self._directories: Mapping[int, str] = {}
        self._saved = 0

    def open_round(self, directories: Mapping[int, str]) -> None:
        """From now on save stacks in these directories, by local rank; more may be added; "": nowhere."""
        self._directories, self._saved = directories, 0

    async def take(self, targets: Iterable[Target]) -> dict[int, Taken]:
        """The stacks of all targets, by local rank, within ``PY_SPY_TIMEOUT + SIGNAL_TIMEOUT`` or so."""
        targets = tuple(targets)
        taken = await asyncio.gather(*(self._take_in_turn(target) for target in targets))
        return {target.local_rank: each for target, each in zip(targets, taken, strict=True)}

    def save(self, taken: Mapping[int, Taken]) -> list[str]:
        """Write ``stacks_<n>.txt`` beside each worker's logs; return the paths. Warn of failed writes."""
        name = f"stacks_{self._saved}.txt"
        self._saved += 1
        paths = []
        for local_rank, each in taken.items():
            directory = self._directories.get(local_rank, "")
            path = os.path.join(directory, name)
            if directory and _write(path, each.text or f"no stack available: {each.problem}\n"):
                paths.append(path)
        return paths

    async def _take_in_turn(self, target: Target) -> Taken:
        async with self._turns[target.local_rank]:
            return await self._take(target)

    async def _take(self, target: Target) -> Taken:
        if self._py_spy is None:
            seen = Taken("", "py-spy is not installed")
        else:
            seen = await run_py_spy(self._py_spy, target.pid)
        if seen == _SLOW:
            self._py_spy = None  # suspects are looked at several times
        if seen.text:
            return seen
        told = await ask_by_signal(target)
        return told if told.text else Taken("", f"{seen.problem}; {told.problem}")


async def run_py_spy(program: str, pid: int) -> Taken:
    """The stacks of a process, read by py-spy."""
    pipe = asyncio.subprocess.PIPE
    try:
        process = await asyncio.create_subprocess_exec(
            program, "dump", "--pid", str(pid), stdin=asyncio.subprocess.DEVNULL, stdout=pipe, stderr=pipe
        )
    except OSError as error:
        return Taken("", f"py-spy cannot be started: {error.strerror}")
    try:
        output, errors = await asyncio.wait_for(process.communicate(), PY_SPY_TIMEOUT)
    except asyncio.TimeoutError:
        return _SLOW
    finally:
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()
    text = output.decode(errors="replace")
    if process.returncode == 0 and "Thread " in text:
        return Taken(text)
    said = errors.decode(errors="replace").strip().splitlines()
    return Taken("", f"py-spy failed: {said[0] if said else f'exit status {process.returncode}'}")


async def ask_by_signal(target: Target) -> Taken:
    """The stacks that an armed worker writes upon a signal."""
    if not catches(target.pid, target.signum):
        return Taken("", "the worker does not answer a signal with its stacks")
    loop = asyncio.get_running_loop()
    chunks: list[bytes] = []
    size = 0
    done: asyncio.Future[None] = loop.create_future()
    timer = loop.call_later(SIGNAL_TIMEOUT, _finish, done)

    def readable() -> None:
        nonlocal timer, size
        chunks.append(_read(target.pipe))
        size += len(chunks[-1])
        timer.cancel()
        timer = loop.call_later(SETTLED, _finish, done)
        if len(chunks) >= _MOST_READS or size >= _MOST_BYTES:
            _finish(done)

    for _ in range(_LATE_READS):
        if not _read(target.pipe):  # otherwise the rest of an answer that came too late
            break
    loop.add_reader(target.pipe, readable)
    try:
        os.kill(target.pid, target.signum)
        await done
    except ProcessLookupError:
        return Taken("", "the worker has ended")
    finally:
        timer.cancel()
        loop.remove_reader(target.pipe)
    text = b"".join(chunks).decode(errors="replace")
    return Taken(text, "" if text else f"the worker did not answer within {SIGNAL_TIMEOUT:g} s")


def catches(pid: int, signum: int) -> bool:
    """Whether a process has a handler for a signal right now."""
    if not signum or pid <= 1:
        return False
    try:
        with open(f"/proc/{pid}/status", "rb") as status:
            caught = [line.split()[1] for line in status if line.startswith(b"SigCgt")]
    except OSError:
        return False
    return bool(caught) and bool(int(caught[0], 16) >> (signum - 1) & 1)


def open_pipe() -> tuple[int, int]:
    """(our end, the worker's end) of a pipe for stacks. OSError if descriptors run out."""
    reader, writer = os.pipe()
    os.set_blocking(reader, False)
    with contextlib.suppress(OSError):  # above this user's limit: deep stacks are cut
        fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
    return reader, writer


def _write(path: str, text: str) -> bool:
    """Write a file; warn and return False if that fails."""
    try:
        with open(path, "w") as file:
            file.write(text)
    except OSError as error:
        logger.warning("stacks cannot be saved: %s: %s", path, error.strerror)
        return False
    return True


def _finish(done: asyncio.Future[None]) -> None:
    if not done.done():
        done.set_result(None)


def _read(pipe: int) -> bytes:
    try:
        return os.read(pipe, _READ_BYTES)
    except BlockingIOError:
        return b""
