"""Writes event logs for tests, as files."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from elasticrun.core.protocol.chronicle import LogEntry
from elasticrun.rpc.event_lines import to_line


def written(path: Path, entries: Iterable[LogEntry]) -> Path:
    """The entries as a file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as file:
        file.writelines(f"{to_line(entry)}\n" for entry in entries)
    return path
