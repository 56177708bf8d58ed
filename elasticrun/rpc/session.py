"""The master's end of one stream, from the first byte to the last.

A stream goes through four states, and only forward::

    silent -> attached      a proven Hello that ``admit`` accepts, within Limits.hello_timeout
    silent -> closing       anything else: a typed rejection
    attached -> closing     the agent ends its stream or breaks the protocol, or the master closes
    any -> ended            everything queued was written and the agent ended its half, or the
                            connection is gone, or the agent takes longer than Limits.flush_timeout

The handler hears ``attached`` on the first arrow, ``received`` only while attached, and ``detached``
exactly once for every ``attached``, when all is written or the stream has ended. It is called in the event
loop, never from inside one of its own calls to ``send`` or ``close``, and must not raise: an exception is
logged by gRPC and ends that one stream.

The end of an agent's half and the loss of its connection look alike to a read. Only the next write tells them
apart: gRPC cancels it if the connection is lost. gRPC does not say how it was lost, by a close or by pings
without an answer; but if a message came a moment ago, it cannot have been the pings.

The order in which a Hello is looked at decides what a stranger learns. The version comes first, before any
proof: two versions may prove things differently, and must still be able to tell each other so; it says
something about the software, nothing about the job. Then comes the proof of the token. Everything about
the job, beginning with its id, is only for those who pass it, so a wrong ``--rdzv-id`` is explained to
everybody with the right token and to nobody else. A job without a token answers whoever reaches its port.
Last comes the ticket of an agent that was here before (``tickets.py``): it changes what the agent may do, not
what it is told.

With a token every frame after the Hello is sealed (``auth.py``). A frame that is not its sender's next one
ends the stream as the loss of the connection does.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from dataclasses import replace
from typing import Protocol

import grpc
import grpc.aio

from elasticrun import __version__
from elasticrun.core.protocol.messages import (
    AgentMessage,
    AttachedMessage,
    Hello,
    MasterMessage,
    NodeInfo,
    RejectCode,
    Rejected,
    Trust,
    Welcome,
)
from elasticrun.dataclass import dataclass
from elasticrun.errors import ProtocolError
from elasticrun.rpc import codec
from elasticrun.rpc.outbox import Outbox, Pool
from elasticrun.rpc.security.admission import STRANGERS, Context, complain, peer_of, unproven, wrong_version
from elasticrun.rpc.security.auth import CHALLENGE_KEY, ForgedError, Handshake, KeyedHash, Seal, fresh, same
from elasticrun.rpc.security.limits import Allowance, Guest, Limits
from elasticrun.rpc.security.tickets import TicketCheck, TicketIssuer
from elasticrun.rpc.transport import PING_INTERVAL, PING_TIMEOUT

logger = logging.getLogger(__name__)

_ENDED = "the agent's stream ended"
_FORGED = "a message of the agent failed its token check: it was altered on its way"


class Session(Protocol):
    """One attached agent, as the master's loop sees it."""

    @property
    def id(self) -> int:
        """Unique for the life of the server; never reused."""

    @property
    def peer(self) -> str:
        """The agent's address as the master's host sees it, for messages."""

    def send(self, message: MasterMessage) -> None:
        """Queues a message; never blocks. Dropped on a closed session; one that cannot keep up is closed."""

    def close(self) -> None:
        """Ends the stream after what is queued; from now on nothing more is received."""


class SessionHandler(Protocol):
    """Receives what the agents say."""

    def attached(self, session: Session, hello: Hello) -> None:
        """An agent came and was admitted; it waits for Welcome."""

    def received(self, session: Session, message: AttachedMessage) -> None:
        """A valid message of the session's incarnation, in the order sent."""

    def detached(self, session: Session, why: str) -> None:
        """The session is over; exactly once for each ``attached``."""


Admit = Callable[[Hello], "Rejected | None"]


@dataclass(frozen=True, slots=True)
class Door:
    """What all streams of a server have in common."""

    handler: SessionHandler
    admit: Admit
    limits: Limits
    token: KeyedHash | None
    issuer: TicketIssuer
    pool: Pool | None = None  # of what waits for all agents


class AgentStream:
    """A Session and the two tasks behind it: ``run`` writes, ``_read_all`` reads."""

    def __init__(self, number: int, context: Context, guest: Guest, door: Door) -> None:
        self.id = number
        self.peer = peer_of(context)
        self._context = context
        self._guest = guest
        self._handler = door.handler
        self._admit = door.admit
        self._limits = door.limits
        self._handshake = None if door.token is None else Handshake(door.token, fresh())
        self._tickets = TicketCheck(door.issuer)
        self._from_agent: Seal | None = None  # both once the agent has proven the token
        self._to_agent: Seal | None = None
        self._outbox = Outbox(door.limits.max_queued_bytes, door.pool, self._overflow)
        self._allowance = Allowance(door.limits, 0.0)
        self._is_slowed = False
        self._pause: asyncio.Future[None] | None = None  # of the reader, after the agent said too much
        self._info: NodeInfo | None = None  # of the agent that is attached
        self._why = ""
        self._heard_at = 0.0  # when the newest message came, on the loop's clock
        self._given_up = False
        self._task: asyncio.Task[None] | None = None
        self._deadline: asyncio.TimerHandle | None = None

    # What the handler sees

    def send(self, message: MasterMessage) -> None:
        if isinstance(message, Welcome) and self._info is not None:
            message = self._tickets.complete(message, self._info)
        elif isinstance(message, Rejected):
            message = self._tickets.sign(message)
        try:
            data = codec.encode_master(message)
        except Exception:  # a bug, or what this agent said of itself: no reason to fail the others
            logger.exception("a message for %s cannot be encoded; its stream is closed", self.peer)
            self.finish("a message for this agent cannot be encoded")
            return
        if not self._outbox.put(data):
            self._overflow()

    def _overflow(self) -> None:
        self.finish("the agent does not read what it is sent")
        self._outbox.empty()
        self._abort()

    def close(self) -> None:
        self.finish("the master closed the stream")

    # What the server sees

    async def run(self) -> None:
        """Serves the stream to its end."""
        self._task = asyncio.current_task()
        # Sent separately, since gRPC cannot end a stream whose first write, metadata included, was cancelled.
        challenge = b"" if self._handshake is None else self._handshake.challenge
        await self._context.send_initial_metadata(((CHALLENGE_KEY, challenge), self._tickets.metadata))
        self._arm(self._limits.hello_timeout, self._give_up_on_hello)
        reader = asyncio.create_task(self._read_all())
        try:
            await self._write_all(reader)
        finally:
            self.finish(self._loss())
            self._arm(0.0, None)
            try:
                await _cancelled(reader)
            finally:
                self._outbox.empty()
                self._detach()
        if self._given_up:
            await self._context.abort(grpc.StatusCode.ABORTED, self._why)

    async def _write_all(self, reader: asyncio.Task[None]) -> None:
        try:
            while (data := await self._outbox.get()) is not None:
                await self._context.write(self._sealed(self._with_rest(data)))
            if self._why == _ENDED:
                await self._context.write(self._sealed(codec.GOODBYE))  # is cancelled if it did not
                self._detach()
            else:
                self._detach()
                await self._context.write(self._sealed(codec.GOODBYE))
            await asyncio.wait((reader,))
        except asyncio.CancelledError:
            if self._given_up:
                return
            if self._why == _ENDED:  # it is gRPC that cancels: the connection is gone
                self._why = self._loss()
            raise

    def _sealed(self, data: bytes) -> bytes:
        return data if self._to_agent is None else self._to_agent.close(data)

    def _with_rest(self, data: bytes) -> bytes:
        """Joins what waits for this stream into one write, as far as it fits a message."""
        rest = self._outbox.rest(codec.MAX_MESSAGE_BYTES - len(data), codec.JOINT)
        return codec.join_master(data, rest) if rest else data

    def _loss(self) -> str:
        """How the connection was lost, as far as that can be known."""
        silence = asyncio.get_running_loop().time() - self._heard_at
        if silence < PING_TIMEOUT:
            return "the connection to the agent was closed"
        return f"no answer for {PING_INTERVAL + PING_TIMEOUT:g} s, or the connection to the agent was closed"

    def _detach(self) -> None:
        if self._info is not None:
            self._info = None
            self._handler.detached(self, self._why)

    def finish(self, why: str) -> None:
        """Stops listening and ends the stream once what is queued is written; the first reason counts."""
        if self._outbox.closed:
            return
        self._why = why
        self._outbox.close()
        if self._pause is not None and not self._pause.done():
            self._pause.set_result(None)
        self._arm(self._limits.flush_timeout, self._abort)

    async def _read_all(self) -> None:
        """Takes messages until the agent ends its half, or the stream is closing."""
        try:
            while isinstance(data := await self._context.read(), bytes):
                self._heard_at = now = asyncio.get_running_loop().time()
                self._take(data)
                wait = self._allowance.delay(now, len(data))
                del data  # else it stays until the next one, which may be long
                if wait > 0:
                    await self._slow_down(wait)
            self.finish(_ENDED)
        finally:
            # An exception here is the handler's or gRPC's; it surfaces in run, which this wakes up.
            self.finish("the connection to the agent broke")

    async def _slow_down(self, seconds: float) -> None:
        """Pauses reading, as the agent says more than it may."""
        if not self._is_slowed:
            self._is_slowed = True
            logger.warning(
                "the agent at %s sends more than its limit: its messages are read more slowly from now on",
                self.peer,
            )
        self._pause = asyncio.get_running_loop().create_future()
        await asyncio.wait((self._pause,), timeout=seconds)

    def _take(self, data: bytes) -> None:
        if self._outbox.closed:
            return
        try:
            data = data if self._from_agent is None else self._from_agent.open(data)
            message = codec.decode_agent(data)
        except ForgedError:
            self.finish(_FORGED)
            self._abort()
            return
        except ProtocolError as error:
            self._reject(_refusal(data, error))
            return
        if self._info is None:
            self._attach(message, data)
        elif isinstance(message, Hello):
            self._reject(Rejected(RejectCode.OUT_OF_ORDER, "a stream carries only one Hello"))
        elif message.incarnation != self._info.incarnation:
            text = f"the stream is of incarnation {self._info.incarnation}, got {message.incarnation}"
            self._reject(Rejected(RejectCode.OUT_OF_ORDER, text))
        else:
            self._handler.received(self, message)

    def _attach(self, message: AgentMessage, data: bytes) -> None:
        if not isinstance(message, Hello):
            text = f"the first message must be Hello, got {type(message).__name__}"
            self._reject(Rejected(RejectCode.OUT_OF_ORDER, text))
            return
        trust = self._trust(message, data)
        refused = trust if isinstance(trust, Rejected) else self._admit(message)
        if refused is not None:
            self._reject(refused)
            return
        assert isinstance(trust, Trust)
        self._arm(0.0, None)
        self._guest.weigh(self._heard_at, len(data))
        self._guest.attached()
        self._info = message.info
        # Nonce and proof are of no use beyond this stream, and the handler keeps a journal.
        self._handler.attached(self, replace(message, nonce=b"", proof=b"", trust=trust))

    def _trust(self, hello: Hello, data: bytes) -> Trust | Rejected:
        """What the sender of a Hello has proven, or why it is refused; the module explains the order."""
        if hello.version != __version__:
            return wrong_version(hello.version)
        trust = Trust.STRANGER
        if self._handshake is not None:
            data, proof = codec.split_proof(data, codec.HelloProof.TOKEN)
            if not same(proof, self._handshake.of_agent(data)):
                return unproven(proof)
            self._from_agent, self._to_agent = self._handshake.seals(hello.nonce)
            trust = Trust.MEMBER
        return Trust.RETURNING if self._tickets.is_returning(hello, data) else trust

    def _reject(self, rejected: Rejected) -> None:
        if self._info is None and rejected.code in STRANGERS:
            complain(self._guest, self.peer, rejected)
        self.send(rejected)
        self.finish(f"rejected: {rejected.message}")

    def _give_up_on_hello(self) -> None:
        text = f"no Hello within {self._limits.hello_timeout:g} s"
        self._reject(Rejected(RejectCode.OUT_OF_ORDER, text))

    def _abort(self) -> None:
        """Ends the stream without waiting any longer for the agent to read."""
        if self._task is not None:
            self._given_up = True
            self._task.cancel()

    def _arm(self, seconds: float, callback: Callable[[], None] | None) -> None:
        """Sets the stream's one deadline, replacing the last; None: no deadline."""
        if self._deadline is not None:
            self._deadline.cancel()
        self._deadline = callback and asyncio.get_running_loop().call_later(seconds, callback)


async def _cancelled(task: asyncio.Task[None]) -> None:
    """Cancels the task and waits for its end; raises what it had raised by itself."""
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task


def _refusal(data: bytes, error: ProtocolError) -> Rejected:
    if len(data) > codec.MAX_MESSAGE_BYTES:
        return Rejected(RejectCode.OVERSIZED, str(error))
    version = codec.version_in(data)
    if version is not None and version != __version__:
        return wrong_version(version)
    return Rejected(RejectCode.MALFORMED, str(error))
