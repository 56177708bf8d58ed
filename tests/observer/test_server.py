"""The page and its API over real HTTP, with a job that is pretended."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import itertools
import json
import select
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("aiohttp", reason="needs the extra web")

from elasticrun.cli.documents import FOLDER
from elasticrun.core.protocol import chronicle
from elasticrun.core.protocol.questions import LogPiece, LogStream
from elasticrun.errors import MasterUnreachableError, OrderDeclinedError, UnauthenticatedError
from elasticrun.observer import access, asking, server, serving
from elasticrun.observer.changes import applied
from elasticrun.observer.hub import BACKLOG
from elasticrun.observer.server import ASSETS
from tests.support.schema import misfits
from tests.support.watched import TOKEN
from tests.support.web_site import Browser, Site, with_site

BEARER = {"Authorization": f"Bearer {TOKEN}"}
RESTART = {"order": "restart"}


async def next_event(stream: Any) -> tuple[str, Any]:
    """The next event of a stream of them."""
    name = ""
    while True:
        line = (await stream.content.readline()).decode().rstrip("\n")
        if line.startswith("event: "):
            name = line.removeprefix("event: ")
        if line.startswith("data: "):
            return name, json.loads(line.removeprefix("data: "))


def test_everything_of_the_page_is_its_own_and_browsers_are_told_so() -> None:
    async def use(site: Site, session: Browser) -> None:
        for path in ASSETS:
            answer = await session.get(site.url + path)
            text = await answer.text()
            assert answer.status == 200, path
            assert "default-src 'none'" in answer.headers["Content-Security-Policy"]
            assert "unsafe" not in answer.headers["Content-Security-Policy"]
            assert "https://" not in text.replace("http://www.w3.org/2000/svg", "")
            assert not any(
                word in text for word in ("innerHTML", "insertAdjacentHTML", "document.write", "eval(")
            )
        assert (await session.get(site.url + "/../server.py")).status == 404

    with_site(use)


def test_the_state_is_as_its_schema_says() -> None:
    async def use(site: Site, session: Browser) -> None:
        site.followed.status = site.followed.describe()
        state = await (await session.get(site.url + "/api/state")).json()
        assert misfits(state, json.loads((FOLDER / "web.json").read_text())) == []
        assert len(state["nodes"]) == 3

    with_site(use)


def test_a_reader_gets_the_state_and_then_what_changed() -> None:
    async def use(site: Site, session: Browser) -> None:
        async with session.stream(site.url + "/api/events") as stream:
            name, state = await next_event(stream)
            assert name == "state"
            site.followed.tell(chronicle.NodeDetached(site.followed.name(1), "its stream ended"))
            site.live.publish()
            name, change = await next_event(stream)
            assert name == "change"
            assert change["after"] == state["sequence"]
            after = applied(state, change)
            assert [row["state"] for row in after["nodes"]] == ["running", "away", "running"]

    with_site(use)


def test_a_reader_that_is_too_slow_gets_the_state_anew() -> None:
    async def use(site: Site, session: Browser) -> None:
        reader = site.live.join()
        assert (await reader.next()).startswith(b"event: state\n")
        for step in range(BACKLOG):
            site.followed.tell(chronicle.StepsDone(1, 10_000 + step, 1.0))
            site.live.publish()
        assert (await reader.next()).count(b"event: change\n") == BACKLOG
        for step in range(BACKLOG + 5):
            site.followed.tell(chronicle.StepsDone(1, 20_000 + step, 1.0))
            site.live.publish()
            assert reader.waiting <= BACKLOG
        told = await reader.next()
        assert told.count(b"event: ") == 1
        assert told == site.live.hub.snapshot
        assert reader.snapshots == 2

    with_site(use)


def test_a_reader_that_takes_nothing_costs_no_memory() -> None:
    """It holds what the kernel takes, and its queue is never longer than the bound."""

    async def use(site: Site, session: Browser) -> None:
        host, port = site.host.split(":")
        _, writer = await asyncio.open_connection(host, int(port), limit=1024)
        writer.write(f"GET /api/events HTTP/1.1\r\nHost: {site.host}\r\n\r\n".encode())
        await writer.drain()
        async with session.stream(site.url + "/api/events") as other:
            await next_event(other)
            for step in range(3 * BACKLOG):
                site.followed.tell(chronicle.Decision("running", 1, f"{step} " + "x" * 400))
                site.live.publish()
                await next_event(other)  # a fast one hears of each
                assert all(it.waiting <= BACKLOG for it in site.live.hub._readers)
        writer.close()

    with_site(use)


def test_a_reader_that_takes_nothing_is_cut_off_with_what_waits_for_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(server, "STUCK", 0.1)

    async def use(site: Site, session: Browser) -> None:
        host, port = site.host.split(":")
        with socket.socket() as stuck:
            stuck.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            stuck.connect((host, int(port)))
            stuck.sendall(f"GET /api/events HTTP/1.1\r\nHost: {site.host}\r\n\r\n".encode())
            end = select.poll()
            end.register(stuck, 0)  # an error, as there is no end before all is read
            async with session.stream(site.url + "/api/events") as other:
                await next_event(other)
                for step in itertools.count():
                    if end.poll(0):
                        break
                    site.followed.tell(chronicle.Decision("running", 1, f"{step} " + "x" * 400))
                    site.live.publish()
                    await next_event(other)
            assert stuck.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) == errno.ECONNRESET

    with_site(use)


Connect = Callable[[bytes], Awaitable[asyncio.StreamReader]]


@contextlib.asynccontextmanager
async def connections(site: Site) -> AsyncIterator[Connect]:
    """Makes connections, on which something is said; they stay open until the end."""
    host, port = site.host.split(":")
    writers: list[asyncio.StreamWriter] = []

    async def connect(said: bytes) -> asyncio.StreamReader:
        reader, writer = await asyncio.open_connection(host, int(port))
        writers.append(writer)
        writer.write(said)
        return reader

    try:
        yield connect
    finally:
        for writer in writers:
            writer.transport.abort()


async def ends(reader: asyncio.StreamReader) -> None:
    with contextlib.suppress(ConnectionError):
        while await reader.read(1 << 16):
            pass


def test_who_says_nothing_makes_room_for_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving, "PAGE", serving.Limits(connections=4))

    async def use(site: Site, session: Browser) -> None:
        reads = f"GET /api/events HTTP/1.1\r\nHost: {site.host}\r\n\r\n".encode()
        async with connections(site) as connect:

            async def reading() -> asyncio.StreamReader:
                reader = await connect(reads)
                assert b" 200 " in await reader.readline()
                return reader

            readers = [await reading()]
            silent = [await connect(b"") for _ in range(3)]
            assert (await session.get(site.url + "/")).status == 200
            await ends(silent[0])  # who was silent for the longest; those who ask, or read along, stay
            readers += [await reading() for _ in range(3)]
            for each in silent[1:]:
                await ends(each)
            await ends(await connect(b""))
            site.followed.tell(chronicle.Decision("running", 1, "it goes on"))
            site.live.publish()
            for each in readers:
                assert b"it goes on" in await each.readuntil(b"it goes on")

    with_site(use)


@pytest.mark.parametrize("said", [b"\x16\x03\x01 hello\r\n\r\n", b"GET / HTTP/1.1\r\nno header\r\n\r\n"])
def test_what_is_no_http_is_not_logged(said: bytes, caplog: pytest.LogCaptureFixture) -> None:
    async def use(site: Site, session: Browser) -> None:
        async with connections(site) as connect:
            reader = await connect(said)
            assert b" 400 " in await reader.readline()
            await ends(reader)

    with_site(use)
    assert caplog.messages == []


async def login_answered(site: Site, rest: str) -> bytes:
    """The first line of the answer to a login with these further headers and this body."""
    head = f"POST /api/session HTTP/1.1\r\nHost: {site.host}\r\nContent-Type: application/json\r\n"
    async with connections(site) as connect:
        reader = await connect(f"{head}{rest}".encode())
        return await reader.readline()


def test_a_body_that_cannot_be_unpacked_is_refused_and_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    async def use(site: Site, session: Browser) -> None:
        rest = "Content-Encoding: gzip\r\nContent-Length: 4\r\n\r\nrubb"
        assert b" 400 " in await login_answered(site, rest)

    with_site(use)
    assert caplog.messages == []


def test_a_request_whose_body_does_not_come_is_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "SAID", 0.05)

    async def use(site: Site, session: Browser) -> None:
        assert b" 408 " in await login_answered(site, "Content-Length: 100\r\n\r\n{")

    with_site(use)


def test_a_bug_is_logged_and_answered_as_everything_is(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def fail(*_: object) -> str:
        raise ZeroDivisionError

    monkeypatch.setattr(asking, "give", fail)

    async def use(site: Site, session: Browser) -> None:
        answer = await session.post(site.url + "/api/orders", json=RESTART, headers=BEARER)
        assert answer.status == 500 and "internal error" in (await answer.json())["error"]
        assert "Content-Security-Policy" in answer.headers

    with_site(use)
    assert caplog.messages == ["internal error; please report this traceback"]


def test_a_reader_that_goes_is_forgotten() -> None:
    async def use(site: Site, session: Browser) -> None:
        async with session.stream(site.url + "/api/events") as stream:
            await next_event(stream)
            assert len(site.live.hub) == 1
        gone = asyncio.Event()
        leave = site.live.hub.leave

        def noted(reader: Any) -> None:
            leave(reader)
            gone.set()

        site.live.hub.leave = noted  # type: ignore[method-assign]
        if len(site.live.hub):
            await gone.wait()
        assert len(site.live.hub) == 0

    with_site(use)


def test_too_many_readers_are_told_so() -> None:
    async def use(site: Site, session: Browser) -> None:
        url = site.url + "/api/events"
        async with session.stream(url), session.stream(url):
            refused = await session.get(url)
            assert refused.status == 503
            assert "2 pages are open" in (await refused.json())["error"]

    with_site(use, most=2)


@pytest.mark.parametrize("path", ["/api/state", "/api/events", "/metrics"])
def test_a_stranger_on_the_network_reads_nothing(path: str) -> None:
    async def use(site: Site, session: Browser) -> None:
        refused = await session.get(site.url + path)
        assert refused.status == 401
        assert "node0" not in await refused.text()
        async with session.stream(site.url + path, headers=BEARER) as answer:
            assert answer.status in (200, 404)
        assert await (await session.get(site.url + "/api/session")).json() == {
            "reads": False,
            "orders": False,
            "login": True,
        }

    with_site(use, is_open=False)


@pytest.mark.parametrize(
    ("method", "path"), [("POST", "/api/orders"), ("GET", "/api/stacks?rank=0"), ("GET", "/api/log?rank=0")]
)
def test_without_the_token_one_only_reads(method: str, path: str) -> None:
    async def use(site: Site, session: Browser) -> None:
        body = RESTART if method == "POST" else None
        assert (await session.request(method, site.url + path, json=body)).status == 401
        forged = {"Cookie": "elasticrun-test=guessed"}
        assert (await session.request(method, site.url + path, json=body, headers=forged)).status == 401
        assert site.followed.pretend.orders == []

    with_site(use)


def test_a_job_without_a_token_takes_no_login() -> None:
    async def use(site: Site, session: Browser) -> None:
        for token in ("", "anything"):
            answer = await session.post(site.url + "/api/session", json={"token": token})
            assert answer.status == 403
        assert (await session.post(site.url + "/api/orders", json=RESTART)).status == 403
        assert (await session.get(site.url + "/api/state")).status == 200

    with_site(use, token=None)


def test_a_login_opens_a_session_that_ends() -> None:
    async def use(site: Site, session: Browser) -> None:
        answer = await session.post(site.url + "/api/session", json={"token": f" {TOKEN}\n"})
        cookie = answer.headers["Set-Cookie"]
        assert "HttpOnly" in cookie
        assert "SameSite=Strict" in cookie
        assert TOKEN not in cookie
        given = await session.post(site.url + "/api/orders", json=RESTART)
        assert (given.status, await given.json()) == (200, {"text": "restart: it is done"})
        await session.request("DELETE", site.url + "/api/session")
        assert (await session.post(site.url + "/api/orders", json=RESTART)).status == 401

    with_site(use)


def test_guessing_is_slow() -> None:
    async def use(site: Site, session: Browser) -> None:
        for _ in range(access.TRIES):
            answer = await session.post(site.url + "/api/session", json={"token": "wrong"})
            assert answer.status == 401
        for headers in ({}, BEARER):
            answer = await session.post(site.url + "/api/session", json={"token": TOKEN}, headers=headers)
            assert answer.status == 429
            assert answer.headers["Retry-After"]
        wrong = {"Authorization": f"Bearer {TOKEN}"}
        assert (await session.get(site.url + "/api/state", headers=wrong)).status == 429

    with_site(use)


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Origin": "http://evil.example"}, 403),
        ({"Origin": "null"}, 403),
        ({"Sec-Fetch-Site": "cross-site"}, 403),
        ({"Host": "evil.example"}, 421),
        ({"Content-Type": "text/plain"}, 415),
        ({"Content-Type": "application/x-www-form-urlencoded"}, 415),
    ],
)
def test_another_site_cannot_give_orders(headers: dict[str, str], status: int) -> None:
    async def use(site: Site, session: Browser) -> None:
        sent = {"Content-Type": "application/json", **BEARER, **headers}
        answer = await session.post(site.url + "/api/orders", data=json.dumps(RESTART), headers=sent)
        assert answer.status == status
        assert site.followed.pretend.orders == []

    with_site(use)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[",
        b"[" * 9000,
        b"null",
        b"[]",
        b'{"order": 1}',
        b'{"order": "stop"}',
        b'{"order": "drain"}',
        b'{"order": "drain", "node": 3}',
        b'{"order": "drain", "node": ""}',
        b'{"order": "restart", "reason": ["x"]}',
        b'{"order": "scale", "min": 1}',
        b'{"order": "scale", "min": true, "max": 2}',
        b'{"order": "scale", "min": 3, "max": 2}',
        b'{"order": "scale", "min": 0, "max": 2}',
        json.dumps({"order": "drain", "node": "x" * 300}).encode(),
        b"\xff\xfe",
    ],
)
def test_malformed_orders_are_refused_with_a_sentence(body: bytes) -> None:
    async def use(site: Site, session: Browser) -> None:
        sent = {"Content-Type": "application/json", **BEARER}
        answer = await session.post(site.url + "/api/orders", data=body, headers=sent)
        assert answer.status == 400
        assert (await answer.json())["error"]
        assert site.followed.pretend.orders == []

    with_site(use)


def test_a_body_that_is_too_large_is_not_read() -> None:
    async def use(site: Site, session: Browser) -> None:
        sent = {"Content-Type": "application/json", **BEARER}
        answer = await session.post(site.url + "/api/orders", data=b" " * (1 << 20), headers=sent)
        assert answer.status == 413

    with_site(use)


def test_orders_are_passed_on() -> None:
    async def use(site: Site, session: Browser) -> None:
        for order in (
            {"order": "drain", "node": "a/1", "reason": "loud"},
            RESTART,
            {"order": "scale", "min": 1, "max": 4},
            {"order": "stacks"},
        ):
            assert (await session.post(site.url + "/api/orders", json=order, headers=BEARER)).status == 200
        assert site.followed.pretend.orders == [
            ("drain", "a/1", "loud"),
            ("restart", "an operator asked for it on the web page"),
            ("scale", 1, 4),
            ("stacks",),
        ]

    with_site(use)


@pytest.mark.parametrize(
    ("refusal", "status"),
    [
        (OrderDeclinedError("no such node"), 409),
        (MasterUnreachableError("nobody answers"), 502),
        (UnauthenticatedError("not the token"), 403),
    ],
)
def test_what_the_job_refuses_is_said(refusal: Any, status: int) -> None:
    async def use(site: Site, session: Browser) -> None:
        site.followed.pretend.refusal = refusal
        answer = await session.post(site.url + "/api/orders", json=RESTART, headers=BEARER)
        assert (answer.status, await answer.json()) == (status, {"error": str(refusal)})

    with_site(use)


def test_stacks_and_logs_of_a_rank_are_shown() -> None:
    async def stacks_of(rank: int) -> str:
        return f"stack of {rank}\x1b[31m"

    async def log(rank: int, lines: int) -> tuple[LogPiece, ...]:
        assert lines > 0
        return (
            LogPiece(LogStream.OUT, "7", f"line of {rank}\n\x1b[31m".encode()),
            LogPiece(LogStream.ERR, "", note="it is not kept"),
        )

    async def use(site: Site, session: Browser) -> None:
        site.followed.pretend.stacks_of = stacks_of  # type: ignore[attr-defined]
        site.followed.pretend.log = log  # type: ignore[attr-defined]
        answer = await session.get(site.url + "/api/stacks?rank=12", headers=BEARER)
        text = (await answer.json())["text"]
        assert text.startswith("stack of 12") and "\x1b" not in text
        answer = await session.get(site.url + "/api/log?rank=3", headers=BEARER)
        text = (await answer.json())["text"]
        assert "line of 3" in text and "it is not kept" in text and "\x1b" not in text
        for rank in ("", "-1", "x", "1" * 9):
            answer = await session.get(site.url + f"/api/stacks?rank={rank}", headers=BEARER)
            assert answer.status == 400

    with_site(use)


def test_a_hostile_name_stays_text_in_every_answer() -> None:
    name = "</script><img src=x onerror=alert(1)>\n\ndata: {}"

    async def use(site: Site, session: Browser) -> None:
        site.followed.tell(chronicle.NodeJoined(name, name, 1, False))
        site.live.publish()
        async with session.stream(site.url + "/api/events") as stream:
            kind, state = await next_event(stream)
            assert kind == "state"
            assert name in [row["name"] for row in state["nodes"]]
        answer = await session.get(site.url + "/api/state")
        assert answer.headers["Content-Type"].startswith("application/json")
        assert answer.headers["X-Content-Type-Options"] == "nosniff"

    with_site(use)


class Unshaken:
    """An HTTP server whose connections never end their handshake: it knows of none of them."""

    connections: tuple[object, ...] = ()

    def __call__(self) -> asyncio.Protocol:
        return asyncio.Protocol()


def test_connections_in_their_handshake_take_half_of_the_places(monkeypatch: pytest.MonkeyPatch) -> None:
    """And cut nobody off who is through it."""
    now = [100.0]
    monkeypatch.setattr(serving, "time", SimpleNamespace(monotonic=lambda: now[0]))
    entrance = serving._Entrance(4, handshake=5.0)
    entrance.server = Unshaken()  # type: ignore[assignment]
    made = [entrance() for _ in range(3)]
    assert [isinstance(each, serving._Refusal) for each in made] == [False, False, True]
    now[0] += 5.0  # none of them is waited for any longer
    assert not isinstance(entrance(), serving._Refusal)
