"""Orders on this host without a token: who may give them, what they say, and what nonsense does."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import json
import os
import socket
import subprocess
import sys
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from elasticrun import __version__
from elasticrun.config import TaskRole
from elasticrun.core.protocol.orders import (
    CancelScale,
    CheckNodes,
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
    Watched,
    WatchEvents,
)
from elasticrun.core.protocol.questions import ListRanks, LogPlace, LogStream, ReadLog, ShowStacks
from elasticrun.core.protocol.status import JobPhase, JobStatus
from elasticrun.errors import (
    ElasticRunError,
    MasterUnreachableError,
    ProtocolError,
    TooManyError,
    UnauthenticatedError,
    UsageError,
    WrongVersionError,
)
from elasticrun.rpc import nearby, nearby_server
from elasticrun.rpc.nearby import MAX_ORDER, Peer, Whereabouts
from elasticrun.rpc.nearby_server import NearbyServer
from tests.rpc.harness import run

NOBODY = 65534
ABOUT = Whereabouts("node0:29400", 1e9, 4242)
ROOT_ONLY = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to be two users")

#: Connects, or listens, as another user, at the name that it is given; then says what it got, or waits.
_STRANGER = f"""\
import os, socket, sys
os.setuid({NOBODY})
channel = socket.socket(socket.AF_UNIX)
name = "\\0" + sys.argv[2]
if sys.argv[1] == "listen":
    channel.bind(name)
    channel.listen()
    print("listening", flush=True)
    sys.stdin.read()
else:
    channel.connect(name)
    try:
        channel.sendall(sys.argv[3].encode())
        channel.shutdown(socket.SHUT_WR)
        print(channel.recv(100))
    except OSError as error:
        print(b"")
"""


@pytest.fixture(autouse=True)
def prefix(monkeypatch: pytest.MonkeyPatch) -> str:
    """A prefix of this test's own, as this user may have real jobs here."""
    made = f"elasticrun-test-{uuid.uuid4().hex}-"
    monkeypatch.setattr(nearby, "PREFIX", made)
    return made


class Answering:
    """Carries orders out by remembering them."""

    def __init__(self) -> None:
        self.heard: list[ControlRequest] = []

    async def answer(self, request: ControlRequest) -> ControlReply:
        self.heard.append(request)
        if isinstance(request, ShowStatus):
            return ControlReply(True, "", status=JobStatus("job", JobPhase.RUNNING, 3, 1, 2, 0, 1))
        return ControlReply(not isinstance(request, ScaleRole), f"heard {type(request).__name__}")


@asynccontextmanager
async def master(handler: Answering | None = None) -> AsyncIterator[tuple[Answering, str]]:
    """A master of this test, and the name of its socket."""
    handler, before = handler or Answering(), set(nearby.names())
    server = NearbyServer(handler.answer, ABOUT)
    await server.start()
    (name,) = set(nearby.names()) - before
    try:
        yield handler, name
    finally:
        server.stop()


async def opened(name: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A connection to a master, on which nothing was said."""
    channel = socket.socket(socket.AF_UNIX)
    channel.setblocking(False)
    channel.connect(f"\0{name}")
    return await asyncio.open_unix_connection(sock=channel)


async def say(name: str, data: bytes) -> bytes:
    """What a master answers to any bytes."""
    reader, writer = await opened(name)
    try:
        with contextlib.suppress(ConnectionError):
            writer.write(data)
            writer.write_eof()
        return await reader.read()
    except ConnectionError:
        return b""
    finally:
        writer.close()


@pytest.mark.parametrize(
    "request_",
    [
        DrainNode("n0", "it is loud \udcff \u2028"),
        ScaleJob(1, 4),
        ScaleRole(TaskRole.PS, 3),
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
    ],
)
def test_every_order_arrives_and_is_answered(request_: ControlRequest) -> None:
    async def main() -> None:
        async with master() as (handler, name):
            reply, about = await nearby.give(name, request_, 30.0)
            assert reply.text == f"heard {type(request_).__name__}"
            assert reply.ok is not isinstance(request_, ScaleRole)
            assert about == ABOUT
            assert type(handler.heard[0]) is type(request_)

    run(main())


def test_a_job_is_found_and_is_gone_with_its_master() -> None:
    async def main() -> None:
        async with master() as (_, name):
            (found,), troubles = await nearby.jobs(30.0)
            assert (found.name, found.status.round, found.about) == (name, 3, ABOUT)
            assert troubles == []
        assert await nearby.jobs(30.0) == ([], [])
        with pytest.raises(nearby.GoneError, match="has ended"):
            await nearby.give(name, ShowStatus(), 30.0)

    run(main())


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"", "Expecting value"),
        (b"hello", "Expecting value"),
        (b"\xff\xfe\x00", ""),
        (b"[]", "an order has a version"),
        (b"{}", "an order has a version"),
        (b"[" * 100_000, "nested"),
        (b"1" * 10_000, ""),
        (b"x" * (MAX_ORDER + 1), f"at most {MAX_ORDER} bytes"),
        (b"x" * (16 * MAX_ORDER), ""),
    ],
)
def test_what_is_no_order_is_refused(data: bytes, why: str) -> None:
    async def main() -> None:
        async with master() as (handler, name):
            answer = await say(name, data)
            assert why in answer.decode() and b"reply" not in answer
            assert handler.heard == []

    run(main())


@pytest.mark.parametrize(
    ("kind", "fields", "why"),
    [
        ("Hello", {}, "a kind that is known"),
        (["ShowStatus"], {}, "a kind that is known"),
        ("ShowStatus", {"x": 1}, "has the fields"),
        ("ShowStatus", None, "is no dict"),
        ("ScaleJob", {"min_nodes": 0, "max_nodes": 1}, "not between"),
        ("ScaleJob", {"min_nodes": 3, "max_nodes": 1}, "max_nodes must be 3 or more"),
        ("ScaleJob", {"min_nodes": True, "max_nodes": 1}, "is no int"),
        ("ScaleIn", {"reason": "", "count": 0, "nodes": []}, "either a count of nodes or their names"),
        ("ScaleOut", {"count": 1, "timeout": -1.0}, "not between"),
        ("DrainNode", {"node": "", "reason": ""}, "node must not be empty"),
        ("DrainNode", {"node": "n", "reason": "x" * 20_000}, "reason must have at most"),
        ("ScaleRole", {"role": "boss", "count": 1}, "is no TaskRole"),
    ],
)
def test_an_order_that_makes_no_sense_is_refused(kind: object, fields: object, why: str) -> None:
    async def main() -> None:
        async with master() as (handler, name):
            data = json.dumps({"version": __version__, "kind": kind, "fields": fields}).encode()
            answer = json.loads(await say(name, data))["rejected"]
            assert answer["code"] == "malformed" and why in answer["message"]
            assert handler.heard == []

    run(main())


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)
nearly = st.fixed_dictionaries(
    {
        "version": st.just(__version__) | values,
        "kind": st.sampled_from(["ShowStatus", "DrainNode", "ScaleJob", "RestartRound"]) | values,
        "fields": st.dictionaries(st.sampled_from(["node", "reason", "min_nodes", "max_nodes"]), values)
        | values,
    }
)


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(said=st.lists(st.binary(max_size=200) | nearly.map(lambda it: json.dumps(it).encode()), max_size=5))
def test_no_nonsense_ends_a_master(said: list[bytes]) -> None:
    async def main() -> None:
        async with master() as (_, name):
            for data in said:
                answer = json.loads(await say(name, data))
                assert answer.keys() in ({"rejected"}, {"reply", "about"})
            reply, _ = await nearby.give(name, ShowStatus(), 30.0)
            assert reply.status is not None

    run(main())


def test_too_many_at_a_time_are_sent_away_and_the_silent_are_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nearby_server, "MAX_GUESTS", 1)
    monkeypatch.setattr(nearby_server, "TIMEOUT", 3.0)

    async def main() -> None:
        async with master() as (_, name):
            reader, writer = await opened(name)
            with pytest.raises(TooManyError, match="try again"):
                await nearby.give(name, ShowStatus(), 30.0)
            assert b"no whole order came within 3 s" in await reader.read()
            writer.close()
            assert (await nearby.give(name, ShowStatus(), 30.0))[0].ok

    run(main())


def test_an_answer_that_nobody_reads_counts_until_it_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nearby_server, "MAX_GUESTS", 1)
    monkeypatch.setattr(nearby_server, "TIMEOUT", 3.0)

    async def main() -> None:
        async with master() as (_, name):
            with monkeypatch.context() as large:
                large.setattr(nearby_server, "encode_answer", lambda *_: b"x" * (8 << 20))
                reader, writer = await opened(name)
                writer.write(nearby.encode_order(ShowStatus()))
                writer.write_eof()
                await reader.read(1)  # it is being answered
            with pytest.raises(TooManyError, match="try again"):
                await nearby.give(name, ShowStatus(), 30.0)
            writer.close()

    run(main())


class Waiting(Answering):
    """Has no news for anybody."""

    def __init__(self) -> None:
        super().__init__()
        self.came, self.left = asyncio.Event(), asyncio.Event()

    async def answer(self, request: ControlRequest) -> ControlReply:
        if not isinstance(request, WatchEvents):
            return await super().answer(request)
        self.came.set()
        try:
            await asyncio.Event().wait()
        finally:
            self.left.set()
        raise AssertionError("nobody wakes it")


async def waiting(name: str, handler: Waiting) -> asyncio.StreamWriter:
    """One who waits for news."""
    _, writer = await opened(name)
    writer.write(nearby.encode_order(WatchEvents("", 20.0)))
    writer.write_eof()
    await handler.came.wait()
    return writer


def test_who_hangs_up_is_not_waited_for() -> None:
    async def main() -> None:
        handler = Waiting()
        async with master(handler) as (_, name):
            for _ in range(2):  # the second one has the same descriptor
                writer = await waiting(name, handler)
                assert not handler.left.is_set(), "it has said all, and is still there"
                writer.close()
                await handler.left.wait()
                handler.came.clear()
                handler.left.clear()
            assert (await nearby.give(name, ShowStatus(), 30.0))[0].ok

    run(main())


def test_those_who_wait_for_news_keep_no_order_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nearby_server, "MAX_WAITING", 1)

    async def main() -> None:
        handler = Waiting()
        async with master(handler) as (_, name):
            writer = await waiting(name, handler)
            with pytest.raises(TooManyError, match="1 others wait for news of this job here already"):
                await nearby.give(name, WatchEvents("", 20.0), 30.0)
            assert (await nearby.give(name, RestartRound("why not"), 30.0))[0].ok
            writer.close()

    run(main())


def test_a_master_that_ends_cuts_off_the_silent_without_a_word(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        async with master() as (_, name):
            reader, writer = await opened(name)
            assert (await nearby.give(name, ShowStatus(), 30.0))[0].ok
        assert await reader.read() == b""
        writer.close()

    run(main())
    assert caplog.messages == []


def test_an_answer_without_end_is_not_read_to_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nearby, "MAX_ANSWER", 1000)
    monkeypatch.setattr(nearby_server, "encode_answer", lambda *_: b"x" * 5000)

    async def main() -> None:
        async with master() as (_, name):
            with pytest.raises(ProtocolError, match="more than 1000 bytes"):
                await nearby.give(name, ShowStatus(), 30.0)

    run(main())


def test_one_that_takes_no_connection_may_be_a_stranger() -> None:
    async def main() -> None:
        with socket.socket(socket.AF_UNIX) as listener, socket.socket(socket.AF_UNIX) as filler:
            name = nearby.new_name()
            listener.bind(f"\0{name}")
            listener.listen(0)
            filler.connect(f"\0{name}")
            found, (trouble,) = await nearby.jobs(30.0)
            assert (found, type(trouble)) == ([], nearby.BusyError)

    run(main())


@pytest.mark.parametrize("since", [1e300, float("inf"), float("nan"), -1.0])
def test_a_master_that_lies_about_its_age_is_no_job(since: float) -> None:
    async def main() -> None:
        server = NearbyServer(Answering().answer, Whereabouts("", since, 1))
        await server.start()
        found, (trouble,) = await nearby.jobs(30.0)
        assert (found, type(trouble)) == ([], ProtocolError)
        server.stop()

    run(main())


def test_who_waits_for_news_has_them_before_a_master_ends() -> None:
    class Telling(Answering):
        """Has news at the moment at which its master is about to end."""

        def __init__(self) -> None:
            super().__init__()
            self.asked, self.over = asyncio.Event(), asyncio.Event()

        async def answer(self, request: ControlRequest) -> ControlReply:
            if isinstance(request, WatchEvents):
                self.asked.set()
                await self.over.wait()
            return await super().answer(request)

    async def main() -> None:
        handler, before = Telling(), set(nearby.names())
        server = NearbyServer(handler.answer, ABOUT)
        await server.start()
        (name,) = set(nearby.names()) - before
        watcher = asyncio.ensure_future(nearby.give(name, WatchEvents("", 20.0), 30.0))
        await handler.asked.wait()
        handler.over.set()
        await server.finish(30.0)
        server.stop()
        reply, _ = await watcher
        assert reply.text == "heard WatchEvents"

    run(main())


def test_who_has_just_had_news_comes_for_the_end_before_a_master_goes() -> None:
    lines = ['{"v":1,"kind":"decision"}', '{"v":1,"kind":"job_ended"}']

    class Told(Answering):
        async def answer(self, request: ControlRequest) -> ControlReply:
            return ControlReply(True, "", watched=Watched("1:1", (lines.pop(0),), False, False))

    async def main() -> None:
        handler, before = Told(), set(nearby.names())
        server = NearbyServer(handler.answer, ABOUT)
        await server.start()
        (name,) = set(nearby.names()) - before
        await nearby.give(name, WatchEvents("", 20.0), 30.0)
        finishing = asyncio.ensure_future(server.finish(30.0))
        reply, _ = await nearby.give(name, WatchEvents("1:1", 20.0), 30.0)
        assert reply.watched is not None and "job_ended" in reply.watched.lines[0]
        await finishing
        server.stop()

    run(main())


@pytest.mark.parametrize("differs", ["ns/user", "ns/pid", "ns/mnt", "root"])
def test_whoever_shares_not_all_is_apart(monkeypatch: pytest.MonkeyPatch, differs: str) -> None:
    there = nearby._file_at
    ours, theirs = socket.socketpair()
    with ours, theirs:
        assert nearby.peer_of(ours)[0] is Peer.OURS
        other = f"/proc/{os.getpid()}/{differs}"
        monkeypatch.setattr(nearby, "_file_at", lambda it: (0, 0) if it == other else there(it))
        assert nearby.peer_of(ours)[0] is Peer.APART


def test_whoever_has_ended_meanwhile_is_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its pid may be another's by then, so that all that is looked at is as it should be."""
    monkeypatch.setattr(nearby, "_file_at", lambda _: (0, 0))
    with socket.socket(socket.AF_UNIX) as listener:
        name = nearby.new_name()
        listener.bind(f"\0{name}")
        listener.listen()
        connect = f"import socket; socket.socket(socket.AF_UNIX).connect('\\0{name}')"
        subprocess.run([sys.executable, "-c", connect], check=True, timeout=60)
        channel, _ = listener.accept()
        with channel:
            if not has_peer_pidfd(channel):
                pytest.skip("needs SO_PEERPIDFD, of Linux 6.5")
            assert nearby.peer_of(channel)[0] is Peer.APART


def has_peer_pidfd(channel: socket.socket) -> bool:
    try:
        os.close(channel.getsockopt(socket.SOL_SOCKET, 77))
    except OSError as error:
        return error.errno != errno.ENOPROTOOPT
    return True


def test_another_version_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nearby, "__version__", "0.0.1")

    async def main() -> None:
        async with master() as (handler, name):
            with pytest.raises(WrongVersionError, match=r"this is 0\.0\.1: use the same version"):
                await nearby.give(name, ShowStatus(), 30.0)
            found, (trouble,) = await nearby.jobs(30.0)
            assert (found, type(trouble), handler.heard) == ([], WrongVersionError, [])

    run(main())


def test_what_is_too_long_is_not_sent() -> None:
    async def main() -> None:
        with pytest.raises(UsageError, match="reason must have at most"):
            await nearby.give("nobody", RestartRound("x" * 20_000), 30.0)

    run(main())


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (b"", MasterUnreachableError),
        (b"nonsense", ProtocolError),
        (b"[]", ProtocolError),
        (b"{}", ProtocolError),
        (b'{"rejected": {"code": "malformed", "message": "why", "proof": ""}}', ProtocolError),
    ],
)
def test_an_answer_that_makes_no_sense_is_an_error(answer: bytes, error: type[ElasticRunError]) -> None:
    async def odd(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.write(answer)
        writer.close()

    async def main() -> None:
        listener = socket.socket(socket.AF_UNIX)
        name = nearby.new_name()
        listener.bind(f"\0{name}")
        server = await asyncio.start_unix_server(odd, sock=listener)
        with pytest.raises(error):
            await nearby.give(name, ShowStatus(), 30.0)
        server.close()

    run(main())


@pytest.mark.parametrize("has_ended", [True, False])
def test_a_job_that_ends_before_it_answers_is_gone(has_ended: bool) -> None:
    """One that lives and answers nothing may be the one that is meant, so it is told of."""

    async def main() -> None:
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(f"\0{nearby.new_name()}")

        async def ends(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.read()
            if has_ended:
                server.close()
            writer.close()

        server = await asyncio.start_unix_server(ends, sock=listener)
        found, troubles = await nearby.jobs(30.0)
        server.close()
        assert found == []
        said = [(type(each), str(each)) for each in troubles]
        kept = [(MasterUnreachableError, "the job on this host ended before it answered")]
        assert said == ([] if has_ended else kept)

    run(main())


def test_a_master_that_is_stopped_is_not_waited_for_too_long() -> None:
    async def main() -> None:
        with socket.socket(socket.AF_UNIX) as listener:
            name = nearby.new_name()
            listener.bind(f"\0{name}")
            listener.listen()  # and never looks
            with pytest.raises(MasterUnreachableError, match=r"within 0\.1 s"):
                await nearby.give(name, ShowStatus(), 0.1)

    run(main())


def test_a_container_that_only_shares_the_network_is_sent_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nearby_server, "peer_of", lambda _: (Peer.APART, 0))

    async def main() -> None:
        async with master() as (handler, name):
            with pytest.raises(UnauthenticatedError, match="another container"):
                await nearby.give(name, SaveAllStacks(), 30.0)
            assert handler.heard == []

    run(main())


@ROOT_ONLY
def test_the_kernel_tells_who_is_in_another_mount_namespace() -> None:
    probe = "import socket, sys; s = socket.socket(socket.AF_UNIX); s.connect('\\0' + sys.argv[1]); s.recv(1)"
    with socket.socket(socket.AF_UNIX) as listener:
        name = nearby.new_name()
        listener.bind(f"\0{name}")
        listener.listen()
        listener.settimeout(30.0)
        for beginning, peer in (((), Peer.OURS), (("unshare", "--mount"), Peer.APART)):
            with subprocess.Popen([*beginning, sys.executable, "-c", probe, name]):
                channel, _ = listener.accept()
                with channel:
                    assert nearby.peer_of(channel)[0] is peer


@ROOT_ONLY
def test_another_user_is_cut_off_unread() -> None:
    async def main() -> None:
        async with master() as (handler, name):
            order = nearby.encode_order(SaveAllStacks()).decode()
            command = [sys.executable, "-c", _STRANGER, "connect", name, order]
            stranger = await asyncio.create_subprocess_exec(*command, stdout=subprocess.PIPE)
            said, _ = await stranger.communicate()
            assert said == b"b''\n"
            assert handler.heard == []
            assert (await nearby.give(name, ShowStatus(), 30.0))[0].ok

    run(main())


@ROOT_ONLY
def test_another_user_that_listens_under_our_name_is_not_asked() -> None:
    async def main() -> None:
        name = nearby.new_name()
        command = [sys.executable, "-c", _STRANGER, "listen", name]
        stranger = await asyncio.create_subprocess_exec(
            *command, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        assert stranger.stdin is not None and stranger.stdout is not None
        try:
            assert await stranger.stdout.readline() == b"listening\n"
            assert nearby.names() == [name]
            assert await nearby.jobs(30.0) == ([], [])
            with pytest.raises(nearby.GoneError, match="another user"):
                await nearby.give(name, SaveAllStacks(), 30.0)
        finally:
            stranger.stdin.close()
            await stranger.wait()

    run(main())


def test_a_process_that_may_open_no_more_files_cannot_ask(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> socket.socket:
        raise OSError(errno.EMFILE, "Too many open files")

    async def ask() -> None:
        async with master() as (_, name):
            with monkeypatch.context() as full:
                full.setattr(socket, "socket", fail)
                with pytest.raises(MasterUnreachableError, match="cannot be asked: Too many open files"):
                    await nearby.give(name, ShowStatus(), 5.0)

    asyncio.run(ask())
