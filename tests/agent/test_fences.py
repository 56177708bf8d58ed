"""What a fence of the agent's machine refuses, the real loop of the agent really says.

A fence compares what an event names with what is. That is worth nothing if whoever makes the event asks the
machine what is: then it always fits. So here the loop, with a spawner and a link that only note what they are
asked, is told of old things when new ones run, and the machine has to stay as it was.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from elasticrun.agent import processes, runtime
from elasticrun.agent.logs.router import LogRouter
from elasticrun.agent.master_host.hosting import MasterHost
from elasticrun.agent.runtime import Agent
from elasticrun.agent.spawner.client import (
    Command,
    Exited,
    SpawnerDied,
    SpawnerEvent,
    SpawnerHandle,
    Started,
    Swept,
)
from elasticrun.agent.workers.error_file import ErrorRecord
from elasticrun.agent.workers.error_reader import ErrorReader, Then
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
from elasticrun.core.agent.events import (
    AgentEvent,
    AgentTick,
    Directed,
    GroupGone,
    LinkUp,
    StallSeen,
    WorkerFailed,
    WorkerFinished,
)
from elasticrun.core.protocol.messages import AgentPhase, Assignment, NodeInfo, Stall, StartRound, StopRound
from elasticrun.core.protocol.tasks import Task
from elasticrun.sim.fingerprint import difference, fingerprint

TERM = 15
ROLES = (TaskRole.CHIEF, TaskRole.PS)


class FakeSpawner:
    """Notes what it is asked; a test says what happens."""

    def __init__(self, handle: SpawnerHandle, hear: Callable[[SpawnerEvent], None]) -> None:
        self.say = hear
        self.spawned: list[int] = []
        self.sweeps = 0

    def spawn(self, worker: int, command: Command) -> None:
        self.spawned.append(worker)
        self.say(Started(worker, 1000 + worker))

    def signal(self, worker: int, signum: int) -> None:
        """Nobody is there."""

    def sweep(self, spares_detached: bool = False, spare: Sequence[int] = ()) -> None:
        self.sweeps += 1

    def inherit(self, temporary: str, whole: bool = False) -> None:
        """Nothing is left."""

    async def close(self) -> None:
        """It has ended."""


class FakeLink:
    """A master that says nothing."""

    def __init__(self, *_: object, **__: object) -> None:
        self.sent: list[object] = []

    def send(self, message: object) -> None:
        self.sent.append(message)

    def tell_progress(self) -> None:
        """Nobody hears it."""

    async def close(self) -> None:
        """It has ended."""


class FakeClock:
    def __init__(self) -> None:
        self.time = 0.0

    def now(self) -> float:
        return self.time


class FakeHost:
    pids = ()

    async def close(self, timeout: float) -> None:
        """There is none."""


class Bench:
    """The agent's loop, and all events that it made."""

    def __init__(self, directory: Path, roles: tuple[TaskRole, ...] = ()) -> None:
        size = len(roles) or 1
        node = NodeInfo("box/0", "i", "box", "127.0.0.1", size, roles=roles)
        entrypoint = Entrypoint(EntrypointKind.BINARY, "/bin/true", ())
        logs = LogConfig(str(directory))
        config = LaunchConfig(
            JobConfig("job"),
            RendezvousConfig(Endpoint("127.0.0.1", 1)),
            WorkerConfig(entrypoint, size, env=(("PATH", "/bin"),), logs=logs, roles=roles),
        )
        null = os.open(os.devnull, os.O_WRONLY)
        self.router = LogRouter(logs, "default", null, null)
        self.agent = Agent(
            config,
            node,
            cast("SpawnerHandle", None),
            cast("MasterHost", FakeHost()),
            self.router,
            (),
        )
        self.clock = self.agent._clock = FakeClock()  # type: ignore[assignment]  # never moves by itself
        self.spawner = cast("FakeSpawner", self.agent._processes._spawner)
        self.machine = self.agent._machine
        self.events: list[AgentEvent] = []
        self.sequence = 0
        handle = self.machine.handle

        def note(event: AgentEvent, now: float) -> Any:
            self.events.append(event)
            return handle(event, now)

        self.machine.handle = note  # type: ignore[method-assign]  # to hear what the loop says
        self.agent._processes.prepare()
        self.agent._post(LinkUp(1))

    @property
    def phase(self) -> AgentPhase:
        return self.machine.state.phase

    def start(self, round_: int, *tasks: Task) -> None:
        self.sequence += 1
        size = len(self.machine.state.info.roles) or 1
        port = self.machine.state.offer.store_port
        places = {role: [f"127.0.0.1:{task.port}" for task in tasks if task.role is role] for role in ROLES}
        cluster = tuple((role, tuple(places[role])) for role in ROLES) if tasks else ()
        assignment = Assignment(
            round_, 0, 1, 0, size, 0, size, "127.0.0.1", port, 0, 3, tasks=tasks, cluster=cluster
        )
        self.agent._post(Directed(StartRound(1, self.sequence, assignment, "because")))

    def stop(self, round_: int) -> None:
        self.sequence += 1
        self.agent._post(Directed(StopRound(1, self.sequence, round_, "because")))

    def end_newest(self, code: int = 0) -> None:
        """The worker that was started last ends."""
        self.spawner.say(Exited(self.spawner.spawned[-1], code, (TERM,)))

    def told(self, *kinds: type) -> list[AgentEvent]:
        return [event for event in self.events if isinstance(event, kinds)]

    def refuses(self, *late: AgentEvent) -> bool:
        """Whether each of these changes nothing."""
        assert late
        before = fingerprint(self.machine)
        for event in late:
            self.agent._post(event)
        return difference(before, fingerprint(self.machine)) == ""


Play = Callable[[Bench], None]


@pytest.fixture
def perform(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Runs a play inside a loop, on a bench whose node has these roles."""
    monkeypatch.setattr(processes, "Spawner", FakeSpawner)
    monkeypatch.setattr(processes, "adopt_orphans", lambda: None)
    monkeypatch.setattr(processes, "kill_orphans", lambda pids: None)
    monkeypatch.setattr(runtime, "Link", FakeLink)
    monkeypatch.setattr(ErrorReader, "read", lambda reader, path, then: then(None))

    async def main(play: Play, roles: tuple[TaskRole, ...]) -> None:
        bench = Bench(tmp_path, roles)
        try:
            play(bench)
        finally:
            await bench.agent._processes.close()
            await bench.agent._end_services()
            await bench.router.close()

    return lambda play, roles=(): asyncio.run(main(play, roles))


def test_what_was_told_of_a_round_is_refused_in_the_next_one(perform: Callable[..., None]) -> None:
    def play(bench: Bench) -> None:
        bench.start(0)
        bench.agent._post(StallSeen(0, Stall(0, 0, 7, 12.0, 10.0, False)))
        bench.end_newest(1)
        bench.spawner.say(Swept(1))
        bench.start(1)
        bench.end_newest(0)
        bench.stop(1)
        bench.spawner.say(Swept(1))
        bench.start(2)
        late = bench.told(WorkerFailed, WorkerFinished, GroupGone, StallSeen)
        assert [type(event) for event in late] == [
            StallSeen,
            WorkerFailed,
            GroupGone,
            WorkerFinished,
            GroupGone,
        ]
        assert bench.refuses(*late)
        bench.stop(2)
        assert bench.phase is AgentPhase.STOPPING, "when a group is awaited, its own end alone counts"
        assert bench.refuses(*late)

    perform(play)


def test_a_worker_whose_error_file_is_read_for_long_belongs_to_its_own_round(
    perform: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    reads: list[Then] = []
    monkeypatch.setattr(ErrorReader, "read", lambda reader, path, then: reads.append(then))

    def play(bench: Bench) -> None:
        bench.start(0)
        bench.end_newest(1)
        bench.stop(0)
        bench.clock.time += 31.0  # it is not known to have ended
        bench.agent._post(AgentTick())
        bench.spawner.say(Swept(1))
        bench.start(1)
        before = fingerprint(bench.machine)
        [tell] = reads
        tell(ErrorRecord("boom"))
        [failed] = bench.told(WorkerFailed)
        assert isinstance(failed, WorkerFailed) and failed.round == 0
        assert difference(before, fingerprint(bench.machine)) == ""

    perform(play)


def test_the_answer_to_a_sweep_counts_for_its_own_round(perform: Callable[..., None]) -> None:
    """One too many was asked for in round 0; its answer comes when round 1 is swept."""

    def play(bench: Bench) -> None:
        bench.start(0)
        bench.stop(0)
        bench.end_newest()
        bench.agent._processes._sweep(0)
        assert bench.spawner.sweeps == 2
        bench.spawner.say(Swept(1))
        assert bench.phase is AgentPhase.READY
        bench.start(1)
        bench.stop(1)
        bench.end_newest()
        before = fingerprint(bench.machine)
        bench.spawner.say(Swept(0))
        assert difference(before, fingerprint(bench.machine)) == "", "round 1 has not been swept yet"
        bench.spawner.say(Swept(1))
        assert bench.phase is AgentPhase.READY
        assert [event.round for event in bench.events if isinstance(event, GroupGone)] == [0, 0, 1]
        bench.spawner.say(Swept(0))
        assert len(bench.told(GroupGone)) == 3, "an answer that nobody asked for is none"

    perform(play)


def test_what_was_told_of_an_attempt_is_refused_in_the_next_one(perform: Callable[..., None]) -> None:
    def play(bench: Bench) -> None:
        chief, ps = (
            Task(rank, role, 0, port=port)
            for rank, role, port in zip((0, 1), ROLES, bench.machine.state.offer.ports, strict=False)
        )
        bench.start(0, chief, ps)
        bench.end_newest(1)
        bench.start(0, chief, replace(ps, attempt=1))
        bench.end_newest(0)
        bench.start(0, chief, replace(ps, attempt=2))
        assert len(bench.spawner.spawned) == 4
        late = bench.told(WorkerFailed, WorkerFinished)
        assert [getattr(event, "attempt", None) for event in late] == [0, 1]
        assert bench.refuses(*late)
        bench.start(0, replace(chief, attempt=1), replace(ps, attempt=3))
        bench.spawner.say(Exited(0, 1, (TERM,)))
        assert bench.spawner.spawned[4:] == [4], "the chief again, with news of its server"
        bench.spawner.say(Exited(3, 1, (TERM,)))
        assert getattr(bench.events[-1], "attempt", None) == 2, "which still was what it was started as"
        assert bench.spawner.spawned[4:] == [4, 5]

    perform(play, ROLES)


def test_the_spawner_takes_with_it_what_it_was_asked_to_start(perform: Callable[..., None]) -> None:
    def play(bench: Bench) -> None:
        bench.start(0)
        bench.stop(0)
        bench.end_newest()
        bench.spawner.say(Swept(1))
        bench.start(3)
        bench.spawner.say(SpawnerDied())
        assert bench.told(GroupGone)[-1] == GroupGone(3, 0)
        assert bench.machine.state.is_done

    perform(play)
