"""How the server refuses a stream: the answer to the client, and the line in the log.

A stream that is refused before anything is read on it ends at once, with a status; the typed refusal is in
the trailing metadata, so it arrives whatever the client is doing, and the server does not wait for it.
"""

from __future__ import annotations

import asyncio
import logging
from typing import NoReturn
from urllib.parse import unquote

import grpc
import grpc.aio

from elasticrun import __version__
from elasticrun.core.protocol.messages import RejectCode, Rejected
from elasticrun.rpc import codec
from elasticrun.rpc.codec import REJECTED_KEY
from elasticrun.rpc.security.limits import Gate, Guest
from elasticrun.rpc.security.refusals import EACH

logger = logging.getLogger(__name__)

Context = grpc.aio.ServicerContext[object, bytes]  # reads bytes or EOF

#: Refusals that an honest agent of this version never gets before it is attached, unless its token is wrong.
STRANGERS = frozenset(
    {RejectCode.UNAUTHENTICATED, RejectCode.MALFORMED, RejectCode.OVERSIZED, RejectCode.OUT_OF_ORDER}
)


def peer_of(context: Context) -> str:
    """The address and port of the other end."""
    return unquote(context.peer().partition(":")[2])  # gRPC says ipv6:%5B::1%5D:40000


async def enter(gate: Gate, context: Context, timeout: float) -> Guest:
    """Lets a stream in once its turn to be read has come, or refuses it; within ``timeout`` seconds."""
    host = peer_of(context).rpartition(":")[0].strip("[]")
    guest = gate.enter(host, asyncio.get_running_loop().time())
    if not isinstance(guest, Guest):
        await refuse(context, Rejected(RejectCode.TOO_MANY, guest))
    if not guest.reading:
        await _turn(guest, context, timeout)
    return guest


async def _turn(guest: Guest, context: Context, timeout: float) -> None:
    turn = asyncio.get_running_loop().create_future()
    guest.when_reading(lambda: turn.set_result(None))
    try:
        await asyncio.wait((turn,), timeout=timeout)
    except asyncio.CancelledError:
        guest.leave()
        raise
    if not guest.reading:
        guest.leave()
        text = (
            "the master is busy with connections that have not joined yet, and could not read "
            f"this one within {timeout:g} s: try again"
        )
        await refuse(context, Rejected(RejectCode.TOO_MANY, text))


async def refuse(context: Context, rejected: Rejected) -> NoReturn:
    """Ends the stream with the refusal."""
    is_limit = rejected.code is RejectCode.TOO_MANY
    status = grpc.StatusCode.RESOURCE_EXHAUSTED if is_limit else grpc.StatusCode.FAILED_PRECONDITION
    context.set_trailing_metadata(((REJECTED_KEY, codec.encode_master(rejected)),))
    await context.abort(status, rejected.code.value)


def complain(guest: Guest, peer: str, rejected: Rejected) -> None:
    """Charges the stream's address, and writes a line unless it would repeat one, or there were too many."""
    host, reason = peer.rpartition(":")[0], rejected.message

    def tell_more(count: int) -> None:
        logger.warning("refused %d more streams from %s in %.0f s: %s", count, host, EACH, reason)

    if guest.fail(asyncio.get_running_loop().time()) and guest.is_news(reason, tell_more):
        logger.warning("refused a stream from %s: %s", peer, reason)


def wrong_version(version: str) -> Rejected:
    """The refusal of another version of elasticrun."""
    text = f"the master runs elasticrun {__version__}, not {version}; install one version on every node"
    return Rejected(RejectCode.WRONG_VERSION, text)


def unproven(proof: bytes) -> Rejected:
    """The refusal of a proof that is missing or wrong."""
    what = "this node has another one" if proof else "this node has none"
    text = f"the job has a token, and {what}: give every node the same --token-file"
    return Rejected(RejectCode.UNAUTHENTICATED, text)
