"""What a job tells its caller: its launchers do, ranks that have answered, and those that met a fault.

Theory. One thread at a time hears; others wait for their turn. A handler of a signal may hear in the midst of
that, in the same thread. A file that is closed wakes nobody who waits for it, so no channel is closed while
anybody hears: hanging up shuts it down, which wakes all, and who hears last closes what is over.
"""

from __future__ import annotations

import os
import selectors
import threading
import time
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, TypeVar

from elasticrun.errors import MasterUnreachableError
from elasticrun.launching.call import Call
from elasticrun.launching.launchers import Launchers
from elasticrun.launching.node_faults import NodeFaults

if TYPE_CHECKING:
    from elasticrun.control import JobControl

_LONGEST = 86400.0  # seconds that one wait of the kernel's may take
_BELL, _OTHER = -1, -2  # stand for these among the numbers of launchers

T = TypeVar("T")


class Hearing:
    """Waits for whatever comes next of one job; for several threads, if need be."""

    def __init__(self, launchers: Launchers, call: Call | None) -> None:
        self._launchers = launchers
        self._call = call
        #: Held by who hears: what is told is told once, to one thread.
        self.turn = threading.RLock()
        self._owner = os.getpid()
        self._listeners = 0  # calls of one thread: more than one within handlers of signals
        self._is_closed = False
        self._then: list[Callable[[], None]] = []
        #: Hears of faults, and has some that end with time.
        self.faults: NodeFaults | None = None

    def hear(self, timeout: float | None, other: int | None = None) -> bool:
        """Wait until a launcher, or a rank that has answered, tells anything; False: none did.

        ``other``: a descriptor that ends the wait as well, once it can be read.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        while not self._launchers.are_over:
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            if self._hear_next(left, other):
                return True
            if deadline is not None and time.monotonic() >= deadline:
                break
        return False

    def hear_all(self, timeout: float | None) -> None:
        """Wait until all launchers have ended. Raises TimeoutError."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while not self._launchers.are_over:
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            if not self.hear(left) and left == 0.0:
                raise TimeoutError(f"the job still runs after {timeout:g} s")

    def ask(self, question: Callable[[JobControl], Coroutine[Any, Any, T]], timeout: float) -> T:
        """The answer of the job's master, which is the first launcher's. Raises MasterUnreachableError."""
        import asyncio
        from concurrent.futures import ThreadPoolExecutor

        from elasticrun.control import JobControl

        while self.hear(0.0):
            pass
        launcher = self._launchers.pids.get(0)
        if self._launchers.are_over or launcher is None:
            raise MasterUnreachableError("the job has ended, or has only just begun: it has no master")

        async def ask() -> T:
            control = await JobControl.on_this_host(launcher=launcher, timeout=timeout)
            return await question(control)

        with ThreadPoolExecutor(1) as pool:  # a notebook's own thread has a loop that runs already
            return pool.submit(asyncio.run, ask()).result()

    def _hear_next(self, timeout: float | None, other: int | None) -> bool:
        """As ``hear``, but return as well once a fault ends that lasts; False: another thread hears."""
        if not self.turn.acquire(timeout=-1 if timeout is None else min(timeout, _LONGEST)):
            return False
        self._listeners += 1
        try:
            return not self._launchers.are_over and self._take_in(timeout, other)
        finally:
            self._listeners -= 1
            self._tidy()
            self.turn.release()

    def _take_in(self, timeout: float | None, other: int | None) -> bool:
        wait = None if self.faults is None else self.faults.wait()
        with selectors.DefaultSelector() as selector:
            for number, channel in self._launchers.channels.items():
                selector.register(channel, selectors.EVENT_READ, number)
            if self._call is not None:
                selector.register(self._call.bell, selectors.EVENT_READ, _BELL)
            if other is not None:
                selector.register(other, selectors.EVENT_READ, _OTHER)
            times = [each for each in (timeout, wait) if each is not None]
            ready = [key.data for key, _ in selector.select(min([*times, _LONGEST]))]
        for number in sorted(ready, reverse=True):  # the bell last: who rings must be known by then
            if number == _BELL:
                self._hear_bell()
            elif number in self._launchers.channels:  # else a handler of a signal has heard it
                self._launchers.hear(number)
                if self.faults is not None:
                    self.faults.check(number)
        if self.faults is not None:
            self.faults.pass_time()
        return bool(ready)

    def close(self, then: Callable[[], None]) -> None:
        """Hang up, which kills the launchers that run; ``then`` is called once nobody hears any more."""
        self._is_closed = True
        if os.getpid() != self._owner:  # a fork has copies of all, and none of the threads
            self._launchers.close()
            then()
            return
        self._launchers.hang_up()
        with self.turn:
            self._then.append(then)
            self._tidy()

    def _tidy(self) -> None:
        if self._listeners:
            return
        self._launchers.forget_ended()
        if self._is_closed:
            self._launchers.close()
        while self._then:
            self._then.pop()()

    def _hear_bell(self) -> None:
        assert self._call is not None
        for ring in self._call.rings():
            if self.faults is not None:
                self.faults.hear(ring)
