"""This host's copy of the master's journal, in case it has to take over.

The master sends all lines so far, then each new one. A copy only grows, or starts again in a new file, which
replaces the old one as soon as it has the whole snapshot that a journal may begin with. So after the first
copy there is always one that can be used. A message of an earlier epoch, or one that would leave a gap, is
dropped. The copy is a convenience: without it a master that takes over still forms the
right worlds (``core/membership/quorum.py``), but has forgotten the restart budget. So a full disk is no
reason to stop.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path

from elasticrun.core.protocol.messages import JournalCopy

logger = logging.getLogger(__name__)

#: What follows if no copy can be kept.
WITHOUT_COPY = "a master that takes over on this host will not know how many restarts were used"


class KeptCopy:
    """The copy in one file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._fd: int | None = None
        self._epoch = -1
        self._lines = 0
        self._whole = 0  # lines until the draft can take the copy's place; 0: it has
        self._draft = path.with_suffix(".draft")

    def take(self, message: JournalCopy) -> None:
        """Keep some lines."""
        if message.epoch < self._epoch:
            return
        try:
            if message.first == 0:
                self._begin(message.whole)
            if self._fd is None or message.first != self._lines:
                return
            self._epoch = message.epoch
            _write_all(self._fd, "".join(f"{line}\n" for line in message.lines).encode())
            self._lines += len(message.lines)
            if 0 < self._whole <= self._lines:
                self._draft.replace(self.path)
                self._whole = 0
        except OSError as error:
            logger.warning(
                "cannot keep a copy of the master's journal in %s (%s): %s",
                self.path,
                error.strerror,
                WITHOUT_COPY,
            )
            self.close()

    def close(self) -> None:
        """Stop keeping lines; the file stays."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    def _begin(self, whole: int) -> None:
        self.close()
        self._draft.parent.mkdir(parents=True, exist_ok=True)
        self._draft.unlink(missing_ok=True)
        self._whole = max(1, whole)
        self._fd = os.open(
            self._draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC, 0o600
        )
        self._lines = 0


def _write_all(fd: int, data: bytes) -> None:
    while data:
        data = data[os.write(fd, data) :]
