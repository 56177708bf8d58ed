"""The master's memory on disk: every event that changed its state, in order.

The state is a function of the events, so the journal is the state: a new master replays it through the
same machine and discards the effects. An event is written before any of its effects leaves the
process, hence nobody can know of a decision that a replay would not make again. Lines are collected, and
handed to the kernel in one write by a commit, which comes before the effects of all of them. They are not
synced: they survive the death of the process, and a journal on the master's own host cannot help against
more.

A journal is *compacted* once it has grown enough: a new file begins with a snapshot of the state
(``master/snapshot.py``), and what comes later is appended to that. The file is written beside the old one,
synced and renamed over it, so at each moment the path names a whole journal of the same state. It grows again
by the larger of ``TAIL`` bytes and four times its snapshot, so its size is bounded however long the job
takes, and the snapshots cost a constant share of what is written. A snapshot is cut into several lines, so
that each can be copied in one message.

A last line that was cut short belongs to an event whose effects were never sent; it is dropped. A journal
whose very first line is cut short counts as none. Damage anywhere else is refused, because a guess would be a
second history.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
import typing
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import field
from pathlib import Path
from typing import Any, Protocol

from elasticrun.config import JobConfig
from elasticrun.core.job.events import Beat, JobEffect, JobEvent, MasterStarted
from elasticrun.core.job.machine import JobMachine
from elasticrun.core.job.state import JobState
from elasticrun.dataclass import dataclass
from elasticrun.errors import UsageError
from elasticrun.master.snapshot import Snapshot, restore, take
from elasticrun.rpc.records import RecordError, from_json, to_json

FORMAT = 1
#: The least bytes that are appended before a journal is compacted.
TAIL = 4 << 20
#: Characters of a snapshot in one line, whose JSON may take twice as many bytes.
_PIECE = 40_000
#: The key that agents' secrets are derived from; a journal without one gets it from the next master.
_KEY = re.compile("([0-9a-f]{64})?")
_ENCODER = json.JSONEncoder(separators=(",", ":"), check_circular=False)
#: Every event but the one that changes nothing.
EVENTS: dict[str, type[JobEvent]] = {
    kind.__name__: kind for kind in typing.get_args(JobEvent) if kind is not Beat
}


#: Former names of kinds of events, for the journals of earlier versions.
_FORMER_KINDS = {
    "DrainOrdered": "DrainNode",
    "ScaleOrdered": "ScaleJob",
    "RoleScaled": "ScaleRole",
    "StacksOrdered": "SaveAllStacks",
}


@dataclass(frozen=True, slots=True)
class Entry:
    """One event and when it was handled, in seconds of the job's clock."""

    at: float
    event: JobEvent | Snapshot
    line: int = field(default=0, compare=False)  # of the journal


class Listener(Protocol):
    """Hears what a replay does."""

    def restored(self, state: JobState, at: float) -> None:
        """Hear that it goes on from this state, as older events are gone."""

    def heard(self, event: JobEvent, state: JobState, effects: Sequence[JobEffect], at: float) -> None:
        """Hear that the machine of ``state`` has handled an event."""


class Journal:
    """An append-only file of entries. A failed write ends it for good, as it must have no gap."""

    def __init__(self, path: Path, fd: int) -> None:
        self.path = path
        self.pending = 0  # bytes that wait for a commit
        self.size = os.fstat(fd).st_size  # bytes in the file
        self._base = 0  # of these at the last compaction
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
        self.size += len(data)

    @property
    def is_long(self) -> bool:
        """Whether it is time to compact it."""
        return self._fd is not None and self.size - self._base > max(TAIL, 4 * self._base)

    def compact(self, state: JobState, at: float) -> None:
        """Begin anew with this state, which all entries so far have led to; none is pending.

        This blocks the loop, also for the disk: else lines that are committed before the rename would have to
        go to two files, each of which may fail. That costs 25 to 75 ms on a busy disk, once in each ``TAIL``
        bytes, which is less than the snapshot itself of a thousand nodes.

        Raises:
            OSError: there is no room. The journal goes on as it was, and is long again only later.
        """
        self._base = self.size
        draft = self.path.with_suffix(".draft")
        lines = [_header(state.config), *({"at": at, **line} for line in _pieces(take(state)))]
        data = b"".join(_ENCODER.encode(line).encode() + b"\n" for line in lines)
        draft.unlink(missing_ok=True)
        fd = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC, 0o600)
        try:
            _write_all(fd, data)
            os.fsync(fd)
            draft.replace(self.path)
        except OSError:
            os.close(fd)
            draft.unlink(missing_ok=True)
            raise
        self.close()
        self._fd = fd
        self.size = self._base = len(data)
        _sync_directory(self.path.parent)

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
        journal.add_line(_header(config))
        journal.commit()
    except OSError as error:
        raise UsageError(
            f"cannot write the master's journal {path}: {error.strerror}; name a writable --state-dir"
        ) from error
    return journal


def _header(config: JobConfig) -> dict[str, Any]:
    return {"format": FORMAT, "config": to_json(config)}


def founding_lines(state: JobState) -> tuple[str, ...]:
    """A journal of this job with one event, by which the master has its key."""
    event = {"at": 0.0, "kind": "MasterStarted", "event": to_json(MasterStarted(state.epoch, state.key))}
    return _ENCODER.encode(_header(state.config)), _ENCODER.encode(event)


def _pieces(snapshot: Snapshot) -> Iterator[dict[str, Any]]:
    """The lines of a snapshot; each says its number and how many there are."""
    text = _ENCODER.encode(to_json(snapshot))
    starts = range(0, len(text), _PIECE)
    for number, start in enumerate(starts, 1):
        yield {"snapshot": number, "of": len(starts), "text": text[start : start + _PIECE]}


def snapshot_lines(path: Path) -> int:
    """How many lines a journal needs at least: the header, and all of its snapshot."""
    with path.open("rb") as file:
        file.readline()
        line = json.loads(file.readline() or b"{}")
    return 1 + int(line.get("of", 0))


def _sync_directory(path: Path) -> None:
    """Make a rename in it survive a crash of the host; if that fails, the older file may come back."""
    with contextlib.suppress(OSError):
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)


def keep_aside(path: Path) -> None:
    """Rename a journal that is in the way, if one is."""
    if path.exists():
        path.rename(_free_name(path))


def resume_journal(path: Path) -> Journal:
    """Open a journal that ``read_journal`` accepted, to go on with it; drops a last line cut short.

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
    numbered = enumerate(parsed, 2)
    entries: list[Entry] = []
    pieces: list[dict[str, Any]] = []
    for number, line in numbered:
        if not isinstance(line, dict) or "snapshot" not in line:
            entries.append(_entry(path, number, line))
        elif entries or line["snapshot"] != number - 1:
            raise _not_ours(path, number, RecordError("a piece of a snapshot is out of place"))
        else:
            pieces.append(line)
    if pieces:
        entries.insert(0, _joined(path, pieces))
    return config, entries


def _joined(path: Path, pieces: list[dict[str, Any]]) -> Entry:
    """The snapshot at the beginning of a journal."""
    number = 1 + len(pieces)
    try:
        if pieces[-1]["of"] != len(pieces):
            raise RecordError(f"the snapshot has {len(pieces)} of {pieces[-1]['of']} pieces")
        snapshot = from_json(Snapshot, json.loads("".join(piece["text"] for piece in pieces)))
        return Entry(from_json(float, pieces[0]["at"]), snapshot, number)
    except (ValueError, KeyError, TypeError) as error:
        raise _not_ours(path, number, error) from error


def _not_ours(path: Path, number: int, error: Exception) -> UsageError:
    return UsageError(
        f"line {number} of the master's journal {path} is not one that this version wrote ({error});"
        " move it away to start the job anew"
    )


def _parse(path: Path, lines: list[bytes]) -> Iterator[Any]:
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
        kind = EVENTS[_FORMER_KINDS.get(line["kind"], line["kind"])]
        return Entry(at, from_json(kind, line["event"]), number)
    except (ValueError, KeyError, AttributeError, TypeError) as error:
        raise _not_ours(path, number, error) from error


def replay(
    path: Path, config: JobConfig, entries: Iterable[Entry], chronicle: Listener | None = None
) -> JobMachine:
    """The machine that the entries of ``read_journal`` lead to. ``chronicle`` hears what happened by them.

    Raises:
        UsageError: an entry cannot be replayed, so no master of this version wrote it.
    """
    machine = JobMachine(config)
    for entry in entries:
        try:
            if isinstance(entry.event, Snapshot):
                machine = restore(config, entry.event)
                if chronicle is not None:
                    chronicle.restored(machine.state, entry.at)
            else:
                effects = machine.handle(entry.event, entry.at)
                if chronicle is not None:
                    chronicle.heard(entry.event, machine.state, effects, entry.at)
            if not _KEY.fullmatch(machine.state.key):
                raise RecordError("the key in it is not one that a master drew")
        except Exception as error:  # whatever it is, no master wrote this entry
            raise _not_ours(path, entry.line, error) from error
    return machine


def _write_all(fd: int, data: bytes) -> None:
    while data:
        data = data[os.write(fd, data) :]


def _free_name(path: Path) -> Path:
    number = 1
    while (candidate := path.with_suffix(f".{number}{path.suffix}")).exists():
        number += 1
    return candidate
