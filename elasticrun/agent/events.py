"""What happened, as JSON lines for a program to read: ``--event-log-handler console``.

Each line has torchrun's fields: name, source (AGENT or WORKER), timestamp in milliseconds, metadata.
An unknown handler is an error at the start. torchrun finds it only at the first event, with the workers
running.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from enum import Enum

from elasticrun.errors import UsageError

MetadataValue = str | int | float | bool | None

#: Handlers that torchrun knows, and whether they show anything.
HANDLERS = {"console": True, "null": False, "dynamic_rendezvous": False}


class EventSource(Enum):
    """The subject of an event."""

    AGENT = "AGENT"
    WORKER = "WORKER"


class EventLog:
    """Writes events, or nothing."""

    def __init__(
        self, handler: str, write: Callable[[bytes], object], wall_clock: Callable[[], float] = time.time
    ) -> None:
        """``write`` gets whole lines (a Console's ``write``); UsageError for an unknown ``handler``."""
        if handler not in HANDLERS:
            raise UsageError(f"--event-log-handler {handler} is not known; choose console or null")
        self._write = write if HANDLERS[handler] else None
        self._wall_clock = wall_clock

    def record(self, name: str, source: EventSource, metadata: Mapping[str, MetadataValue]) -> None:
        """Write one event."""
        if self._write is None:
            return
        event = {
            "name": name,
            "source": source.value,
            "timestamp": int(self._wall_clock() * 1000),
            "metadata": dict(metadata),
        }
        self._write(json.dumps(event).encode() + b"\n")
