"""The spawner's wait for descriptors: one handler for each, called when it can be read."""

from __future__ import annotations

import select
from collections.abc import Callable

Handler = Callable[[], None]


class Poller:
    """Calls handlers; they may watch and unwatch as they like."""

    def __init__(self) -> None:
        self._handlers: dict[int, Handler] = {}
        self._poll = select.poll()

    def watch(self, fd: int, handler: Handler) -> None:
        """Call ``handler`` whenever ``fd`` can be read, or has ended."""
        self._handlers[fd] = handler
        self._poll.register(fd, select.POLLIN)

    def unwatch(self, fd: int) -> None:
        """Stop watching; harmless to repeat."""
        if self._handlers.pop(fd, None) is not None:
            self._poll.unregister(fd)

    def forget(self, *handlers: Handler) -> None:
        """Unwatch whatever has one of these handlers."""
        for fd, handler in list(self._handlers.items()):
            if handler in handlers:
                self.unwatch(fd)

    def wait(self, seconds: float | None) -> None:
        """Wait until something can be read, at most for so long, and handle it."""
        ready = self._poll.poll(None if seconds is None else seconds * 1000)
        for fd, handler in [(fd, self._handlers[fd]) for fd, _ in ready]:
            # An earlier handler may have closed it, and the number may be in use again.
            if self._handlers.get(fd) is handler:
                handler()
