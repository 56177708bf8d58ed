"""The agent's side of the probe: what results and ends amount to, and real children of a real spawner."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
from collections.abc import Awaitable, Callable, Iterator, Sequence
from pathlib import Path

import pytest

from elasticrun.agent.programs import PROBE
from elasticrun.agent.spawner.client import (
    Command,
    Exited,
    Imports,
    Spawner,
    SpawnerEvent,
    SpawnerHandle,
    SpawnFailed,
    Started,
    Swept,
    WarmNews,
    start_warm_parents,
)
from elasticrun.agent.workers.probe import (
    MAX_STDERR,
    ProbeRunner,
    probe_command,
    probe_report,
    probe_settings,
)
from elasticrun.agent.workers.warm_recipes import warm_recipes
from elasticrun.config import Entrypoint, EntrypointKind, WorkerConfig
from elasticrun.core.protocol.messages import GroupReport, NodeInfo, ProbeGroup, ProbeReport, StartProbe
from elasticrun.probe.program import parse_settings
from elasticrun.probe.rendezvous import Group
from tests.support.ports import free_port
from tests.support.processes import DEADLINE, wait_end
from tests.support.spawner import clean_spawner

FINE = {"error": "", "matmul_flops": 5e9, "engine": "torch/cpu"}
GATHERED = {"error": "", "bandwidth": 1e9, "latency": 1e-5, "transport": "gloo"}


def order(*groups: ProbeGroup, check: int = 7, timeout: float = 60.0, slots: int = 2) -> StartProbe:
    return StartProbe(1, 2, check, groups, slots, timeout)


def group(slot: int = 0, rank: int = 0, port: int = 12345) -> ProbeGroup:
    return ProbeGroup(slot, rank, ("a", "b"), "127.0.0.1", port)


def node(name: str = "a") -> NodeInfo:
    return NodeInfo(name, f"incarnation of {name}", "box", "127.0.0.1", 1)


def written(*lines: object) -> bytes:
    return b"".join(json.dumps(line).encode() + b"\n" for line in lines)


# -- the report


def test_settings_are_those_that_the_child_reads() -> None:
    settings = parse_settings(probe_settings(order(group(1, 1)), node("b"), 3.5))
    assert settings.groups == (Group(1, 1, ("a", "b"), "127.0.0.1", 12345),)
    assert (settings.check, settings.start, settings.timeout, settings.slots) == (7, 3.5, 60.0, 2)
    assert (settings.node, settings.address) == ("b", "127.0.0.1")


def test_a_whole_result_is_a_whole_report() -> None:
    failed = {"error": "b did not come", "bandwidth": 0.0, "latency": 0.0, "transport": ""}
    report = probe_report(order(group(), group(1)), written(FINE, GATHERED, failed), "ended with exit code 0")
    groups = (GroupReport("", 1e9, 1e-5, "gloo"), GroupReport("b did not come"))
    assert report == ProbeReport(7, "", 5e9, groups, "torch/cpu")


def test_a_failed_self_test_is_this_nodes_fault_and_every_groups_end() -> None:
    own = {"error": "the CPU computes wrong results", "matmul_flops": 0.0, "engine": ""}
    report = probe_report(order(group()), written(own), "ended with exit code 0")
    assert report == ProbeReport(
        7, "the CPU computes wrong results", 0.0, (GroupReport("the CPU computes wrong results"),)
    )


@pytest.mark.parametrize("result", [b"", b'{"error": ""'])
def test_an_end_before_the_self_tests_is_this_nodes_fault(result: bytes) -> None:
    report = probe_report(order(group()), result, "killed by SIGSEGV (11)")
    assert report.error == "the probe did not finish its self test: killed by SIGSEGV (11)"
    assert [found.error for found in report.groups] == [report.error]


def test_an_end_during_the_groups_is_not_yet_this_nodes_fault() -> None:
    report = probe_report(order(group(), group(1)), written(FINE, GATHERED), "killed by SIGABRT (6)")
    assert (report.error, report.matmul_flops) == ("", 5e9)
    assert [found.error for found in report.groups] == [
        "",
        "the probe ended before this all-gather did: killed by SIGABRT (6)",
    ]


@pytest.mark.parametrize("result", [b"hello\n", b"[1]\n", b'{"error": ""}\n', written(FINE, FINE)])
def test_something_else_than_results_is_shown(result: bytes) -> None:
    report = probe_report(order(group()), result, "ended with exit code 0")
    assert report.error.startswith(f"the probe's output is not a valid result: {result.decode()[:5]!r}"[:-1])
    assert [found.error for found in report.groups] == [report.error]


def test_what_a_node_computes_after_its_groups_takes_the_place_of_the_first() -> None:
    faster = {"error": "", "matmul_flops": 6e9, "engine": "torch/cpu"}
    report = probe_report(order(group()), written(FINE, GATHERED, faster), "ended with exit code 0")
    assert report == ProbeReport(7, "", 6e9, (GroupReport("", 1e9, 1e-5, "gloo"),), "torch/cpu")
    wrong = {"error": "the CPU computes wrong results", "matmul_flops": 0.0, "engine": ""}
    report = probe_report(order(group()), written(FINE, GATHERED, wrong), "ended with exit code 0")
    assert (report.error, report.matmul_flops) == ("the CPU computes wrong results", 0.0)


def test_more_groups_than_were_asked_for_are_no_results() -> None:
    report = probe_report(order(group()), written(FINE, GATHERED, GATHERED), "ended with exit code 0")
    assert report.error.startswith("the probe's output is not a valid result")
    assert len(report.groups) == 1


# -- the runner, with a starter that only takes notes


class FakeStarter:
    """Notes what it is asked for, and keeps the child's ends of the pipes."""

    def __init__(self) -> None:
        self.spawned: list[tuple[int, Command]] = []
        self.signalled: list[tuple[int, int]] = []
        self.fds: list[tuple[int, int]] = []  # stdout and stderr of each child

    def spawn(self, worker: int, command: Command) -> None:
        self.spawned.append((worker, command))
        self.fds.append((os.dup(command.stdout), os.dup(command.stderr)))
        with os.fdopen(os.dup(command.stdin), encoding="utf-8") as settings:
            self.settings = json.load(settings)

    def signal(self, worker: int, signum: int) -> None:
        self.signalled.append((worker, signum))

    def sweep(self, spares_detached: bool = False, spare: Sequence[int] = ()) -> None:
        raise AssertionError("nobody swept")

    def close(self) -> None:
        for fds in self.fds:
            for fd in fds:
                with contextlib.suppress(OSError):
                    os.close(fd)


class Bench:
    """A runner without children, inside a running loop."""

    def __init__(self, python: str = "") -> None:
        config = WorkerConfig(
            Entrypoint(EntrypointKind.SCRIPT, "train.py", python=python), 1, env=(("A", "1"),)
        )
        self.starter = FakeStarter()
        self.reports: list[ProbeReport] = []
        self.expired = asyncio.Event()
        self.runner = ProbeRunner(config, node(), self.starter, self._done)

    def _done(self, report: ProbeReport) -> None:
        self.reports.append(report)
        self.expired.set()

    def write(self, number: int, data: bytes, words: bytes = b"") -> None:
        stdout, stderr = self.starter.fds[number]
        os.write(stdout, data)
        os.write(stderr, words)


def in_loop(work: Callable[[Bench], Awaitable[None]], python: str = "") -> None:
    async def run() -> None:
        bench = Bench(python)
        try:
            await asyncio.wait_for(work(bench), DEADLINE)
        finally:
            bench.runner.cancel()
            bench.starter.close()

    before = open_files()
    asyncio.run(run())
    assert open_files() == before, "descriptors were left open"


def open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def test_a_child_is_started_like_a_worker() -> None:
    async def work(bench: Bench) -> None:
        bench.runner.start(order(group()))
        ((number, command),) = bench.starter.spawned
        assert number == -1
        assert command.argv[0] == "/opt/python"
        assert command.argv[1:] == [PROBE]
        assert command.env == {"A": "1"}
        assert command.warm is None
        assert bench.starter.settings["check"] == 7

    in_loop(work, python="/opt/python")


@pytest.mark.parametrize(("imports", "waits"), [(("torch",), True), (("torch", "json"), False)])
def test_a_child_is_forked_like_a_worker(imports: tuple[str, ...], waits: bool) -> None:
    entrypoint = Entrypoint(EntrypointKind.SCRIPT, "train.py", python=sys.executable)
    config = WorkerConfig(entrypoint, 1, env=(("A", "1"),), warm_imports=imports)
    (recipe,) = warm_recipes(config, ())
    command = probe_command(config, 0, 1, 2)
    assert (command.warm, command.program, command.waits) == (recipe.key, PROBE, waits)
    assert command.argv == [sys.executable, PROBE]
    assert command.cpus == frozenset(os.sched_getaffinity(0))


def test_the_agents_interpreter_serves_where_no_other_is_given() -> None:
    async def work(bench: Bench) -> None:
        bench.runner.start(order())
        assert bench.starter.spawned[0][1].argv[0] == sys.executable

    in_loop(work)


def test_the_end_of_the_child_is_the_report() -> None:
    async def work(bench: Bench) -> None:
        bench.runner.start(order(group()))
        bench.write(0, written(FINE, GATHERED))
        assert bench.runner.on_exited(Exited(-1, 0))
        assert bench.reports == [ProbeReport(7, "", 5e9, (GroupReport("", 1e9, 1e-5, "gloo"),), "torch/cpu")]
        assert bench.runner.on_exited(Exited(-1, 0))  # ours, but known already
        assert len(bench.reports) == 1

    in_loop(work)


def test_events_of_workers_are_left_to_others() -> None:
    async def work(bench: Bench) -> None:
        bench.runner.start(order())
        assert not bench.runner.on_exited(Exited(0, 0))
        assert not bench.runner.on_spawn_failed(SpawnFailed(3, 2, "no such file"))
        assert bench.reports == []

    in_loop(work)


def test_a_crash_is_told_with_its_last_words() -> None:
    async def work(bench: Bench) -> None:
        bench.runner.start(order())
        bench.write(0, b"", b"x" * MAX_STDERR + b"\nTraceback\nValueError: no\n\n")
        bench.runner.on_exited(Exited(-1, 1))
        assert bench.reports[0].error == (
            "the probe did not finish its self test: ended with exit code 1; its last line: ValueError: no"
        )

    in_loop(work)


def test_a_child_that_cannot_be_started_is_told() -> None:
    async def work(bench: Bench) -> None:
        bench.runner.start(order())
        assert bench.runner.on_spawn_failed(SpawnFailed(-1, 2, "cannot start /opt/python: no such file"))
        assert bench.reports[0].error.endswith("self test: cannot start /opt/python: no such file")

    in_loop(work)


def test_without_descriptors_there_is_a_report(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> tuple[int, int]:
        raise OSError(24, "Too many open files")

    async def work(bench: Bench) -> None:
        monkeypatch.setattr(os, "pipe", refuse)
        bench.runner.start(order())
        monkeypatch.undo()
        assert bench.reports == [ProbeReport(7, "the probe cannot be started: Too many open files")]

    in_loop(work)


def test_a_child_that_does_not_end_is_killed_and_what_it_found_counts() -> None:
    async def work(bench: Bench) -> None:
        bench.runner.start(order(group(), timeout=0.1))
        bench.write(0, written(FINE))
        await bench.expired.wait()
        assert bench.starter.signalled == [(-1, signal.SIGKILL)]
        (report,) = bench.reports
        assert (report.error, report.matmul_flops) == ("", 5e9)
        assert "it did not end within 0.095 s" in report.groups[0].error
        assert bench.runner.on_exited(Exited(-1, -9))
        assert len(bench.reports) == 1

    in_loop(work)


def test_of_a_cancelled_probe_nothing_is_heard() -> None:
    async def work(bench: Bench) -> None:
        bench.runner.start(order())
        bench.runner.cancel()
        assert bench.starter.signalled == [(-1, signal.SIGKILL)]
        assert bench.runner.on_exited(Exited(-1, -9))
        bench.runner.cancel()
        assert bench.reports == []
        assert len(bench.starter.signalled) == 1

    in_loop(work)


def test_a_new_probe_takes_the_place_of_the_one_before() -> None:
    async def work(bench: Bench) -> None:
        bench.runner.start(order(check=7))
        bench.runner.start(order(check=8))
        assert bench.starter.signalled == [(-1, signal.SIGKILL)]
        bench.runner.on_exited(Exited(-1, -9))
        bench.write(1, written(FINE))
        bench.runner.on_exited(Exited(-2, 0))
        assert [(report.check, report.error) for report in bench.reports] == [(8, "")]

    in_loop(work)


# -- the runner, with real children


@pytest.fixture
def handle() -> Iterator[SpawnerHandle]:
    handle = clean_spawner()
    yield handle
    handle.control.close()
    with contextlib.suppress(ChildProcessError):
        os.waitpid(handle.pid, 0)


@pytest.fixture
def python(tmp_path: Path) -> str:
    """An interpreter that has neither torch nor elasticrun."""
    wrapper = tmp_path / "python"
    wrapper.write_text(f'#!/bin/sh\nexec {sys.executable} -S "$@"\n')
    wrapper.chmod(0o755)
    return str(wrapper)


class Nodes:
    """Some nodes' runners on one spawner, each with its own numbers below zero."""

    def __init__(
        self, handle: SpawnerHandle, python: str, names: str, fault: str, imports: tuple[str, ...] | None
    ) -> None:
        self._spawner = Spawner(handle, self._on_event)
        self.reports: dict[str, ProbeReport] = {}
        self.done = asyncio.Event()
        self.started: asyncio.Queue[int] = asyncio.Queue()  # pids
        self.parents = 0  # warm ones that became ready
        self._runners: dict[str, ProbeRunner] = {}
        for index, name in enumerate(names):
            env = (("PATH", os.environ["PATH"]), ("ELASTICRUN_PROBE_FAULT", fault))
            entrypoint = Entrypoint(EntrypointKind.SCRIPT, "train.py", python=python)
            config = WorkerConfig(entrypoint, 1, env=env, warm_imports=imports)
            if not index:
                start_warm_parents(handle, warm_recipes(config, ()), 0)
            runner = ProbeRunner(config, node(name), self._spawner, self._done(name))
            runner._next_number = -1 - 100 * index
            self._runners[name] = runner

    def start(self, orders: dict[str, StartProbe]) -> None:
        for name, wanted in orders.items():
            self._runners[name].start(wanted)

    def cancel(self) -> None:
        for runner in self._runners.values():
            runner.cancel()

    async def close(self) -> None:
        await self._spawner.close()

    def _done(self, name: str) -> Callable[[ProbeReport], None]:
        def done(report: ProbeReport) -> None:
            self.reports[name] = report
            if len(self.reports) == len(self._runners):
                self.done.set()

        return done

    def _on_event(self, event: SpawnerEvent) -> None:
        match event:
            case Exited():
                self._of(event.worker).on_exited(event)
            case SpawnFailed():
                self._of(event.worker).on_spawn_failed(event)
            case Started():
                self.started.put_nowait(event.pid)
            case WarmNews():
                assert event.is_warm, event.text
                self.parents += 1
            case Swept() | Imports():
                pass  # it is closed; imports take a while
            case _:
                raise AssertionError(event)

    def _of(self, number: int) -> ProbeRunner:
        return list(self._runners.values())[-number // 100]


def probe(
    handle: SpawnerHandle, python: str, orders: dict[str, StartProbe], fault: str = ""
) -> dict[str, ProbeReport]:
    async def run() -> dict[str, ProbeReport]:
        nodes = Nodes(handle, python, "".join(orders), fault, None)
        nodes.start(orders)
        await asyncio.wait_for(nodes.done.wait(), DEADLINE)
        await asyncio.wait_for(nodes.close(), DEADLINE)
        return nodes.reports

    return asyncio.run(run())


def test_two_nodes_prove_each_other_good(handle: SpawnerHandle, python: str) -> None:
    port = free_port()
    orders = {name: order(group(0, rank, port), slots=1) for rank, name in enumerate("ab")}
    for report in probe(handle, python, orders).values():
        assert report.error == ""
        assert report.matmul_flops > 0
        assert report.groups[0].error == ""
        assert report.groups[0].bandwidth > 0


def test_a_crash_names_its_signal(handle: SpawnerHandle, python: str) -> None:
    (report,) = probe(handle, python, {"a": order()}, fault="crash").values()
    assert report.error.startswith("the probe did not finish its self test: killed by SIGSEGV (11)")


def test_a_hang_ends(handle: SpawnerHandle, python: str) -> None:
    (report,) = probe(handle, python, {"a": order(timeout=1.0)}, fault="hang").values()
    assert report.error == "the probe did not finish its self test: it did not end within 0.95 s"


def test_an_interpreter_that_does_not_exist_is_told(handle: SpawnerHandle) -> None:
    (report,) = probe(handle, "/nonexistent/python", {"a": order()}).values()
    assert report.error.startswith("the probe did not finish its self test: ")
    assert "/nonexistent/python" in report.error


def is_forked(pid: int) -> bool:
    """Whether it was forked from a warm parent: the kernel shows what was executed."""
    return b"\0ELASTICRUN_WARM=" in b"\0" + Path(f"/proc/{pid}/environ").read_bytes()


@pytest.mark.torch
def test_probes_are_forked_from_the_warm_parent(handle: SpawnerHandle) -> None:
    async def run() -> None:
        nodes = Nodes(handle, sys.executable, "ab", "", ("torch",))
        port = free_port()
        nodes.start({name: order(group(0, rank, port), slots=1) for rank, name in enumerate("ab")})
        assert all([is_forked(await nodes.started.get()) for _ in "ab"])
        await nodes.done.wait()
        for report in nodes.reports.values():
            assert report.error == ""
            assert report.engine in ("torch/cpu", "torch/gpu")
            assert [(found.error, found.transport) for found in report.groups] == [("", "gloo")]
        await nodes.close()

    asyncio.run(asyncio.wait_for(run(), 2 * DEADLINE))


@pytest.mark.torch
def test_a_forked_probe_that_hangs_is_killed_and_its_parent_is_not(handle: SpawnerHandle) -> None:
    async def run() -> None:
        nodes = Nodes(handle, sys.executable, "a", "hang", ("torch",))
        nodes.start({"a": order()})
        first = await nodes.started.get()
        assert os.getpgid(first) == os.getsid(first) == first
        nodes.cancel()
        await asyncio.to_thread(wait_end, first)
        nodes.start({"a": order(check=8)})
        second = await nodes.started.get()
        assert is_forked(second)
        assert nodes.parents == 1
        await nodes.close()

    asyncio.run(asyncio.wait_for(run(), 2 * DEADLINE))
