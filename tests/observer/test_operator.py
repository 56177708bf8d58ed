"""The figures and probes of the operator over real HTTP, for scrapers and for nuisances."""

from __future__ import annotations

import asyncio
import re
import socket
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack, ExitStack, suppress
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest

pytest.importorskip("aiohttp", reason="needs the extra web")
pytest.importorskip("prometheus_client", reason="needs the extra metrics")

from aiohttp import web

from elasticrun.config import Endpoint
from elasticrun.core.fleet.figures import ANSWERS, FAILED, Figures
from elasticrun.observer import exposition, operator, serving
from elasticrun.observer.listening import listen
from tests.observer.followed import parsed
from tests.observer.test_metrics import labels_of

MANUAL = Path(operator.__file__).parent.parent / "manual/operator.md"


class Served:
    """Figures that are served, with the two events that the probes tell of."""

    def __init__(self, port: int) -> None:
        self.figures = Figures()
        self.ready, self.until = asyncio.Event(), asyncio.Event()
        self.port = port
        self.writers: list[asyncio.StreamWriter] = []

    async def connect(self, said: bytes = b"") -> asyncio.StreamReader:
        """Say this, and go on to listen."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        self.writers.append(writer)
        writer.write(said)
        return reader

    def close(self) -> None:
        for each in self.writers:
            each.transport.abort()

    async def ask(self, path: str, method: str = "GET", rest: str = "\r\n") -> tuple[int, str]:
        """The status and the body of an answer, after which the connection ends."""
        said = await read(await self.connect(f"{method} {path} HTTP/1.1\r\nHost: it\r\n{rest}".encode()))
        head, _, body = said.decode().partition("\r\n\r\n")
        return int(head.split()[1]), body


async def read(reader: asyncio.StreamReader) -> bytes:
    """What comes until the end, which may be an abrupt one."""
    said = b""
    with suppress(ConnectionError):
        while more := await reader.read(1 << 16):
            said += more
    return said


def with_served(use: Callable[[Served], Awaitable[None]]) -> None:
    async def work() -> None:
        listener = listen(Endpoint("127.0.0.1", 0), "--metrics")
        served = Served(listener.getsockname()[1])
        async with AsyncExitStack() as stack:
            await operator.serve_figures(served.figures, served.ready, served.until, listener, stack)
            stack.callback(served.close)
            await asyncio.wait_for(use(served), 60)

    asyncio.run(work())


def test_a_scrape_tells_what_was_counted() -> None:
    async def use(served: Served) -> None:
        figures = served.figures
        figures.jobs.update(("training/a", "training/b"))
        figures.passes[FAILED].add(0.02)
        figures.requested("PATCH", 409)
        figures.questions["NoToken"] += 1
        status, text = await served.ask("/metrics")
        assert status == 200
        samples = parsed(text)

        def value(name: str, **labels: str) -> float:
            return samples["elasticrun_operator_" + name, frozenset(labels.items())]

        assert value("jobs") == 2
        assert value("pass_seconds_sum", result="failed") == pytest.approx(0.02)
        assert value("pass_seconds_bucket", result="failed", le="0.01") == 0
        assert value("pass_seconds_bucket", result="failed", le="0.025") == 1
        assert value("api_requests_total", verb="patch", answer="409") == 1
        assert sum(value("api_requests_total", verb="patch", answer=it) for it in ANSWERS) == 1
        assert value("master_questions_total", result="NoToken") == 1
        assert samples["process_resident_memory_bytes", frozenset()] > 1 << 20
        assert "training" not in text  # series do not grow with jobs, and nobody reads their names

    with_served(use)


def test_probes_tell_whether_the_operator_watches() -> None:
    async def use(served: Served) -> None:
        async def statuses() -> list[int]:
            return [(await served.ask(path))[0] for path in ("/healthz", "/readyz")]

        assert await statuses() == [200, 503]
        served.ready.set()
        assert await statuses() == [200, 200]
        served.until.set()  # as after SIGTERM, and when a watch was given up
        assert await statuses() == [503, 503]

    with_served(use)


@pytest.mark.parametrize(
    ("path", "method", "rest", "status"),
    [
        ("/", "GET", "\r\n", 404),
        ("/metrics", "POST", "\r\n", 405),
        ("/metrics", "GET", "Content-Length: 4\r\n\r\nbody", 413),
        ("/metrics", "GET", f"X: {'x' * 2049}\r\n\r\n", 400),
        ("/" + "x" * 2049, "GET", "\r\n", 400),
    ],
)
def test_anything_but_a_short_question_is_refused(path: str, method: str, rest: str, status: int) -> None:
    async def use(served: Served) -> None:
        assert (await served.ask(path, method, rest))[0] == status

    with_served(use)


def test_a_fault_is_in_the_log(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    async def use(served: Served) -> None:
        assert (await served.ask("/metrics"))[0] == 500

    monkeypatch.delattr(operator, "families")
    with_served(use)
    assert "a fault of this program" in caplog.text and "NameError" in caplog.text


def test_silent_connections_make_room_for_a_scraper(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(operator, "LIMITS", replace(operator.LIMITS, lasts=None))
    monkeypatch.setattr(serving, "KEPT", 3600.0)  # else they would end by that

    async def use(served: Served) -> None:
        half = b"GET /metrics HTTP/1.1\r\n"
        silent = [await served.connect(half) for _ in range(operator.LIMITS.connections)]
        assert (await served.ask("/healthz"))[0] == 200
        assert await read(silent[0]) == b""

    with_served(use)


def test_a_flood_of_connections_puts_out_no_probe() -> None:
    async def use(served: Served) -> None:
        with ExitStack() as stack:
            first, *_ = [  # all are there before the server takes one
                stack.enter_context(socket.create_connection(("127.0.0.1", served.port)))
                for _ in range(6 * operator.LIMITS.connections)
            ]
            first.sendall(b"GET /healthz HTTP/1.1\r\nHost: it\r\n\r\n")
            first.setblocking(False)
            said = await asyncio.get_running_loop().sock_recv(first, 1 << 10)
            assert said.startswith(b"HTTP/1.1 200")
        assert (await served.ask("/healthz"))[0] == 200, "and none of them keeps a place"

    with_served(use)


def test_a_question_that_takes_too_long_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(operator, "LIMITS", replace(operator.LIMITS, lasts=0.05))
    monkeypatch.setattr(serving, "KEPT", 3600.0)  # else the silent ones would end by that

    async def use(served: Served) -> None:
        for said in (b"", b"GET /metrics HTTP/1.1\r\n", b"GET / HTTP/1.1\r\nContent-Length: 9\r\n\r\n"):
            await read(await served.connect(said))  # else this would wait for the end of the test
        assert (await served.ask("/healthz"))[0] == 200

    with_served(use)


def test_one_who_comes_as_the_others_are_looked_at_is_cut_off_as_well() -> None:
    class Connection(asyncio.Protocol):
        transport: asyncio.Transport | None = None

    class Server:
        def __init__(self) -> None:
            self.connections = dict[Connection, None]()

        def __call__(self) -> Connection:
            return Connection()

    class Transport(asyncio.Transport):
        cut = asyncio.Event()

        def abort(self) -> None:
            self.cut.set()

    async def main() -> None:
        entrance = serving._Entrance(16, 0.0, 0.01)
        server = Server()
        entrance.server = cast(web.Server, server)
        made = cast(Connection, entrance())
        entrance.close()  # its timer: the look comes now
        entrance._look()  # in the same turn of the loop, so the server does not know of it yet
        made.transport = Transport()
        server.connections[made] = None
        await asyncio.wait_for(Transport.cut.wait(), 60)
        entrance.close()

    asyncio.run(main())


def test_the_manual_has_each_metric_with_its_labels() -> None:
    rows = re.findall(r"^\| `(elasticrun_\w+)(?:\{([\w, ]+)\})?` \|", MANUAL.read_text(), re.M)
    expected = [(exposition.PREFIX + it.name, labels_of(it)) for it in operator.families(Figures())]
    assert rows == expected
