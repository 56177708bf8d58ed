"""The positions in data that a chief saves with its model: one variable in the same checkpoint.

Theory. The variable has all positions, as JSON in a scalar of type string. TensorFlow writes and reads it
with the others, so model and samples cannot come from two checkpoints; ``PeerBackup`` copies it like any
variable that lies on no parameter server. It is at most ``MAX_TEXT`` bytes: the positions of one reader grow
with changes of the batch, not with the epochs.

With ``records`` each chief also writes down what it saves, for ``elastic-ctl audit``, before the checkpoint
is made. A chief may start again within a round of the launcher, so its records are numbered by the chiefs of
the directory: the first free number. What it goes on from is in the checkpoint as well.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

import tensorflow as tf

from elasticrun.core.data.record import is_number
from elasticrun.core.protocol.commits import CommitId
from elasticrun.errors import CheckpointError, DataError
from elasticrun.storage.positions import PositionRecord, next_round

FORMAT = 1  # as in ``_parse``
MAX_TEXT = 1 << 20


class Positioned(Protocol):
    """Data with a position."""

    def state_dict(self) -> dict[str, Any]:
        """The position, as plain values."""

    def load_state_dict(self, state: Any) -> None:
        """Go on after a position. DataError if it is none of this data."""


class SavedPositions:
    """The positions of some data, by name, in a variable."""

    def __init__(self, data: Mapping[str, Positioned], records: str | Path | None) -> None:
        """CheckpointError if the records cannot be written."""
        self.variable = tf.Variable("", dtype=tf.string, trainable=False)  # on the chief itself: no scope
        self._data = dict(data)
        self._round = 0 if records is None else next_round(records)
        self._record = None if records is None else PositionRecord(records, self._round, 0, 1)

    def begin_anew(self) -> None:
        """There is no checkpoint."""
        if self._record is not None:
            self._record.begin(None)

    def restored(self) -> None:
        """Have the data go on where the variable says, which was restored.

        Raises:
            DataError: it is damaged, or of other data.
        """
        commit, states = _parse(self.variable.numpy())
        if self._data.keys() != states.keys():
            raise DataError(
                f"the checkpoint has positions in {_named(states)}, and the program has data named"
                f" {_named(self._data)}: give it the data that it had"
            )
        for name, data in self._data.items():
            data.load_state_dict(states[name])
        if self._record is not None:
            self._record.begin(commit)

    def save(self, step: int) -> None:
        """Take the positions into the variable, as a checkpoint of this step is about to be made."""
        states = {name: data.state_dict() for name, data in self._data.items()}
        commit = None if self._record is None else [self._round, step]
        text = json.dumps({"format": FORMAT, "commit": commit, "data": states}, separators=(",", ":"))
        if len(text) > MAX_TEXT:
            raise CheckpointError(f"the positions in the data take {len(text)} bytes, of {MAX_TEXT} at most")
        if self._record is not None:
            self._record.save(step, states)
        self.variable.assign(text)


def _parse(text: bytes) -> tuple[CommitId | None, Mapping[str, Any]]:
    """The commit that has these positions, if it was recorded, and the positions by name."""
    try:
        saved = json.loads(text) if len(text) <= MAX_TEXT else None
    except (ValueError, RecursionError):
        saved = None
    match saved:
        case {"format": 1, "commit": None, "data": dict(states)}:
            return None, states
        case {"format": 1, "commit": [int(), int()] as numbers, "data": dict(states)} if all(
            is_number(number, 0) for number in numbers
        ):
            return CommitId(*numbers), states
    raise DataError("the positions in the checkpoint are damaged, or of another release of elasticrun")


def _named(names: Mapping[str, Any]) -> str:
    return ", ".join(sorted(names)) or "nothing"
