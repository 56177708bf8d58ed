"""The signals that stop the launcher, taken from its first moment to its last."""

from __future__ import annotations

import contextlib
import select
import signal
import socket
from collections.abc import Callable, Collection, Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import asyncio


class SignalInbox:
    """Takes signals from its construction on and hands them to the loop once there is one.

    The interpreter's C handler writes each signal's number into a socket at once, so none is lost and
    none kills the process, whether imports, a blocking call or the loop runs. It needs the main thread,
    and ``loop.add_signal_handler`` must not be used besides it. A SIGHUP that is ignored at the start
    stays ignored: that is what ``nohup`` means.
    """

    def __init__(self, signums: Iterable[int]) -> None:
        self._read_end, self._write_end = socket.socketpair()
        self._read_end.setblocking(False)
        self._write_end.setblocking(False)
        self._kept: list[int] = []  # read, but not taken
        self._loop: asyncio.AbstractEventLoop | None = None
        self._previous_fd = signal.set_wakeup_fd(self._write_end.fileno(), warn_on_full_buffer=False)
        self._previous = {
            signum: signal.signal(signum, lambda number, frame: None)
            for signum in signums
            if not (signum == signal.SIGHUP and signal.getsignal(signum) is signal.SIG_IGN)
        }

    def take(self) -> list[int]:
        """The signals that came and were not taken yet, oldest first; never waits."""
        self._read()
        taken, self._kept = self._kept, []
        return taken

    def wait(self, seconds: float, unmoved_by: Collection[int] = ()) -> bool:
        """Wait at most ``seconds`` for a signal; return whether one but those can be taken."""
        for patience in (0.0, seconds):
            select.select([self._read_end], [], [], patience)
            self._read()
            if any(number not in unmoved_by for number in self._kept):
                return True
        return False

    def _read(self) -> None:
        with contextlib.suppress(BlockingIOError):
            self._kept += [number for number in self._read_end.recv(4096) if number in self._previous]

    def attach(self, on_signal: Callable[[int], None]) -> None:
        """From now on call ``on_signal`` on the running loop, first for the signals that came before."""
        import asyncio

        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._read_end, self._hand_over, on_signal)
        self._loop.call_soon(self._hand_over, on_signal)

    def _hand_over(self, on_signal: Callable[[int], None]) -> None:
        for number in self.take() if self._loop is not None else ():
            on_signal(number)

    def detach(self) -> None:
        """Collect again without a loop; call it before the loop closes."""
        if self._loop is not None:
            self._loop.remove_reader(self._read_end)
            self._loop = None

    def release(self) -> None:
        """Close the sockets: no more signals are collected. They still do not end the process."""
        self.detach()
        signal.set_wakeup_fd(-1)
        self._read_end.close()
        self._write_end.close()

    def close(self) -> None:
        """Restore the previous signal handlers."""
        self.detach()
        for signum, handler in self._previous.items():
            signal.signal(signum, handler)
        signal.set_wakeup_fd(self._previous_fd)
        self._read_end.close()
        self._write_end.close()
