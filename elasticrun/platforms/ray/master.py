"""The master of a job on Ray: a process beside the driver, at one address for the whole job.

Theory. If it is killed it is started again, on the same port with the same journal, and the nodes go on
meanwhile. One that ended by itself has ended its job: all is done, or too few nodes came in time. If the job
then begins again, its nodes ask for an endpoint, and that starts a master with a journal of its own.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from elasticrun.agent.master_host.process import MasterProcess, execute
from elasticrun.clock import pause, within
from elasticrun.config import Endpoint
from elasticrun.core.fleet.replicas import Record
from elasticrun.errors import ExitCode, MasterUnreachableError

log = logging.getLogger(__name__)

#: What a master is told: its address, its port, and the number of its journal, from 1.
Settings = Callable[[str, int, int], dict[str, object]]
#: Seconds that a master may take to serve.
_ANSWER = 60.0
#: Seconds before each try to start a master again.
_PAUSES = (0.0, 0.5, 1.0, 2.0, 4.0, 8.0)


class Master:
    """The job's master, started again as often as it is killed."""

    def __init__(self, command: tuple[str, ...], settings: Settings, address: str) -> None:
        self.life = -1  # how often the job has begun again
        self._command = command
        self._settings = settings
        self._endpoint = Endpoint(address, 0)
        self._process: MasterProcess | None = None
        self._hurried = asyncio.Event()
        self._journals = 0  # how many there are: each start but those that take up the job has its own
        self._lock = asyncio.Lock()  # of the process
        self._news = asyncio.Condition()  # of the life

    async def endpoint(self) -> Endpoint:
        """Where the master serves; one that has ended with its job is followed by another.

        Raises MasterUnreachableError.
        """
        async with self._lock:
            if self._has_ended():
                self._journals += 1
                await self._start(resume=False)
                self.life += 1
                async with self._news:
                    self._news.notify_all()
            return self._endpoint

    def _has_ended(self) -> bool:
        """Whether it ended by itself, or there is none."""
        process = self._process
        return process is None or (not process.is_alive and process.process.returncode == ExitCode.OK)

    async def after(self, life: int) -> None:
        """Wait until the job begins again."""
        async with self._news:
            await self._news.wait_for(lambda: self.life > life)

    async def _start(self, resume: bool) -> None:
        """Start one in place of the last; if it does not serve, there is none."""
        await self._remove()
        settings = self._settings(self._endpoint.host, self._endpoint.port, self._journals)
        try:
            self._process = execute(self._command, {**settings, "resume": resume}, is_private=False)
        except OSError as error:
            raise MasterUnreachableError(f"the job's master cannot be started: {error.strerror}") from None
        answer: dict[str, object] = {}
        try:
            answer = await within(_ANSWER, self._process.hear())
        except asyncio.TimeoutError:
            pass
        finally:
            if "port" not in answer:
                await self._remove()
        if "port" not in answer:
            reason = answer.get("error") or answer.get("taken") or "it has not said why"
            raise MasterUnreachableError(f"the job's master does not serve: {reason}")
        self._endpoint = Endpoint(self._endpoint.host, int(str(answer["port"])))

    async def keep(self, over: asyncio.Future[Record]) -> None:
        """Start it again each time it is killed, while the job goes on."""
        while True:
            process, life = self._process, self.life
            if process is not None:
                await process.ended(None, asyncio.Event())
            if over.done():
                return
            if self._process is not process:
                continue  # somebody has started another one meanwhile
            if self._has_ended():
                await self.after(life)
                continue
            log.warning("the job's master was killed: another one takes up the job")
            if error := await self._revive():
                if not over.done():
                    over.set_exception(error)
                return

    async def _revive(self) -> MasterUnreachableError | None:
        """Start it again; why that failed, if it did."""
        failure: MasterUnreachableError | None = None
        async with self._lock:
            for seconds in _PAUSES:
                await pause(seconds)
                try:
                    await self._start(resume=True)
                    return None
                except MasterUnreachableError as error:
                    failure = error
        return failure

    async def _remove(self) -> None:
        """Have no process any more."""
        process, self._process = self._process, None
        if process is not None:
            await process.end()
            process.close()

    def hurry(self) -> None:
        """Do not wait for its nodes at the end."""
        self._hurried.set()

    async def close(self) -> None:
        """Let it go: it ends once no node needs it."""
        process = self._process
        if process is not None:
            process.let_go()
            await process.ended(_ANSWER, self._hurried)
        await self._remove()
