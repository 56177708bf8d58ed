"""The public client of a running job: see who is there, let a node leave, change the size, save stacks.

::

    from elasticrun.config import Endpoint, SecurityConfig
    from elasticrun.control import JobControl

    job = await JobControl.connect([Endpoint("node0", 29400)], "my-job", SecurityConfig(token))
    print((await job.status()).phase)
    await job.drain("node7", "its fan is loud")

    job = await JobControl.on_this_host()  # of this user: needs no token

``elastic-ctl`` is a command line around this class. Through the endpoint the master obeys only clients that
know the job's token, and a job without one takes no orders there. On the master's host the job's own user
needs none: ``rpc/nearby.py`` says why.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import Any, TypeVar

from elasticrun.clock import pause
from elasticrun.config import Endpoint, SecurityConfig, TaskRole
from elasticrun.core.protocol.chronicle import OrderAnswered, ScaleEnded, ScaleStarted
from elasticrun.core.protocol.orders import (
    MAX_WAIT,
    AwaitStatus,
    CancelScale,
    CheckNodes,
    ControlReply,
    CordonNode,
    DrainNode,
    ListRanks,
    ReadLog,
    RestartRound,
    SaveAllStacks,
    ScaleIn,
    ScaleJob,
    ScaleOut,
    ScaleRole,
    ShowStacks,
    ShowStatus,
    StopJob,
    UncordonNode,
    Watched,
    WatchEvents,
)
from elasticrun.core.protocol.questions import (
    MAX_LOG_WAIT,
    Found,
    LogPiece,
    LogPlace,
    LogStream,
    RankAnswer,
    RankRange,
)
from elasticrun.core.protocol.status import JobStatus, NodeStatus, TaskStatus
from elasticrun.errors import (
    ElasticRunError,
    MasterUnreachableError,
    ProtocolError,
    ScaleFailedError,
    TooManyError,
)
from elasticrun.rpc.event_lines import known_entry
from elasticrun.rpc.line import JobLine, find_nearby

__all__ = ["JobControl", "JobStatus", "LogPiece", "LogPlace", "LogStream", "NodeStatus", "TaskStatus"]

#: Seconds that an agent may take to answer, beyond a wait that was asked for: more than masters give it.
_AGENTS_TIME = 25.0
_ALL_STREAMS = (LogPlace(LogStream.OUT), LogPlace(LogStream.ERR))

#: Seconds between two tries to reach a master that is being started again.
FIRST_PAUSE, LONGEST_PAUSE = 0.1, 2.0
_LOST = (
    "nobody knows how the operation ended, as the master that had begun it was lost: elastic-ctl status shows"
    " the job"
)
T = TypeVar("T")


class Following:
    """The event log of a job for one who asks again and again, each time for what is after the last answer.

    On the master's host one connection stays for that, and the master tells by itself what is new: that costs
    it less than questions. Elsewhere it is the same as ``JobControl.watch``. One question at a time.
    """

    def __init__(self, line: Callable[[], JobLine]) -> None:
        """``line``: the way to the job, as it is then."""
        self._line = line

    async def follow(self, after: str = "", wait: float = 20.0) -> Watched:
        """As ``JobControl.watch``."""
        return _watched_in(await self._line().follow(after, min(wait, MAX_WAIT)))

    async def status(self, after: str = "", wait: float = 20.0) -> JobStatus:
        """The job's status without its nodes, once its ``mark`` is another one than ``after``.

        Waits up to ``wait`` seconds, at most ``MAX_WAIT``, for that, and then gives it as it is.
        """
        wait = min(wait, MAX_WAIT)
        status = _status_in(await self._line().give(AwaitStatus(after, wait), wait))
        if status.nodes:  # which is much to read for one who asks for many jobs
            raise ProtocolError("the master's answer to a question for a status without nodes has some")
        return status

    def close(self) -> None:
        """Keep no connection; the next question has one of its own again."""
        self._line().close()


class JobControl:
    """Questions and orders to one job, each on a connection of its own.

    Each method may raise any of these; all are ElasticRunErrors whose text is one sentence:

    * MasterUnreachableError: nothing answered within the timeout. If only the answer was lost, the order may
      have been obeyed; it may be given again.
    * EndpointTakenError: another program holds the endpoint.
    * WrongJobError, WrongVersionError: the master there serves another job, or is of another version.
    * UnauthenticatedError: the token or the certificate is wrong, on this side or the other.
    * TooManyError: too many connections come from this address.
    * ProtocolError: the answer makes no sense.
    * OrderDeclinedError: the master understood and declines, and says why.
    """

    def __init__(
        self,
        endpoints: Sequence[Endpoint],
        job_id: str = "none",
        security: SecurityConfig | None = None,
        timeout: float = 15.0,
        on_silent: Callable[[ElasticRunError], None] = lambda _: None,
    ) -> None:
        """A client that has not asked anything yet.

        Args:
            endpoints: Where the master may listen: the ``--rdzv-endpoint`` of the job's nodes, at least one.
            job_id: The job's ``--rdzv-id``.
            security: The job's token, and files for TLS if the job uses it.
            timeout: Seconds to try each endpoint.
            on_silent: Called with the reason when an endpoint is passed over for the next one.
        """
        self._line = JobLine(endpoints, job_id, security or SecurityConfig(), timeout, on_silent)
        self.following = Following(lambda: self._line)

    @classmethod
    async def connect(
        cls,
        endpoints: Sequence[Endpoint],
        job_id: str = "none",
        security: SecurityConfig | None = None,
        timeout: float = 15.0,
    ) -> JobControl:
        """A client whose job has answered once; arguments are those of the class."""
        control = cls(endpoints, job_id, security, timeout)
        await control.status()
        return control

    @classmethod
    async def on_this_host(
        cls,
        job_id: str | None = None,
        launcher: int | None = None,
        timeout: float = 15.0,
        endpoints: Sequence[Endpoint] = (),
    ) -> JobControl:
        """A client for the one job of this user whose master is on this host. Needs no token.

        ``job_id`` and ``launcher``, the pid of its ``elastic-run``, say which one if there may be several;
        with ``endpoints`` it is one whose master listens at one of them.
        Raises MasterUnreachableError if there is none, UsageError if there are several, or may be: of those
        that give no sensible answer nobody knows which job they are.
        """
        here = await find_nearby(job_id, launcher, timeout, endpoints)
        control = cls((), here.status.job_id, timeout=timeout)
        control._line = JobLine((), here.status.job_id, SecurityConfig(), timeout, lambda _: None, here)
        return control

    async def status(self) -> JobStatus:
        """The job's nodes and state."""
        return _status_in(await self._line.give(ShowStatus()))

    async def watch(self, after: str = "", wait: float = 20.0) -> Watched:
        """The newest lines of the event log, or those after an answer's ``upto``.

        Waits up to ``wait`` seconds, at most ``MAX_WAIT``, for a first one. The client's timeout begins after
        that.
        """
        return _watched_in(await self._line.give(WatchEvents(after, min(wait, MAX_WAIT)), wait))

    async def ranks(self) -> tuple[RankRange, ...]:
        """The ranks that there are, as far as their nodes are here."""
        return _found_in(await self._line.give(ListRanks())).ranks

    async def log(
        self, rank: int, places: Sequence[LogPlace] = _ALL_STREAMS, lines: int = 10, wait: float = 0.0
    ) -> tuple[LogPiece, ...]:
        """What a rank has printed, of each stream of ``places`` the next piece after that place.

        Of a stream that was not read before, the newest ``lines`` lines. Waits up to ``wait`` seconds, at
        most ``MAX_LOG_WAIT``, for something new.
        """
        wait = min(wait, MAX_LOG_WAIT)
        question = ReadLog(rank, tuple(places), lines, wait)
        return _rank_in(await self._line.give(question, wait + _AGENTS_TIME)).pieces

    async def stacks_of(self, rank: int) -> str:
        """The Python stacks of a rank's threads, as text."""
        return _rank_in(await self._line.give(ShowStacks(rank), _AGENTS_TIME)).stacks

    async def drain(self, node: str, reason: str) -> str:
        """Let a node leave with grace. Returns, before it has left, what the master does about it."""
        return (await self._line.give(DrainNode(node, reason))).text

    async def scale(self, min_nodes: int, max_nodes: int) -> str:
        """Change the bounds for the number of nodes. Returns what the master does about it."""
        return (await self._line.give(ScaleJob(min_nodes, max_nodes))).text

    async def scale_role(self, role: TaskRole, count: int) -> str:
        """Change the number of a TensorFlow job's ps or workers. Returns what the master does about it."""
        return (await self._line.give(ScaleRole(role, count))).text

    async def stacks(self) -> str:
        """Have every node save the stacks of its workers beside their logs. Returns how many nodes do."""
        return (await self._line.give(SaveAllStacks())).text

    async def restart(self, reason: str) -> str:
        """Stop all workers and start them again, from the newest saved state. Returns what the master does.

        Spends no restart. A script that was edited meanwhile starts as it is now.
        """
        return (await self._line.give(RestartRound(reason))).text

    async def scale_in(self, which: int | Sequence[str], reason: str) -> str:
        """Let so many nodes, or those named, leave with grace; nothing replaces them.

        Returns, before they have left, which ones it is.
        """
        if isinstance(which, int):
            return (await self._line.give(ScaleIn(reason, which))).text
        return (await self._line.give(ScaleIn(reason, nodes=tuple(which)))).text

    async def scale_out(
        self, count: int, timeout: float, on_begun: Callable[[str], None] = lambda _: None
    ) -> str:
        """Wait until the world has so many nodes more. Returns how that ended.

        ``on_begun`` hears what the master answers. If this wait is cancelled, the operation goes on:
        ``scale_cancel`` ends it.

        Raises:
            ScaleFailedError: they did not come within ``timeout`` seconds, or somebody cancelled it, and the
                job is as it was; or it is not known any more how it ended.
        """
        place = await _end_of_log(self)
        answer = (await self._line.give(ScaleOut(count, timeout))).text
        on_begun(answer)
        return await _ended(self, answer, place)

    async def scale_cancel(self, reason: str) -> str:
        """Wait no more for the nodes of a ``scale_out``: the bounds are as before. Returns what is over."""
        return (await self._line.give(CancelScale(reason))).text

    async def cordon(self, node: str, reason: str) -> str:
        """Keep a node out of new worlds. Returns what the master does about it."""
        return (await self._line.give(CordonNode(node, reason))).text

    async def uncordon(self, node: str) -> str:
        """Let a node be chosen for new worlds again. Returns what the master does about it."""
        return (await self._line.give(UncordonNode(node))).text

    async def check(self, reason: str) -> str:
        """Stop the round with grace, and check all nodes before the next one. Returns what is checked."""
        return (await self._line.give(CheckNodes(reason))).text

    async def stop(self, reason: str) -> str:
        """End the job with grace. Returns, before it has ended, what the master does about it."""
        return (await self._line.give(StopJob(reason))).text


async def _end_of_log(job: JobControl) -> str:
    """The place after the newest line of the event log."""
    news = await job.watch(wait=0.0)
    while news.more:
        news = await job.watch(news.upto, 0.0)
    return news.upto


async def _ended(job: JobControl, answer: str, place: str) -> str:
    """How the operation ended that began with this answer, after this place in the event log."""
    number, is_ours = 0, False
    while True:
        news = await patiently(job, partial(job.watch, place, MAX_WAIT))
        place = news.upto
        for entry in filter(None, map(known_entry, news.lines)):
            match entry.told:
                case OrderAnswered(answer=told):
                    is_ours = told == answer
                case ScaleStarted(order) if is_ours:
                    number = order
                case ScaleEnded(order, reached, reason) if order == number:
                    return _reached(reached, reason)
        if news.missed:  # the master was restarted, or very much happened
            status = await patiently(job, job.status)
            end, last = status.scaled, 0 if status.scaled is None else status.scaled.order
            if end is not None and (end.order == number or not (number or status.scaling)):
                return _reached(end.reached, end.reason)
            if not status.scaling or number not in (0, last + 1):
                raise ScaleFailedError(_LOST)
            number = last + 1  # they are numbered one by one


async def patiently(job: JobControl, ask: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """What is answered, by the next master too if the one that is asked dies.

    Tries for the client's timeout, from the first failure on: the answer before may have been long in coming.
    """
    import asyncio

    loop, delay = asyncio.get_running_loop(), FIRST_PAUSE
    until: float | None = None
    while True:
        try:
            return await ask()
        except (MasterUnreachableError, TooManyError):
            now = loop.time()
            until = now + job._line.timeout if until is None else until
            if now > until:
                raise
        await pause(delay)
        delay = min(2 * delay, LONGEST_PAUSE)


def _reached(reached: bool, reason: str) -> str:
    if not reached:
        raise ScaleFailedError(reason)
    return reason


def _status_in(reply: ControlReply) -> JobStatus:
    if reply.status is None:
        raise ProtocolError("the master's answer to a question for its status holds none")
    return reply.status


def _watched_in(reply: ControlReply) -> Watched:
    if reply.watched is None:
        raise ProtocolError("the master's answer to a question for its events holds none")
    return reply.watched


def _found_in(reply: ControlReply) -> Found:
    if reply.found is None:
        raise ProtocolError("the master's answer to a question about ranks holds none")
    return reply.found


def _rank_in(reply: ControlReply) -> RankAnswer:
    found = _found_in(reply)
    if found.answer is None:
        raise ProtocolError("the master's answer to a question about a rank holds none")
    return found.answer
