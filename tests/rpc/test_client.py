"""The agent's end: what it says about whoever holds the endpoint, and how a stream ends."""

from __future__ import annotations

import asyncio
import contextlib
import http.server
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager

import grpc
import grpc.aio
import pytest

from elasticrun.config import Endpoint
from elasticrun.core.protocol.messages import (
    AttachedMessage,
    Heartbeat,
    Hello,
    JobEnded,
    Leave,
    Outcome,
    RejectCode,
    Rejected,
    Waiting,
    Welcome,
)
from elasticrun.errors import (
    ElasticRunError,
    EndpointTakenError,
    ExitCode,
    MasterUnreachableError,
    ProtocolError,
    SupersededError,
    UnauthenticatedError,
    WrongJobError,
    WrongVersionError,
)
from elasticrun.rpc import codec
from elasticrun.rpc.client import MasterStream
from elasticrun.rpc.server import MasterServer, Session
from elasticrun.rpc.stream import StreamBrokenError, rejection
from elasticrun.rpc.transport import METHOD
from tests.rpc.harness import DEADLINE, Recorder, admit, hello, impersonating, run, serving, welcome

#: Seconds for an endpoint that stays silent; nothing in these tests needs as long otherwise.
SHORT = 0.3


def opening(endpoint: Endpoint, said: Hello | None = None, timeout: float = DEADLINE) -> ElasticRunError:
    """The error of an attempt that must fail."""

    async def main() -> None:
        await MasterStream.open(endpoint, said or hello(), timeout)

    with pytest.raises(ElasticRunError) as caught:
        run(main())
    assert "\n" not in str(caught.value)
    return caught.value


def unused_endpoint() -> Endpoint:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return Endpoint("127.0.0.1", server.getsockname()[1])


# Who is there


def test_nothing_listening_is_unreachable(capfd: pytest.CaptureFixture[str]) -> None:
    endpoint = unused_endpoint()
    error = opening(endpoint)
    assert isinstance(error, MasterUnreachableError)
    assert str(error) == f"cannot connect to {endpoint}: Connection refused"
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("name", ["name.invalid", "two..dots", "x" * 70 + ".org"])
def test_a_name_that_means_nothing_is_unreachable(name: str) -> None:
    error = opening(Endpoint(name, 29400))
    assert isinstance(error, MasterUnreachableError)
    assert f"{name}:29400" in str(error)


def test_a_host_that_does_not_answer_is_unreachable() -> None:
    with socket.socket() as full:  # a backlog of one, already taken, drops whoever else knocks
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        with socket.create_connection(full.getsockname()):
            error = opening(Endpoint("127.0.0.1", full.getsockname()[1]), timeout=SHORT)
    assert isinstance(error, MasterUnreachableError)
    assert "no answer within 0.3 s" in str(error)


Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@contextmanager
def foreign(serve: Serve) -> Iterator[Endpoint]:
    """A TCP server in a thread of its own."""
    loop = asyncio.new_event_loop()
    connections: list[tuple[asyncio.Task[None] | None, asyncio.StreamWriter]] = []

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connections.append((asyncio.current_task(), writer))
        with contextlib.suppress(ConnectionError):
            await serve(reader, writer)

    async def stop() -> None:
        server.close()
        for task, writer in connections:
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()
            if task is not None:
                await asyncio.wait((task,))

    server = loop.run_until_complete(asyncio.start_server(accept, "127.0.0.1", 0))
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        yield Endpoint(*server.sockets[0].getsockname())
    finally:
        asyncio.run_coroutine_threadsafe(stop(), loop).result(DEADLINE)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(DEADLINE)
        loop.close()


async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while await reader.read(1000):
        pass
    writer.close()


async def garbage(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.read(1000)
    writer.write(b"\x15\x03\x01 who are you? " * 10)
    writer.close()


async def tls_alert(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.read(1000)
    writer.write(bytes.fromhex("15030100020246"))
    writer.close()


async def curt(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.read(1000)
    writer.close()


async def half_http2(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Looks like HTTP/2 at first, then is not."""
    await reader.read(1000)
    writer.write(b"\0\0\0\4\0\0\0\0\0" + b"nonsense" * 20)
    writer.close()


@pytest.mark.parametrize(
    ("serve", "words"),
    [(silent, "says nothing"), (garbage, "it answers b'"), (curt, "without a word")],
)
def test_a_foreign_server_holds_the_endpoint(serve: Serve, words: str) -> None:
    with foreign(serve) as endpoint:
        error = opening(endpoint, timeout=SHORT if serve is silent else DEADLINE)
    assert isinstance(error, EndpointTakenError)
    assert str(error).startswith(f"{endpoint} is held by a program that is not an elasticrun master")
    assert words in str(error)


def test_a_server_that_speaks_tls_is_told_from_others() -> None:
    with foreign(tls_alert) as endpoint:
        error = opening(endpoint)
    assert isinstance(error, UnauthenticatedError)
    assert "answers with TLS" in str(error) and "--tls-ca" in str(error)


def test_a_server_that_only_begins_like_grpc_is_a_known_error(capfd: pytest.CaptureFixture[str]) -> None:
    with foreign(half_http2) as endpoint:
        error = opening(endpoint, timeout=5.0)
    assert isinstance(error, EndpointTakenError | MasterUnreachableError)
    assert str(endpoint) in str(error)
    assert capfd.readouterr() == ("", "")


def test_an_http_server_holds_the_endpoint() -> None:
    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, format: str, *args: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Quiet) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        endpoint = Endpoint("127.0.0.1", server.server_address[1])
        error = opening(endpoint)
        server.shutdown()
        thread.join(DEADLINE)
    assert isinstance(error, EndpointTakenError)
    assert str(endpoint) in str(error)


def test_another_grpc_server_holds_the_endpoint() -> None:
    async def main() -> None:
        server = grpc.aio.server()
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        with pytest.raises(EndpointTakenError, match=f":{port} is held by a gRPC server"):
            await MasterStream.open(Endpoint("127.0.0.1", port), hello(), DEADLINE)
        await server.stop(1.0)

    run(main())


# What a master answers


@pytest.mark.parametrize(
    ("said", "error", "exit_code"),
    [
        (hello(job_id="other"), WrongJobError, ExitCode.WRONG_JOB),
        (hello(version="0.0"), WrongVersionError, ExitCode.WRONG_VERSION),
        (hello(incarnation="old"), SupersededError, ExitCode.SUPERSEDED),
        (hello(incarnation=""), ProtocolError, ExitCode.PROTOCOL),
    ],
)
def test_a_rejection_is_raised(said: Hello, error: type[ElasticRunError], exit_code: ExitCode) -> None:
    async def main() -> None:
        async with serving() as (_, endpoint):
            with pytest.raises(error) as caught:
                await MasterStream.open(endpoint, said, DEADLINE)
            assert caught.value.exit_code is exit_code
            async with await MasterStream.open(endpoint, hello(), DEADLINE):
                pass

    run(main())


@pytest.mark.parametrize("code", RejectCode)
def test_every_rejection_is_an_error(code: RejectCode) -> None:
    assert str(rejection(Rejected(code, "why"))) == "why"


@asynccontextmanager
async def saying(*answers: bytes, then_end: bool = False) -> AsyncIterator[Endpoint]:
    """A gRPC server that answers anybody with the same bytes, and then waits for the other's end."""

    async def attach(_: object, context: grpc.aio.ServicerContext[object, bytes]) -> None:
        for answer in answers:
            await context.write(answer)
        if then_end:
            await context.write(codec.GOODBYE)
        while isinstance(await context.read(), bytes):
            pass

    async with impersonating(METHOD, attach) as endpoint:
        yield endpoint


WELCOME = codec.encode_master(Welcome(1, 10.0))


def test_a_master_that_does_not_answer_hello_is_unreachable() -> None:
    async def main() -> None:
        async with saying() as endpoint:
            with pytest.raises(MasterUnreachableError, match="did not answer Hello within"):
                await MasterStream.open(endpoint, hello(), SHORT)

    run(main())


def test_a_master_that_ends_the_stream_at_once_is_unreachable() -> None:
    async def main() -> None:
        async with saying(then_end=True) as endpoint:
            with pytest.raises(MasterUnreachableError, match="ended the stream"):
                await MasterStream.open(endpoint, hello(), DEADLINE)

    run(main())


@pytest.mark.parametrize("answer", [b"\xff\xff", codec.encode_master(Waiting(1, "no welcome"))])
def test_an_answer_that_is_no_welcome_breaks_the_protocol(answer: bytes) -> None:
    async def main() -> None:
        async with saying(answer) as endpoint:
            with pytest.raises(ProtocolError, match=str(endpoint)):
                await MasterStream.open(endpoint, hello(), DEADLINE)

    run(main())


def test_a_later_message_that_is_broken_is_raised_and_stays_the_end() -> None:
    async def main() -> None:
        async with saying(WELCOME, codec.encode_master(Waiting(1, "a")), b"\xff") as endpoint:
            stream = await MasterStream.open(endpoint, hello(), DEADLINE)
            assert await anext(stream) == Waiting(1, "a")
            for _ in range(2):
                with pytest.raises(ProtocolError, match="sent a broken message"):
                    await asyncio.wait_for(anext(stream), DEADLINE)
            stream.send(Heartbeat("i0"))
            await stream.close()

    run(main())


def test_a_rejection_after_welcome_is_a_message() -> None:
    rejected = Rejected(RejectCode.SUPERSEDED, "a newer agent came")

    async def main() -> None:
        async with saying(WELCOME, codec.encode_master(rejected), then_end=True) as endpoint:
            stream = await MasterStream.open(endpoint, hello(), DEADLINE)
            assert await anext(stream) == rejected
            with pytest.raises(StreamBrokenError):
                await anext(stream)
            await stream.close()

    run(main())


def test_a_master_that_does_not_read_breaks_the_stream() -> None:
    big = Leave("i0", "x" * 16_000)

    async def main() -> None:
        async with saying(WELCOME) as endpoint:
            stream = await MasterStream.open(endpoint, hello(), DEADLINE)
            for _ in range(2000):
                stream.send(big)
            with pytest.raises(StreamBrokenError):
                await asyncio.wait_for(anext(stream), DEADLINE)
            await stream.close()

    run(main())


# How a stream ends


def test_the_masters_end_is_seen() -> None:
    async def main() -> None:
        recorder = Recorder()
        server = MasterServer(recorder, admit)
        endpoint = Endpoint("127.0.0.1", await server.start("127.0.0.1", 0))
        stream = await MasterStream.open(endpoint, hello(), DEADLINE)
        await server.stop(1.0)
        with pytest.raises(StreamBrokenError, match=str(endpoint)):
            await asyncio.wait_for(anext(stream), DEADLINE)
        stream.send(Heartbeat("i0"))  # no error, and nobody hears it
        await stream.close()

    run(main())


def test_all_that_was_sent_arrives_before_close_returns() -> None:
    async def main() -> None:
        async with serving() as (recorder, endpoint):
            stream = await MasterStream.open(endpoint, hello(), DEADLINE)
            for _ in range(300):
                stream.send(Heartbeat("i0"))
            stream.send(Leave("i0", "done"))
            await asyncio.wait_for(stream.close(2 * DEADLINE), DEADLINE / 2)
            assert recorder.messages == [*[Heartbeat("i0")] * 300, Leave("i0", "done")]
            with pytest.raises(StopAsyncIteration):
                await anext(stream)
            await stream.close()  # again, harmlessly

    run(main())


def test_close_does_not_wait_for_a_master_that_does_not_answer() -> None:
    async def main() -> None:
        async with saying(WELCOME) as endpoint:
            stream = await MasterStream.open(endpoint, hello(), DEADLINE)
            stream.send(Leave("i0", "done"))
            await asyncio.wait_for(stream.close(0.05), DEADLINE)

    run(main())


def test_the_last_words_arrive_even_while_the_agent_is_talking() -> None:
    last = JobEnded(1, 1, Outcome.FAILED, "that was all")

    class Closing(Recorder):
        def received(self, session: Session, message: AttachedMessage) -> None:
            for number in range(50):
                session.send(Waiting(1, str(number) * 500))
            session.send(last)
            session.close()

    async def talk(endpoint: Endpoint) -> None:
        stream = await MasterStream.open(endpoint, hello(), DEADLINE)
        heard = []
        with pytest.raises(StreamBrokenError, match="ended the stream"):
            for _ in range(20):
                stream.send(Leave("i0", "x" * 5000))
            async for message in stream:
                heard.append(message)
                stream.send(Leave("i0", "x" * 5000))
        assert len(heard) == 51 and heard[-1] == last
        await stream.close()

    async def main() -> None:
        recorder = Closing()
        server = MasterServer(recorder, admit)
        endpoint = Endpoint("127.0.0.1", await server.start("127.0.0.1", 0))
        for _ in range(10):
            await asyncio.wait_for(asyncio.gather(*(talk(endpoint) for _ in range(5))), DEADLINE)
        await server.stop(1.0)
        assert len(recorder.detachments) == 50

    run(main())


def test_cancelling_the_iteration_loses_nothing() -> None:
    async def main() -> None:
        async with serving() as (recorder, endpoint):
            stream = await MasterStream.open(endpoint, hello(), DEADLINE)
            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(anext(stream), 0.01)
            recorder.sessions[0].send(Waiting(1, "still here"))
            assert await asyncio.wait_for(anext(stream), DEADLINE) == Waiting(1, "still here")
            await stream.close()

    run(main())


def test_a_cancelled_attempt_leaves_nothing_behind() -> None:
    async def main() -> None:
        async with saying() as endpoint:
            attempt = asyncio.create_task(MasterStream.open(endpoint, hello(), DEADLINE))
            await asyncio.wait((attempt,), timeout=SHORT)
            attempt.cancel()
            with pytest.raises(asyncio.CancelledError):
                await attempt
        assert not [task for task in asyncio.all_tasks() if "MasterStream" in repr(task)]

    run(main())


def test_an_aborted_client_is_detached_once() -> None:
    async def main() -> None:
        async with serving() as (recorder, endpoint):
            stream = await MasterStream.open(endpoint, hello(), DEADLINE)
            await stream.close(0.0)
            await recorder.until(lambda: bool(recorder.detachments))
            assert len(recorder.detachments) == 1

    run(main())


# Other processes

AGENT = """
import asyncio, sys
from elasticrun.config import Endpoint
from elasticrun.rpc.client import MasterStream
from tests.rpc.harness import hello

async def main():
    stream = await MasterStream.open(Endpoint("127.0.0.1", int(sys.argv[1])), hello(), 30.0)
    async for message in stream:
        pass

asyncio.run(main())
"""

MASTER = """
import asyncio
from elasticrun.rpc.server import MasterServer, Session
from tests.rpc.harness import Recorder, admit

async def main():
    print(await MasterServer(Recorder(), admit).start("127.0.0.1", 0), flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""


@contextmanager
def process(program: str, *args: object) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-c", program, *map(str, args)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as child:
        try:
            yield child
        finally:
            child.kill()


CLOSED = "the connection to the agent was closed"
SILENT = f"no answer for 3.5 s, or {CLOSED}"


@pytest.mark.parametrize(("how", "why"), [(signal.SIGKILL, {CLOSED, SILENT}), (signal.SIGSTOP, {SILENT})])
def test_an_agent_that_dies_or_freezes_is_detached_once(how: signal.Signals, why: set[str]) -> None:
    """A busy machine may need so long for either that only one thing can be said."""

    async def main() -> None:
        async with serving() as (recorder, endpoint):
            with process(AGENT, endpoint.port) as agent:
                await recorder.until(lambda: bool(recorder.sessions))
                os.kill(agent.pid, how)
                await recorder.until(lambda: bool(recorder.detachments))
            async with await MasterStream.open(endpoint, hello(), DEADLINE):
                pass
            await recorder.until(lambda: len(recorder.detachments) == 2)
            assert [number for number, _ in recorder.detachments] == [s.id for s in recorder.sessions]
            assert [text for _, text in recorder.detachments if text not in why] == [
                "the agent's stream ended"
            ]

    run(main())


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
def test_a_master_that_dies_or_freezes_breaks_the_stream_quietly(
    how: signal.Signals, capfd: pytest.CaptureFixture[str]
) -> None:
    async def main() -> None:
        with process(MASTER) as master:
            assert master.stdout is not None
            endpoint = Endpoint("127.0.0.1", int(master.stdout.readline()))
            stream = await MasterStream.open(endpoint, hello(), DEADLINE)
            os.kill(master.pid, how)
            with pytest.raises(StreamBrokenError) as caught:
                await asyncio.wait_for(anext(stream), DEADLINE)
            assert ("broke: no answer for 3.5 s" in str(caught.value)) == (how == signal.SIGSTOP)
            await stream.close()

    run(main())
    assert capfd.readouterr() == ("", "")


QUIET = """
import asyncio, os, sys
before = dict(os.environ)
from elasticrun.config import Endpoint
from elasticrun.errors import MasterUnreachableError
from elasticrun.rpc.client import MasterStream
from tests.rpc.harness import hello

async def main():
    for _ in range(3):
        try:
            await MasterStream.open(Endpoint("127.0.0.1", int(sys.argv[1])), hello(), 5.0)
        except MasterUnreachableError:
            pass

asyncio.run(main())
assert dict(os.environ) == before
"""


def test_an_unreachable_master_is_not_worth_a_log_line_of_grpcs() -> None:
    with process(QUIET, unused_endpoint().port) as child:
        assert child.communicate(timeout=DEADLINE) == ("", "")
        assert child.returncode == 0


def test_the_client_imports_nothing_heavy() -> None:
    program = "import sys; import elasticrun.rpc.client; print(*sys.modules)"
    with process(program) as child:
        imported = set(child.communicate(timeout=DEADLINE)[0].split())
    assert "grpc" in imported
    assert not imported & {"torch", "tensorflow", "rich", "numpy", "click", "yaml", "hmac"}
    assert "elasticrun.core.protocol.orders" not in imported, "agents neither give nor take orders"
    assert "pytest" not in imported  # the list is the child's


def test_a_proxy_in_the_environment_is_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    proxy = f"http://{unused_endpoint()}"
    for name in ("http_proxy", "https_proxy", "grpc_proxy", "HTTP_PROXY"):
        monkeypatch.setenv(name, proxy)

    async def main() -> None:
        async with serving() as (_, endpoint), await MasterStream.open(endpoint, hello(), DEADLINE) as stream:
            assert stream.welcome == welcome(hello())

    run(main())


def test_a_new_stream_can_be_had_as_soon_as_the_master_is_back() -> None:
    class Nothing(Recorder):
        def received(self, session: object, message: AttachedMessage) -> None:
            pass

    async def main() -> None:
        port = 0
        for _ in range(5):
            server = MasterServer(Nothing(), admit)
            port = await server.start("127.0.0.1", port)
            stream = await MasterStream.open(Endpoint("127.0.0.1", port), hello(), 5.0)
            await server.stop(1.0)
            with pytest.raises(StreamBrokenError):
                await asyncio.wait_for(anext(stream), DEADLINE)
            with pytest.raises(MasterUnreachableError):
                await MasterStream.open(Endpoint("127.0.0.1", port), hello(), 5.0)
            await stream.close()

    run(main())
