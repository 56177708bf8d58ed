"""The master's memory on disk: every event that changed its state, in order.

The state is a function of the events, so the journal is the state: a new master replays it through the
same machine and discards the effects. An event is written before any of its effects leaves the
process, hence nobody can know of a decision that a replay would not make again. Lines are collected, and
handed to the kernel in one write by a commit, which comes before the effects of all of them. They are not
synced: that survives the death of the process, which is what a journal on the master's own host can help
against.

A last line that was cut short belongs to an event whose effects were never sent; it is dropped, and a
journal whose very first line is cut short is none. Damage anywhere else is refused, because a guess would
be a second history.
"""

from __future__ import annotations

import json
import math
import os
import typing
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from elasticrun.config import JobConfig
from elasticrun.core.job import JobMachine
from elasticrun.core.job_events import Beat, JobEvent
from elasticrun.errors import UsageError
from elasticrun.rpc.records import RecordError, from_json, to_json

FORMAT = 1
_ENCODER = json.JSONEncoder(separators=(",", ":"), check_circular=False)
#: Every event but the one that changes nothing.
EVENTS: dict[str, type[JobEvent]] = {
    kind.__name__: kind for kind in typing.get_args(JobEvent) if kind is not Beat
}


@dataclass(frozen=True, slots=True)
class Entry:
    """One event and when it was handled, in seconds of the job's clock."""

    at: float
    event: JobEvent


class Journal:
    """An append-only file of entries. A failed write ends it for good: a gap would be a lie."""

    def __init__(self, path: Path, fd: int) -> None:
        self.path = path
        self.pending = 0  # bytes that wait for a commit
        self._fd: int | None = fd
        self._lines: list[bytes] = []

    def add(self, entry: Entry) -> None:
        """Collect an entry for the next commit. Does nothing once a write has failed."""
        self.add_line({"at": entry.at, "kind": type(entry.event).__name__, "event": to_json(entry.event)})

    def add_line(self, line: dict[str, Any]) -> None:
        """Collect one JSON object, as ``add`` does."""
        if self._fd is not None:
            encoded = _ENCODER.encode(line).encode() + b"\n"
            self._lines.append(encoded)
            self.pending += len(encoded)

    def commit(self) -> None:
        """Write what was collected, in order. Raises OSError once, on the first write that fails."""
        data = b"".join(self._lines)
        self._lines.clear()
        self.pending = 0
        if self._fd is None:
            return
        try:
            _write_all(self._fd, data)
        except OSError:
            self.close()
            raise

    def close(self) -> None:
        """Stop writing; the file stays."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None


def create_journal(path: Path, config: JobConfig) -> Journal:
    """Begin a journal; one that is there already is kept beside it under a number.

    Raises:
        UsageError: the directory cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        keep_aside(path)
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC, 0o600)
        journal = Journal(path, fd)
        journal.add_line({"format": FORMAT, "config": to_json(config)})
        journal.commit()
    except OSError as error:
        raise UsageError(
            f"cannot write the master's journal {path}: {error.strerror}; name a writable --state-dir"
        ) from error
    return journal


def keep_aside(path: Path) -> None:
    """Rename a journal that is in the way, if one is."""
    if path.exists():
        path.rename(_free_name(path))


def resume_journal(path: Path) -> Journal:
    """Open a journal that ``read_journal`` accepted to go on with it, without a last line cut short.

    Raises:
        UsageError: the journal cannot be written.
    """
    try:
        fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
        os.ftruncate(fd, path.read_bytes().rfind(b"\n") + 1)
    except OSError as error:
        raise UsageError(f"cannot write the master's journal {path}: {error.strerror}") from error
    return Journal(path, fd)


def read_journal(path: Path) -> tuple[JobConfig, list[Entry]] | None:
    """The job's configuration and every whole entry; None if there is no file or no whole line in it.

    Raises:
        UsageError: the journal cannot be read, or is damaged elsewhere than in its last line.
    """
    try:
        lines = path.read_bytes().split(b"\n")[:-1]
    except FileNotFoundError:
        return None
    except OSError as error:
        raise UsageError(f"cannot read the master's journal {path}: {error.strerror}") from error
    parsed = _parse(path, lines)
    header = next(parsed, None)
    if header is None:
        return None
    try:
        if header.get("format") != FORMAT:
            raise RecordError(f"format {header.get('format')!r} is not {FORMAT}")
        config = from_json(JobConfig, header["config"])
    except (ValueError, KeyError, AttributeError, TypeError) as error:
        raise _not_ours(path, 1, error) from error
    return config, [_entry(path, number, line) for number, line in enumerate(parsed, 2)]


def _not_ours(path: Path, number: int, error: Exception) -> UsageError:
    return UsageError(
        f"line {number} of the master's journal {path} is not one that this version wrote ({error});"
        " move it away to start the job anew"
    )


def _parse(path: Path, lines: list[bytes]) -> Iterator[dict[str, Any]]:
    for number, line in enumerate(lines, 1):
        try:
            yield json.loads(line)
        except (ValueError, RecursionError):
            raise UsageError(
                f"line {number} of the master's journal {path} is damaged; move it away to start the job anew"
            ) from None


def _entry(path: Path, number: int, line: dict[str, Any]) -> Entry:
    try:
        at = from_json(float, line["at"])
        if not math.isfinite(at):
            raise RecordError(f"the time {at} is not finite")
        return Entry(at, from_json(EVENTS[line["kind"]], line["event"]))
    except (ValueError, KeyError, AttributeError, TypeError) as error:
        raise _not_ours(path, number, error) from error


def replay(path: Path, config: JobConfig, entries: Iterable[Entry]) -> JobMachine:
    """The state that the entries of ``read_journal`` stand for.

    Raises:
        UsageError: an entry cannot be replayed, as no master that this version runs has written it.
    """
    machine = JobMachine(config)
    for number, entry in enumerate(entries, 2):
        try:
            machine.handle(entry.event, entry.at)
        except Exception as error:  # whatever is wrong with it, it did not happen
            raise _not_ours(path, number, error) from error
    return machine


def _write_all(fd: int, data: bytes) -> None:
    while data:
        data = data[os.write(fd, data) :]


def _free_name(path: Path) -> Path:
    number = 1
    while (candidate := path.with_suffix(f".{number}{path.suffix}")).exists():
        number += 1
    return candidate
