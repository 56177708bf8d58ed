"""Why a worker failed, as a Failure: from its error file, its exit status and the end of its stderr.

``torch.distributed.elastic.multiprocessing.errors.record`` writes one of two forms::

    {"message": {"message": TEXT, "extraInfo": {"py_callstack": TEXT, "timestamp": "SECONDS"}}}
    {"message": TEXT, "timestamp": SECONDS}

The worker writes the file, so nothing in it is trusted: it may lack fields, have wrong types, be huge, be no
JSON, or be no file. Only a regular file of our own user is read, and no link is followed: a FIFO would never
end, and a link may lead to somebody else's secret. An unreadable file is mentioned in the failure's message
and is never a second failure.

Paths that came with a message are only shown, never opened.
"""

from __future__ import annotations

import errno
import json
import os
import re
import signal
import stat
from contextlib import suppress
from dataclasses import replace
from typing import Any

from elasticrun.core.protocol.bounds import MAX_FAILURE_TEXT
from elasticrun.core.protocol.messages import Failure, FailureKind, NodeInfo
from elasticrun.dataclass import dataclass

SIZE_LIMIT = 4 * 1024 * 1024  # bytes of an error file that are worth parsing

# What a signal usually means, where that is known and not obvious.
_USUAL_CAUSE = {
    signal.SIGKILL: "often by the kernel or a job scheduler, because memory ran out",
    signal.SIGSEGV: "a crash in native code",
    signal.SIGBUS: "often a full /dev/shm",
    signal.SIGABRT: "native code gave up, often on a failed check or a collective that timed out",
    signal.SIGILL: "often a library built for another processor",
    signal.SIGTERM: "some other process asked it to stop",
    signal.SIGINT: "some other process interrupted it",
    signal.SIGPIPE: "it wrote to a program that had gone",
    signal.SIGXCPU: "its CPU time limit was spent",
    signal.SIGXFSZ: "its file size limit was reached",
}

# What torch's TCPStore says, in one line, when rank 0 cannot listen; the part about the port differs with
# torch's version and with its kind of socket. Torch 2.4 names no port.
_LISTEN_FAILED = re.compile(r"server socket has failed to listen")
_IN_USE = re.compile(r"EADDRINUSE|address already in use", re.IGNORECASE)
_SOME_PORT = re.compile(r"port:? ?\d|\]:\d")


@dataclass(frozen=True, slots=True)
class ErrorRecord:
    """What an error file says; ``problem`` is a sentence if it could not be read."""

    message: str = ""
    traceback: str = ""
    timestamp: float = 0.0  # seconds of the worker's wall clock, 0 if it gives none
    problem: str = ""
    written: float = 0.0  # when the file was last written, by the same clock; 0 if that is unknown

    @property
    def raised(self) -> float:
        """When the exception was recorded, 0 if that is unknown. Torch writes whole seconds; the file's own
        time says more, if it agrees.
        """
        agrees = self.timestamp <= self.written < self.timestamp + 1
        return self.written if agrees or not self.timestamp else self.timestamp


@dataclass(frozen=True, slots=True)
class WorkerExit:
    """How one worker ended."""

    local_rank: int
    rank: int
    pid: int
    exit_code: int  # negative: the number of the signal
    timestamp: float  # wall clock in seconds
    error_file: str = ""
    stderr_tail: str = ""
    told: frozenset[int] = frozenset()  # signals that the launcher sent while it lived

    @property
    def is_stopped(self) -> bool:
        """Whether the launcher's signals may have changed how it ended."""
        return bool(self.told) and (self.exit_code >= 0 or -self.exit_code in self.told)


def read_error_file(path: str) -> ErrorRecord | None:
    """What the worker recorded; None if it recorded nothing."""
    try:
        # Non-blocking: else opening a FIFO without a writer would hang before we could see what it is.
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_NOCTTY | os.O_CLOEXEC)
        with open(fd, "rb") as file:
            status = os.fstat(fd)
            if problem := _refusal(status):
                return ErrorRecord(problem=f"its error file {path} {problem} and was not read")
            data = file.read(SIZE_LIMIT + 1)
    except (FileNotFoundError, IsADirectoryError):
        return None
    except OSError as error:
        if error.errno == errno.ELOOP:
            return ErrorRecord(problem=f"its error file {path} is a link and was not read")
        return ErrorRecord(problem=f"its error file {path} cannot be read ({error.strerror})")
    if not data.strip():
        return None  # opened, but the worker died before it could say anything
    if len(data) > SIZE_LIMIT:
        return ErrorRecord(problem=f"its error file {path} has over {SIZE_LIMIT >> 20} MiB and was not read")
    record = _parse(path, data)
    return record if record.problem else replace(record, written=max(0.0, status.st_mtime))


def _refusal(status: os.stat_result) -> str:
    """What is wrong with an opened file, as the middle of a sentence; "" if nothing is."""
    if not stat.S_ISREG(status.st_mode) and not stat.S_ISDIR(status.st_mode):
        return "is not a regular file"
    return "" if status.st_uid == os.geteuid() else f"belongs to another user ({status.st_uid})"


def _parse(path: str, data: bytes) -> ErrorRecord:
    try:
        content = json.loads(data)
    except (ValueError, RecursionError):
        return ErrorRecord(problem=f"its error file {path} is not JSON")
    message = content.get("message") if isinstance(content, dict) else None
    if isinstance(message, str):
        return ErrorRecord(message=message, timestamp=_seconds(content.get("timestamp")))
    if isinstance(message, dict):
        return _parse_recorded(message)
    return ErrorRecord(problem=f"its error file {path} has no field `message`")


def _parse_recorded(message: dict[str, Any]) -> ErrorRecord:
    found = message.get("extraInfo")
    extra = found if isinstance(found, dict) else {}
    return ErrorRecord(
        message=_text(message.get("message")),
        traceback=_text(extra.get("py_callstack")),
        timestamp=_seconds(extra.get("timestamp")),
    )


def _text(value: object) -> str:
    return value if isinstance(value, str) else "" if value is None else json.dumps(value)


def _seconds(value: object) -> float:
    if isinstance(value, (int, float, str)):
        with suppress(ValueError, OverflowError):
            seconds = float(value)
            if 0 < seconds < 1e11:  # not a date, not NaN
                return seconds
    return 0.0


def make_failure(
    node: NodeInfo, ended: WorkerExit, store_port: int, record: ErrorRecord | None = None
) -> Failure:
    """The failure of a worker that did not end well. ``store_port`` is the round's MASTER_PORT if another
    program may have taken it, else 0; ``record`` is what its error file says.
    """
    record = record or ErrorRecord()
    kind = FailureKind.SIGNAL if ended.exit_code < 0 else FailureKind.EXIT
    texts = (record.message, record.traceback, ended.stderr_tail)
    if ended.rank == 0 and store_port and _shows_taken_port(texts, store_port):
        kind = FailureKind.PORT_TAKEN
    return Failure(
        node=node.node,
        host=node.host,
        rank=ended.rank,
        local_rank=ended.local_rank,
        role=node.role,
        pid=ended.pid,
        kind=kind,
        exit_code=ended.exit_code,
        message=_clip(_message(record, ended)),
        traceback=_clip(record.traceback),
        stderr_tail=_clip(ended.stderr_tail),
        error_file=ended.error_file if record != ErrorRecord() else "",
        timestamp=record.timestamp or ended.timestamp,
        stopped=ended.is_stopped,
        raised=record.raised,
    )


def make_spawn_failure(node: NodeInfo, rank: int, local_rank: int, reason: str, timestamp: float) -> Failure:
    """The failure of a worker that could not be started."""
    return Failure(
        node=node.node,
        host=node.host,
        rank=rank,
        local_rank=local_rank,
        role=node.role,
        pid=0,
        kind=FailureKind.SPAWN,
        exit_code=1,
        message=_clip(f"could not be started: {reason}"),
        timestamp=timestamp,
    )


def exit_sentence(exit_code: int) -> str:
    """``ended with exit code 3`` or ``killed by SIGKILL (9): often ...``."""
    if exit_code < 0:
        return f"killed by {_signal_and_cause(-exit_code)}"
    if 128 < exit_code < 128 + signal.NSIG:  # how a shell, or a wrapper like it, passes a signal on
        by_signal = _signal_and_cause(exit_code - 128)
        return f"ended with exit code {exit_code}, which from a shell means: killed by {by_signal}"
    return f"ended with exit code {exit_code}"


def signal_name(signum: int) -> str:
    """``SIGKILL``, or ``signal 40`` for one without a name."""
    try:
        return signal.Signals(signum).name
    except ValueError:
        return f"signal {signum}"


def _signal_and_cause(signum: int) -> str:
    cause = next((text for known, text in _USUAL_CAUSE.items() if known == signum), "")
    return f"{signal_name(signum)} ({signum})" + (f": {cause}" if cause else "")


def _message(record: ErrorRecord, ended: WorkerExit) -> str:
    if record.message:
        return record.message
    by_us = ended.is_stopped and ended.exit_code < 0
    sentence = (
        f"was already failing when the launcher stopped it by {signal_name(-ended.exit_code)}"
        if by_us
        else exit_sentence(ended.exit_code)
    )
    return f"{sentence}; {record.problem}" if record.problem else sentence


def _shows_taken_port(texts: tuple[str, ...], store_port: int) -> bool:
    port = re.compile(rf"(?<!\d){store_port}(?!\d)")
    return any(
        _LISTEN_FAILED.search(line)
        and _IN_USE.search(line)
        and (port.search(line) or not _SOME_PORT.search(line))
        for text in texts
        for line in text.splitlines()
    )


def _clip(text: str) -> str:
    """At most MAX_FAILURE_TEXT characters; the end is the part that says what went wrong."""
    return text if len(text) <= MAX_FAILURE_TEXT else "..." + text[3 - MAX_FAILURE_TEXT :]


def copy_root_cause(failure: Failure, target: str) -> str:
    """Write the job's first failure to ``target``, readable by our user only, for the launcher's caller.

    The content is torchrun's: what the error file said, with ``errorCode`` added to its message; a failure
    without an error file leaves none. It comes from the failure's message: the error file may lie on another
    host, and its path is not trusted. Return "" or a sentence about what went wrong.
    """
    if not failure.error_file:
        return ""
    extra = {
        "py_callstack": failure.traceback or failure.message,
        "timestamp": str(int(failure.timestamp)),
    }
    message: dict[str, Any] = {"message": failure.message, "extraInfo": extra}
    if failure.exit_code:
        message["errorCode"] = failure.exit_code
    try:
        _replace(target, json.dumps({"message": message}))
    except OSError as error:
        return f"the error file {target} of the launcher cannot be written ({error.strerror})"
    return ""


def _replace(target: str, text: str) -> None:
    # Removed first: a worker that inherited the launcher's variable may have left a file of its own there.
    with suppress(OSError):  # a mounted file cannot be removed, only overwritten
        if stat.S_ISREG(os.lstat(target).st_mode):
            os.unlink(target)
    flags = os.O_WRONLY | os.O_CREAT | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_NOCTTY | os.O_CLOEXEC
    with open(os.open(target, flags, 0o600), "w") as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise OSError(errno.EINVAL, "it is not a regular file")
        file.truncate()
        file.write(text)
