"""Interprets what ``core/hosts`` decides: starts and stops the processes of hosts, asks for the list, drains.

Everything happens on one loop. The list is asked for every ``interval`` seconds, as the outside world gives
no event when it changes; an answer that takes longer delays the next question.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Protocol

from elasticrun.control import JobControl
from elasticrun.core.hosts.events import (
    Drain,
    Effect,
    Ended,
    Event,
    Finish,
    Interrupted,
    Kill,
    Listed,
    NotDrained,
    Start,
    Stop,
    Tell,
    Tick,
    Unlisted,
    Up,
)
from elasticrun.core.hosts.machine import Hosts
from elasticrun.core.hosts.names import Host
from elasticrun.core.protocol.plain import one_line
from elasticrun.errors import ElasticRunError, UsageError
from elasticrun.platforms.discovery import Source
from elasticrun.platforms.host_process import HostProcess, allow_descriptors, start
from elasticrun.platforms.output import Sink, flush
from elasticrun.platforms.remote import Request, encode
from elasticrun.platforms.ssh import SshConfig, command

#: How much more often than a host's patience this launch says that it is alive.
_BEATS = 6


class Signals(Protocol):
    """Where signals to this launch come from."""

    def attach(self, on_signal: Callable[[int], None]) -> None: ...
    def detach(self) -> None: ...


class Launch:
    """One launch, from its first hosts to the end of the last one."""

    def __init__(
        self,
        machine: Hosts,
        source: Source,
        ssh: SshConfig,
        request: Callable[[Host, int], Request],
        job: JobControl,
        interval: float,
        silence: float,
    ) -> None:
        """``request`` says what runs on a host with a node rank; ``job`` is who is asked to drain."""
        self._machine = machine
        self._source = source
        self._ssh = ssh
        self._request = request
        self._job = job
        self._interval = interval
        self._silence = silence
        self._processes: dict[str, HostProcess] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._end: asyncio.Future[Finish] = asyncio.get_running_loop().create_future()
        self._hurry = asyncio.Event()
        self._out, self._err = Sink(1), Sink(2)

    async def run(self, hosts: tuple[Host, ...], signals: Signals) -> Finish:
        """Start these hosts, and return how it ended once nothing runs."""
        signals.attach(self._interrupt)
        self._handle(Listed(hosts))
        if not self._source.is_fixed:
            self._begin(self._ask_again())
        self._begin(self._beat())
        try:
            return await self._end
        finally:
            if self._timer is not None:
                self._timer.cancel()
            await self._end_tasks()
            await flush(self._hurry, self._out, self._err)
            signals.detach()

    async def _end_tasks(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None and not self._end.done():
            self._end.set_exception(error)  # a bug: it ends the launch, and with it all hosts

    # -- events and effects

    def _interrupt(self, signum: int) -> None:
        if self._end.done():
            self._hurry.set()
        else:
            self._handle(Interrupted(signum))

    def _handle(self, event: Event) -> None:
        loop = asyncio.get_running_loop()
        for effect in self._machine.handle(event, loop.time()):
            self._interpret(effect)
        if self._timer is not None:
            self._timer.cancel()
        at = self._machine.next_deadline
        self._timer = None if at is None else loop.call_at(at, self._handle, Tick())

    def _interpret(self, effect: Effect) -> None:
        match effect:
            case Start(host=host, rank=rank):
                self._start(host, rank)
            case Drain():
                self._begin(self._drain(effect))
            case Stop(name=name, signum=signum) if name in self._processes:
                self._processes[name].signal(signum)
            case Kill(name=name) if name in self._processes:
                self._processes[name].kill()
            case Tell(text=text):
                self._err.tell(f"elastic-ctl launch: {text}")
            case Finish() if not self._end.done():
                self._end.set_result(effect)

    def _start(self, host: Host, rank: int) -> None:
        allow_descriptors(len(self._processes) + 1)
        made = start(host.name, command(host, self._ssh))
        if isinstance(made, Ended):
            asyncio.get_running_loop().call_soon(self._handle, made)
            return
        self._processes[host.name] = made
        self._begin(self._follow(made, encode(self._request(host, rank))))

    async def _follow(self, process: HostProcess, request: bytes) -> None:
        name = process.name
        ended = await process.run(request, self._out, self._err, lambda: self._handle(Up(name)))
        del self._processes[name]
        self._handle(ended)

    # -- the outside world

    async def _within(self, seconds: float) -> bool:
        """Whether the launch ends within this time."""
        done, _ = await asyncio.wait([self._end], timeout=seconds)
        return bool(done)

    async def _ask_again(self) -> None:
        while not await self._within(self._interval):
            try:
                event: Event = Listed(await self._source.ask())
            except UsageError as error:
                event = Unlisted(one_line(str(error)))
            self._handle(event)

    async def _beat(self) -> None:
        while not await self._within(self._silence / _BEATS):
            for process in self._processes.values():
                process.beat()

    async def _drain(self, effect: Drain) -> None:
        """A node's name ends with its rank: see ``cli/main.py``."""
        try:
            nodes = (await self._job.status()).nodes
            found = [node.name for node in nodes if node.name.endswith(f"/{effect.rank}")]
            if found:
                await self._job.drain(found[0], effect.reason)
                return
            reason = "it has not joined the job"
        except ElasticRunError as error:
            reason = one_line(str(error))
        self._handle(NotDrained(effect.name, reason))
