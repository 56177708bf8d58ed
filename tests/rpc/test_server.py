"""The master's end on a real loopback: what agents of every kind get, and that nothing stops it."""

from __future__ import annotations

import asyncio
import random
import socket
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from queue import Queue
from threading import Thread

import grpc
import grpc.aio
import pytest

from elasticrun.config import Endpoint
from elasticrun.core.protocol.messages import (
    AttachedMessage,
    Heartbeat,
    Leave,
    MasterMessage,
    RejectCode,
    Rejected,
    StopRound,
    Waiting,
)
from elasticrun.errors import EndpointTakenError
from elasticrun.rpc import codec
from elasticrun.rpc.client import MasterStream
from elasticrun.rpc.server import Limits, MasterServer
from elasticrun.rpc.transport import PATH, SERVICE
from tests.rpc.harness import DEADLINE, Recorder, admit, hello, raw_calls, report, run, serving, welcome

HELLO = codec.encode_agent(hello())
WELCOME = codec.encode_master(welcome(hello()))


def test_an_agent_attaches_talks_and_leaves() -> None:
    async def main() -> None:
        async with serving() as (recorder, endpoint):
            async with await MasterStream.open(endpoint, hello(), DEADLINE) as stream:
                assert stream.welcome == welcome(hello())
                assert [said.info for said in recorder.hellos] == [hello().info]
                assert recorder.sessions[0].peer.startswith("127.0.0.1:")
                stream.send(Heartbeat("i0"))
                stream.send(Leave("i0", "done"))
            await recorder.until(lambda: bool(recorder.detachments))
            assert recorder.messages == [Heartbeat("i0"), Leave("i0", "done")]
            assert recorder.detachments == [(recorder.sessions[0].id, "the agent's stream ended")]

    run(main())


def test_order_is_kept_both_ways() -> None:
    async def main() -> None:
        async with serving() as (recorder, endpoint):
            stream = await MasterStream.open(endpoint, hello(), DEADLINE)
            for number in range(1000):
                stream.send(report(number))
                recorder.sessions[0].send(Waiting(1, str(number)))
            heard = [await asyncio.wait_for(anext(stream), DEADLINE) for _ in range(1000)]
            assert heard == [Waiting(1, str(number)) for number in range(1000)]
            await recorder.until(lambda: len(recorder.messages) == 1000)
            assert recorder.messages == [report(number) for number in range(1000)]
            await stream.close()

    run(main())


def test_what_waits_for_a_stream_is_one_write_as_far_as_it_fits() -> None:
    async def main() -> None:
        async with serving() as (recorder, endpoint), raw_calls(endpoint) as open_call:
            call = open_call().call
            await call.write(HELLO)
            assert await asyncio.wait_for(call.read(), DEADLINE) == WELCOME
            long = "x" * 8000
            said = [Waiting(1, f"{number} {long}") for number in range(200)]  # more than one message carries
            for message in said:
                recorder.sessions[0].send(message)
            heard: list[MasterMessage] = []
            writes = 0
            while len(heard) < len(said):
                data = await asyncio.wait_for(call.read(), DEADLINE)
                assert isinstance(data, bytes)
                heard += codec.decode_master(data)
                writes += 1
            assert heard == said
            assert writes == 2
            call.cancel()

    run(main())


def test_each_session_has_its_own_id_and_messages() -> None:
    async def main() -> None:
        async with serving() as (recorder, endpoint):
            lives = [hello(incarnation=f"i{k}") for k in range(5)]
            streams = [await MasterStream.open(endpoint, life, DEADLINE) for life in lives]
            assert len({session.id for session in recorder.sessions}) == 5
            assert len({session.peer for session in recorder.sessions}) == 5  # a connection each
            for k, session in enumerate(recorder.sessions):
                session.send(Waiting(1, str(k)))
            for k, stream in enumerate(streams):
                assert await asyncio.wait_for(anext(stream), DEADLINE) == Waiting(1, str(k))
            await asyncio.gather(*(stream.close() for stream in streams))

    run(main())


OTHER = codec.encode_agent(hello(job_id="other"))
#: What a hostile agent says, what it is answered last, and whether it was attached before.
HOSTILE = {
    "garbage": ([b"\xff" * 40], RejectCode.MALFORMED, False),
    "nothing in it": ([b""], RejectCode.MALFORMED, False),
    "garbage later": ([HELLO, b"\x01\x02"], RejectCode.MALFORMED, True),
    "too large": ([bytes(codec.MAX_MESSAGE_BYTES + 1)], RejectCode.OVERSIZED, False),
    "too large later": ([HELLO, bytes(2 * codec.MAX_MESSAGE_BYTES)], RejectCode.OVERSIZED, True),
    "no hello": ([codec.encode_agent(Heartbeat("i0"))], RejectCode.OUT_OF_ORDER, False),
    "two hellos": ([HELLO, HELLO], RejectCode.OUT_OF_ORDER, True),
    "other life": ([HELLO, codec.encode_agent(report(1, "i9"))], RejectCode.OUT_OF_ORDER, True),
    "wrong job": ([OTHER], RejectCode.WRONG_JOB, False),
    "wrong version": ([codec.encode_agent(hello(version="9.9"))], RejectCode.WRONG_VERSION, False),
    "a later version's hello": ([b"\x0a\x05\x12\x039.9"], RejectCode.WRONG_VERSION, False),
    "superseded": ([codec.encode_agent(hello(incarnation="old"))], RejectCode.SUPERSEDED, False),
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_a_broken_rule_gets_its_typed_answer(kind: str) -> None:
    payloads, code, attached = HOSTILE[kind]

    async def main() -> None:
        async with serving() as (recorder, endpoint), raw_calls(endpoint) as opened:
            answers = await opened().say([*payloads, codec.encode_agent(Heartbeat("i0"))])
            assert isinstance(answers[-1], Rejected) and answers[-1].code is code and answers[-1].message
            assert answers[:-1] == ([welcome(hello())] if attached else [])
            await recorder.until(lambda: len(recorder.detachments) == len(recorder.sessions))
            assert len(recorder.sessions) == int(attached)
            assert recorder.messages == []

    run(main())


def test_hostile_streams_do_not_stop_the_master() -> None:
    chance = random.Random(7)

    async def attack(call: grpc.aio.StreamStreamCall[bytes, bytes]) -> None:
        """Says something bad, or half of something good, and often goes away without waiting."""
        bad = [said for said, _, _ in HOSTILE.values()]
        payloads = chance.choice([*bad, [], [HELLO], [chance.randbytes(99)]])
        try:
            for payload in payloads:
                await call.write(payload)
            if chance.random() < 0.5:
                await call.done_writing()
                while isinstance(await call.read(), bytes):
                    pass
        except (asyncio.InvalidStateError, grpc.aio.AioRpcError):
            pass
        finally:
            call.cancel()

    async def main() -> None:
        async with serving() as (recorder, endpoint):
            good = await MasterStream.open(endpoint, hello(), DEADLINE)
            async with raw_calls(endpoint) as opened:
                for _ in range(10):
                    attacks = asyncio.gather(*(attack(opened().call) for _ in range(50)))
                    await asyncio.wait_for(attacks, DEADLINE)
            good.send(Heartbeat("i0"))
            await recorder.until(lambda: Heartbeat("i0") in recorder.messages)
            async with await MasterStream.open(endpoint, hello(), DEADLINE):
                pass
            await good.close()
            await recorder.until(lambda: len(recorder.detachments) == len(recorder.sessions))
            ids = [number for number, _ in recorder.detachments]
            assert len(set(ids)) == len(ids)

    run(main())


def test_what_even_grpc_finds_too_large_ends_only_that_stream() -> None:
    async def main() -> None:
        async with serving() as (recorder, endpoint), raw_calls(endpoint) as opened:
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await opened().say([HELLO, bytes(5 * codec.MAX_MESSAGE_BYTES)])
            assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
            await recorder.until(lambda: len(recorder.detachments) == 1)
            async with await MasterStream.open(endpoint, hello(), DEADLINE):
                pass

    run(main())


def test_other_methods_do_not_exist() -> None:
    async def main() -> None:
        async with serving() as (_, endpoint), grpc.aio.insecure_channel(str(endpoint)) as channel:
            other: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(f"/{SERVICE}/Other")
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await other(b"")
            assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED

    run(main())


def test_a_stream_that_says_nothing_is_closed() -> None:
    async def main() -> None:
        async with serving(Limits(hello_timeout=0.05)) as (recorder, endpoint), raw_calls(endpoint) as opened:
            (answer,) = await opened().say([])
            assert isinstance(answer, Rejected) and answer.code is RejectCode.OUT_OF_ORDER
            assert "no Hello within 0.05 s" in answer.message
            assert recorder.sessions == []

    run(main())


def test_an_attached_agent_may_be_silent_for_longer_than_hello_may_take() -> None:
    async def main() -> None:
        async with serving(Limits(hello_timeout=4.0)) as (recorder, endpoint), raw_calls(endpoint) as opened:
            stream = await MasterStream.open(endpoint, hello(), DEADLINE)
            await opened().say([])  # took 4 s, from a later start
            stream.send(Heartbeat("i0"))
            await recorder.until(lambda: bool(recorder.messages))
            await stream.close()

    run(main())


def test_an_agent_that_does_not_read_is_given_up() -> None:
    async def main() -> None:
        async with serving() as (recorder, endpoint), raw_calls(endpoint) as opened:
            call = opened().call
            await call.write(HELLO)
            await recorder.until(lambda: bool(recorder.sessions))
            (session,) = recorder.sessions
            for _ in range(1000):
                session.send(Waiting(1, "x" * 16_000))
            await recorder.until(lambda: bool(recorder.detachments))
            assert recorder.detachments == [(session.id, "the agent does not read what it is sent")]
            session.send(Waiting(1, "nobody hears this"))
            with pytest.raises(grpc.aio.AioRpcError):
                while isinstance(await asyncio.wait_for(call.read(), DEADLINE), bytes):
                    pass

    run(main())


def test_what_cannot_be_encoded_ends_one_stream_only(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        async with serving() as (recorder, endpoint), raw_calls(endpoint) as opened:
            calls = [opened().call for _ in range(2)]
            for number, call in enumerate(calls, 1):
                await call.write(HELLO)
                await recorder.until(lambda: len(recorder.sessions) == number)  # noqa: B023 - awaited at once
            bad, good = recorder.sessions
            bad.send(StopRound(2**63, 1, 0, "too large for its field"))
            good.send(Waiting(1, "still here"))
            heard: list[MasterMessage] = []
            while Waiting(1, "still here") not in heard:
                data = await asyncio.wait_for(calls[1].read(), DEADLINE)
                assert isinstance(data, bytes)
                heard += codec.decode_master(data)
            await calls[0].done_writing()
            await recorder.until(lambda: bool(recorder.detachments))
            assert recorder.detachments == [(bad.id, "a message for this agent cannot be encoded")]

    run(main())
    assert "cannot be encoded; its stream is closed" in caplog.text


def test_a_closing_stream_is_given_up_if_the_agent_does_not_read() -> None:
    async def main() -> None:
        limits = Limits(flush_timeout=0.05)
        async with serving(limits) as (recorder, endpoint), raw_calls(endpoint) as opened:
            call = opened().call
            await call.write(HELLO)
            await recorder.until(lambda: bool(recorder.sessions))
            for _ in range(100):
                recorder.sessions[0].send(Waiting(1, "x" * 16_000))
            recorder.sessions[0].close()
            await recorder.until(lambda: bool(recorder.detachments))
            assert recorder.detachments[0][1] == "the master closed the stream"

    run(main())


def test_an_agent_that_does_not_end_its_half_is_detached_anyway() -> None:
    async def main() -> None:
        patient = Limits(flush_timeout=10 * DEADLINE)
        async with serving(patient) as (recorder, endpoint), raw_calls(endpoint) as opened:
            call = opened().call
            await call.write(HELLO)
            await recorder.until(lambda: bool(recorder.sessions))
            recorder.sessions[0].close()
            await recorder.until(lambda: bool(recorder.detachments))
            assert [await call.read(), await call.read()] == [WELCOME, codec.GOODBYE]

    run(main())


def test_close_ends_the_stream_after_what_is_queued() -> None:
    async def main() -> None:
        async with serving() as (recorder, endpoint), raw_calls(endpoint) as opened:
            saying = asyncio.create_task(opened().say([HELLO]))
            await recorder.until(lambda: bool(recorder.sessions))
            (session,) = recorder.sessions
            expected: list[MasterMessage] = [Waiting(1, str(k)) for k in range(50)]
            for message in expected:
                session.send(message)
            session.close()
            session.close()
            session.send(Waiting(1, "too late"))
            assert await saying == [welcome(hello()), *expected]
            await recorder.until(lambda: bool(recorder.detachments))
            assert recorder.detachments == [(session.id, "the master closed the stream")]

    run(main())


def test_nothing_is_received_after_close() -> None:
    class Closing(Recorder):
        def received(self, session: object, message: AttachedMessage) -> None:
            super().received(self.sessions[0], message)
            self.sessions[0].close()

    async def main() -> None:
        recorder = Closing()
        server = MasterServer(recorder, admit)
        endpoint = Endpoint("127.0.0.1", await server.start("127.0.0.1", 0))
        stream = await MasterStream.open(endpoint, hello(), DEADLINE)
        for number in range(20):
            stream.send(report(number))
        await recorder.until(lambda: bool(recorder.detachments))
        assert recorder.messages == [report(0)]
        await stream.close()
        await server.stop(1.0)

    run(main())


def test_a_handler_that_raises_ends_its_stream_only(caplog: pytest.LogCaptureFixture) -> None:
    class Broken(Recorder):
        def received(self, session: object, message: AttachedMessage) -> None:
            raise ZeroDivisionError("a bug")

    async def main() -> None:
        recorder = Broken()
        server = MasterServer(recorder, admit)
        endpoint = Endpoint("127.0.0.1", await server.start("127.0.0.1", 0))
        stream = await MasterStream.open(endpoint, hello(), DEADLINE)
        stream.send(Heartbeat("i0"))
        await recorder.until(lambda: len(recorder.detachments) == 1)
        await stream.close()
        async with await MasterStream.open(endpoint, hello(), DEADLINE):
            pass
        await server.stop(1.0)
        assert len(recorder.detachments) == 2

    run(main())
    assert "a bug" in caplog.text


def test_stop_detaches_everybody_once() -> None:
    async def main() -> None:
        recorder = Recorder()
        server = MasterServer(recorder, admit)
        endpoint = Endpoint("127.0.0.1", await server.start("127.0.0.1", 0))
        streams = [await MasterStream.open(endpoint, hello(), DEADLINE) for _ in range(10)]
        for session in recorder.sessions:
            session.send(Waiting(1, "last words"))
        await server.stop(DEADLINE)
        assert sorted(number for number, _ in recorder.detachments) == list(range(1, 11))
        for stream in streams:
            assert await anext(stream) == Waiting(1, "last words")
            await stream.close()

    run(main())


def test_stop_leaves_no_task_of_a_stream_that_was_cut(capfd: pytest.CaptureFixture[str]) -> None:
    """The agents live in another thread, so that all tasks of this loop are the server's."""

    def never_leaves(port: int, attached: Callable[[], object]) -> None:
        messages = Queue[bytes]()
        with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
            method: grpc.StreamStreamMultiCallable[bytes, bytes] = channel.stream_stream(PATH)
            stream = method(iter(messages.get, b""))
            stream.initial_metadata()
            attached()
            with suppress(grpc.RpcError):
                for _ in stream:
                    pass
        messages.put(b"")

    async def main() -> None:
        server = MasterServer(Recorder(), admit)
        port = await server.start("127.0.0.1", 0)
        loop, came = asyncio.get_running_loop(), asyncio.Semaphore(0)
        agents = [
            Thread(
                target=never_leaves,
                args=(port, partial(loop.call_soon_threadsafe, came.release)),
                daemon=True,
            )
            for _ in range(8)
        ]
        for agent in agents:
            agent.start()
            await came.acquire()
        await server.stop(0.01)
        assert asyncio.all_tasks() == {asyncio.current_task()}
        for agent in agents:
            agent.join(DEADLINE)

    asyncio.run(main())
    assert "Traceback" not in capfd.readouterr().err


def test_stop_does_not_wait_for_ever_for_a_task_that_is_stuck(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("elasticrun.rpc.server.CUT_TIMEOUT", 0.01)

    async def main() -> None:
        server = MasterServer(Recorder(), admit)
        await server.start("127.0.0.1", 0)
        stuck = asyncio.get_running_loop().create_future()
        server._tasks.add(asyncio.ensure_future(_wait_for(stuck)))
        await server.stop(0.0)
        stuck.set_result(None)

    run(main())


async def _wait_for(future: asyncio.Future[object]) -> object:
    return await future


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0", "::1", "::", "localhost"])
def test_a_taken_port_is_an_error_that_names_it(host: str, capfd: pytest.CaptureFixture[str]) -> None:
    async def main() -> None:
        first = MasterServer(Recorder(), admit)
        port = await first.start(host, 0)
        with pytest.raises(EndpointTakenError, match=f"{port} is in use") as caught:
            await MasterServer(Recorder(), admit).start(host, port)
        assert str(caught.value).startswith(str(Endpoint(host, port)))
        await first.stop(0.0)
        second = MasterServer(Recorder(), admit)
        assert await second.start(host, port) == port
        await second.stop(0.0)

    run(main())
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0", "::", "localhost"])
def test_a_port_of_a_foreign_program_is_taken(host: str) -> None:
    async def main() -> None:
        with socket.create_server(("127.0.0.1", 0)) as foreign, pytest.raises(EndpointTakenError):
            await MasterServer(Recorder(), admit).start(host, foreign.getsockname()[1])

    run(main())


def test_two_masters_never_share_a_port_even_if_both_found_it_free(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    async def always_free(endpoint: Endpoint) -> list[str]:
        return [endpoint.host]

    monkeypatch.setattr("elasticrun.rpc.server.local_addresses", always_free)

    async def main() -> None:
        with socket.create_server(("127.0.0.1", 0)) as probe:
            port = probe.getsockname()[1]
        first = MasterServer(Recorder(), admit)
        await first.start("127.0.0.1", port)
        with pytest.raises(EndpointTakenError, match=f":{port} is in use"):
            await MasterServer(Recorder(), admit).start("127.0.0.1", port)
        assert capfd.readouterr().err == ""
        # One that would share its port with anybody who asks.
        foreign = socket.create_server(("127.0.0.1", 0), reuse_port=True)
        with foreign, pytest.raises(EndpointTakenError):
            await MasterServer(Recorder(), admit).start("127.0.0.1", foreign.getsockname()[1])
        await first.stop(1.0)
        assert "Address already in use" in capfd.readouterr().err  # only for the foreign program

    run(main())


def test_every_address_of_a_name_is_served() -> None:
    async def main() -> None:
        recorder = Recorder()
        server = MasterServer(recorder, admit)
        port = await server.start("localhost", 0)
        for host in ("127.0.0.1", "localhost"):
            async with await MasterStream.open(Endpoint(host, port), hello(), DEADLINE):
                pass
        await server.stop(1.0)

    run(main())


@pytest.mark.parametrize("host", ["192.0.2.1", "name.invalid"])
def test_an_address_of_another_host_cannot_be_served(host: str) -> None:
    with pytest.raises(OSError):
        run(MasterServer(Recorder(), admit).start(host, 0))
