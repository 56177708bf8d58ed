"""One node's workers, with a starter that only notes what it is asked; and once with real processes."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import pytest

from elasticrun.agent.group import CpuPlan, WorkerGroup
from elasticrun.agent.log_dirs import LogDirs, RoundDirs
from elasticrun.agent.logs import LogRouter, RoundLogs, WorkerFds
from elasticrun.agent.spawner import (
    Command,
    Exited,
    Spawner,
    SpawnerEvent,
    SpawnFailed,
    Started,
    Swept,
    fork_spawner,
)
from elasticrun.config import Entrypoint, EntrypointKind, LogConfig, WorkerConfig
from elasticrun.core.agent_events import WorkerFailed, WorkerFinished
from elasticrun.core.protocol import Assignment, FailureKind, NodeInfo

DEADLINE = 60.0
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

    def sweep(self) -> None:
        self.sweeps += 1


class FakeLogs:
    """Output that goes nowhere."""

    def __init__(self) -> None:
        self.released: list[int] = []
        self.closed = 0
        self.broken_from = 99  # the local rank from which on no descriptor is left

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
    def __init__(self, directory: Path, cpus: CpuPlan = ()) -> None:
        self.starter = FakeStarter()
        self.router = FakeRouter()
        self.events: list[WorkerFailed | WorkerFinished] = []
        self.dirs = LogDirs(str(directory), "job")
        config = WorkerConfig(
            Entrypoint(EntrypointKind.SCRIPT, "x.py", ("--rank=${local_rank}",), python="py"),
            2,
            env=(("HOME", "/home"),),
        )
        self.group = WorkerGroup(
            config,
            "job",
            NODE,
            self.starter,
            cast("LogRouter", self.router),
            self.dirs,
            cpus,
            self.events.append,
        )

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


def test_real_workers(tmp_path: Path) -> None:
    """One ends well, one badly with its last words; their round is swept."""
    script = tmp_path / "worker.py"
    script.write_text("import os, sys\nif os.environ['LOCAL_RANK'] == '1':\n    sys.exit('the last words')\n")
    handle = fork_spawner()

    async def main() -> list[WorkerFailed | WorkerFinished]:
        events: list[WorkerFailed | WorkerFinished] = []
        swept = asyncio.Event()
        ended = asyncio.Event()

        def hear(event: WorkerFailed | WorkerFinished) -> None:
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
