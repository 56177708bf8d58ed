"""The watchdog of TORCHELASTIC_ENABLE_FILE_TIMER: workers that outlive their own deadline are killed.

A worker that uses torch's FileTimerClient opens our FIFO for each request and writes one line of JSON::

    {"version": 1, "pid": 71, "scope_id": "step", "expiration_time": 1700000000.5, "signal": 9}

``expiration_time`` is the wall clock of this host; negative releases the timer. A timer is named by its
(pid, scope); a second acquisition replaces the first. When timers of a process have expired, the earliest
one with a positive signal decides which signal the process gets. All its timers are dropped, with or
without a signal. torchrun also sends the signal to itself, which ends the whole launch; here a killed worker
is a failed worker, and the restart budget decides.

Invariant: only a worker of ours, or a process in a worker's session, is ever signalled. The FIFO takes
lines from anybody who may write it.
"""

from __future__ import annotations

import contextlib
import json
import logging
import math
import os
import select
import signal
import stat
import time
from collections.abc import Callable, Collection, Iterator
from typing import TYPE_CHECKING, Any

from elasticrun.dataclass import dataclass

if TYPE_CHECKING:
    import asyncio

_log = logging.getLogger(__name__)
_READ_BYTES = 65536
_MAX_PID = 2**22  # the kernel's own limit


@dataclass(frozen=True, slots=True)
class Request:
    """A line of the FIFO; ``deadline`` is an instant of our monotonic clock, None releases the timer."""

    pid: int
    scope: str
    deadline: float | None
    signum: int  # 0 or less: expire without a signal


@dataclass(frozen=True, slots=True)
class Expired:
    """A process whose timer ran out."""

    pid: int
    scope: str  # of the timer that decided
    signum: int  # 0: no signal was asked for


def parse_request(line: bytes, wall_now: float, now: float) -> Request:
    """The request in ``line``; ValueError says what is wrong with it.

    The deadline moves to the monotonic clock at once, so that later steps of the wall clock kill nobody.
    """
    try:
        fields = json.loads(line)
        pid, scope = _field(fields, "pid", int), _field(fields, "scope_id", str)
        signum = _field(fields, "signal", int)
        expiration = float(_field(fields, "expiration_time", int, float))
    except (RecursionError, OverflowError) as error:
        raise ValueError("it is nested too deeply, or a number in it is too large") from error
    if not (0 < pid <= _MAX_PID and signum <= max(signal.valid_signals()) and math.isfinite(expiration)):
        raise ValueError("a number in it is out of range")
    return Request(pid, scope, None if expiration < 0 else now + expiration - wall_now, signum)


def _field(fields: object, name: str, *kinds: type) -> Any:
    value = fields.get(name) if isinstance(fields, dict) else None
    if not isinstance(value, kinds) or isinstance(value, bool):
        raise ValueError(f"{name} is missing or of the wrong type")
    return value


class Timers:
    """Keeps the running timers and tells which have expired; no side effects."""

    def __init__(self) -> None:
        self._timers: dict[int, dict[str, Request]] = {}  # pid -> scope -> the acquisition in force

    def handle(self, request: Request) -> None:
        """Acquire or release a timer."""
        scopes = self._timers.setdefault(request.pid, {})
        if request.deadline is None:
            scopes.pop(request.scope, None)
        else:
            scopes[request.scope] = request
        if not scopes:
            del self._timers[request.pid]

    def forget(self, pid: int) -> None:
        """Drop the timers of a process that has ended; its pid may be reused soon."""
        self._timers.pop(pid, None)

    def expired(self, now: float) -> list[Expired]:
        """The processes with an expired timer, each once; all their timers are dropped."""
        late = {pid: found for pid in self._timers if (found := self._late(pid, now))}
        for pid in late:
            self.forget(pid)
        return [_verdict(requests) for requests in late.values()]

    def _late(self, pid: int, now: float) -> list[Request]:
        return [r for r in self._timers[pid].values() if r.deadline is not None and r.deadline <= now]

    def next_deadline(self) -> float | None:
        """When the next timer expires; None: there is no timer."""
        deadlines = (r.deadline for scopes in self._timers.values() for r in scopes.values())
        return min((deadline for deadline in deadlines if deadline is not None), default=None)


def _verdict(late: list[Request]) -> Expired:
    late.sort(key=lambda request: request.deadline or 0.0)
    decisive = next((request for request in late if request.signum > 0), late[0])
    return Expired(decisive.pid, decisive.scope, max(decisive.signum, 0))


class FileTimer:
    """Reads the FIFO on the running loop and kills what has expired.

    ``workers`` returns the pids of the live workers, which are session leaders. ``on_expired`` is
    called before the signal is sent. OSError if the FIFO cannot be made.
    """

    def __init__(
        self,
        path: str,
        workers: Callable[[], Collection[int]],
        on_expired: Callable[[Expired], None] | None = None,
    ) -> None:
        import asyncio

        self.path = path
        self._workers = workers
        self._on_expired = on_expired
        self._timers = Timers()
        self._tail = b""
        self._alarm: asyncio.TimerHandle | None = None
        self._loop = asyncio.get_running_loop()
        _remove_fifo(path)
        os.mkfifo(path, 0o600)
        # Open for writing as well: a FIFO without a writer is always at its end, and so always readable.
        self._fifo = os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        self._loop.add_reader(self._fifo, self._read)

    def forget(self, pid: int) -> None:
        """Drop the timers of a worker that has ended; its pid may be reused soon."""
        self._timers.forget(pid)
        self._set_alarm()

    def close(self) -> None:
        """Stop watching and remove the FIFO."""
        self._loop.remove_reader(self._fifo)
        if self._alarm is not None:
            self._alarm.cancel()
        os.close(self._fifo)
        _remove_fifo(self.path)

    def _read(self) -> None:
        try:
            data = os.read(self._fifo, _READ_BYTES)
        except BlockingIOError:
            return
        for line in self._lines(data):
            try:
                self._timers.handle(parse_request(line, time.time(), self._loop.time()))
            except ValueError as error:
                _log.warning("ignoring a watchdog request in %s: %s: %.100r", self.path, error, line)
        self._set_alarm()

    def _lines(self, data: bytes) -> Iterator[bytes]:
        """Complete lines; a client writes at most PIPE_BUF bytes at once, so a longer line is garbage."""
        *lines, self._tail = (self._tail + data).split(b"\n")
        if len(self._tail) > select.PIPE_BUF:
            self._tail = b""
        yield from lines

    def _set_alarm(self) -> None:
        if self._alarm is not None:
            self._alarm.cancel()
        deadline = self._timers.next_deadline()
        self._alarm = None if deadline is None else self._loop.call_at(deadline, self._fire)

    def _fire(self) -> None:
        for expired in self._timers.expired(self._loop.time()):
            self._kill(expired)
        self._set_alarm()

    def _kill(self, expired: Expired) -> None:
        try:
            process = os.pidfd_open(expired.pid)
        except OSError as error:
            _log.warning("the watchdog cannot reach process %d: %s", expired.pid, error.strerror)
            return
        try:
            self._kill_held(expired, process)
        except OSError as error:
            _log.warning("the watchdog could not signal process %d: %s", expired.pid, error.strerror)
        finally:
            os.close(process)

    def _kill_held(self, expired: Expired, process: int) -> None:
        """Signal the process if it is ours. ``process`` is a pidfd, so a reused pid is never hit."""
        workers = self._workers()
        if expired.pid not in workers and os.getsid(expired.pid) not in workers:
            _log.warning(
                "the watchdog ignores process %d: it does not belong to a worker of this node", expired.pid
            )
            return
        if self._on_expired is not None:
            self._on_expired(expired)
        if expired.signum:
            signal.pidfd_send_signal(process, expired.signum)


def _remove_fifo(path: str) -> None:
    """Remove an earlier run's FIFO; any other file is somebody's and stays."""
    with contextlib.suppress(FileNotFoundError):
        if stat.S_ISFIFO(os.lstat(path).st_mode):
            os.unlink(path)
