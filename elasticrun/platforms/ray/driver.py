"""The driver of a job on Ray: its master, and whoever keeps its nodes, from the start to the end.

The master is a process beside the driver, at one address for the whole job. If it is killed it is started
again, on the same port with the same journal, and the nodes go on meanwhile.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
from collections.abc import Callable

from elasticrun.agent.master_host.process import MasterProcess, execute
from elasticrun.agent.signals import SignalInbox
from elasticrun.config import Endpoint, SecurityConfig
from elasticrun.control import JobControl
from elasticrun.core.fleet.replicas import Note, Record, Verdict, Wish
from elasticrun.dataclass import dataclass
from elasticrun.errors import ElasticRunError, ExitCode, MasterUnreachableError
from elasticrun.follower import Follower
from elasticrun.platforms.keeper import Keeper, Queue
from elasticrun.platforms.output import Lines, Sink
from elasticrun.platforms.ray.adapter import RayPlatform
from elasticrun.platforms.ray.node import is_hello
from elasticrun.platforms.ray.words import Actor, Cluster, Needs, NodeLostError, Place

log = logging.getLogger(__name__)

#: Seconds that a master may take to serve.
_ANSWER = 60.0
#: How often a master is started again that does not serve.
_TRIES = 3


@dataclass(frozen=True, slots=True)
class RayJob:
    """What the driver needs to know of the job."""

    job_id: str
    wish: Wish
    needs: Needs
    security: SecurityConfig
    master: tuple[str, ...]  # its command line
    settings: Callable[[str, int], dict[str, object]]  # of the master, by its address and port
    request: Callable[[Endpoint, int, Place], bytes]  # what a replica runs


async def drive(job: RayJob, cluster: Cluster, inbox: SignalInbox, tell: Callable[[Note], None]) -> int:
    """Run the job; returns the exit status. Raises ElasticRunError if it cannot begin."""
    signals = list[int]()
    async with contextlib.AsyncExitStack() as stack:
        master = Master(job, cluster.address)
        stack.push_async_callback(master.close)
        endpoint = await master.start()
        request, show = functools.partial(job.request, endpoint), Printer(Sink(1), Sink(2)).show
        platform = RayPlatform(job.job_id, cluster, job.wish, job.needs, request, show, tell)
        stack.push_async_callback(platform.close)
        queue = Queue(Keeper(platform).reconcile)
        stack.push_async_callback(queue.close)

        def on_signal(signum: int) -> None:
            signals.append(signum)
            (platform.end if len(signals) == 1 else platform.kill)()

        inbox.attach(on_signal)
        stack.callback(inbox.detach)
        follower = Follower(lambda: JobControl.connect([endpoint], job.job_id, job.security), platform.heard)
        for work in (_listen(follower), master.keep(platform.over)):
            stack.push_async_callback(_cancel, asyncio.create_task(work))
        platform.notify(queue.notice)
        record = await platform.over
    return 128 + signals[0] if signals else _status(record, platform.code)


def _status(record: Record, code: int | None) -> int:
    """As the agent of one host would end."""
    if record.verdict is Verdict.SUCCEEDED:
        return ExitCode.OK
    return ExitCode.DRAINED if record.verdict is Verdict.STOPPED else code or ExitCode.JOB_FAILED


class Printer:
    """Prints what the nodes print: whole lines, each with its node in front."""

    def __init__(self, out: Sink, err: Sink) -> None:
        self._sinks = {1: out, 2: err}

    async def show(self, actor: Actor, index: int, place: Place) -> None:
        """Show the output of one launcher, until it ends or its actor is lost."""
        prefix = f"(node {index}, {place.address}) ".encode()
        streams = {number: Lines(sink, prefix, is_hello) for number, sink in self._sinks.items()}
        with contextlib.suppress(NodeLostError):
            while found := await actor.read():
                for number, chunk in found:
                    await streams[number].feed(chunk)
        for lines in streams.values():
            await lines.end()


async def _listen(follower: Follower) -> None:
    """Hear what the master tells, as long as it does; what Ray tells is enough to go on, if later."""
    try:
        await follower.run()
    except ElasticRunError as error:
        log.info("nothing is heard of the job's master: %s", error)


async def _cancel(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


class Master:
    """The job's master, started again as often as it is killed."""

    def __init__(self, job: RayJob, address: str) -> None:
        self._job = job
        self._endpoint = Endpoint(address, 0)
        self._process: MasterProcess | None = None

    async def start(self, resume: bool = False) -> Endpoint:
        """Start it, and return where it serves. Raises MasterUnreachableError."""
        settings = self._job.settings(self._endpoint.host, self._endpoint.port)
        process = execute(self._job.master, {**settings, "resume": resume}, is_private=False)
        self._reap()
        self._process = process
        try:
            answer = await asyncio.wait_for(process.hear(), _ANSWER)
        except asyncio.TimeoutError:
            answer = {}
        if "port" not in answer:
            reason = answer.get("error") or answer.get("taken") or "it has not said why"
            raise MasterUnreachableError(f"the job's master does not serve: {reason}")
        self._endpoint = Endpoint(self._endpoint.host, int(answer["port"]))
        return self._endpoint

    async def keep(self, over: asyncio.Future[Record]) -> None:
        """Start it again each time it ends, while the job goes on."""
        assert self._process is not None
        while await self._process.ended(None, asyncio.Event()) and not over.done():
            if self._process.process.returncode == ExitCode.OK:
                return  # the job is over
            log.warning("the job's master has ended: another one takes up the job")
            for rest in reversed(range(_TRIES)):
                try:
                    await self.start(resume=True)
                    break
                except MasterUnreachableError as error:
                    if not rest:
                        over.set_exception(error)
                        return

    def _reap(self) -> None:
        if self._process is not None:
            self._process.close()
            self._process = None

    async def close(self) -> None:
        """Let it go: it ends once no node needs it."""
        if self._process is not None:
            self._process.let_go()
            if not await self._process.ended(_ANSWER, asyncio.Event()):
                await self._process.end()
            self._reap()
