"""The launcher's own messages: one line each on stderr, marked as ours, never blocking the loop.

They quote others: names of nodes, exceptions of workers. So characters that steer a terminal are replaced.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from elasticrun.config import LaunchConfig
from elasticrun.core.protocol.messages import NodeInfo
from elasticrun.core.protocol.plain import plain

#: Precedes each further line of a message, such as a traceback's, so that no quoted text begins a line.
_CONTINUED = "\n    "


class ConsoleHandler(logging.Handler):
    """Hands formatted records to a console that does not block."""

    def __init__(self, write: Callable[[bytes], object]) -> None:
        super().__init__()
        self._write = write

    def emit(self, record: logging.LogRecord) -> None:
        """Write one record."""
        text = plain(self.format(record)).replace("\n", _CONTINUED)
        self._write(text.encode(errors="replace") + b"\n")


def configure_logging(config: LaunchConfig, node: NodeInfo, write: Callable[[bytes], object]) -> None:
    """Send our log to ``write``, and log the notes that parsing left."""
    mark = f"elastic-run[{node.node}]" if config.job.max_nodes > 1 else "elastic-run"
    handler = ConsoleHandler(write)
    handler.setFormatter(logging.Formatter(f"{mark}: %(message)s"))
    root = logging.getLogger("elasticrun")
    root.setLevel(config.log_level)
    root.propagate = False
    root.addHandler(handler)
    for level, sentence in config.notes:
        root.log(logging.getLevelName(level.upper()), "%s", sentence)
