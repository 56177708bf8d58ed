"""An operator's order to a running job, at both ends: one stream, one order, one answer.

::

    server -> operator    challenge, in the initial metadata
    operator -> server    ControlHello, the order, the end of its half
    server -> operator    ControlReply, or a typed refusal in the trailing metadata

The proof in ControlHello covers the bytes of the order, the one in the reply the answer (``auth.py``), so an
order can be neither forged nor altered nor given twice, even by somebody between the two. A job without
a token refuses every order, questions included, since it could not tell its owner from a passer-by; on the
master's host it can (``nearby.py``).

An order is validated only after the operator half-closes, so that it is not writing when the stream ends. A
stream of more than ``_MAX_SAID`` bytes is cut off, as strangers' bytes are not collected (``limits.py``).
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace
from typing import Protocol

import grpc
import grpc.aio

from elasticrun import __version__
from elasticrun.clock import within
from elasticrun.config import Endpoint, SecurityConfig
from elasticrun.core.protocol.messages import RejectCode, Rejected
from elasticrun.core.protocol.orders import MAX_BRIEF, AwaitStatus, ControlHello, ControlReply, ControlRequest
from elasticrun.core.protocol.questions import QUESTIONS
from elasticrun.dataclass import dataclass
from elasticrun.errors import (
    ElasticRunError,
    EndpointTakenError,
    MasterUnreachableError,
    ProtocolError,
    UnauthenticatedError,
)
from elasticrun.rpc.codec import control as codec
from elasticrun.rpc.reach import reach
from elasticrun.rpc.security.admission import STRANGERS, Context, complain, peer_of, refuse, wrong_version
from elasticrun.rpc.security.auth import CHALLENGE_KEY, Handshake, challenge_in, fresh, keyed, same
from elasticrun.rpc.security.limits import Guest
from elasticrun.rpc.stream import rejection
from elasticrun.rpc.transport import CONTROL_PATH, open_channel, rejected_in

logger = logging.getLogger(__name__)

_Order = tuple[ControlHello, ControlRequest]

_NO_TOKEN = (
    "this job has no token, so it takes no orders here: start it with --token-file on every node, or give"
    " orders without --endpoint on the master's host"
)
_OTHER_TOKEN = "the order does not prove this job's token: use the token that the job's nodes use"
_MAX_SAID = 65_536  # bytes of all messages of an order; several times the longest order
_UNSAID = "an order is ControlHello, one request and the end of the stream"


class ControlHandler(Protocol):
    """Carries out orders."""

    async def answer(self, request: ControlRequest) -> ControlReply:
        """Answers somebody who has proven to know the token. Must not raise."""


@dataclass(frozen=True, slots=True)
class Orders:
    """Who carries out the orders that a server takes, and for which job."""

    handler: ControlHandler
    job_id: str


# The master's end


async def obey(orders: Orders, context: Context, guest: Guest, token: str | None, timeout: float) -> None:
    """Serves one stream; the operator has ``timeout`` seconds to send all."""
    if token is None:
        await refuse(context, Rejected(RejectCode.UNAUTHENTICATED, _NO_TOKEN))
    handshake = Handshake(keyed(token), fresh())
    await context.send_initial_metadata(((CHALLENGE_KEY, handshake.challenge),))
    try:
        said = await asyncio.wait_for(_read_all(context), timeout)
        accepted = _judge(said, handshake, orders.job_id)
    except asyncio.TimeoutError:
        accepted = Rejected(RejectCode.OUT_OF_ORDER, f"no order within {timeout:g} s")
    except ProtocolError as error:
        accepted = Rejected(RejectCode.MALFORMED, str(error))
    if isinstance(accepted, Rejected):
        if accepted.code in STRANGERS:
            complain(guest, peer_of(context), accepted)
        await refuse(context, accepted)
    hello, request = accepted
    guest.attached()
    if not isinstance(request, (*QUESTIONS, AwaitStatus)):  # who follows a log asks again and again
        logger.info("%s orders %s", peer_of(context), request)
    reply = _as_it_arrives(await orders.handler.answer(request))
    proof = _proof_of(reply, handshake, hello)
    await context.write(codec.encode_reply(replace(reply, proof=proof)))


def _as_it_arrives(reply: ControlReply) -> ControlReply:
    """The reply with its text clipped, as the operator gets it: the proof must cover that."""
    return codec.decode_reply(codec.encode_reply(reply))


def _proof_of(reply: ControlReply, handshake: Handshake, hello: ControlHello) -> bytes:
    values = b"".join(
        (
            b"" if reply.status is None else codec.encode_status(reply.status),
            b"" if reply.watched is None else codec.encode_watched(reply.watched),
            b"" if reply.found is None else codec.encode_found(reply.found),
        )
    )
    return handshake.of_answer(hello.nonce, reply.ok, reply.text, values)


async def _read_all(context: Context) -> list[bytes]:
    said: list[bytes] = []
    while len(said) <= 2 and isinstance(data := await context.read(), bytes):
        said.append(data)
        if (size := sum(map(len, said))) > _MAX_SAID:
            raise ProtocolError(f"an order must have at most {_MAX_SAID} bytes, got {size}")
    return said


def _judge(said: list[bytes], handshake: Handshake, job_id: str) -> _Order | Rejected:
    """The order, if valid and proven; checks version, proof, job in turn, as ``session.py`` does."""
    hello = codec.decode_control(said[0]) if said else None
    if not isinstance(hello, ControlHello) or len(said) != 2:
        return Rejected(RejectCode.OUT_OF_ORDER, _UNSAID)
    if hello.version != __version__:
        return wrong_version(hello.version)
    if not same(hello.proof, handshake.of_operator(hello, said[1])):
        return Rejected(RejectCode.UNAUTHENTICATED, _OTHER_TOKEN)
    if hello.job_id != job_id:
        text = f"the master serves the job {job_id!r}, not {hello.job_id!r}: give --rdzv-id {job_id}"
        return Rejected(RejectCode.WRONG_JOB, text)
    request = codec.decode_control(said[1])
    if isinstance(request, ControlHello):
        return Rejected(RejectCode.OUT_OF_ORDER, _UNSAID)
    return hello, request


# The operator's end


async def give_order(
    endpoint: Endpoint, job_id: str, request: ControlRequest, security: SecurityConfig, timeout: float
) -> ControlReply:
    """The master's proven answer to an order, within ``timeout`` seconds.

    Raises MasterUnreachableError, EndpointTakenError, UnauthenticatedError, WrongJobError,
    WrongVersionError, TooManyError, UsageError or ProtocolError as ``MasterStream.open`` does. An order
    whose answer was lost may have been obeyed.
    """
    loop = asyncio.get_running_loop()
    deadline = loop.time() + timeout
    target = await reach(endpoint, timeout, tls=security.tls is not None)
    async with open_channel(target, endpoint, security.tls) as channel:
        method: grpc.aio.StreamStreamMultiCallable[bytes, bytes] = channel.stream_stream(CONTROL_PATH)
        exchange = _exchange(method(), endpoint, job_id, request, security)
        try:
            return await within(max(0.0, deadline - loop.time()), exchange)
        except asyncio.TimeoutError:
            raise MasterUnreachableError(f"{endpoint} did not answer within {timeout:.3g} s") from None


async def _exchange(
    call: grpc.aio.StreamStreamCall[bytes, bytes],
    endpoint: Endpoint,
    job_id: str,
    request: ControlRequest,
    security: SecurityConfig,
) -> ControlReply:
    challenge = challenge_in(await call.initial_metadata())
    if not challenge:
        raise await _failure(call, endpoint, security)
    handshake = Handshake(keyed(security.token or ""), challenge)
    order = codec.encode_control(request)
    hello = ControlHello(job_id, __version__, nonce=fresh())
    hello = replace(hello, proof=handshake.of_operator(hello, order) if security.token else b"")
    try:
        await call.write(codec.encode_control(hello))
        await call.write(order)
        await call.done_writing()
        answer = await call.read()
    except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
        answer = grpc.aio.EOF
    if not isinstance(answer, bytes):
        raise await _failure(call, endpoint, security)
    if isinstance(request, AwaitStatus) and len(answer) > MAX_BRIEF:  # who asks for many jobs reads no more
        most = f"and a status without nodes has at most {MAX_BRIEF}"
        raise ProtocolError(f"the answer of {endpoint} has {len(answer)} bytes, {most}")
    reply = codec.decode_reply(answer)
    if not same(reply.proof, _proof_of(reply, handshake, hello)):
        raise UnauthenticatedError(
            f"the answer of {endpoint} does not prove the job's token: another program may be answering there"
        )
    return reply


async def _failure(
    call: grpc.aio.StreamStreamCall[bytes, bytes], endpoint: Endpoint, security: SecurityConfig
) -> ElasticRunError:
    """Why there is no answer. Waits for the end of the stream."""
    code, details = await call.code(), await call.details() or ""
    if (rejected := rejected_in(await call.trailing_metadata())) is not None:
        return rejection(rejected)
    if code is grpc.StatusCode.UNIMPLEMENTED:
        what = "a gRPC server that takes no orders for an elasticrun job"
        return EndpointTakenError(f"{endpoint} is held by {what}; look at --endpoint")
    if security.tls is not None and "last error" in details:
        from elasticrun.rpc.security.tls import explain

        if (explained := explain(details, endpoint)) is not None:
            return explained
    return MasterUnreachableError(f"{endpoint} gave no answer: {details or 'the stream ended'}")
