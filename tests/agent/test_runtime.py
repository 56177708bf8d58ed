"""The agent's loop with a real machine and spawner, scripted workers, and a master that a test plays."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
import os
import signal
import socket
import sys
import uuid
from collections.abc import AsyncIterator, Callable, Coroutine
from pathlib import Path
from typing import Any, cast

import pytest

from elasticrun import __version__
from elasticrun.agent import processes as module
from elasticrun.agent.logs.router import LogRouter
from elasticrun.agent.master_host.endpoints import Endpoints
from elasticrun.agent.master_host.hosting import MasterHost
from elasticrun.agent.monitors.liveness import HealthServer
from elasticrun.agent.processes import Processes
from elasticrun.agent.runtime import Agent
from elasticrun.agent.signals import SignalInbox
from elasticrun.agent.spawner.client import (
    Imports,
    SpawnerEvent,
    SpawnerHandle,
    start_warm_parents,
)
from elasticrun.agent.workers.ports import SPARE_PORTS, PortReserve
from elasticrun.agent.workers.warm_recipes import warm_recipes
from elasticrun.config import (
    Endpoint,
    Entrypoint,
    EntrypointKind,
    JobConfig,
    LaunchConfig,
    LogConfig,
    RendezvousConfig,
    TaskRole,
    WorkerConfig,
)
from elasticrun.core.agent.events import Broken, Finish
from elasticrun.core.protocol.messages import (
    AgentMessage,
    AgentPhase,
    AgentStatus,
    Assignment,
    FailureKind,
    Hello,
    JobEnded,
    Leave,
    NodeInfo,
    Outcome,
    Report,
    StartRound,
    StopRound,
    Welcome,
)
from elasticrun.core.protocol.tasks import Task
from elasticrun.errors import ExitCode
from elasticrun.rpc.server import MasterServer, Session
from tests.support.processes import DEADLINE
from tests.support.spawner import clean_spawner

#: The incarnation chooses the ports: with the same one, tests that run at once would take one another's.
NODE = NodeInfo("box/0", uuid.uuid4().hex, "box", "127.0.0.1", 1)


MASTER_PID = 99
ROLES = (TaskRole.CHIEF, TaskRole.PS)


@pytest.fixture(autouse=True)
def orphanage(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, ...]]:
    """What the agent asks to be done with orphans; pytest's own children must not be among them."""
    asked: list[tuple[int, ...]] = []
    monkeypatch.setattr("elasticrun.agent.processes.adopt_orphans", lambda: asked.append(()))
    monkeypatch.setattr("elasticrun.agent.processes.kill_orphans", asked.append)
    return asked


class FakeHost:
    """A master that runs already, and is not ours."""

    pids = (MASTER_PID,)

    def __init__(self) -> None:
        self.port = 0
        self.endpoints = Endpoints(RendezvousConfig(Endpoint("127.0.0.1", 0)))
        self.resume = False
        self.trouble = ""
        self.hurried = 0
        self.patience: float | None = None

    async def endpoint(self) -> Endpoint:
        return Endpoint("127.0.0.1", self.port)

    def take_channel(self) -> None:
        return None

    def followed(self, endpoint: Endpoint) -> None:
        """Its master answers."""

    async def close(self, timeout: float) -> None:
        self.patience = timeout

    def hurry(self) -> None:
        self.hurried += 1


class Master:
    """The master, played by a test."""

    def __init__(self) -> None:
        self.heard: list[AgentMessage] = []
        self.session: Session | None = None
        self._changed = asyncio.Event()
        self._sequence = 0
        self._phase = AgentPhase.PREPARING
        self.status = AgentStatus(0, AgentPhase.PREPARING)
        self.warming = False

    def attached(self, session: Session, hello: Hello) -> None:
        self.session = session
        session.send(Welcome(1, 3600.0))
        self._note(hello)

    def received(self, session: Session, message: AgentMessage) -> None:
        self._note(message)

    def detached(self, session: Session, why: str) -> None:
        self.session = None
        self._changed.set()

    def _note(self, message: AgentMessage) -> None:
        self.heard.append(message)
        if isinstance(message, Hello | Report):
            self.status = message.status
            self._phase = message.status.phase
            self.warming = message.status.warming
        self._changed.set()

    async def until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            self._changed.clear()
            await self._changed.wait()

    async def phase(self, phase: AgentPhase) -> None:
        await self.until(lambda: self._phase is phase and self.session is not None)

    def _stamp(self) -> tuple[int, int]:
        self._sequence += 1
        return 1, self._sequence

    def start(self, round_: int) -> None:
        self.send(Assignment(round_, 0, 1, 0, 1, 0, 1, "127.0.0.1", 29500, 0, 0))

    def send(self, place: Assignment) -> None:
        assert self.session is not None
        self.session.send(StartRound(*self._stamp(), place, "because"))

    def stop(self, round_: int) -> None:
        assert self.session is not None
        self.session.send(StopRound(*self._stamp(), round_, "because"))

    def end(self, outcome: Outcome) -> None:
        assert self.session is not None
        self.session.send(JobEnded(*self._stamp(), outcome, "the end"))

    @property
    def last_words(self) -> str:
        return next(message.reason for message in self.heard if isinstance(message, Leave))


@dataclasses.dataclass
class Bench:
    agent: Agent
    master: Master
    host: FakeHost
    spawner: SpawnerHandle
    status: asyncio.Future[int]
    out: asyncio.StreamReader

    async def running(self, round_: int = 0) -> None:
        """A round whose worker has said that it runs."""
        await self.master.phase(AgentPhase.READY)
        self.master.start(round_)
        await self.master.phase(AgentPhase.RUNNING)
        assert await self.out.readline() == b"here\n"


WORKER = """
import os, signal, sys
{first}
here = os.open(sys.argv[1], os.O_WRONLY)
os.write(here, b"here\\n")
os.close(here)
{then}
"""
WAIT = "signal.pause()"
DEAF = "signal.signal(signal.SIGTERM, signal.SIG_IGN)"
FOREVER = "while True: signal.pause()"


def run(
    directory: Path,
    play: Callable[[Bench], Coroutine[Any, Any, None]],
    then: str = WAIT,
    first: str = "",
    **workers: Any,
) -> int:
    """The exit status of an agent whose workers do ``then``, while ``play`` plays the master."""
    script, out = directory / "worker.py", directory / "out"
    script.write_text(WORKER.format(first=first, then=then))
    os.mkfifo(out)
    entrypoint = Entrypoint(EntrypointKind.SCRIPT, str(script), (str(out),), sys.executable)
    config = LaunchConfig(
        JobConfig("job"),
        RendezvousConfig(Endpoint("127.0.0.1", 1)),
        WorkerConfig(entrypoint, 1, env=tuple(os.environ.items()), **workers),
    )
    spawner = clean_spawner()
    start_warm_parents(spawner, warm_recipes(config.workers, ()), 0)
    inbox = SignalInbox([signal.SIGTERM, signal.SIGINT])
    try:
        return asyncio.run(asyncio.wait_for(_run(config, inbox, spawner, out, play), DEADLINE))
    finally:
        inbox.close()
        spawner.control.close()
        with contextlib.suppress(ChildProcessError):
            os.waitpid(spawner.pid, 0)


async def _run(
    config: LaunchConfig,
    inbox: SignalInbox,
    spawner: SpawnerHandle,
    out: Path,
    play: Callable[[Bench], Coroutine[Any, Any, None]],
) -> int:
    async with serving() as (master, port):
        host = FakeHost()
        host.port = port
        null = os.open(os.devnull, os.O_WRONLY)
        router = LogRouter(LogConfig(), "default", null, null)
        reader = asyncio.StreamReader()
        # Open for writing as well, so that it has no end between two workers.
        pipe = os.fdopen(os.open(out, os.O_RDWR | os.O_NONBLOCK), "rb", buffering=0)
        transport, _ = await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(reader), pipe
        )
        agent = Agent(config, NODE, spawner, cast("MasterHost", host), router, ())
        status = asyncio.ensure_future(agent.run(inbox))
        playing = asyncio.ensure_future(play(Bench(agent, master, host, spawner, status, reader)))
        try:
            await asyncio.wait((status, playing), return_when=asyncio.FIRST_EXCEPTION)
            playing.result()
            return await status
        finally:
            os.close(null)
            transport.close()


@contextlib.asynccontextmanager
async def serving() -> AsyncIterator[tuple[Master, int]]:
    master = Master()
    server = MasterServer(master, lambda hello: None)
    port = await server.start("127.0.0.1", 0)
    try:
        yield master, port
    finally:
        await server.stop(1.0)


def test_a_job_from_ready_to_the_end(tmp_path: Path) -> None:
    async def play(bench: Bench) -> None:
        await bench.running()
        await bench.master.phase(AgentPhase.FINISHED)
        bench.master.end(Outcome.SUCCEEDED)
        await bench.status
        assert bench.host.patience == 35.0

    assert run(tmp_path, play, then="") == 0


def test_hello_says_who_we_are(tmp_path: Path) -> None:
    async def play(bench: Bench) -> None:
        await bench.master.phase(AgentPhase.READY)
        hello = bench.master.heard[0]
        assert isinstance(hello, Hello)
        assert (hello.job_id, hello.version, hello.info) == ("job", __version__, NODE)
        ready = next(m for m in bench.master.heard if isinstance(m, Hello | Report) and m.status.store_port)
        assert ready.status.phase is AgentPhase.READY
        bench.master.end(Outcome.TIMED_OUT)

    assert run(tmp_path, play) == ExitCode.RENDEZVOUS_TIMEOUT


def test_imports_that_are_under_way_are_reported_until_they_are_done(tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    (tmp_path / "slow.py").write_text(f"open({str(gate)!r}).read()")

    async def play(bench: Bench) -> None:
        master = bench.master
        await master.phase(AgentPhase.READY)
        assert master.warming
        await asyncio.to_thread(gate.write_text, "go on")
        await master.until(lambda: not master.warming)
        await bench.running()
        bench.master.end(Outcome.SUCCEEDED)

    assert run(tmp_path, play, warm_imports=("slow",)) == 0


def test_imports_that_are_done_before_the_health_check_listens_are_known_to_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = asyncio.Event()
    hear = Processes._hear

    def heard(processes: Processes, event: SpawnerEvent) -> None:
        hear(processes, event)
        if event == Imports(False):
            told.set()

    async def start(server: HealthServer) -> None:
        await told.wait()

    monkeypatch.setattr(Processes, "_hear", heard)
    monkeypatch.setattr(HealthServer, "start", start)

    async def play(bench: Bench) -> None:
        await bench.master.phase(AgentPhase.READY)
        assert not bench.master.warming
        bench.master.end(Outcome.SUCCEEDED)

    assert run(tmp_path, play, warm_imports=("no_such_module",), health_check_port=0) == 0


def test_a_round_is_stopped_and_the_next_one_starts(tmp_path: Path) -> None:
    async def play(bench: Bench) -> None:
        await bench.running(0)
        bench.master.stop(0)
        await bench.running(1)
        bench.master.end(Outcome.SUCCEEDED)

    assert run(tmp_path, play) == 0


def test_a_signal_reaches_the_workers_and_decides_the_status(tmp_path: Path) -> None:
    async def play(bench: Bench) -> None:
        await bench.running()
        os.kill(os.getpid(), signal.SIGINT)
        await bench.master.until(lambda: bench.master.session is None)
        assert bench.master.last_words == "stopped by signal 2"
        await bench.status
        assert bench.host.patience == 1.0
        assert bench.host.hurried == 1

    assert run(tmp_path, play) == 128 + signal.SIGINT


def test_a_signal_before_the_loop_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Interrupted(Agent):
        def __init__(self, *args: Any) -> None:
            os.kill(os.getpid(), signal.SIGTERM)
            super().__init__(*args)

    async def play(bench: Bench) -> None:
        await bench.status

    monkeypatch.setitem(globals(), "Agent", Interrupted)
    assert run(tmp_path, play) == 128 + signal.SIGTERM


def test_two_signals_kill_workers_that_are_deaf(tmp_path: Path) -> None:
    async def play(bench: Bench) -> None:
        await bench.running()
        os.kill(os.getpid(), signal.SIGTERM)
        await bench.master.until(lambda: any(isinstance(m, Leave) for m in bench.master.heard))
        os.kill(os.getpid(), signal.SIGTERM)

    status = run(tmp_path, play, first=DEAF, then=FOREVER, shutdown_timeout=DEADLINE * 10)
    assert status == 128 + signal.SIGTERM


def test_the_grace_period_ends_by_itself(tmp_path: Path) -> None:
    async def play(bench: Bench) -> None:
        await bench.running()
        bench.master.stop(0)
        await bench.master.phase(AgentPhase.READY)
        bench.master.end(Outcome.SUCCEEDED)

    assert run(tmp_path, play, first=DEAF, then=FOREVER, shutdown_timeout=0.05) == 0


def test_the_spawners_death_is_the_nodes_end_at_once(
    tmp_path: Path, orphanage: list[tuple[int, ...]]
) -> None:
    async def play(bench: Bench) -> None:
        await bench.running()
        assert orphanage == [()], "orphans are adopted once workers run"
        os.kill(bench.spawner.pid, signal.SIGKILL)
        await bench.status
        assert orphanage[1:] == [(MASTER_PID,)], "all are killed but the master"
        assert "the spawner process was killed" in bench.master.last_words

    assert run(tmp_path, play, shutdown_timeout=DEADLINE * 10) == ExitCode.NODE_FAULT


#: A task serves at its address, says who it is, and waits.
SERVE = """
import json, socket
config = json.loads(os.environ["TF_CONFIG"])
role, index = config["task"]["type"], config["task"]["index"]
server = socket.create_server(("127.0.0.1", int(config["cluster"][role][index].split(":")[1])))
"""
SAY_WHO = """
with open(sys.argv[1], "w") as out:
    print(role, index, os.environ["ELASTICRUN_ATTEMPT"], os.getpid(), file=out)
signal.pause()
"""


def test_tasks_start_and_end_one_by_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One attempt follows another, a task is added, another cannot be started; the chief lives through."""

    async def play(bench: Bench) -> None:
        master = bench.master

        def offered() -> tuple[int, ...]:
            return master.status.ports

        async def said() -> tuple[tuple[str, ...], int]:
            while (line := (await bench.out.readline()).decode().split()) == ["here"]:
                pass
            return tuple(line[:-1]), int(line[-1])

        def seats(*tasks: Task) -> Assignment:
            places = {
                role: [f"127.0.0.1:{task.port}" for task in tasks if task.role is role] for role in ROLES
            }
            cluster = tuple((role, tuple(places[role])) for role in ROLES)
            return Assignment(0, 0, 1, 0, 2, 0, 2, "127.0.0.1", 1, 0, 0, tasks=tasks, cluster=cluster)

        await master.phase(AgentPhase.READY)
        first = offered()
        assert len(first) == len(ROLES) + SPARE_PORTS
        chief, ps = (Task(rank, role, 0, port=first[rank]) for rank, role in enumerate(ROLES))
        master.send(seats(chief, ps))
        pids = dict([await said(), await said()])
        assert set(pids) == {("chief", "0", "0"), ("ps", "0", "0")}
        await master.until(lambda: len(offered()) == len(first) and not {*first[:2]} & {*offered()})

        ps = dataclasses.replace(ps, attempt=1)
        master.send(seats(chief, ps))
        who, pid = await said()  # at the port of its first attempt
        assert who == ("ps", "0", "1")
        with pytest.raises(ProcessLookupError):
            os.kill(pids["ps", "0", "0"], 0)

        added = Task(2, TaskRole.PS, 1, port=offered()[0])
        master.send(seats(chief, ps, added))
        assert (await said())[0] == ("ps", "1", "0")
        await master.until(lambda: added.port not in offered())

        def start(local_rank: int) -> None:
            raise OSError(24, "Too many open files")

        monkeypatch.setattr(bench.agent._processes.group, "_start", start)
        master.send(seats(chief, ps, added, Task(3, TaskRole.PS, 2, port=offered()[0])))
        await master.until(lambda: any(task.failure is not None for task in master.status.tasks))
        failure = master.status.tasks[-1].failure
        assert failure is not None
        assert (failure.kind, failure.local_rank) == (FailureKind.SPAWN, 3)
        assert "Too many open files" in failure.message
        assert [task.ended for task in master.status.tasks] == [False, False, False, True]
        os.kill(pids["chief", "0", "0"], 0)
        os.kill(pid, 0)
        assert master.status.phase is AgentPhase.RUNNING
        master.end(Outcome.SUCCEEDED)

    assert run(tmp_path, play, then=SAY_WHO, first=SERVE, roles=ROLES) == 0


def test_a_start_that_fails_half_way_is_the_nodes_end_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def play(bench: Bench) -> None:
        def start(assignment: Assignment) -> None:
            raise OSError(24, "Too many open files")

        monkeypatch.setattr(bench.agent._processes.group, "start", start)
        await bench.master.phase(AgentPhase.READY)
        bench.master.start(0)
        await bench.status
        assert "cannot start workers: [Errno 24] Too many open files" in bench.master.last_words

    assert run(tmp_path, play, shutdown_timeout=DEADLINE * 10) == ExitCode.NODE_FAULT


def test_no_port_for_the_store_is_the_nodes_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def reserve(self: object) -> int:
        raise OSError("no port is free")

    monkeypatch.setattr(PortReserve, "reserve", reserve)

    async def play(bench: Bench) -> None:
        await bench.status

    assert run(tmp_path, play) == ExitCode.NODE_FAULT


def test_a_bug_in_a_callback_ends_in_good_order(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    def bug() -> None:
        raise ZeroDivisionError("oops")

    async def play(bench: Bench) -> None:
        await bench.running()
        asyncio.get_running_loop().call_soon(bug)
        await bench.status
        assert "internal error: ZeroDivisionError('oops')" in bench.master.last_words

    assert run(tmp_path, play) == ExitCode.INTERNAL
    assert any(record.exc_info for record in caplog.records)


def test_a_bug_that_keeps_coming_ends_all_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def play(bench: Bench) -> None:
        def bug(*_: object) -> None:
            raise ZeroDivisionError("oops")

        await bench.running()
        monkeypatch.setattr(bench.agent._link, "send", bug)
        monkeypatch.setattr(bench.agent._processes.group, "signal", bug)
        bench.master.stop(0)
        await bench.status

    assert run(tmp_path, play, shutdown_timeout=DEADLINE * 10) == ExitCode.INTERNAL


def test_what_asyncio_merely_reports_ends_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def play(bench: Bench) -> None:
        await bench.running()
        asyncio.get_running_loop().call_exception_handler({"message": "a task was destroyed"})
        bench.master.end(Outcome.SUCCEEDED)

    assert run(tmp_path, play) == 0
    assert "internal error: a task was destroyed" in caplog.text


def test_a_bug_at_the_end_keeps_neither_the_status_nor_the_other_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def play(bench: Bench) -> None:
        async def bug() -> None:
            raise ZeroDivisionError("oops")

        await bench.running()
        monkeypatch.setattr(bench.agent._processes._spawner, "close", bug)
        bench.master.end(Outcome.SUCCEEDED)
        await bench.status
        assert bench.host.patience is not None

    assert run(tmp_path, play) == 0
    assert "internal error at the end" in caplog.text


def test_workers_that_cannot_be_killed_do_not_keep_the_agent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "KILL_TIMEOUT", 0.01)

    async def play(bench: Bench) -> None:
        async def stuck() -> None:
            await asyncio.Event().wait()

        await bench.master.phase(AgentPhase.READY)
        monkeypatch.setattr(bench.agent._processes._spawner, "close", stuck)
        bench.master.end(Outcome.SUCCEEDED)

    assert run(tmp_path, play) == 0
    assert "still alive 0.01 s after SIGKILL" in caplog.text


def test_an_effect_that_causes_an_event_waits_its_turn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    order: list[str] = []

    async def play(bench: Bench) -> None:
        await bench.master.phase(AgentPhase.READY)
        handle, send = bench.agent._machine.handle, bench.agent._link.send

        def note_handle(event: Any, now: float) -> Any:
            order.append(f"begin {type(event).__name__}")
            return handle(event, now)

        def note_send(message: AgentMessage) -> None:
            order.append(f"send {type(message).__name__}")
            if "first" not in order:
                order.append("first")
                bench.agent._post(Broken(ExitCode.NODE_FAULT, "second"))
            send(message)
            order.append("sent")

        monkeypatch.setattr(bench.agent._machine, "handle", note_handle)
        monkeypatch.setattr(bench.agent._link, "send", note_send)
        bench.agent._post(Broken(ExitCode.PROTOCOL, "first"))
        await bench.status

    assert run(tmp_path, play) == ExitCode.PROTOCOL
    assert order[:5] == ["begin Broken", "send Leave", "first", "sent", "begin Broken"]


def test_finishing_twice_is_finishing_once(tmp_path: Path) -> None:
    async def play(bench: Bench) -> None:
        await bench.master.phase(AgentPhase.READY)
        bench.agent._carry_out(Finish(0, "first"))
        bench.agent._carry_out(Finish(9, "second"))

    assert run(tmp_path, play) == 0


def test_the_watchdog_and_the_health_check_are_there_and_go(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    fifo = tmp_path / "timer"
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]

    async def play(bench: Bench) -> None:
        await bench.running()
        assert fifo.is_fifo()
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET / HTTP/1.0\r\n\r\n")
        assert b'"phase": "running"' in await reader.read()
        writer.close()
        bench.master.end(Outcome.SUCCEEDED)
        await bench.status
        assert not fifo.exists()

    assert run(tmp_path, play, file_timer=str(fifo), health_check_port=port) == 0
    assert [record for record in caplog.records if record.levelno > logging.WARNING] == []


def test_a_watchdog_that_cannot_be_is_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def play(bench: Bench) -> None:
        await bench.master.phase(AgentPhase.READY)
        bench.master.end(Outcome.SUCCEEDED)

    assert run(tmp_path, play, file_timer=str(tmp_path / "no" / "such")) == 0
    assert "no watchdog" in caplog.text
