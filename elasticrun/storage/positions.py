"""The file in which a process records its positions in the data, for ``elastic-ctl audit``.

    RUN_DIR/data/round_<round>_rank_<rank>.jsonl

The first line says how the rank began, each further one which positions a saved step has
(``core/data/history.py``). A line is written, in one piece, before the rank's part of that step is complete:
what can be restored was recorded. It is not synced: a killed worker loses nothing, a lost host what its
kernel had not written. A round's number is never reused, so no file is written twice.

A directory that cannot be used is an error before the training starts. A later fault, such as a full disk or
a line that is longer than those that are read, ends the record with a warning, and never the training; the
audit then names what was not recorded.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from elasticrun.core.data import history
from elasticrun.core.data.history import Start, saved_line, start_line
from elasticrun.core.data.record import is_state
from elasticrun.core.data.shard_audit import to_line
from elasticrun.core.protocol.commits import CommitId
from elasticrun.errors import CheckpointError

logger = logging.getLogger("elasticrun")

FOLDER = "data"
PATTERN = "round_*_rank_*.jsonl"


def next_round(run_dir: str | os.PathLike[str]) -> int:
    """The number after that of the newest record, for who has no number of its own."""
    names = (path.name.split("_")[1] for path in Path(run_dir, FOLDER).glob(PATTERN))
    return 1 + max((int(name) for name in names if name.isdecimal() and name.isascii()), default=-1)


class PositionRecord:
    """What one rank records in one round."""

    def __init__(self, run_dir: str | os.PathLike[str], round_: int, rank: int, world: int) -> None:
        """Make the file. CheckpointError if it cannot be made, or is there already."""
        self._path = Path(run_dir, FOLDER, f"round_{round_}_rank_{rank}.jsonl")
        self._place = round_, rank, world
        self._has_begun = False
        self._plans: dict[str, object] = {}  # that were written last, by name
        self._file = -1
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._file = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o644)
        except FileExistsError:
            raise CheckpointError(
                f"{self._path} is there already: give each job a directory of its own for its records"
            ) from None
        except OSError as error:
            raise CheckpointError(
                f"no record of the data can be made at {self._path} ({error.strerror}): give a directory that"
                " all workers may write to"
            ) from None

    def begin(self, restored: CommitId | None, run: str | None = None) -> None:
        """Record what this rank goes on from. Later calls do nothing.

        ``run``: which wrote that to a storage; None: it was in memory.
        """
        if not self._has_begun:
            self._has_begun = True
            self._write(start_line(Start(*self._place, restored, run)))

    def save(
        self,
        step: int,
        states: Mapping[str, Any],
        trails: Mapping[str, Any] | None = None,
        was_kept: bool = True,
    ) -> None:
        """Record the positions among these states, which belong to a step.

        ``trails``: what was trained on since the last line, of those that tell it. ``was_kept``: whether the
        step could be saved; if not, what was trained on counts all the same once a later one is.
        """
        self.begin(None)
        shards = {name: self._line(name, states[name], each) for name, each in (trails or {}).items()}
        positions = {name: state for name, state in states.items() if is_state(state)}
        self._write(saved_line(step, positions, shards, was_kept))

    def _line(self, name: str, state: Mapping[str, Any], trail: Mapping[str, Any]) -> dict[str, Any]:
        """A plan may have many files, so it is written once."""
        line = to_line(state, trail, self._plans.get(name))
        self._plans[name] = state["leases"].get("plan")
        return line

    def close(self) -> None:
        """Close the file."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def _write(self, line: dict[str, Any]) -> None:
        if self._file < 0:
            return
        data = json.dumps(line, separators=(",", ":")).encode() + b"\n"
        if len(data) > history.MAX_LINE:
            self._end(f"a line has {len(data)} bytes, and {history.MAX_LINE} are read")
            return
        try:
            written = os.write(self._file, data)
            fault = "the disk is full" if written < len(data) else ""
        except OSError as error:
            fault = error.strerror or str(error)
        if fault:
            self._end(fault)

    def _end(self, fault: str) -> None:
        logger.warning("the record %s ends here: %s", self._path, fault)
        self.close()
