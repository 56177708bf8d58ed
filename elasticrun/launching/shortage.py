"""What a listener does where no descriptor, or no memory, is left for a connection: it says so, and goes on.

Nothing tells when others of this process, or of the host, have closed something, so it tries again after a
pause. Who connects meanwhile waits in the kernel's queue.
"""

from __future__ import annotations

import errno
import logging

#: Seconds between attempts.
PAUSE = 0.1
_NUMBERS = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})

logger = logging.getLogger(__name__)


class Shortage:
    """Tells whether errors will pass, and warns of the first one."""

    def __init__(self, listener: str) -> None:
        """``listener``: who accepts connections, in words."""
        self._listener = listener
        self._is_told = False

    def explains(self, error: OSError) -> bool:
        """Whether it is worth to try again."""
        if error.errno not in _NUMBERS:
            return False
        if not self._is_told:
            self._is_told = True
            logger.warning("%s cannot accept connections for now: %s (see ulimit -n)", self._listener, error)
        return True
