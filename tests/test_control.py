"""The public client of a running job, against a real master."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from elasticrun.config import Endpoint, SecurityConfig, TaskRole
from elasticrun.control import JobControl, JobStatus
from elasticrun.core.protocol.chronicle import Happening, LogEntry, OrderAnswered, ScaleEnded, ScaleStarted
from elasticrun.core.protocol.messages import AgentPhase
from elasticrun.core.protocol.orders import (
    MAX_WAIT,
    AwaitStatus,
    ControlReply,
    ControlRequest,
    DrainNode,
    SaveAllStacks,
    ScaleJob,
    ScaleRole,
    Watched,
)
from elasticrun.core.protocol.status import ROOM, JobPhase, NodeStatus, ScaleEnd, fitting, status_in_words
from elasticrun.errors import (
    ElasticRunError,
    MasterUnreachableError,
    OrderDeclinedError,
    ProtocolError,
    ScaleFailedError,
    UnauthenticatedError,
    WrongJobError,
)
from elasticrun.rpc.codec import MAX_MESSAGE_BYTES
from elasticrun.rpc.codec.control import encode_reply
from elasticrun.rpc.event_lines import to_line
from elasticrun.rpc.line import JobLine
from elasticrun.rpc.server import Orders
from tests.rpc.harness import DEADLINE, LOCKED, Obedient, run, serving
from tests.rpc.process import Master, master_process
from tests.support.orders import TOKEN

SECURITY = SecurityConfig(TOKEN)
NOWHERE = Endpoint("127.0.0.1", 1)


@pytest.fixture(scope="module")
def master(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Master]:
    with master_process(tmp_path_factory.mktemp("master"), SECURITY) as process:
        yield process


def test_a_job_says_who_is_there_as_a_value(master: Master) -> None:
    async def main() -> None:
        job = await JobControl.connect([master.endpoint], "job", SECURITY, DEADLINE)
        status = await job.status()
        assert (status.job_id, status.phase, status.nodes) == ("job", JobPhase.GATHERING, ())
        assert (status.min_nodes, status.max_nodes, status.round) == (1, 2, -1)
        assert await job.scale(1, 1) == "the job now wants 1 to 1 nodes"
        assert (await job.status()).max_nodes == 1

    run(main())


def test_what_the_master_declines_is_an_error_of_its_own(master: Master) -> None:
    async def main() -> None:
        job = JobControl([master.endpoint], "job", SECURITY, DEADLINE)
        with pytest.raises(OrderDeclinedError, match="there is no node 'nobody'"):
            await job.drain("nobody", "why not")

    run(main())


def test_each_method_gives_its_order() -> None:
    async def main() -> None:
        handler = Obedient()
        async with serving(security=LOCKED, orders=Orders(handler, "job")) as (_, endpoint):
            job = JobControl([endpoint], "job", LOCKED, DEADLINE)
            assert await job.drain("n0", "hot") == f"heard {DrainNode('n0', 'hot')}"
            await job.scale(2, 4)
            await job.scale_role(TaskRole.PS, 3)
            await job.stacks()
            with pytest.raises(ProtocolError, match="holds none"):
                await job.status()
            with pytest.raises(ProtocolError, match="holds none"):
                await job.following.status("1:running", 100.0)
            assert handler.orders[-1] == AwaitStatus("1:running", MAX_WAIT)
            assert handler.orders[1:4] == [ScaleJob(2, 4), ScaleRole(TaskRole.PS, 3), SaveAllStacks()]

    run(main())


@pytest.mark.parametrize(
    ("endpoint", "job_id", "token", "error"),
    [
        (NOWHERE, "job", TOKEN, MasterUnreachableError),
        (None, "other", TOKEN, WrongJobError),
        (None, "job", TOKEN[::-1], UnauthenticatedError),
    ],
)
def test_connecting_fails_with_a_typed_error(
    master: Master, endpoint: Endpoint | None, job_id: str, token: str, error: type[ElasticRunError]
) -> None:
    async def main() -> None:
        with pytest.raises(error):
            await JobControl.connect([endpoint or master.endpoint], job_id, SecurityConfig(token), DEADLINE)

    run(main())


def test_the_host_that_answered_is_asked_first_the_next_time(master: Master) -> None:
    async def main() -> None:
        silent: list[ElasticRunError] = []
        job = JobControl([NOWHERE, master.endpoint], "job", SECURITY, DEADLINE, silent.append)
        await job.status()
        await job.status()
        assert [type(error) for error in silent] == [MasterUnreachableError]

    run(main())


def test_a_status_that_was_altered_on_its_way_is_not_believed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the text of a reply was proven once."""

    class Shows(Obedient):
        async def answer(self, request: ControlRequest) -> ControlReply:
            return ControlReply(True, "", status=status("n0"))

    async def main() -> None:
        async with serving(security=LOCKED, orders=Orders(Shows(), "job")) as (_, endpoint):
            job = JobControl([endpoint], "job", LOCKED, DEADLINE)
            assert await job.status() == status("n0")
            monkeypatch.setattr(
                "elasticrun.rpc.codec.control.encode_reply",
                lambda reply: encode_reply(
                    ControlReply(
                        reply.ok, reply.text, reply.proof, status("n1") if reply.proof else reply.status
                    )
                ),
            )
            with pytest.raises(UnauthenticatedError):
                await job.status()

    run(main())


def status(*nodes: str, unlisted: int = 0) -> JobStatus:
    """Of a job of these spares."""
    listed = tuple(NodeStatus(node, None, AgentPhase.READY) for node in nodes)
    return JobStatus("job", JobPhase.RUNNING, 0, 1, 2, 0, 3, nodes=listed, unlisted=unlisted)


@pytest.mark.parametrize("name", ["n", "\u4e2d" * 512, "\ud800" * 512])
def test_a_message_has_room_for_the_nodes_that_fit(name: str) -> None:
    node = NodeStatus(name, 2**30, AgentPhase.PREPARING, True, "\u4e2d" * 100)
    listed = tuple(fitting([node] * 30_000))
    assert 0 < len(listed) < 30_000
    shown = JobStatus("job", JobPhase.RUNNING, 0, 1, 2, 0, 3, "\u4e2d" * 20_000, listed, 7)
    size = len(encode_reply(ControlReply(True, "", b"p" * 32, shown)))
    assert ROOM // 3 < size < MAX_MESSAGE_BYTES


def test_nodes_without_room_are_counted() -> None:
    text = status_in_words(status("a", unlisted=2))
    assert text.splitlines()[0].endswith("3 nodes of 1:2, 0 of 3 restarts used")
    assert text.splitlines()[-1] == "  and 2 more nodes"


# -- the wait for nodes


def line(event: int, told: Happening) -> str:
    return to_line(LogEntry(event, 0.0, 0.0, told))


class Obeying(JobLine):
    """The way to a master that begins an operation, whatever it is told."""

    def __init__(self, timeout: float = DEADLINE) -> None:
        super().__init__((), "job", SECURITY, timeout, lambda _: None)

    async def give(self, request: ControlRequest, wait: float = 0.0) -> ControlReply:
        return ControlReply(True, "operation 2: 2 -> 3 nodes")


class Told(JobControl):
    """A client whose master answers from a list: pages of the event log, or an error."""

    def __init__(
        self, *pages: Watched | Exception, scaled: ScaleEnd | None = None, scaling: str = ""
    ) -> None:
        super().__init__([NOWHERE], timeout=DEADLINE)
        self._line = Obeying()
        self.pages = [Watched("1:0", more=True), Watched("1:0"), *pages]
        self.shown = JobStatus("job", JobPhase.RUNNING, 0, 1, 2, 0, 0, scaled=scaled, scaling=scaling)

    async def watch(self, after: str = "", wait: float = 20.0) -> Watched:
        page = self.pages.pop(0)
        if isinstance(page, Exception):
            raise page
        return page

    async def status(self) -> JobStatus:
        return self.shown


BEGUN = (
    line(8, OrderAnswered("ScaleOut", True, "operation 1: 2 -> 3 nodes")),
    line(8, ScaleStarted(1, "scale out", 1, 3)),
    line(8, ScaleEnded(1, False, "another one")),
    line(9, OrderAnswered("ScaleOut", True, "operation 2: 2 -> 3 nodes")),
    line(9, ScaleStarted(2, "scale out", 1, 3)),
)
DONE = Watched("1:9", (line(12, ScaleEnded(2, True, "the world has 3 nodes")),))


@pytest.mark.parametrize(
    "job",
    [
        Told(Watched("1:5", BEGUN), DONE),
        Told(Watched("1:5", BEGUN), MasterUnreachableError("it starts again"), DONE),
        Told(
            *(Watched("1:5", BEGUN), Watched("2:0", missed=True), DONE),
            scaled=ScaleEnd(1, False, "another one"),
            scaling="it goes on",
        ),
        Told(Watched("2:0", missed=True), DONE, scaled=ScaleEnd(1, True, "before"), scaling="it goes on"),
        Told(
            Watched("1:5", BEGUN),
            Watched("2:0", missed=True),
            scaled=ScaleEnd(2, True, "the world has 3 nodes"),
        ),
    ],
    ids=["at once", "after a restart", "after a gap", "begun in the gap", "in the gap"],
)
def test_the_end_of_an_operation_is_found(job: Told) -> None:
    heard: list[str] = []
    assert asyncio.run(job.scale_out(1, 9.0, heard.append)) == "the world has 3 nodes"
    assert heard == ["operation 2: 2 -> 3 nodes"]


def test_an_operation_that_fails_is_an_error() -> None:
    job = Told(Watched("1:5", (*BEGUN, line(12, ScaleEnded(2, False, "nobody came")))))
    with pytest.raises(ScaleFailedError, match="nobody came"):
        asyncio.run(job.scale_out(1, 9.0))


@pytest.mark.parametrize(
    ("scaled", "scaling"),
    [
        (None, ""),
        (ScaleEnd(1, True, "the one before"), ""),
        (ScaleEnd(2 + 1, True, "the one after"), ""),
        (ScaleEnd(2 + 1, True, "the one after"), "another one goes on"),
    ],
)
def test_an_operation_that_a_lost_master_took_with_it_is_not_waited_for(
    scaled: ScaleEnd | None, scaling: str
) -> None:
    job = Told(Watched("1:5", BEGUN), Watched("2:0", missed=True), scaled=scaled, scaling=scaling)
    with pytest.raises(ScaleFailedError, match="nobody knows how the operation ended"):
        asyncio.run(job.scale_out(1, 9.0))


def test_patience_begins_when_the_master_is_lost() -> None:
    """A question may have waited for news for longer than that before."""
    job = Told(Watched("1:5", BEGUN), MasterUnreachableError("it starts again"), DONE)
    job._line = Obeying(timeout=1e-9)
    assert asyncio.run(job.scale_out(1, 9.0)) == "the world has 3 nodes"
