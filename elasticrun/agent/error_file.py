"""Why a worker failed, as a Failure: from its error file, its exit status and the end of its stderr.

``torch.distributed.elastic.multiprocessing.errors.record`` writes one of two forms::

    {"message": {"message": TEXT, "extraInfo": {"py_callstack": TEXT, "timestamp": "SECONDS"}}}
    {"message": TEXT, "timestamp": SECONDS}

The file is the worker's own, so nothing in it is trusted to be there, of the right type, of a sane size or
even JSON: what cannot be read is said in words and is never a second failure.
"""

from __future__ import annotations

import json
import re
import signal
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from elasticrun.core.protocol import MAX_FAILURE_TEXT, Failure, FailureKind, NodeInfo

SIZE_LIMIT = 4 * 1024 * 1024  # bytes of an error file that are worth parsing

# What a signal usually means, where that is known and not obvious.
_USUAL_CAUSE = {
    signal.SIGKILL: "often the kernel or a job scheduler that ran out of memory for it",
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
# torch's version and with its kind of socket.
_LISTEN_FAILED = re.compile(r"server socket has failed to listen")
_IN_USE = re.compile(r"EADDRINUSE|address already in use", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class ErrorRecord:
    """What an error file says; ``problem`` is a sentence if it could not be read."""

    message: str = ""
    traceback: str = ""
    timestamp: float = 0.0  # seconds of the worker's wall clock, 0 if it gives none
    problem: str = ""


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


def read_error_file(path: str) -> ErrorRecord | None:
    """What the worker recorded; None if it recorded nothing."""
    try:
        with Path(path).open("rb") as file:
            data = file.read(SIZE_LIMIT + 1)
    except (FileNotFoundError, IsADirectoryError):
        return None
    except OSError as error:
        return ErrorRecord(problem=f"its error file {path} cannot be read ({error.strerror})")
    if not data.strip():
        return None  # opened, but the worker died before it could say anything
    if len(data) > SIZE_LIMIT:
        return ErrorRecord(problem=f"its error file {path} has over {SIZE_LIMIT >> 20} MiB and was not read")
    return _parse(path, data)


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


def make_failure(node: NodeInfo, ended: WorkerExit, store_port: int) -> Failure:
    """The failure of a worker that ended by itself; ``store_port`` is the round's MASTER_PORT."""
    record = read_error_file(ended.error_file) if ended.error_file else None
    record = record or ErrorRecord()
    kind = FailureKind.SIGNAL if ended.exit_code < 0 else FailureKind.EXIT
    texts = (record.message, record.traceback, ended.stderr_tail)
    if ended.rank == 0 and _shows_taken_port(texts, store_port):
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
        message=_clip(_message(record, ended.exit_code)),
        traceback=_clip(record.traceback),
        stderr_tail=_clip(ended.stderr_tail),
        error_file=ended.error_file if record != ErrorRecord() else "",
        timestamp=record.timestamp or ended.timestamp,
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
        return f"ended with exit code {exit_code}, a shell's way to say: killed by {by_signal}"
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


def _message(record: ErrorRecord, exit_code: int) -> str:
    if record.message:
        return record.message
    sentence = exit_sentence(exit_code)
    return f"{sentence}; {record.problem}" if record.problem else sentence


def _shows_taken_port(texts: tuple[str, ...], store_port: int) -> bool:
    port = re.compile(rf"(?<!\d){store_port}(?!\d)")
    return any(
        _LISTEN_FAILED.search(line) and _IN_USE.search(line) and port.search(line)
        for text in texts
        for line in text.splitlines()
    )


def _clip(text: str) -> str:
    """At most MAX_FAILURE_TEXT characters; the end is the part that says what went wrong."""
    return text if len(text) <= MAX_FAILURE_TEXT else "..." + text[3 - MAX_FAILURE_TEXT :]


def copy_root_cause(failure: Failure, target: str) -> str:
    """Pass the job's first failure on to whoever started the launcher, in ``target``.

    As torchrun does: the error file with ``errorCode`` added to its message; a failure without an error
    file leaves none. If the file lies on another host, it is written anew from what we were told.
    Returns "" or a sentence about what went wrong.
    """
    if not failure.error_file:
        return ""
    content = _load(failure.error_file)
    if content is None:
        content = _retold(failure)
    message = content.get("message")
    if isinstance(message, dict) and failure.exit_code:
        message["errorCode"] = failure.exit_code
    try:
        _replace(Path(target), json.dumps(content))
    except OSError as error:
        return f"the error file {target} of the launcher cannot be written ({error.strerror})"
    return ""


def _load(path: str) -> dict[str, Any] | None:
    try:
        with Path(path).open("rb") as file:
            data = file.read(SIZE_LIMIT + 1)
        content = json.loads(data) if len(data) <= SIZE_LIMIT else None
    except (OSError, ValueError, RecursionError):
        return None
    return content if isinstance(content, dict) else None


def _retold(failure: Failure) -> dict[str, Any]:
    seconds = str(int(failure.timestamp))
    extra = {"py_callstack": failure.traceback or failure.message, "timestamp": seconds}
    return {"message": {"message": failure.message, "extraInfo": extra}}


def _replace(target: Path, text: str) -> None:
    # Removed first: a worker that inherited the launcher's variable may have left a file of its own there.
    if target.is_file():
        target.unlink()
    target.write_text(text)
