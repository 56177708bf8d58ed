"""The processes that write saved states to a storage, below the spawner as workers are.

A writer is forked from the warm parent where there is one, as it needs torch; else it is started cold. It
lives across rounds: no sweep kills it. It ends with the spawner, and so with the agent.

What a writer says is not believed blindly: a message that makes no sense counts as none, so that the writer
is killed for its silence. Its end counts, by what it said last, once the kernel has reaped it: then it writes
nothing any more.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import signal
import socket
import sys
from array import array
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from elasticrun.agent.memory.storage_access import Held, WriteJob
from elasticrun.agent.programs import STORAGE_PROGRAM
from elasticrun.agent.spawner.client import Command, Exited, SpawnFailed, WarmNews, WorkerStarter
from elasticrun.agent.workers.error_file import exit_sentence
from elasticrun.agent.workers.warm_recipes import torch_key
from elasticrun.config import WorkerConfig
from elasticrun.core.protocol.bounds import MAX_SENTENCE
from elasticrun.core.protocol.plain import one_line
from elasticrun.core.state.retrying import Trouble
from elasticrun.core.state.writing import Ended, Moved

logger = logging.getLogger(__name__)

#: The numbers of writers, downward: no store server, probe or worker has such a one.
FIRST_NUMBER = -(2**50)
_MESSAGE_BYTES = 64 << 10
_STDERR_BYTES = 65_536

OnEvent = Callable[["Moved | Ended"], None]


@dataclass(slots=True)
class _Writer:
    """A process that has not been reported as ended."""

    number: int
    attempt: int
    control: socket.socket
    stderr: int  # the read end of a pipe
    pieces: list[Held]
    on_event: OnEvent
    outcome: Ended | None = None  # as it told

    def send(self, message: dict[str, Any], *fds: int) -> None:
        ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array("i", fds))] if fds else []
        self.control.sendmsg([json.dumps(message).encode()], ancillary)

    def close(self) -> str:
        """Close our ends; return the last line of its output."""
        self.control.close()
        said = b""
        with contextlib.suppress(BlockingIOError):
            said = os.read(self.stderr, _STDERR_BYTES)
        os.close(self.stderr)
        lines = said.decode(errors="replace").strip().splitlines()
        return f"; its last line: {lines[-1]}" if lines else ""


class StorageWriters:
    """Starts writers, hands them their pieces, and reports how they fare."""

    def __init__(self, config: WorkerConfig, starter: WorkerStarter) -> None:
        self._config = config
        self._starter = starter
        self._loop = asyncio.get_running_loop()
        self._key = torch_key(config)
        self._next_number = FIRST_NUMBER
        self._writers: dict[int, _Writer] = {}
        self._device: int | None = None  # the file system of the storage, once something was written there

    @property
    def numbers(self) -> tuple[int, ...]:
        """Those of the writers that live: a sweep spares them."""
        return tuple(self._writers)

    def start(self, attempt: int, job: WriteJob, on_event: OnEvent) -> None:
        """Start a writer; ``Ended`` follows. OSError if descriptors run out."""
        with contextlib.ExitStack() as theirs:
            ours, control = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            theirs.callback(control.close)
            stderr, write_end = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)  # read at its end: excess is lost
            theirs.callback(os.close, write_end)
            ours.setblocking(False)
            pieces = [piece for _, held in job.parts for piece in held]
            writer = _Writer(self._next_number, attempt, ours, stderr, pieces, on_event)
            self._next_number -= 1
            self._writers[writer.number] = writer
            writer.send({**_order(job), "device": self._device})
            self._loop.add_reader(ours, self._heard, writer)
            self._starter.spawn(writer.number, self._command(control.fileno(), write_end))

    def kill(self, attempt: int) -> None:
        """Kill the writer of an attempt, if it lives."""
        for writer in self._writers.values():
            if writer.attempt == attempt:
                self._starter.signal(writer.number, signal.SIGKILL)

    def on_spawn_failed(self, event: SpawnFailed) -> bool:
        """Handle a writer that could not be started; False if the event is about another process."""
        return self._ended(event.worker, f"its process could not be started: {event.message}")

    def on_exited(self, event: Exited) -> bool:
        """Handle the end of a writer; False if the event is about another process."""
        was = "was " if event.exit_code < 0 else ""
        return self._ended(event.worker, f"the process that writes {was}{exit_sentence(event.exit_code)}")

    def on_warm_news(self, news: WarmNews) -> None:
        """Start writers cold once their parent was given up."""
        if self._key is not None and news.over == self._key:
            self._key = None

    def close(self) -> None:
        """Hear no more of any writer; the spawner kills them."""
        for number in [*self._writers]:
            writer = self._writers.pop(number)
            self._loop.remove_reader(writer.control)
            writer.close()

    def _command(self, control: int, output: int) -> Command:
        return Command(
            argv=[self._config.entrypoint.python or sys.executable, STORAGE_PROGRAM],
            env=dict(self._config.env),
            cwd=None,
            stdin=control,
            stdout=output,
            stderr=output,
            cpus=frozenset(os.sched_getaffinity(0)),  # the warm parent's may be fewer
            warm=self._key,
            program=STORAGE_PROGRAM,
            waits=False,
        )

    def _heard(self, writer: _Writer) -> None:
        try:
            data = writer.control.recv(_MESSAGE_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._loop.remove_reader(writer.control)  # its end follows
            return
        try:
            self._understand(writer, json.loads(data))
        except (ValueError, RecursionError, OSError) as error:
            logger.warning("the process that writes saved states says what makes no sense: %s", error)

    def _understand(self, writer: _Writer, message: object) -> None:
        match message:
            case {"ask": int(number)} if 0 <= number < len(writer.pieces):
                piece, fd = writer.pieces[number]
                writer.send({"rank": piece.rank, "length": piece.length, "digest": piece.digest}, fd)
            case {"moved": int()}:
                writer.on_event(Moved(writer.attempt))
            case {"done": True, "note": str(note), "device": int(device)}:
                writer.outcome = Ended(writer.attempt)
                self._device = device
                if note:
                    logger.warning("%s", one_line(note)[:MAX_SENTENCE])
            case {"trouble": str(trouble), "reason": str(reason)}:
                writer.outcome = Ended(writer.attempt, Trouble(trouble), one_line(reason)[:MAX_SENTENCE])
            case _:
                raise ValueError(f"it is none of the messages that are known: {str(message)[:100]}")

    def _ended(self, number: int, ending: str) -> bool:
        writer = self._writers.get(number)
        if writer is None:
            return False
        while writer.outcome is None and self._says_more(writer):
            self._heard(writer)
        del self._writers[number]
        self._loop.remove_reader(writer.control)
        words = writer.close()
        reason = one_line(ending + words)[:MAX_SENTENCE]
        writer.on_event(writer.outcome or Ended(writer.attempt, Trouble.OTHER, reason))
        return True

    def _says_more(self, writer: _Writer) -> bool:
        """Whether something that it said before its end is unread."""
        with contextlib.suppress(OSError):
            return bool(writer.control.recv(1, socket.MSG_PEEK))
        return False


def _order(job: WriteJob) -> dict[str, Any]:
    """What a writer is told first."""
    order = job.order
    return {
        "url": job.url,
        "commit": [order.commit.round, order.commit.step],
        "run": order.run,
        "parts": [
            {"number": part.number, "which": part.which, "of": part.of, "pieces": len(held)}
            for part, held in job.parts
        ],
        "files": order.files,
        "partial": order.partial,
        "urgent": order.urgent,
        "keep_last": job.keep_last,
        "keep_for": job.keep_for,
    }
