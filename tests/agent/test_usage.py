"""What real processes use, as the kernel counts it."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from elasticrun.agent.monitors.usage import UsageSampler
from elasticrun.agent.services import Services
from elasticrun.config import Entrypoint, EntrypointKind, TaskRole, WorkerConfig
from elasticrun.core.protocol.usage import Pace

MIB = 2**20

#: A parent and its child, in a session of their own, that work and take memory as they are told. Its name
#: is as hard to read as a name can be.
TASK = """
import os
open("/proc/self/comm", "w").write("a) S 1 (b")
ready, has_taken = os.pipe()
child = os.fork()
inbox, outbox = open(0, "rb", buffering=0), open(1, "wb", buffering=0)
kept = []
if not child:
    import signal
    kept.append(bytearray(b"x") * (32 << 20))
    os.write(has_taken, b"x")
    signal.pause()
os.read(ready, 1)
for line in iter(inbox.readline, b""):
    command, number = line.split()
    if command == b"work":
        begun = sum(os.times()[:4])
        while sum(os.times()[:4]) < begun + float(number): pass
    elif command == b"take":
        kept.append(bytearray(b"x") * int(number))
    elif command == b"child":  # that works, and is buried
        if not os.fork():
            while sum(os.times()[:2]) < float(number): pass
            os._exit(0)
        os.wait()
    outbox.write(b"done\\n")
os.kill(child, 9)
"""


class Task:
    """One such task."""

    def __init__(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", TASK],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )

    def ask(self, command: str) -> None:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(command.encode() + b"\n")
        self.process.stdin.flush()
        assert self.process.stdout.readline() == b"done\n"


@pytest.fixture
def task() -> Iterator[Task]:
    task = Task()
    with task.process:
        yield task
        assert task.process.stdin is not None
        task.process.stdin.close()


class Sampler(UsageSampler):
    """One whose clock a test moves, and that knows the tasks of a test."""

    def __init__(self, pids: dict[int, int], proc: str = "/proc") -> None:
        self.time = 100.0
        self.paces: dict[int, Pace] = {}
        super().__init__(lambda: pids, self.paces.get, lambda: self.time, proc)


def test_a_task_uses_what_its_processes_use(task: Task) -> None:
    sampler = Sampler({3: task.process.pid})
    task.ask("work 0.01")
    (first,) = sampler.sample()
    assert (first.local_rank, first.cpu, first.step) == (3, None, None)
    assert first.memory is not None
    assert first.memory > 32 * MIB, "its child's too"
    task.ask(f"take {64 * MIB}")
    task.ask("work 0.3")
    task.ask("child 0.3")
    sampler.time += 0.5
    (second,) = sampler.sample()
    assert second.memory is not None
    assert second.memory - first.memory > 60 * MIB
    assert second.cpu is not None
    assert 1.1 <= second.cpu < 10.0, "0.6 s of the half second, on two cores; and what a slow box adds"
    sampler.time += 0.5
    (third,) = sampler.sample()
    assert third.cpu is not None
    assert third.cpu < 0.5, "it waits"


def test_a_task_tells_of_its_steps(task: Task) -> None:
    sampler = Sampler({0: task.process.pid})
    for step in (5, 25):
        sampler.paces[0] = Pace(task.process.pid, step, step, step * 0.125)
        sampler.time += 10.0
        (usage,) = sampler.sample()
    assert (usage.step, usage.step_rate, usage.graph_time) == (25, 2.0, 0.125)
    sampler.paces[0] = Pace(os.getpid(), 26)
    (usage,) = sampler.sample()
    assert usage.step is None, "whoever wrote that is no process of the task"


def test_who_has_ended_is_left_out(task: Task) -> None:
    ended = subprocess.Popen([sys.executable, "-c", ""], start_new_session=True)
    ended.wait()
    sampler = Sampler({0: ended.pid, 1: task.process.pid})
    assert [usage.local_rank for usage in sampler.sample()] == [1]
    assert Sampler({}).sample() == ()


def test_what_cannot_be_looked_at_costs_the_figures_only(task: Task, tmp_path: Path) -> None:
    pid = task.process.pid
    assert Sampler({0: pid}, str(tmp_path / "missing")).sample() == ()
    (tmp_path / str(pid)).mkdir()  # it ends between two looks
    (usage,) = Sampler({0: pid}, str(tmp_path)).sample()
    assert usage.memory == 0


@pytest.mark.parametrize(("roles", "measured"), [((), []), ((TaskRole.CHIEF,), [0])])
def test_nothing_is_measured_on_a_node_without_roles(
    task: Task, roles: tuple[TaskRole, ...], measured: list[int]
) -> None:
    async def main() -> None:
        config = WorkerConfig(Entrypoint(EntrypointKind.SCRIPT, "train.py", ()), 1, roles=roles)
        services = Services(
            config, lambda: {0: task.process.pid}, str, lambda round_, stall: None, lambda *stock: None
        )
        assert [usage.local_rank for usage in services.usage()] == measured
        await services.close()

    asyncio.run(main())
