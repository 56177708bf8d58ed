"""The agent's connection to the master, kept up for as long as the agent lives.

One attempt after the other: find the endpoint (and start a master if it is this host's turn), attach with
the current status, pass on what the master says until the stream breaks, begin again. Hello carries
everything, so nothing has to be remembered from one stream to the next; messages sent while there is no
stream are dropped.

With a list of endpoints the turn passes to the next one when attempts fail for ``TAKEOVER_DELAY``, and at
once when a master on this host steps down, or when a master hangs up instead of welcoming an agent that is
new. Hello carries our votes, so it does not matter which master we find; see ``core/membership/quorum.py``.

Errors that no retry can mend end the agent only before the first Welcome. Afterwards workers may
be running, and a port that answers strangely for a moment is no reason to stop them: the agent's machine
decides when it has waited long enough. The exception is another agent in this one's place: its workers would
run beside ours.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from elasticrun.agent.master_host.hosting import MasterHost, SteppedDownError
from elasticrun.clock import pause
from elasticrun.config import Endpoint, SecurityConfig
from elasticrun.core.agent.events import Broken, Directed, HelloSent, LinkDown, LinkUp
from elasticrun.core.membership.quorum import TAKEOVER_DELAY
from elasticrun.core.protocol.messages import (
    AgentMessage,
    AskNode,
    DataAnswer,
    Heartbeat,
    Hello,
    JournalCopy,
    Leave,
    Rejected,
    StartRound,
)
from elasticrun.core.protocol.usage import TaskUsage
from elasticrun.errors import (
    ElasticRunError,
    EndpointTakenError,
    ExitCode,
    MasterUnreachableError,
    NameInUseError,
    SupersededError,
    TooManyError,
    UnauthenticatedError,
)
from elasticrun.rpc.local import LocalStream
from elasticrun.rpc.stream import Stream, StreamBrokenError

if TYPE_CHECKING:
    from elasticrun.core.protocol.round_progress import NodeFigures, RoundProgress
    from elasticrun.rpc.security.tickets import Tickets

logger = logging.getLogger(__name__)

#: Seconds for one attempt, seconds between attempts at first and at most, and until the user hears of them.
ATTEMPT_TIMEOUT = 15.0
FIRST_DELAY = 0.05
LONGEST_DELAY = 1.0
QUIET_TIME = 3.0
#: Seconds in which a port that seems another program's may prove to be a master that starts or ends.
FOREIGN_TIME = 2.0
#: Seconds for a look at an endpoint that may have a master already.
LOOK_TIMEOUT = 1.0
#: Seconds after which a cancellation is repeated.
CANCEL_TIME = 1.0


class Attachable(Protocol):
    """What the link asks of the agent's machine; the link itself reports by events."""

    @property
    def works(self) -> bool:
        """Whether workers run here, and nothing shows that they cannot go on."""

    def hello(self) -> Hello:
        """The first message of a new stream."""


class Relay(Protocol):
    """What workers ask the master about shared data."""

    def attached(self) -> None:
        """There is a new stream."""

    def answered(self, answer: DataAnswer) -> None:
        """The master has answered."""


class Answers(Protocol):
    """Answers what the master asks for an operator."""

    def attached(self) -> None:
        """There is a new stream."""

    def ask(self, question: AskNode) -> None:
        """The master asks."""

    async def close(self) -> None:
        """Answer what waits with what there is."""


class Link:
    """Keeps one stream to the master open and tells ``on_event`` what happens to it."""

    def __init__(
        self,
        host: MasterHost,
        machine: Attachable,
        incarnation: str,
        connect_timeout: float,
        on_event: Callable[[HelloSent | LinkUp | LinkDown | Directed | Broken], None],
        security: SecurityConfig,
        usage: Callable[[], tuple[TaskUsage, ...]] = tuple,
        relay: Relay | None = None,
        progress: Callable[[], RoundProgress | None] = lambda: None,
        figures: Callable[[], NodeFigures | None] = lambda: None,
        open_answers: Callable[[], Answers] | None = None,
    ) -> None:
        """``usage``: the figures of running tasks for each heartbeat; by default none. ``relay`` hears of
        each new stream, and gets the answers about shared data; so does, from the first question on, what
        ``open_answers`` makes, and gets the questions.
        ``progress`` and ``figures``: how far the workers are, and what the node uses.
        """
        self._host = host
        self._machine = machine
        self._incarnation = incarnation
        self._connect_timeout = connect_timeout
        self._on_event = on_event
        self._security = security
        self._usage = usage
        self._used: tuple[TaskUsage, ...] = ()  # as the last heartbeat told
        self._progress = progress
        self._figures = figures
        self._relay = relay
        self._open_answers = open_answers
        self._answers: Answers | None = None
        self._stream: Stream | None = None
        self._tickets: Tickets | None = None  # of the masters that welcomed us through the network
        self._was_up = False
        self._turn_since = 0.0  # when the turn of the endpoint began
        self._leaving = False
        self._beat: asyncio.TimerHandle | None = None
        self._task = asyncio.get_running_loop().create_task(self._run())
        self._task.add_done_callback(self._report_bug)

    def send(self, message: AgentMessage) -> None:
        """Put a message on the stream; dropped if there is none. After Leave no new stream is opened."""
        self._leaving = self._leaving or isinstance(message, Leave)
        if self._stream is not None:
            self._stream.send(message)

    def tell_progress(self) -> None:
        """Say how far the workers are, if they say it."""
        progress = self._progress() if self._stream is not None else None
        if progress is not None:
            self.send(Heartbeat(self._incarnation, self._used, progress))

    def _ask(self, question: AskNode) -> None:
        if self._answers is None and self._open_answers is not None:
            self._answers = self._open_answers()
        if self._answers is not None:
            self._answers.ask(question)

    async def end_answers(self) -> None:
        """Answer what waits, while there is a stream; before ``close``."""
        if self._answers is not None:
            await self._answers.close()

    async def close(self) -> None:
        """Let the master read what was sent, then hang up."""
        stream, self._stream = self._stream, None
        # Repeated, as asyncio.wait_for loses a cancellation that comes together with its result.
        while not self._task.done():
            self._task.cancel()
            await asyncio.wait((self._task,), timeout=CANCEL_TIME)
        if stream is not None:
            await stream.close()

    def _report_bug(self, task: asyncio.Task[None]) -> None:
        """Report an unforeseen end of the link, or the agent would wait for it."""
        error = None if task.cancelled() else task.exception()
        if error is not None:
            logger.error("internal error in the link to the master", exc_info=error)
            reason = f"internal error: {error!r}; please report the traceback above"
            self._on_event(Broken(ExitCode.INTERNAL, reason))

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        since, delay, told = loop.time(), FIRST_DELAY, set[type[ElasticRunError]]()
        self._turn_since = since
        if await self._look_around():
            since = self._turn_since = loop.time()
        while not self._leaving:
            try:
                stream = await self._attach(loop.time() - since)
            except ElasticRunError as error:
                waited = loop.time() - since
                if self._is_final(error, waited):
                    self._on_event(Broken(error.exit_code, self._explain(error, waited)))
                    return
                if waited > QUIET_TIME and type(error) not in told:
                    told.add(type(error))
                    logger.warning("%s; still trying after %.0f s", error, waited)
                if self._host.endpoints.are_several and self._is_turn_over(error):
                    self._host.endpoints.advance()
                    self._turn_since, delay = loop.time(), FIRST_DELAY
            else:
                await self._listen(stream)
                since, delay, told = loop.time(), FIRST_DELAY, set[type[ElasticRunError]]()
                self._turn_since = since
            await pause(delay)
            delay = min(2 * delay, LONGEST_DELAY)

    def _is_turn_over(self, error: ElasticRunError) -> bool:
        if isinstance(error, SteppedDownError):
            return True
        if isinstance(error, StreamBrokenError) and not self._was_up:
            return True
        return asyncio.get_running_loop().time() - self._turn_since >= TAKEOVER_DELAY

    async def _look_around(self) -> bool:
        """Follow a master elsewhere, if there is one, before one is served on this listed host."""
        for endpoint in self._host.endpoints.others:
            try:
                stream = await self._open(endpoint, LOOK_TIMEOUT)
            except ElasticRunError as error:
                logger.debug("no master to follow: %s", error)
            else:
                self._host.followed(endpoint)
                await self._listen(stream)
                return True
        return False

    async def _attach(self, waited: float) -> Stream:
        endpoint: Endpoint = await self._host.endpoint()
        timeout = ATTEMPT_TIMEOUT
        if not self._was_up:
            timeout = min(timeout, max(self._connect_timeout - waited, LONGEST_DELAY))
        if self._host.endpoints.are_several:
            timeout = min(timeout, TAKEOVER_DELAY)
        channel = self._host.take_channel()
        if channel is not None:  # its master may still be starting; its end breaks the stream
            return await LocalStream.open(channel, self._say_hello(), self._connect_timeout)
        stream = await self._open(endpoint, timeout)
        self._host.followed(endpoint)
        return stream

    async def _open(self, endpoint: Endpoint, timeout: float) -> Stream:
        from elasticrun.rpc.client import MasterStream  # and gRPC, which a node that is alone does not need
        from elasticrun.rpc.security.tickets import Tickets

        if self._tickets is None:
            self._tickets = Tickets()
        hello, works = self._say_hello(), self._machine.works
        return await MasterStream.open(
            endpoint, hello, timeout, self._security, self._tickets, needs_proof=works
        )

    def _say_hello(self) -> Hello:
        """The current Hello; the caller sends it at once."""
        hello = self._machine.hello()
        self._on_event(HelloSent(hello.status))
        return hello

    def _is_final(self, error: ElasticRunError, waited: float) -> bool:
        if self._was_up:
            return isinstance(error, SupersededError)
        if isinstance(error, MasterUnreachableError | TooManyError | NameInUseError):
            return waited >= self._connect_timeout
        # A master that is killed in the middle of a TLS handshake looks like one that refuses it.
        if isinstance(error, EndpointTakenError | UnauthenticatedError):
            return waited >= FOREIGN_TIME
        return not isinstance(error, StreamBrokenError)

    def _explain(self, error: ElasticRunError, waited: float) -> str:
        trouble = self._host.trouble
        if trouble and isinstance(error, MasterUnreachableError):
            return f"{error}; tried for {waited:.0f} s: {trouble}"
        if isinstance(error, MasterUnreachableError):
            return (
                f"{error}; tried for {waited:.0f} s: check --rdzv-endpoint, and that the agent on that host"
                " is running (--rdzv-conf read_timeout=SECONDS waits longer)"
            )
        if isinstance(error, UnauthenticatedError) and self._security.token_source:
            return f"{error} (this node's token was read from {self._security.token_source})"
        return str(error)

    async def _listen(self, stream: Stream) -> None:
        """Pass on what the master says until the stream ends."""
        self._stream = stream
        self._was_up = True
        self._host.resume = True
        self._on_event(LinkUp(stream.welcome.epoch))
        self._arm_heartbeat(stream.welcome.heartbeat_interval)
        for part in (self._relay, self._answers):
            if part is not None:
                part.attached()
        reason = "the stream ended"
        try:
            async for message in stream:
                if isinstance(message, JournalCopy):
                    self._host.keep_copy(message)
                    continue
                if isinstance(message, DataAnswer):
                    if self._relay is not None:
                        self._relay.answered(message)
                    continue
                if isinstance(message, AskNode):
                    if message.epoch == stream.welcome.epoch:
                        self._ask(message)
                    continue
                if isinstance(message, StartRound) and self._tickets is not None:
                    self._tickets.rely()
                self._on_event(Directed(message))
                self._leaving = self._leaving or isinstance(message, Rejected)
        except ElasticRunError as error:
            reason = str(error)
        finally:
            if self._beat is not None:
                self._beat.cancel()
        self._stream = None
        self._on_event(LinkDown(reason))
        await stream.close(0.0)

    def _arm_heartbeat(self, interval: float) -> None:
        self._beat = asyncio.get_running_loop().call_later(interval, self._send_heartbeat, interval)

    def _send_heartbeat(self, interval: float) -> None:
        self._used = self._usage()
        self.send(Heartbeat(self._incarnation, self._used, self._progress(), self._figures()))
        self._arm_heartbeat(interval)
