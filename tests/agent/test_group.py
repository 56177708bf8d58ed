"""One node's workers, with a starter that only notes what it is asked; and once with real processes."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest

from elasticrun.agent.logs.dirs import LogDirs, RoundDirs, WorkerPaths
from elasticrun.agent.logs.router import LogRouter, RoundLogs, WorkerFds
from elasticrun.agent.spawner.client import (
    Command,
    Exited,
    Spawner,
    SpawnerEvent,
    SpawnFailed,
    Started,
    Swept,
)
from elasticrun.agent.workers.group import CpuPlan, WorkerGroup
from elasticrun.config import Entrypoint, EntrypointKind, LogConfig, Std, StdByRank, TaskRole, WorkerConfig
from elasticrun.core.agent.events import WorkerFailed, WorkerFinished, WorkersStarted
from elasticrun.core.protocol.messages import Assignment, FailureKind, NodeInfo
from elasticrun.core.protocol.tasks import Task
from tests.support.processes import DEADLINE, is_alive
from tests.support.spawner import clean_spawner

NODE = NodeInfo("box/0", "i", "box", "address", 2, role="trainer")


def assignment(round_: int = 0) -> Assignment:
    return Assignment(round_, 1, 2, 2, 4, 2, 4, "address", 29500, 0, 0)


class FakeStarter:
    """Notes requests; fails on demand."""

    def __init__(self) -> None:
        self.spawned: list[tuple[int, Command]] = []
        self.signalled: list[tuple[int, int]] = []
        self.sweeps = 0

    def spawn(self, worker: int, command: Command) -> None:
        self.spawned.append((worker, command))

    def signal(self, worker: int, signum: int) -> None:
        self.signalled.append((worker, signum))

    def sweep(self, spares_detached: bool = False, spare: Sequence[int] = ()) -> None:
        self.sweeps += 1


class FakeLogs:
    """Output that goes nowhere."""

    def __init__(self) -> None:
        self.released: list[int] = []
        self.opened: list[tuple[int, str, int, TaskRole]] = []
        self.closed = 0
        self.broken_from = 99  # the local rank from which on no descriptor is left

    def reopen(self, local_rank: int, paths: WorkerPaths, rank: int, task: Task) -> None:
        self.opened.append((local_rank, Path(paths.error_file).name, rank, task.role))

    def fds(self, local_rank: int) -> WorkerFds:
        if local_rank >= self.broken_from:
            raise OSError(24, "Too many open files")
        return WorkerFds(101 + 10 * local_rank, 102 + 10 * local_rank)

    def started(self, local_rank: int) -> None:
        self.released.append(local_rank)

    def stderr_tail(self, local_rank: int) -> str:
        assert not self.closed
        return f"tail of {local_rank}"

    def close(self) -> None:
        self.closed += 1


class FakeRouter:
    def __init__(self) -> None:
        self.rounds: list[FakeLogs] = []
        self.broken_from = 99
        self.is_broken = False

    def open_round(self, dirs: RoundDirs, first_rank: int) -> RoundLogs:
        assert first_rank == 2
        if self.is_broken:
            raise OSError(24, "Too many open files")
        self.rounds.append(FakeLogs())
        self.rounds[-1].broken_from = self.broken_from
        return cast("RoundLogs", self.rounds[-1])


class Bench:
    def __init__(
        self,
        directory: Path,
        cpus: CpuPlan = (),
        role: str = "trainer",
        servers: Entrypoint | None = None,
        imports: tuple[str, ...] | None = None,
        server_imports: tuple[str, ...] | None = None,
    ) -> None:
        self.starter = FakeStarter()
        self.router = FakeRouter()
        self.events: list[WorkerFailed | WorkerFinished] = []  # how workers ended
        self.rounds: list[WorkersStarted] = []
        self.dirs = LogDirs(str(directory), "job")
        config = WorkerConfig(
            Entrypoint(EntrypointKind.SCRIPT, "x.py", ("--rank=${local_rank}",), python="py"),
            2,
            role=role,
            env=(("HOME", "/home"),),
            servers=servers,
            warm_imports=imports,
            server_imports=server_imports,
        )
        self.group = WorkerGroup(
            config,
            "job",
            NODE,
            self.starter,
            cast("LogRouter", self.router),
            self.dirs,
            cpus,
            self.hear,
        )

    def hear(self, event: WorkersStarted | WorkerFailed | WorkerFinished) -> None:
        if isinstance(event, WorkersStarted):
            self.rounds.append(event)
        else:
            self.events.append(event)

    def running(self, round_: int = 0) -> None:
        """Start a round, and hear that its workers run as pids 1000 and 1001."""
        first = len(self.starter.spawned)
        self.group.start(assignment(round_))
        for number, _ in self.starter.spawned[first:]:
            self.group.on_started(Started(number, 1000 + number))


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    yield Bench(tmp_path)


def test_each_worker_gets_its_own_command(bench: Bench) -> None:
    bench.group.start(assignment())
    (first, one), (second, two) = bench.starter.spawned
    assert (first, second) == (0, 1)
    assert list(one.argv) == ["py", "-u", "x.py", "--rank=0"]
    assert list(two.argv) == ["py", "-u", "x.py", "--rank=1"]
    assert (one.env["RANK"], two.env["RANK"]) == ("2", "3")
    assert one.env["HOME"] == "/home"
    assert (one.stdin, one.stdout, one.stderr) == (0, 101, 102)
    assert (two.stdin, two.stdout, two.stderr) == (0, 111, 112)
    assert (one.cpus, two.cpus) == (None, None)
    assert bench.router.rounds[0].released == [0, 1]


def test_cpus_by_local_rank(tmp_path: Path) -> None:
    bench = Bench(tmp_path, (frozenset({0}), frozenset({1, 2})))
    bench.group.start(assignment())
    assert tuple(command.cpus for _, command in bench.starter.spawned) == (frozenset({0}), frozenset({1, 2}))


def test_the_start_of_all_workers_is_told_once(bench: Bench) -> None:
    bench.group.start(assignment(3))
    bench.group.on_started(Started(0, 1000))
    bench.group.on_started(Started(0, 1000))
    assert bench.rounds == []
    bench.group.on_started(Started(1, 1001))
    bench.group.on_started(Started(1, 1001))
    assert bench.rounds == [WorkersStarted(3)]


def test_a_good_end(bench: Bench) -> None:
    bench.running()
    assert bench.group.pids == {0: 1000, 1: 1001}
    bench.group.on_exited(Exited(1, 0))
    assert bench.events == [WorkerFinished(0, 1)]
    assert bench.group.pids == {0: 1000}


@pytest.mark.parametrize(("code", "kind"), [(3, FailureKind.EXIT), (-9, FailureKind.SIGNAL)])
def test_a_bad_end(bench: Bench, code: int, kind: FailureKind) -> None:
    bench.running()
    bench.group.on_exited(Exited(1, code))
    (event,) = bench.events
    assert isinstance(event, WorkerFailed)
    failure = event.failure
    assert (event.round, failure.rank, failure.local_rank, failure.pid) == (0, 3, 1, 1001)
    assert (failure.kind, failure.exit_code, failure.stderr_tail) == (kind, code, "tail of 1")


def test_an_end_after_a_signal_of_ours_says_so(bench: Bench) -> None:
    bench.running()
    bench.group.on_exited(Exited(0, 1))
    bench.group.signal(15)
    bench.group.on_exited(Exited(1, -15, [15]))
    by_itself, stopped = bench.events
    assert isinstance(by_itself, WorkerFailed)
    assert isinstance(stopped, WorkerFailed)
    assert (by_itself.stopping.signals, by_itself.failure.stopped) == (frozenset(), False)
    assert (stopped.stopping.signals, stopped.failure.stopped) == (frozenset({15}), True)
    assert stopped.stopping.since > 0
    assert stopped.failure.message == "was already failing when the launcher stopped it by SIGTERM"


def test_what_the_worker_recorded_is_read(bench: Bench) -> None:
    bench.running()
    path = bench.starter.spawned[0][1].env["TORCHELASTIC_ERROR_FILE"]
    Path(path).write_text('{"message": "boom"}')
    bench.group.on_exited(Exited(0, 1))
    (event,) = bench.events
    assert isinstance(event, WorkerFailed)
    assert (event.failure.message, event.failure.error_file) == ("boom", path)


def test_a_worker_that_cannot_be_started(bench: Bench) -> None:
    bench.group.start(assignment())
    bench.group.on_started(Started(0, 1000))
    bench.group.on_spawn_failed(SpawnFailed(1, 13, "cannot execute py: Permission denied"))
    (event,) = bench.events
    assert isinstance(event, WorkerFailed)
    assert (event.failure.kind, event.failure.rank) == (FailureKind.SPAWN, 3)
    assert "cannot execute py: Permission denied" in event.failure.message
    bench.group.signal(signal.SIGTERM)
    assert bench.starter.signalled == [(0, signal.SIGTERM)]


def test_only_those_that_live_are_signalled(bench: Bench) -> None:
    bench.group.start(assignment())
    bench.group.on_exited(Exited(0, 0))
    bench.group.signal(signal.SIGTERM)  # also a worker whose start is not confirmed yet
    assert bench.starter.signalled == [(1, signal.SIGTERM)]


def test_pids_of_workers(bench: Bench) -> None:
    bench.running()
    assert [bench.group.pid_of(number) for number in (0, 1, 2)] == [1000, 1001, None]
    bench.group.on_exited(Exited(0, 0))
    assert bench.group.pid_of(0) is None


def test_numbers_are_never_used_again_and_late_news_finds_no_one(bench: Bench) -> None:
    bench.running(0)
    bench.group.sweep()
    bench.group.close_round()
    assert (bench.starter.sweeps, bench.router.rounds[0].closed) == (1, 1)
    assert bench.group.pids == {}
    bench.running(1)
    assert [number for number, _ in bench.starter.spawned] == [0, 1, 2, 3]
    bench.group.on_started(Started(0, 4711))
    bench.group.on_exited(Exited(0, 1))
    bench.group.on_spawn_failed(SpawnFailed(1, 2, "late"))
    assert bench.events == []
    assert bench.group.pids == {0: 1002, 1: 1003}
    bench.group.on_exited(Exited(2, 0))
    bench.group.on_exited(Exited(2, 0))
    assert bench.events == [WorkerFinished(1, 0)]


def test_news_before_the_first_round(bench: Bench) -> None:
    bench.group.on_started(Started(0, 1))
    bench.group.on_exited(Exited(0, 1))
    bench.group.on_spawn_failed(SpawnFailed(0, 2, "early"))
    bench.group.signal(signal.SIGTERM)
    bench.group.close_round()
    assert bench.events == []


def test_an_end_after_the_round_was_closed(bench: Bench) -> None:
    bench.running()
    bench.group.close_round()
    bench.group.close_round()
    bench.group.on_exited(Exited(0, 1))
    assert bench.events == []
    assert bench.router.rounds[0].closed == 1


def test_no_descriptor_left_before_the_first_worker(bench: Bench) -> None:
    bench.router.is_broken = True
    with pytest.raises(OSError, match="Too many open files"):
        bench.group.start(assignment())
    bench.group.signal(signal.SIGTERM)
    bench.group.close_round()
    assert (bench.starter.spawned, bench.starter.signalled) == ([], [])


def test_no_descriptor_left_for_the_second_worker(bench: Bench) -> None:
    bench.router.broken_from = 1
    with pytest.raises(OSError, match="Too many open files"):
        bench.group.start(assignment())
    bench.group.signal(signal.SIGTERM)
    assert bench.starter.signalled == [(0, signal.SIGTERM)]
    bench.group.close_round()
    assert bench.router.rounds[0].closed == 1


# -- tasks

CHIEF, WORKER, PS, EVALUATOR = TaskRole
CLUSTER = ((CHIEF, ("a:1",)), (PS, ("a:2", "b:3")))
SEATS = (Task(0, CHIEF, 0, port=1), Task(1, PS, 0, port=2))
ADDED = Task(4, PS, 2, port=4)


def tasks(*seats: Task) -> Assignment:
    return replace(assignment(), tasks=seats, cluster=CLUSTER)


@pytest.fixture
def roles(tmp_path: Path) -> Iterator[Bench]:
    yield Bench(tmp_path, role="default", servers=Entrypoint(EntrypointKind.MODULE, "serve", python="py"))


def test_tasks_start_by_their_local_ranks(roles: Bench) -> None:
    roles.group.start(tasks(SEATS[0], ADDED))
    (_, chief), (_, added) = roles.starter.spawned
    assert list(chief.argv) == ["py", "-u", "x.py", "--rank=0"]
    assert list(added.argv) == ["py", "-u", "-m", "serve"]
    assert (chief.alone, added.alone) == (True, True)
    assert (chief.env["ROLE_NAME"], added.env["ROLE_NAME"]) == ("chief", "ps")
    assert json.loads(added.env["TF_CONFIG"])["task"] == {"type": "ps", "index": 2}
    assert roles.router.rounds[0].opened == [
        (0, "error.json", 2, CHIEF),
        (4, "error.json", 4 + 1 + 2 * 2, PS),
    ]
    assert roles.router.rounds[0].released == [0, 4]


@pytest.mark.parametrize("has_servers", [True, False])
def test_all_tasks_that_run_the_script_are_forked(tmp_path: Path, has_servers: bool) -> None:
    """Those that serve by another program are not; who is added later is as good as the first."""
    servers = Entrypoint(EntrypointKind.MODULE, "serve", python="py") if has_servers else None
    bench = Bench(tmp_path, role="default", servers=servers, imports=("tensorflow",))
    assert bench.group.is_warm
    bench.group.start(tasks(*SEATS))
    bench.group.start_task(tasks(*SEATS, ADDED), ADDED.local_rank)
    found = [command.warm for _, command in bench.starter.spawned]
    assert found == (["0", None, None] if has_servers else ["0", "0", "0"])


def test_servers_are_forked_from_a_parent_of_their_own(tmp_path: Path) -> None:
    servers = Entrypoint(EntrypointKind.MODULE, "serve", python="py")
    bench = Bench(tmp_path, role="default", servers=servers, server_imports=("serve.ahead",))
    bench.group.start(tasks(*SEATS))
    bench.group.start_task(tasks(*SEATS, ADDED), ADDED.local_rank)
    assert [command.warm for _, command in bench.starter.spawned] == [None, "servers", "servers"]


def test_workers_of_a_node_without_roles_are_not_alone(bench: Bench) -> None:
    bench.group.start(assignment())
    assert [command.alone for _, command in bench.starter.spawned] == [False, False]


def test_one_task_starts_again(roles: Bench) -> None:
    roles.group.start(tasks(*SEATS))
    for number in range(2):
        roles.group.on_started(Started(number, 1000 + number))
    path = Path(roles.starter.spawned[1][1].env["TORCHELASTIC_ERROR_FILE"])
    path.write_text('{"message": "boom"}')
    roles.group.on_exited(Exited(1, 1))
    again = tasks(SEATS[0], replace(SEATS[1], attempt=1))
    roles.group.start_task(again, 1)
    (number, command) = roles.starter.spawned[-1]
    assert number == 2
    assert command.env["ELASTICRUN_ATTEMPT"] == "1"
    roles.group.on_started(Started(2, 1002))
    assert roles.group.pids == {0: 1000, 1: 1002}
    roles.group.on_exited(Exited(1, 1))  # once more, of the first attempt
    roles.group.on_exited(Exited(2, 1))
    first, second = roles.events
    assert isinstance(first, WorkerFailed)
    assert isinstance(second, WorkerFailed)
    assert (first.failure.message, first.failure.role, first.failure.pid) == ("boom", "ps", 1001)
    assert (second.failure.message, second.failure.pid) == ("ended with exit code 1", 1002)
    assert (first.attempt, second.attempt) == (0, 1)
    assert roles.router.rounds[0].opened[-1] == (1, "error_1.json", 3, PS)


def test_a_task_is_signalled_alone(roles: Bench) -> None:
    roles.group.start(tasks(*SEATS))
    roles.group.signal_task(1, signal.SIGTERM)
    roles.group.signal_task(7, signal.SIGTERM)
    assert roles.starter.signalled == [(1, signal.SIGTERM)]
    roles.group.on_exited(Exited(1, -15))
    roles.group.signal_task(1, signal.SIGKILL)
    assert roles.starter.signalled == [(1, signal.SIGTERM)]


def test_a_task_that_cannot_be_started_fails_by_itself(roles: Bench) -> None:
    roles.router.broken_from = 4
    roles.group.start(tasks(*SEATS))
    roles.group.start_task(tasks(*SEATS, ADDED), 4)
    (event,) = roles.events
    assert isinstance(event, WorkerFailed)
    failure = event.failure
    assert (failure.kind, failure.local_rank, failure.rank, failure.role) == (FailureKind.SPAWN, 4, 9, "ps")
    assert failure.message == "could not be started: [Errno 24] Too many open files"
    roles.router.rounds[0].broken_from = 99
    roles.group.start_task(tasks(*SEATS, replace(ADDED, attempt=1)), 4)
    assert [number for number, _ in roles.starter.spawned] == [0, 1, 2]


LIVES = """
import os, signal, sys
reader, writer = os.pipe()
helper = os.fork()
if helper == 0:  # in the group, and would hold on to what the next attempt needs
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    os.write(writer, b"x")
    signal.pause()
os.read(reader, 1)
attempt = os.environ["ELASTICRUN_ATTEMPT"]
print("attempt", attempt, flush=True)
print("last words of", attempt, file=sys.stderr, flush=True)
with open(sys.argv[1], "w") as here:
    here.write(str(helper))
if attempt == "0":
    signal.pause()
"""


def test_a_real_task_starts_again_without_its_helpers(tmp_path: Path) -> None:
    """Killed once it has said that it attempts, it starts again from the event of its end."""
    script, here = tmp_path / "task.py", tmp_path / "here"
    script.write_text(LIVES)
    os.mkfifo(here)
    handle = clean_spawner()

    async def main() -> tuple[list[WorkerFailed | WorkerFinished], Path]:
        events: list[WorkerFailed | WorkerFinished] = []
        helpers: list[int] = []
        loop = asyncio.get_running_loop()
        done = asyncio.Event()

        def hear(event: WorkersStarted | WorkerFailed | WorkerFinished) -> None:
            if isinstance(event, WorkersStarted):
                return
            events.append(event)
            assert not any(map(is_alive, helpers))
            done.set()

        async def end() -> None:
            await asyncio.wait_for(done.wait(), DEADLINE)
            done.clear()

        def pass_on(event: SpawnerEvent) -> None:
            if isinstance(event, Started):
                group.on_started(event)
            elif isinstance(event, Exited):
                group.on_exited(event)
            elif isinstance(event, Swept):
                done.set()

        null = os.open(os.devnull, os.O_WRONLY)
        router = LogRouter(LogConfig(tee=StdByRank(Std.ALL)), "default", null, null)
        entrypoint = Entrypoint(EntrypointKind.SCRIPT, str(script), (str(here),), python=sys.executable)
        config = WorkerConfig(entrypoint, 2, env=tuple(os.environ.items()), roles=(CHIEF, PS))
        spawner = Spawner(handle, pass_on)
        dirs = LogDirs(str(tmp_path), "job")
        group = WorkerGroup(config, "job", NODE, spawner, router, dirs, (), hear)
        group.start(tasks(SEATS[1]))
        helpers.append(int(await loop.run_in_executor(None, here.read_text)))
        group.signal_task(1, signal.SIGKILL)
        await end()
        group.start_task(tasks(replace(SEATS[1], attempt=1)), 1)
        helpers.append(int(await loop.run_in_executor(None, here.read_text)))
        await end()
        group.sweep()
        await end()
        group.close()
        await router.close()
        await asyncio.wait_for(spawner.close(), DEADLINE)
        os.close(null)
        return events, Path(dirs.root, "attempt_0", "1")

    (first, second), directory = asyncio.run(main())
    assert isinstance(first, WorkerFailed)
    assert first.failure.exit_code == -signal.SIGKILL
    assert first.failure.stderr_tail == "last words of 0\n"
    assert second == WorkerFinished(0, 1, attempt=1)
    assert (directory / "stdout.log").read_text() == "attempt 0\nattempt 1\n"


def test_real_workers(tmp_path: Path) -> None:
    """One ends well, one badly with its last words; their round is swept."""
    script = tmp_path / "worker.py"
    script.write_text("import os, sys\nif os.environ['LOCAL_RANK'] == '1':\n    sys.exit('the last words')\n")
    handle = clean_spawner()

    async def main() -> list[WorkerFailed | WorkerFinished]:
        events: list[WorkerFailed | WorkerFinished] = []
        swept = asyncio.Event()
        ended = asyncio.Event()

        def hear(event: WorkersStarted | WorkerFailed | WorkerFinished) -> None:
            if isinstance(event, WorkersStarted):
                return
            events.append(event)
            if len(events) == 2:
                ended.set()

        def pass_on(event: SpawnerEvent) -> None:
            if isinstance(event, Started):
                group.on_started(event)
            elif isinstance(event, Exited):
                group.on_exited(event)
            elif isinstance(event, Swept):
                swept.set()

        null = os.open(os.devnull, os.O_WRONLY)
        router = LogRouter(LogConfig(), "trainer", null, null)
        entrypoint = Entrypoint(EntrypointKind.SCRIPT, str(script), python=sys.executable)
        config = WorkerConfig(entrypoint, 2, env=tuple(os.environ.items()))
        spawner = Spawner(handle, pass_on)
        dirs = LogDirs(str(tmp_path / "logs"), "job")
        group = WorkerGroup(config, "job", NODE, spawner, router, dirs, (), hear)
        group.start(assignment())
        await ended.wait()
        group.sweep()
        await swept.wait()
        group.close_round()
        await spawner.close()
        await router.close()
        os.close(null)
        return events

    events = asyncio.run(asyncio.wait_for(main(), DEADLINE))
    events.sort(key=lambda event: isinstance(event, WorkerFailed))
    assert events[0] == WorkerFinished(0, 0)
    failed = events[1]
    assert isinstance(failed, WorkerFailed)
    assert (failed.failure.local_rank, failed.failure.exit_code) == (1, 1)
    assert failed.failure.stderr_tail.strip() == "the last words"
