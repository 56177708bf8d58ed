"""Both ends of the pair of sockets of a node that is alone."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest
from hypothesis import given, settings

from elasticrun.core.protocol.messages import (
    AgentMessage,
    AgentPhase,
    AgentStatus,
    Failure,
    FailureKind,
    Heartbeat,
    Hello,
    Leave,
    MasterMessage,
    RejectCode,
    Rejected,
    Report,
    Stall,
    Trust,
    Waiting,
    Welcome,
)
from elasticrun.core.protocol.tasks import TaskReport
from elasticrun.errors import ExcludedError, MasterUnreachableError, ProtocolError
from elasticrun.rpc import local as module
from elasticrun.rpc import records
from elasticrun.rpc.local import LocalServer, LocalStream
from elasticrun.rpc.session import Session
from elasticrun.rpc.stream import StreamBrokenError
from tests import strategies
from tests.rpc.harness import DEADLINE, Recorder, hello, report, run

LONG = "x" * 1_000_000


@given(strategies.agent_messages | strategies.master_messages)
def test_every_message_survives(message: AgentMessage | MasterMessage) -> None:
    line = module._encode(message)
    assert line.count(b"\n") == 1
    assert module._decode(line) == message


@settings(max_examples=20)
@given(strategies.agent_messages | strategies.master_messages)
def test_messages_that_were_prepared_are_looked_at_no_more(message: AgentMessage | MasterMessage) -> None:
    caches = (records._converter, records._fields, records._ranges, records._loader)
    for cache in caches:
        cache.cache_clear()
    module.prepare()
    before = [cache.cache_info().misses for cache in caches]
    module._decode(module._encode(message))
    assert [cache.cache_info().misses for cache in caches] == before


def test_numbers_that_a_program_made_up_do_not_break_the_stream() -> None:
    """Of an error file, or the page in which workers count their steps."""
    failure = Failure("a", "a", 0, 0, "r", 1, FailureKind.EXIT, 1, timestamp=-1e300, step=2**63, oom_kills=-1)
    stall = Stall(0, 0, -7, float("inf"), float("nan"), True, timestamp=-1.0)
    tasks = (TaskReport(0, 0, True, failure),)
    status = AgentStatus(1, AgentPhase.RUNNING, 0, (failure,), stall=stall, tasks=tasks)
    said = module._decode(module._encode(Report("i", status)))
    assert isinstance(said, Report) and said.status.stall is not None
    (told,) = said.status.failures
    assert (told.timestamp, told.step, told.oom_kills) == (0.0, 2**53, 0)
    assert said.status.tasks[0].failure == told
    assert (said.status.stall.step, said.status.stall.silence, said.status.stall.allowed) == (-1, 1e9, 0.0)


@asynccontextmanager
async def serving(recorder: Recorder) -> AsyncIterator[tuple[LocalServer, socket.socket]]:
    """A master's end, and what an agent is given for its own."""
    ours, theirs = socket.socketpair()
    server = LocalServer(recorder, theirs)
    await server.start("", 0)
    try:
        yield server, ours
    finally:
        await server.stop(DEADLINE)


def test_messages_come_whole_and_in_order_both_ways() -> None:
    async def main() -> None:
        recorder = Recorder()
        async with serving(recorder) as (server, channel):
            stream = await LocalStream.open(channel, hello(), DEADLINE)
            assert stream.welcome == Welcome(1, 10.0)
            assert recorder.hellos == [replace(hello(), trust=Trust.MEMBER)]
            said: list[AgentMessage] = [report(1), Heartbeat("i0"), Leave("i0", LONG), report(2)]
            for message in said:
                stream.send(message)
            await recorder.until(lambda: len(recorder.messages) == 4)
            assert recorder.messages == said
            answers = [Waiting(1, LONG), Waiting(1, "\n\udcff\u2028")]
            for answer in answers:
                server.send(answer)
            assert await anext(stream) == answers[0]
            assert await anext(stream) == Waiting(1, "\n\ufffd\u2028")
            await stream.close()
            with pytest.raises(StopAsyncIteration):
                await anext(stream)
        assert len(recorder.detachments) == 1

    run(main())


def test_the_master_has_read_all_when_the_agent_has_closed() -> None:
    async def main() -> None:
        recorder = Recorder()
        async with serving(recorder) as (_, channel):
            stream = await LocalStream.open(channel, hello(), DEADLINE)
            for _ in range(100):
                stream.send(Leave("i0", LONG[:10_000]))
            await stream.close(DEADLINE)
            assert len(recorder.messages) == 100
            assert recorder.detachments == [(1, "the stream of the agent was closed")]

    run(main())


def test_the_end_of_the_master_breaks_the_stream_after_its_last_words() -> None:
    async def main() -> None:
        recorder = Recorder()
        async with serving(recorder) as (server, channel):
            stream = await LocalStream.open(channel, hello(), DEADLINE)
            server.send(Waiting(1, "last words"))
            server.close()
            server.send(Waiting(1, "too late"))
            stream.send(Heartbeat("i0"))
            assert await anext(stream) == Waiting(1, "last words")
            for _ in range(2):
                with pytest.raises(StreamBrokenError, match="the master of this node ended the stream"):
                    await anext(stream)
            stream.send(Heartbeat("i0"))
            await stream.close(0.0)
        assert recorder.detachments == [(1, "the master closed the stream")]
        assert recorder.messages == []

    run(main())


def test_a_master_that_stops_says_so() -> None:
    async def main() -> None:
        recorder = Recorder()
        async with serving(recorder) as (_, channel):
            stream = await LocalStream.open(channel, hello(), DEADLINE)
        assert recorder.detachments == [(1, "the master stops")]
        await stream.close()

    run(main())


class Deaf(Recorder):
    """Answers Hello in its own way."""

    def __init__(self, answer: MasterMessage | None) -> None:
        super().__init__()
        self._answer = answer

    def attached(self, session: Session, hello: Hello) -> None:
        if self._answer is not None:
            session.send(self._answer)


@pytest.mark.parametrize(
    ("answer", "kind", "words"),
    [
        (None, MasterUnreachableError, "the master of this node did not answer Hello within 0.05 s"),
        (Rejected(RejectCode.EXCLUDED, "go away"), ExcludedError, "go away"),
        (Waiting(1, "hm"), ProtocolError, "the master of this node answered Hello with Waiting"),
    ],
)
def test_who_is_not_welcome(answer: MasterMessage | None, kind: type[Exception], words: str) -> None:
    async def main() -> None:
        async with serving(Deaf(answer)) as (_, channel):
            with pytest.raises(kind) as caught:
                await LocalStream.open(channel, hello(), 0.05 if answer is None else DEADLINE)
            assert str(caught.value) == words
            assert channel.fileno() == -1

    run(main())


def test_a_master_that_is_gone() -> None:
    async def main() -> None:
        ours, theirs = socket.socketpair()
        theirs.close()
        with pytest.raises(StreamBrokenError):
            await LocalStream.open(ours, hello(), DEADLINE)

    run(main())


def test_an_agent_that_does_not_read_is_given_up() -> None:
    async def main() -> None:
        recorder = Recorder()
        async with serving(recorder) as (server, channel):
            channel.setblocking(True)
            channel.sendall(module._encode(hello()))
            await recorder.until(lambda: bool(recorder.sessions))
            for _ in range(10):
                server.send(Waiting(1, LONG))
            await recorder.until(lambda: bool(recorder.detachments))
            assert recorder.detachments == [(1, "the agent does not read what it is sent")]
            channel.close()

    run(main())


def test_a_master_that_does_not_read_is_given_up() -> None:
    async def main() -> None:
        ours, theirs = socket.socketpair()
        theirs.sendall(module._encode(Welcome(1, 10.0)))
        stream = await LocalStream.open(ours, hello(), DEADLINE)
        for _ in range(10):
            stream.send(Leave("i0", LONG))
        with pytest.raises(StreamBrokenError):
            await anext(stream)
        theirs.close()

    run(main())


def test_a_master_that_has_not_read_at_two_heartbeats_is_given_up() -> None:
    async def main() -> None:
        ours, theirs = socket.socketpair()
        theirs.sendall(module._encode(Welcome(1, 0.0)))
        stream = await LocalStream.open(ours, hello(), DEADLINE)
        for frozen in (False, False, True):
            if not frozen:
                theirs.recv(1 << 20)
            stream.send(Heartbeat("i0"))
        stream.send(Heartbeat("i0"))
        with pytest.raises(StreamBrokenError, match="the master of this node reads nothing"):
            await anext(stream)
        assert not stream._end.is_unread
        theirs.close()

    run(main())


def test_a_master_that_has_not_yet_read_what_came_at_once_is_kept() -> None:
    """News of workers are heartbeats: those of one moment say nothing of it."""

    async def main() -> None:
        ours, theirs = socket.socketpair()
        theirs.sendall(module._encode(Welcome(1, 10.0)))
        stream = await LocalStream.open(ours, hello(), DEADLINE)
        for _ in range(5):
            stream.send(Heartbeat("i0"))
        theirs.sendall(module._encode(Waiting(1, "still here")))
        assert await anext(stream) == Waiting(1, "still here")
        await stream.close(0.0)
        theirs.close()

    run(main())


def test_a_master_that_reads_now_and_then_is_kept() -> None:
    async def main() -> None:
        ours, theirs = socket.socketpair()
        theirs.sendall(module._encode(Welcome(1, 10.0)))
        stream = await LocalStream.open(ours, hello(), DEADLINE)
        for reads in (True, False) * 3:
            if reads:
                theirs.recv(1 << 20)
            stream.send(Heartbeat("i0"))
        theirs.sendall(module._encode(Waiting(1, "still here")))
        assert await anext(stream) == Waiting(1, "still here")
        await stream.close(0.0)
        theirs.close()

    run(main())


def test_a_stream_is_closed_although_the_master_does_not_read() -> None:
    async def main() -> None:
        ours, theirs = socket.socketpair()
        theirs.sendall(module._encode(Welcome(1, 10.0)))
        stream = await LocalStream.open(ours, hello(), DEADLINE)
        stream.send(Leave("i0", LONG))
        await stream.close(0.01)
        assert ours.fileno() == -1
        theirs.close()

    run(main())
