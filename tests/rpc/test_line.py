"""The way to a job whose master is started again."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from elasticrun.config import Endpoint, SecurityConfig
from elasticrun.core.protocol.orders import ControlReply, ControlRequest, SaveAllStacks, ShowStatus
from elasticrun.core.protocol.status import JobPhase, JobStatus
from elasticrun.errors import MasterUnreachableError, UsageError
from elasticrun.rpc import nearby
from elasticrun.rpc.line import JobLine, find_nearby
from elasticrun.rpc.nearby import Whereabouts
from elasticrun.rpc.nearby_server import NearbyServer
from tests.rpc.harness import run

TIMEOUT = 30.0


@pytest.fixture(autouse=True)
def prefix(monkeypatch: pytest.MonkeyPatch) -> None:
    """A prefix of this test's own, as this user may have real jobs here."""
    monkeypatch.setattr(nearby, "PREFIX", f"elasticrun-test-{uuid.uuid4().hex}-")


@asynccontextmanager
async def master(
    said: str, launcher: int = 7, job_id: str = "job", endpoint: str = "here:1", since: float | None = 1e9
) -> AsyncIterator[None]:
    """A master on this host that answers so."""

    async def answer(request: ControlRequest) -> ControlReply:
        if isinstance(request, ShowStatus):
            return ControlReply(True, "", status=JobStatus(job_id, JobPhase.RUNNING, 3, 1, 2, 0, 1))
        return ControlReply(True, said)

    server = NearbyServer(answer, Whereabouts(endpoint, since, launcher))
    await server.start()
    try:
        yield
    finally:
        server.stop()


async def line() -> JobLine:
    """The way to the one job of this host."""
    here = await find_nearby(None, None, TIMEOUT)
    return JobLine((), here.status.job_id, SecurityConfig(), TIMEOUT, lambda _: None, here)


async def told(way: JobLine) -> str:
    return (await way.give(SaveAllStacks())).text


def test_the_next_master_of_the_same_launcher_is_found() -> None:
    async def main() -> None:
        async with master("the first"):
            way = await line()
            assert await told(way) == "the first"
        async with master("the second"), master("of another job", launcher=8, job_id="other"):
            assert [await told(way), await told(way)] == ["the second"] * 2

    run(main())


def test_another_launcher_may_take_the_job_up() -> None:
    async def main() -> None:
        async with master("the first"):
            way = await line()
        async with master("the second", launcher=8, since=None):
            assert await told(way) == "the second"

    run(main())


@pytest.mark.parametrize(
    "other",
    [
        {"launcher": 8},
        {"job_id": "other"},
        {"launcher": 8, "endpoint": "here:2", "since": None},
        {"launcher": 8, "job_id": "other", "since": None},
    ],
)
def test_nobody_is_led_to_another_job(other: dict[str, Any]) -> None:
    """The new one may even have the same name: most have the default."""

    async def main() -> None:
        async with master("the first"):
            way = await line()
        async with master("another one", **other):
            with pytest.raises(MasterUnreachableError, match="has ended"):
                await told(way)

    run(main())


def test_a_job_is_found_by_any_name_of_its_endpoint_and_no_other_one_is_taken() -> None:
    async def main() -> None:
        async with master("", job_id="none", endpoint="localhost:29400"), master("", 8, "none", endpoint=""):
            for host, port in (("127.0.0.1", 29400), ("LOCALHOST", 29400)):
                here = await find_nearby(
                    "none", None, TIMEOUT, [Endpoint("10.0.0.1", 1), Endpoint(host, port)]
                )
                assert here.about.launcher == 7
            for other in (Endpoint("127.0.0.1", 29401), Endpoint("127.0.0.2", 29400)):
                with pytest.raises(
                    MasterUnreachableError, match=f"no job of this user whose master is at {other}"
                ):
                    await find_nearby("none", None, TIMEOUT, [other])
        async with master("", job_id="none", endpoint="10.1.2.3:29400"):  # its address in the network
            here = await find_nearby("none", None, TIMEOUT, [Endpoint("localhost", 29400)])
            assert here.about.endpoint == "10.1.2.3:29400"
            with pytest.raises(MasterUnreachableError):
                await find_nearby("none", None, TIMEOUT, [Endpoint("localhost", 29401)])
        async with master("", job_id="none", endpoint="localhost:29400"), master("", 8, "none", endpoint=""):
            # A port that the master picks says nothing of where it is.
            with pytest.raises(UsageError, match="2 jobs of this user"):
                await find_nearby("none", None, TIMEOUT, [Endpoint("localhost", 0)])

    run(main())
