"""The health endpoint over real sockets."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Awaitable, Callable

import pytest

from elasticrun.agent.monitors import liveness as health
from elasticrun.agent.monitors.liveness import HealthServer
from tests.support.processes import DEADLINE


def drive(scenario: Callable[[HealthServer, int], Awaitable[None]]) -> None:
    async def main() -> None:
        server = HealthServer(0, lambda: "round 2 runs", host="127.0.0.1")
        await server.start()
        assert server.port
        try:
            await asyncio.wait_for(scenario(server, server.port), DEADLINE)
        finally:
            await server.close()

    asyncio.run(main())


async def ask(port: int, request: bytes) -> tuple[int, str, str]:
    """(status, head, body) of the answer; the server closes."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(request)
    answer = (await reader.read()).decode()
    writer.close()
    head, _, body = answer.partition("\r\n\r\n")
    return int(head.split(" ")[1]), head, body


@pytest.mark.parametrize("path", ["/", "/health", "/healthz", "/health?verbose=1"])
def test_alive(path: str) -> None:
    async def scenario(server: HealthServer, port: int) -> None:
        status, head, body = await ask(port, f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
        assert status == 200
        assert "Content-Type: application/json" in head
        content = json.loads(body)
        assert (content["status"], content["phase"]) == ("alive", "round 2 runs")
        assert 0 <= content["alive_seconds"] < DEADLINE
        assert f"Content-Length: {len(body)}" in head

    drive(scenario)


def test_head_has_no_body() -> None:
    async def scenario(server: HealthServer, port: int) -> None:
        status, _, body = await ask(port, b"HEAD / HTTP/1.0\r\n\r\n")
        assert (status, body) == (200, "")

    drive(scenario)


@pytest.mark.parametrize(
    ("request_bytes", "status"),
    [
        (b"GET /secret HTTP/1.1\r\n\r\n", 404),
        (b"GET /health/ HTTP/1.1\r\n\r\n", 404),
        (b"POST / HTTP/1.1\r\n\r\n", 405),
        (b"hello\r\n\r\n", 400),
        (b"GET http://elsewhere HTTP/1.1\r\n\r\n", 400),
        (b"GET / HTTP/2.0\r\n\r\n", 400),
        (b"\xff\xfe\x00\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nX: " + b"x" * 8192 + b"\r\n\r\n", 400),
    ],
)
def test_other_requests(request_bytes: bytes, status: int) -> None:
    async def scenario(server: HealthServer, port: int) -> None:
        assert (await ask(port, request_bytes))[0] == status
        assert (await ask(port, b"GET / HTTP/1.1\r\n\r\n"))[0] == 200

    drive(scenario)


def test_probe_that_only_connects() -> None:
    async def scenario(server: HealthServer, port: int) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write_eof()
        assert b" 400 " in await reader.readline()
        writer.close()

    drive(scenario)


def test_silent_client_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health, "_PATIENCE", 0.01)

    async def scenario(server: HealthServer, port: int) -> None:
        assert (await ask(port, b"GET"))[0] == 408

    drive(scenario)


@pytest.mark.parametrize("bad_port", [None, 70_000])
def test_port_that_cannot_be_had_is_a_warning(bad_port: int | None, caplog: pytest.LogCaptureFixture) -> None:
    with socket.create_server(("", 0)) as taken:
        port = bad_port or taken.getsockname()[1]

        async def main() -> None:
            server = HealthServer(port, str)
            await server.start()
            assert server.port is None
            await server.close()

        asyncio.run(main())
    assert f"cannot listen on port {port}" in caplog.text
