"""Orders on a real loopback: who is obeyed, and who is told what instead."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace

import grpc
import grpc.aio
import pytest

from elasticrun import __version__
from elasticrun.config import Endpoint, SecurityConfig, TaskRole
from elasticrun.core.protocol.bounds import MAX_FAILURE_TEXT, MAX_NAME, MAX_REPLY
from elasticrun.core.protocol.messages import AgentPhase, RejectCode
from elasticrun.core.protocol.orders import (
    AwaitStatus,
    CancelScale,
    CheckNodes,
    ControlHello,
    ControlReply,
    ControlRequest,
    CordonNode,
    DrainNode,
    RestartRound,
    SaveAllStacks,
    ScaleIn,
    ScaleJob,
    ScaleOut,
    ScaleRole,
    ShowStatus,
    StopJob,
    UncordonNode,
)
from elasticrun.core.protocol.questions import (
    Found,
    ListRanks,
    LogPiece,
    LogPlace,
    LogStream,
    RankAnswer,
    RankRange,
    ReadLog,
    ShowStacks,
)
from elasticrun.core.protocol.status import JobPhase, JobStatus, NodeStatus
from elasticrun.core.protocol.tasks import MAX_CLUSTER
from elasticrun.errors import (
    EndpointTakenError,
    MasterUnreachableError,
    ProtocolError,
    TooManyError,
    UnauthenticatedError,
    WrongJobError,
)
from elasticrun.rpc.client import MasterStream
from elasticrun.rpc.codec import MAX_MESSAGE_BYTES
from elasticrun.rpc.codec import control as codec
from elasticrun.rpc.control import give_order
from elasticrun.rpc.security.auth import CHALLENGE_KEY, SIZE, Handshake, challenge_in, keyed
from elasticrun.rpc.server import Limits, MasterServer, Orders
from elasticrun.rpc.transport import CONTROL_METHOD, CONTROL_PATH, rejected_in
from tests.rpc.harness import (
    DEADLINE,
    LOCKED,
    OPEN,
    TOKEN,
    Obedient,
    Recorder,
    admit,
    hello,
    impersonating,
    run,
    serving,
)

NONCE = b"n" * SIZE
DRAIN = DrainNode("n0", "maintenance")
EVERY_ORDER: tuple[ControlRequest, ...] = (
    ShowStatus(),
    AwaitStatus("4:running:2:8:1", 1.5),
    DRAIN,
    ScaleJob(1, 4),
    ScaleRole(TaskRole.PS, MAX_CLUSTER),
    SaveAllStacks(),
    RestartRound("edited"),
    ScaleIn("night", nodes=("n0",)),
    ScaleOut(2, 1.5),
    CordonNode("n0", "loud"),
    UncordonNode("n0"),
    CheckNodes("slow"),
    StopJob("no money"),
    CancelScale("no money"),
    ReadLog(3, (LogPlace(LogStream.OUT, "here"), LogPlace(LogStream.ERR)), 10, 1.5),
    ShowStacks(3),
    ListRanks(),
)


@pytest.mark.parametrize("request_", EVERY_ORDER)
def test_who_knows_the_token_is_obeyed(request_: ControlRequest) -> None:
    async def main() -> None:
        handler = Obedient()
        async with serving(security=LOCKED, orders=Orders(handler, "job")) as (_, endpoint):
            reply = await give_order(endpoint, "job", request_, LOCKED, DEADLINE)
            assert (reply.ok, reply.text) == (True, f"heard {request_}")
            assert handler.orders == [request_]

    run(main())


@pytest.mark.parametrize("count", [0, 4000])
def test_a_brief_status_that_is_long_is_not_read(count: int) -> None:
    nodes = tuple(NodeStatus("n" * 40, each, AgentPhase.RUNNING) for each in range(count))
    status = JobStatus("job", JobPhase.RUNNING, 0, 1, 1, 0, 3, nodes=nodes)

    class Told(Obedient):
        async def answer(self, request: ControlRequest) -> ControlReply:
            return ControlReply(True, "", status=status)

    async def main() -> None:
        async with serving(security=LOCKED, orders=Orders(Told(), "job")) as (_, endpoint):
            asked = give_order(endpoint, "job", AwaitStatus("", 0.0), LOCKED, DEADLINE)
            if not count:
                assert (await asked).status == status
                return
            with pytest.raises(ProtocolError, match="a status without nodes has at most 131072"):
                await asked

    run(main())


def test_what_the_master_declines_is_no_error() -> None:
    class Unwilling(Obedient):
        async def answer(self, request: ControlRequest) -> ControlReply:
            return ControlReply(False, "the job has ended")

    async def main() -> None:
        async with serving(security=LOCKED, orders=Orders(Unwilling(), "job")) as (_, endpoint):
            reply = await give_order(endpoint, "job", DRAIN, LOCKED, DEADLINE)
            assert (reply.ok, reply.text) == (False, "the job has ended")

    run(main())


def test_output_of_a_worker_arrives_as_it_was_proven() -> None:
    pieces = (
        LogPiece(LogStream.ERR, "p", bytes(range(256)) * 256),
        LogPiece(LogStream.OUT, "q", note="none"),
    )
    found = Found((RankRange(0, 3),), RankAnswer(pieces, "File \udce9"))

    class Told(Obedient):
        async def answer(self, request: ControlRequest) -> ControlReply:
            return ControlReply(True, "", found=found)

    async def main() -> None:
        async with serving(security=LOCKED, orders=Orders(Told(), "job")) as (_, endpoint):
            reply = await give_order(endpoint, "job", ListRanks(), LOCKED, DEADLINE)
            assert reply.found == replace(found, answer=RankAnswer(pieces, "File \ufffd"))

    run(main())


@pytest.mark.parametrize("text", ["x" * (2 * MAX_REPLY), "n\udce9 \N{SNOWMAN}" * 10, ""])
def test_an_answer_is_proven_as_it_arrives(text: str) -> None:
    class Talkative(Obedient):
        async def answer(self, request: ControlRequest) -> ControlReply:
            return ControlReply(True, text)

    async def main() -> None:
        async with serving(security=LOCKED, orders=Orders(Talkative(), "job")) as (_, endpoint):
            reply = await give_order(endpoint, "job", ShowStatus(), LOCKED, DEADLINE)
            assert reply.ok and len(reply.text) <= MAX_REPLY

    run(main())


@pytest.mark.parametrize(
    ("master", "operator", "words"),
    [
        (LOCKED, SecurityConfig("another token"), "use the token that the job's nodes use"),
        (LOCKED, OPEN, "use the token that the job's nodes use"),
        (OPEN, LOCKED, "this job has no token, so it takes no orders here"),
        (OPEN, OPEN, "this job has no token, so it takes no orders here"),
    ],
)
def test_who_cannot_prove_it_is_not_obeyed(
    master: SecurityConfig, operator: SecurityConfig, words: str
) -> None:
    async def main() -> None:
        handler = Obedient()
        async with serving(security=master, orders=Orders(handler, "job")) as (_, endpoint):
            with pytest.raises(UnauthenticatedError, match=words):
                await give_order(endpoint, "other job", DRAIN, operator, DEADLINE)
            assert handler.orders == []

    run(main())


def test_the_job_is_named_to_who_knows_the_token_only() -> None:
    async def main() -> None:
        handler = Obedient()
        async with serving(security=LOCKED, orders=Orders(handler, "job")) as (_, endpoint):
            with pytest.raises(WrongJobError, match="serves the job 'job', not 'other'"):
                await give_order(endpoint, "other", DRAIN, LOCKED, DEADLINE)
            assert handler.orders == []

    run(main())


def test_a_server_that_takes_no_orders_is_no_master() -> None:
    async def main() -> None:
        async with serving(security=LOCKED) as (_, endpoint):
            with pytest.raises(EndpointTakenError, match="takes no orders"):
                await give_order(endpoint, "job", DRAIN, LOCKED, DEADLINE)

    run(main())


def test_nobody_there() -> None:
    async def main() -> None:
        async with serving() as (_, endpoint):
            pass
        with pytest.raises(MasterUnreachableError, match="cannot connect"):
            await give_order(endpoint, "job", DRAIN, LOCKED, DEADLINE)

    run(main())


def test_orders_count_among_the_streams_of_an_address() -> None:
    async def main() -> None:
        orders = Orders(Obedient(), "job")
        async with serving(Limits(streams_per_address=1), LOCKED, orders) as (_, endpoint):
            stream = await MasterStream.open(endpoint, hello(), DEADLINE, LOCKED)
            with pytest.raises(TooManyError, match="1 streams open"):
                await give_order(endpoint, "job", DRAIN, LOCKED, DEADLINE)
            await stream.close()

    run(main())


def test_agents_do_not_notice_orders() -> None:
    async def main() -> None:
        orders = Orders(Obedient(), "job")
        async with serving(security=LOCKED, orders=orders) as (recorder, endpoint):
            stream = await MasterStream.open(endpoint, hello(), DEADLINE, LOCKED)
            asked = [give_order(endpoint, "job", each, LOCKED, DEADLINE) for each in EVERY_ORDER * 5]
            assert all(reply.ok for reply in await asyncio.gather(*asked))
            assert recorder.detachments == [] and recorder.messages == []
            await stream.close()

    run(main())


def test_a_handler_with_a_bug_fails_its_order_only(caplog: pytest.LogCaptureFixture) -> None:
    class Broken(Obedient):
        async def answer(self, request: ControlRequest) -> ControlReply:
            raise ZeroDivisionError("a bug")

    async def main() -> None:
        async with serving(security=LOCKED, orders=Orders(Broken(), "job")) as (_, endpoint):
            with pytest.raises(MasterUnreachableError, match="gave no answer"):
                await give_order(endpoint, "job", DRAIN, LOCKED, DEADLINE)
            async with await MasterStream.open(endpoint, hello(), DEADLINE, LOCKED):
                pass

    run(main())
    assert "a bug" in caplog.text


# Operators that keep no rule


def said(shake: Handshake, order: bytes, job_id: str = "job", version: str = __version__) -> bytes:
    """A ControlHello with the proof that belongs to the order."""
    plain = ControlHello(job_id, version, NONCE)
    return codec.encode_control(replace(plain, proof=shake.of_operator(plain, order)))


ORDER = codec.encode_control(DRAIN)
Say = Callable[[Handshake], Sequence[bytes]]
HOSTILE: dict[str, tuple[Say, RejectCode]] = {
    "nothing": (lambda shake: [], RejectCode.OUT_OF_ORDER),
    "no hello": (lambda shake: [ORDER, ORDER], RejectCode.OUT_OF_ORDER),
    "no order": (lambda shake: [said(shake, ORDER)], RejectCode.OUT_OF_ORDER),
    "two orders": (lambda shake: [said(shake, ORDER), ORDER, ORDER], RejectCode.OUT_OF_ORDER),
    "garbage": (lambda shake: [b"\xff" * 9, ORDER], RejectCode.MALFORMED),
    "a hello for an order": (
        lambda shake: [said(shake, said(shake, b"")), said(shake, b"")],
        RejectCode.OUT_OF_ORDER,
    ),
    "a proven order that is none": (lambda shake: [said(shake, b"\xff"), b"\xff"], RejectCode.MALFORMED),
    "an order that was altered": (
        lambda shake: [said(shake, ORDER), codec.encode_control(DrainNode("n1", "x"))],
        RejectCode.UNAUTHENTICATED,
    ),
    "recorded": (
        lambda shake: [said(Handshake(keyed(TOKEN), bytes(SIZE)), ORDER), ORDER],
        RejectCode.UNAUTHENTICATED,
    ),
    "no proof": (
        lambda shake: [codec.encode_control(ControlHello("job", __version__, NONCE)), ORDER],
        RejectCode.UNAUTHENTICATED,
    ),
    "another version": (lambda shake: [said(shake, ORDER, version="9.9"), ORDER], RejectCode.WRONG_VERSION),
    "another job": (lambda shake: [said(shake, ORDER, "other"), ORDER], RejectCode.WRONG_JOB),
    "too large": (lambda shake: [bytes(MAX_MESSAGE_BYTES + 1), ORDER], RejectCode.MALFORMED),
    "large together": (lambda shake: [said(shake, ORDER), bytes(65_536)], RejectCode.MALFORMED),
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_an_order_that_breaks_a_rule_is_refused_with_a_code(kind: str) -> None:
    say, code = HOSTILE[kind]

    async def main() -> None:
        handler = Obedient()
        async with serving(security=LOCKED, orders=Orders(handler, "job")) as (_, endpoint):
            async with grpc.aio.insecure_channel(str(endpoint)) as channel:
                assert await refusal(channel, say) is code
            assert handler.orders == []

    run(main())


async def refusal(channel: grpc.aio.Channel, say: Say) -> RejectCode:
    method: grpc.aio.StreamStreamMultiCallable[bytes, bytes] = channel.stream_stream(CONTROL_PATH)
    call = method()
    challenge = challenge_in(await call.initial_metadata())
    assert challenge
    try:
        for data in say(Handshake(keyed(TOKEN), challenge)):
            await call.write(data)
        await call.done_writing()
        assert await call.read() is grpc.aio.EOF
    except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
        pass
    await call.code()
    rejected = rejected_in(await call.trailing_metadata())
    assert rejected is not None and rejected.message
    return rejected.code


def test_an_operator_who_does_not_stop_talking_is_cut_off() -> None:
    async def main() -> None:
        handler = Obedient()
        async with serving(security=LOCKED, orders=Orders(handler, "job")) as (_, endpoint):
            async with grpc.aio.insecure_channel(str(endpoint)) as channel:
                method: grpc.aio.StreamStreamMultiCallable[bytes, bytes] = channel.stream_stream(CONTROL_PATH)
                call = method()
                challenge = challenge_in(await call.initial_metadata())
                assert challenge
                await call.write(said(Handshake(keyed(TOKEN), challenge), ORDER))
                with pytest.raises((grpc.aio.AioRpcError, asyncio.InvalidStateError)):
                    while True:
                        await asyncio.wait_for(call.write(ORDER), DEADLINE)
            assert handler.orders == []

    run(main())


def test_what_an_order_may_have_fits() -> None:
    longest = DrainNode("\U0001f600" * MAX_NAME, "\U0001f600" * MAX_FAILURE_TEXT)

    async def main() -> None:
        handler = Obedient()
        async with serving(security=LOCKED, orders=Orders(handler, "job")) as (_, endpoint):
            assert (await give_order(endpoint, "job", longest, LOCKED, DEADLINE)).ok
        assert [order.node for order in handler.orders if isinstance(order, DrainNode)] == [longest.node]

    run(main())


def test_an_operator_who_says_nothing_is_not_waited_for() -> None:
    async def main() -> None:
        orders = Orders(Obedient(), "job")
        async with serving(Limits(hello_timeout=4.0), LOCKED, orders) as (_, endpoint):
            async with grpc.aio.insecure_channel(str(endpoint)) as channel:
                method: grpc.aio.StreamStreamMultiCallable[bytes, bytes] = channel.stream_stream(CONTROL_PATH)
                call = method()
                assert await asyncio.wait_for(call.code(), DEADLINE) is not grpc.StatusCode.OK
            reply = await give_order(endpoint, "job", DRAIN, LOCKED, DEADLINE)
            assert reply.ok

    run(main())


# Masters that are none


@pytest.mark.parametrize(
    "forged",
    [
        ControlReply(True, "done"),
        ControlReply(True, "done", bytes(SIZE)),
        ControlReply(True, "done", Handshake(keyed("a guess"), bytes(SIZE)).of_answer(NONCE, True, "done")),
    ],
)
def test_an_answer_of_somebody_else_is_not_believed(forged: ControlReply) -> None:
    async def control(_: object, context: grpc.aio.ServicerContext[object, bytes]) -> None:
        await context.send_initial_metadata(((CHALLENGE_KEY, bytes(SIZE)),))
        while isinstance(await context.read(), bytes):
            pass
        await context.write(codec.encode_reply(forged))

    async def main() -> None:
        async with impersonating(CONTROL_METHOD, control) as endpoint:
            with pytest.raises(UnauthenticatedError, match="does not prove the job's token"):
                await give_order(endpoint, "job", DRAIN, LOCKED, DEADLINE)

    run(main())


def test_a_master_that_does_not_answer_is_not_waited_for() -> None:
    async def main() -> None:
        server = MasterServer(Recorder(), admit, security=LOCKED, orders=Orders(Obedient(), "job"))
        endpoint = Endpoint("127.0.0.1", await server.start("127.0.0.1", 0))
        with pytest.raises(MasterUnreachableError):
            await give_order(endpoint, "job", DRAIN, LOCKED, 1e-6)
        await server.stop(1.0)

    run(main())
