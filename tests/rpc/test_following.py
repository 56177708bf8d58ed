"""News of a master on this host, one answer after the other on one connection."""

from __future__ import annotations

import asyncio
import socket
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from elasticrun.config import SecurityConfig
from elasticrun.core.protocol.orders import ControlReply, ControlRequest, ShowStatus, Watched, WatchEvents
from elasticrun.core.protocol.status import JobPhase, JobStatus
from elasticrun.errors import MasterUnreachableError, OrderDeclinedError, ProtocolError, TooManyError
from elasticrun.rpc import nearby, nearby_server
from elasticrun.rpc.line import JobLine
from elasticrun.rpc.nearby import FollowEvents, NearbyJob, Whereabouts
from elasticrun.rpc.nearby_server import NearbyServer
from tests.rpc.harness import run

ABOUT = Whereabouts("", None, 4242)
STATUS = JobStatus("job", JobPhase.RUNNING, 3, 1, 2, 0, 1)
NEWS, END = '{"v":1,"kind":"decision"}', '{"v":1,"kind":"job_ended"}'
WAIT, DEADLINE = 20.0, 30.0


@pytest.fixture(autouse=True)
def prefix(monkeypatch: pytest.MonkeyPatch) -> None:
    """A prefix of this test's own, as this user may have real jobs here."""
    monkeypatch.setattr(nearby, "PREFIX", f"elasticrun-test-{uuid.uuid4().hex}-")


class Telling:
    """Has these lines for who asks; after the last of them nothing ever happens."""

    def __init__(self, *news: tuple[str, ...]) -> None:
        self.news = list(news)
        self.after: list[str] = []
        self.is_asked, self.is_waiting, self.left = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def answer(self, request: ControlRequest) -> ControlReply:
        if isinstance(request, ShowStatus):
            return ControlReply(True, "", status=STATUS)
        assert isinstance(request, WatchEvents) and request.wait == WAIT
        self.after.append(request.after)
        self.is_asked.set()
        if not self.news:
            self.is_waiting.set()
            try:
                await asyncio.Event().wait()
            finally:
                self.left.set()
        return ControlReply(True, "", watched=Watched(f"1:{len(self.after)}", self.news.pop(0)))


@asynccontextmanager
async def master(handler: Telling) -> AsyncIterator[tuple[NearbyServer, str]]:
    server = NearbyServer(handler.answer, ABOUT)
    await server.start()
    (name,) = nearby.names()
    try:
        yield server, name
    finally:
        server.stop()


def line_to(name: str) -> JobLine:
    here = NearbyJob(name, STATUS, ABOUT)
    return JobLine((), "job", SecurityConfig(), DEADLINE, lambda _: None, here)


async def lines_of(following: nearby.Following) -> tuple[str, ...]:
    reply = await following.next(DEADLINE)
    assert reply.watched is not None
    return reply.watched.lines


def test_one_question_has_all_answers_until_the_job_ends() -> None:
    async def main() -> None:
        handler = Telling((NEWS,), (NEWS, NEWS), (NEWS, END))
        async with master(handler) as (_, name):
            following = await nearby.follow(name, "1:0", WAIT)
            assert await lines_of(following) == (NEWS,)
            assert following.upto == "1:1"
            assert await lines_of(following) == (NEWS, NEWS)
            assert await lines_of(following) == (NEWS, END)
            assert following.is_over
            assert handler.after == ["1:0", "1:1", "1:2"]
            with pytest.raises(MasterUnreachableError, match="ended before it answered"):
                await following.next(DEADLINE)
            following.close()

    run(main())


def test_an_answer_without_news_is_the_last_one() -> None:
    async def main() -> None:
        async with master(Telling((NEWS,), ())) as (_, name):
            following = await nearby.follow(name, "", WAIT)
            assert [await lines_of(following), await lines_of(following)] == [(NEWS,), ()]
            assert following.is_over
            following.close()

    run(main())


def test_what_there_is_already_is_told_in_pieces() -> None:
    class More(Telling):
        async def answer(self, request: ControlRequest) -> ControlReply:
            return ControlReply(True, "", watched=Watched("1:1", (NEWS,), more=True))

    async def main() -> None:
        async with master(More()) as (_, name):
            following = await nearby.follow(name, "", WAIT)
            assert await lines_of(following) == (NEWS,)
            assert following.is_over
            following.close()

    run(main())


def test_a_line_keeps_its_connection_as_long_as_it_asks_for_what_comes_next() -> None:
    async def main() -> None:
        handler = Telling((NEWS,), (NEWS,), (), (NEWS,), (), (NEWS, END))
        async with master(handler) as (server, name):
            line = line_to(name)

            async def follow(after: str) -> tuple[str, nearby.Following | None]:
                reply = await line.follow(after, WAIT)
                assert reply.watched is not None
                return reply.watched.upto, line._following

            first, kept = await follow("")
            second, still = await follow("1:1")
            assert (first, second) == ("1:1", "1:2")
            assert kept is still is not None
            assert await follow("1:2") == ("1:3", None), "there was no news"
            assert (await follow("1:3"))[0] == "1:4"
            assert await follow("1:0") == ("1:6", None), "it begins anew, and has the end"
            assert handler.after == ["", "1:1", "1:2", "1:3", "1:4", "1:0"]
            await server.finish(DEADLINE)

    run(main())


def test_who_hangs_up_is_told_no_more() -> None:
    async def main() -> None:
        handler = Telling((NEWS,))
        async with master(handler) as (_, name):
            line = line_to(name)
            await line.follow("", WAIT)
            await handler.is_waiting.wait()
            assert not handler.left.is_set()
            for _ in range(2):
                line.close()
            await handler.left.wait()

    run(main())


def test_who_is_cancelled_hangs_up() -> None:
    async def main() -> None:
        handler = Telling()
        async with master(handler) as (_, name):
            asking = asyncio.create_task(line_to(name).follow("", WAIT))
            await handler.is_waiting.wait()
            asking.cancel()
            await handler.left.wait()
            await asyncio.wait({asking})

    run(main())


def test_followers_count_among_those_who_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nearby_server, "MAX_WAITING", 1)

    async def main() -> None:
        handler = Telling()
        async with master(handler) as (_, name):
            following = await nearby.follow(name, "", WAIT)
            await handler.is_waiting.wait()
            with pytest.raises(TooManyError, match="1 others wait for news"):
                await line_to(name).follow("", WAIT)
            following.close()

    run(main())


def test_one_who_does_not_read_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nearby_server, "TIMEOUT", 0.5)
    monkeypatch.setattr(nearby_server, "encode_answer", lambda *_: b"x" * (8 << 20))

    async def main() -> None:
        handler = Telling((NEWS,), (NEWS,))
        async with master(handler) as (server, name):
            with socket.socket(socket.AF_UNIX) as channel:
                channel.connect(f"\0{name}")
                channel.sendall(nearby.encode_order(FollowEvents("", WAIT)))
                channel.shutdown(socket.SHUT_WR)
                await handler.is_asked.wait()
                await server.finish(DEADLINE)
            assert handler.after == [""] and not server._tasks

    run(main())


def test_who_has_heard_a_piece_is_waited_for_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    class More(Telling):
        async def answer(self, request: ControlRequest) -> ControlReply:
            assert isinstance(request, WatchEvents)
            lines = (NEWS,) if request.after == "" else (END,)
            return ControlReply(True, "", watched=Watched("1:1", lines, more=request.after == ""))

    async def main() -> None:
        async with master(More()) as (server, name):
            line = line_to(name)
            await line.follow("", WAIT)
            finishing = asyncio.create_task(server.finish(DEADLINE))
            await asyncio.wait({finishing}, timeout=0)
            assert not finishing.done()
            reply = await line.follow("1:1", WAIT)
            assert reply.watched is not None and reply.watched.lines == (END,)
            await finishing

    monkeypatch.setattr(nearby_server, "RETURN_TIME", DEADLINE)
    run(main())


def test_another_wait_is_another_question() -> None:
    class Waits(Telling):
        async def answer(self, request: ControlRequest) -> ControlReply:
            assert isinstance(request, WatchEvents)
            self.after.append(f"{request.after} {request.wait:g}")
            return ControlReply(True, "", watched=Watched("1:1", (NEWS,) if not request.after else ()))

    async def main() -> None:
        handler = Waits()
        async with master(handler) as (_, name):
            line = line_to(name)
            await line.follow("", WAIT)
            reply = await line.follow("1:1", 1.0)
            assert reply.watched is not None and reply.watched.lines == ()
            assert "1:1 1" in handler.after
            line.close()

    run(main())


def test_a_master_that_declines_says_why() -> None:
    class Declining(Telling):
        async def answer(self, request: ControlRequest) -> ControlReply:
            return ControlReply(False, "not today")

    async def main() -> None:
        async with master(Declining()) as (_, name):
            with pytest.raises(OrderDeclinedError, match="not today"):
                await line_to(name).follow("", WAIT)

    run(main())


@pytest.mark.parametrize(("said", "why"), [(b"x" * 5000, "more than 1000 bytes"), (b"[]", "makes no sense")])
def test_an_answer_that_is_too_long_or_makes_no_sense_is_refused(
    monkeypatch: pytest.MonkeyPatch, said: bytes, why: str
) -> None:
    monkeypatch.setattr(nearby, "MAX_ANSWER", 1000)
    monkeypatch.setattr(nearby_server, "encode_answer", lambda *_: said)

    async def main() -> None:
        async with master(Telling((NEWS,))) as (_, name):
            with pytest.raises(ProtocolError, match=why):
                await line_to(name).follow("", WAIT)

    run(main())


def test_a_master_that_is_silent_is_not_waited_for_for_ever() -> None:
    async def main() -> None:
        async with master(Telling()) as (_, name):
            following = await nearby.follow(name, "", WAIT)
            with pytest.raises(MasterUnreachableError, match=r"did not answer within 0\.01 s"):
                await following.next(0.01)
            following.close()

    run(main())
