"""The driver of a job on Ray: its master, and whoever keeps its nodes, from the start to the end."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Sequence

from elasticrun.agent.signals import SignalInbox
from elasticrun.config import Endpoint, SecurityConfig
from elasticrun.control import JobControl
from elasticrun.core.fleet.replicas import Note, Record, Start, Verdict, Wish
from elasticrun.dataclass import dataclass
from elasticrun.errors import ElasticRunError, ExitCode
from elasticrun.follower import Follower
from elasticrun.platforms.keeper import Keeper, Queue
from elasticrun.platforms.output import Lines, Sink, flush, logging_to
from elasticrun.platforms.ray.adapter import RayPlatform
from elasticrun.platforms.ray.master import Master, Settings
from elasticrun.platforms.ray.node import is_hello
from elasticrun.platforms.ray.words import Actor, Chunk, Cluster, Needs, NodeLostError, Place

log = logging.getLogger(__name__)

#: Seconds for the output of a launcher that has ended to come: what it left behind may hold its streams.
_LAST_WORDS = 5.0


@dataclass(frozen=True, slots=True)
class RayJob:
    """What the driver needs to know of the job."""

    job_id: str
    wish: Wish
    needs: Needs
    security: SecurityConfig
    master: tuple[str, ...]  # its command line
    settings: Settings
    request: Callable[[Endpoint, Start, Place], bytes]  # what a replica runs


async def drive(job: RayJob, cluster: Cluster, inbox: SignalInbox, tell: Callable[[Note], None]) -> int:
    """Run the job; returns the exit status. Raises ElasticRunError if it cannot begin.

    Nothing waits for who reads the output but the nodes that print it: who keeps them has to go on.
    """
    signals, hurry = list[int](), asyncio.Event()
    out, err = Sink(1), Sink(2)
    async with contextlib.AsyncExitStack() as stack:
        stack.callback(inbox.detach)  # at the very end: a second signal counts until then
        stack.enter_context(logging_to(err))
        stack.push_async_callback(flush, hurry, out, err)
        master = Master(job.master, job.settings, cluster.address)
        stack.push_async_callback(master.close)
        await master.endpoint()

        async def request(start: Start, place: Place) -> bytes:
            return job.request(await master.endpoint(), start, place)

        show = Printer(out, err).show
        platform = RayPlatform(job.job_id, cluster, job.wish, job.needs, request, show, tell)
        stack.push_async_callback(platform.close)
        queue = Queue(Keeper(platform).reconcile)
        stack.push_async_callback(queue.close)

        def on_signal(signum: int) -> None:
            signals.append(signum)
            if len(signals) > 1 or platform.over.done():
                hurry.set()
            if len(signals) == 1:
                platform.end()
            else:
                master.hurry()
                platform.kill()

        inbox.attach(on_signal)
        for work in (_listen(job, master, platform), master.keep(platform.over)):
            stack.push_async_callback(_cancel, asyncio.create_task(work))
        platform.notify(queue.notice)
        record = await platform.over
    if signals and record.verdict in (None, Verdict.AGAIN):
        return 128 + signals[0]
    return _status(record, platform.code)


def _status(record: Record, code: int | None) -> int:
    """As the agent of one host would end."""
    if record.verdict is Verdict.SUCCEEDED:
        return ExitCode.OK
    if record.verdict is Verdict.STOPPED:
        return ExitCode.DRAINED
    return ExitCode.JOB_FAILED if code is None else code


class Printer:
    """Prints what the nodes print: whole lines, each with its node in front."""

    def __init__(self, out: Sink, err: Sink) -> None:
        self._sinks = {1: out, 2: err}

    async def show(self, actor: Actor, index: int, place: Place, ended: asyncio.Event) -> None:
        """Show the output of one launcher; until soon after its end, if something holds that open."""
        prefix = f"(node {index}, {place.address}) ".encode()
        streams = {number: Lines(sink, prefix, is_hello) for number, sink in self._sinks.items()}
        last, patience = 0, Patience(ended)
        with contextlib.suppress(NodeLostError):
            while found := await patience.wait(actor.read(last)):
                last = found[-1][0]
                for _, stream, data in found:
                    await streams[stream].feed(data)
        for lines in streams.values():
            await lines.end()


class Patience:
    """Waits for chunks; once the launcher has ended for so many seconds in all. Printing does not count."""

    def __init__(self, ended: asyncio.Event) -> None:
        self._ended = ended
        self._left = _LAST_WORDS

    async def wait(self, read: Awaitable[Sequence[Chunk]]) -> Sequence[Chunk]:
        """What is read; () at the end of the output, or of the patience."""
        reading, ending = asyncio.ensure_future(read), asyncio.ensure_future(self._ended.wait())
        loop = asyncio.get_running_loop()
        try:
            await asyncio.wait([reading, ending], return_when=asyncio.FIRST_COMPLETED)
            begun = loop.time()
            if not reading.done():
                await asyncio.wait([reading], timeout=self._left)
            self._left = max(0.0, self._left - (loop.time() - begun))
            return reading.result() if reading.done() else ()
        finally:
            for each in (reading, ending):
                each.cancel()
            await asyncio.gather(reading, ending, return_exceptions=True)


async def _listen(job: RayJob, master: Master, platform: RayPlatform) -> None:
    """Hear what each of the job's masters tells; what Ray tells is enough to go on, if later."""
    while True:
        life = master.life
        try:
            endpoint = await master.endpoint()
        except ElasticRunError:  # whoever needs it tells why
            await master.after(life)
            continue
        life = master.life

        async def connect(at: Endpoint = endpoint) -> JobControl:
            return await JobControl.connect([at], job.job_id, job.security)

        try:
            await Follower(connect, platform.heard).run()
        except ElasticRunError as error:
            log.info("nothing is heard of the job's master: %s", error)
        await master.after(life)


async def _cancel(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
