"""The observer's process (the web page, traces), seen from the agent that was asked for it.

It shows the job, and must never harm it: it is started beside everything else, ends with the agent, and if it
dies it is started again, ``MOST`` times within ``SPAN`` seconds at most. What goes wrong is a warning.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections import deque
from collections.abc import Callable, Sequence

from elasticrun.agent.master_host.process import MasterProcess, execute
from elasticrun.clock import MonotonicClock, pause
from elasticrun.dataclass import dataclass

logger = logging.getLogger(__name__)

MOST = 5
SPAN = 300.0
#: Seconds before it is started again, and that it has to end with the agent.
PAUSE = 1.0
END = 2.0


@dataclass(frozen=True, slots=True)
class ObserverCommand:
    """How to start an observer; made by the composition root, as agents know nothing of observers."""

    argv: Sequence[str]
    settings: dict[str, object]  # they hold the job's token: they go through a pipe
    listener: socket.socket | None


class ObserverHost:
    """Keeps an observer running."""

    def __init__(self, command: ObserverCommand) -> None:
        self._command = command
        self._process: MasterProcess | None = None
        self._task: asyncio.Task[None] | None = None
        self._clock = MonotonicClock()
        self._is_told = False
        self._tell: Callable[[str], None] = lambda url: None

    @property
    def pids(self) -> tuple[int, ...]:
        """The process, which is no worker's."""
        return () if self._process is None else (self._process.process.pid,)

    def start(self, tell: Callable[[str], None]) -> None:
        """Start it, inside the running loop. ``tell`` is called with the page's URL, once."""
        self._tell = tell
        self._task = asyncio.get_running_loop().create_task(self._keep())

    async def close(self) -> None:
        """End it."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        if self._process is not None:
            self._process.let_go()
            if not await self._process.ended(END, asyncio.Event()):
                self._process.process.kill()
            self._process.close()
            self._process = None
        if self._command.listener is not None:
            self._command.listener.close()

    async def _keep(self) -> None:
        deaths: deque[float] = deque(maxlen=MOST)
        while True:
            try:
                self._process = self._execute()
            except OSError as error:
                logger.warning("the observer cannot be started (%s); the job goes on without", error.strerror)
                return
            if self._is_final(await self._process.hear()):
                return
            await self._process.ended(None, asyncio.Event())
            status = self._process.process.returncode
            self._process.close()
            self._process = None
            deaths.append(self._clock.now())
            if len(deaths) == MOST and deaths[-1] - deaths[0] < SPAN:
                logger.warning("the observer ended %d times; the job goes on without its web page", MOST)
                return
            logger.warning("the observer ended (status %s); it is started again", status)
            await pause(PAUSE)

    def _execute(self) -> MasterProcess:
        listener = self._command.listener
        passed = () if listener is None else (listener.fileno(),)
        return execute(self._command.argv, self._command.settings, is_private=False, passed=passed)

    def _is_final(self, answer: dict[str, str]) -> bool:
        """Whether it said that it cannot do its work; log what it said."""
        if "error" in answer:
            logger.warning("the observer ends: %s; the job goes on without", answer["error"])
            return True
        if answer.get("url") and not self._is_told:
            self._is_told = True
            self._tell(answer["url"])
        return False
