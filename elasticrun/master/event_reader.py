"""Reads an event log, of all its files, one line at a time: see ``event_log.py`` for what writes them.

Theory. The log may be that of a job that runs. So all files are opened before the first one is read: one
that is renamed meanwhile stays what it was, and is read once. Each is read up to its last whole line. A log
of any size is read with the memory of one line, which is bounded.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from elasticrun.core.protocol.chronicle import VERSION, LogEntry
from elasticrun.errors import UsageError
from elasticrun.rpc.event_lines import from_fields, is_entry

NAME = "events.jsonl"
#: How many older files are kept beside it: events.1.jsonl is the newest of these.
KEPT = 3
#: No line has more bytes.
LONGEST = 1 << 20
_FLAGS = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK  # a FIFO would be waited for


def older(path: Path, number: int) -> Path:
    """The file of this log that is so many renames old."""
    return path.with_suffix(f".{number}{path.suffix}") if number else path


def log_file(path: Path) -> Path:
    """The newest file of the log that is meant: the path itself, or the log in this directory."""
    return path / NAME if path.is_dir() else path


def files_of(path: Path) -> list[Path]:
    """The files of a log, the oldest first."""
    return [each for number in range(KEPT, -1, -1) if (each := older(path, number)).exists()]


def read_events(path: Path) -> list[dict[str, Any]]:
    """All entries of a log, the oldest first, of all of its files. A last line that is cut short is left out.

    Raises:
        UsageError: there is no log, it cannot be read, or a line of it is no entry.
    """
    return list(stream_events(path))


def stream_events(path: Path) -> Iterator[dict[str, Any]]:
    """The same, one after another."""
    for _, entry in _lines(path):
        yield entry


def stream_entries(path: Path) -> Iterator[LogEntry]:
    """The same as values, without those of kinds, or with fields, of another version."""
    for where, fields in _lines(path):
        try:
            entry = from_fields(fields)
        except (KeyError, TypeError, ValueError, OverflowError, RecursionError) as error:
            raise UsageError(f"{where} is no entry: the file is damaged") from error
        if entry is not None:
            yield entry


def _lines(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Where each entry is, and its fields."""
    files = files_of(path)
    if not files:
        raise UsageError(f"{path}: there is no event log; give a --state-dir, or its {NAME}")
    with contextlib.ExitStack() as stack:
        for file, opened in [(file, stack.enter_context(open_file(file))) for file in files]:
            yield from _entries(file, opened)


def open_file(path: Path) -> IO[bytes]:
    """A file of a log, for reading. UsageError: it cannot be read, or is no file, as a FIFO is none."""
    try:
        fd = os.open(path, _FLAGS)
        if stat.S_ISREG(os.fstat(fd).st_mode):
            return os.fdopen(fd, "rb")
        os.close(fd)
        raise OSError(errno.EINVAL, "it is no regular file")
    except OSError as error:
        raise UsageError(f"cannot read the event log {path}: {error.strerror}") from error


def _entries(path: Path, file: IO[bytes]) -> Iterator[tuple[str, dict[str, Any]]]:
    number = 0
    try:
        while (line := file.readline(LONGEST)).endswith(b"\n") or len(line) == LONGEST:
            number += 1
            yield f"line {number} of the event log {path}", _entry(path, number, line)
    except OSError as error:
        raise UsageError(f"cannot read the event log {path}: {error.strerror}") from error


def _entry(path: Path, number: int, line: bytes) -> dict[str, Any]:
    try:
        entry: Any = json.loads(line)
        is_ours = is_entry(entry)
    except (ValueError, RecursionError, OverflowError):
        is_ours = False
    if not is_ours:
        raise UsageError(f"line {number} of the event log {path} is no entry: the file is damaged")
    if entry["v"] > VERSION:
        raise UsageError(
            f"line {number} of the event log {path} has version {entry['v']}, and this elasticrun reads"
            f" {VERSION} and older: use the version that wrote it"
        )
    found: dict[str, Any] = entry
    return found
