"""Tells a broker the offsets of durable commits, and never touches the training.

Saves do not wait for the broker: what is known of saved steps has a lock of its own, which is never held
while the broker is told.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Container

from elasticrun.core.data.offsets import OffsetLog, Offsets
from elasticrun.core.protocol.commits import CommitId
from elasticrun.data.streams.source import Source
from elasticrun.errors import StreamError

logger = logging.getLogger("elasticrun")


class Telling:
    """What one rank may tell the broker, and has told it."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._log = OffsetLog()
        self._lock = threading.Lock()  # of the log
        self._turn = threading.Lock()  # held while the broker is told
        self._has_warned = False

    def saved(self, commit: CommitId, offsets: Offsets) -> None:
        """A step was saved. DataError: an offset went back."""
        with self._lock:
            self._log.saved(commit, offsets)

    def restored(self, commit: CommitId, offsets: Offsets) -> None:
        """The training goes on from this step."""
        with self._lock:
            self._log.restored(commit, offsets)

    def durable(self, commit: CommitId, own: Container[str]) -> bool:
        """A storage has this step. Returns whether the broker knows all that it may know of ``own``."""
        with self._turn:
            with self._lock:
                is_unknown = self._log.is_empty
                found = self._log.durable(commit)
            if is_unknown and not self._has_warned:
                self._has_warned = True
                logger.warning(
                    "the broker is not told of %s: call saved(step) of the StreamDataset after a save", commit
                )
            offsets = {name: offset for name, offset in found.items() if name in own}
            try:
                if offsets:
                    self._source.commit(offsets)
            except StreamError as error:
                logger.warning("the broker is not told of %s yet: %s", commit, error)
                return False
            with self._lock:
                self._log.told(offsets)
            return True
