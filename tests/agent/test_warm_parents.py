"""Warm parents with real processes: what is forked, what starts cold, what a sweep spares and kills."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import sys
import textwrap
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from elasticrun.agent.programs import INJECTED
from elasticrun.agent.spawner import warm_parents
from elasticrun.agent.spawner.client import (
    Command,
    Exited,
    Imports,
    Spawner,
    SpawnerEvent,
    SpawnFailed,
    Started,
    Swept,
    WarmNews,
    WarmRecipe,
    start_warm_parents,
)
from elasticrun.agent.spawner.fork_requests import Parent, State
from elasticrun.agent.spawner.poll import Poller
from elasticrun.agent.spawner.warm_parents import WarmParents
from elasticrun.agent.spawner.wire import Message
from tests.support.processes import is_alive, title, wait_end
from tests.support.spawner import clean_spawner

DEADLINE = 120.0  # seconds, beyond twice FORK_TIMEOUT; an event that takes longer is lost
SCRIPT = """
    import os, signal, sys
    print(os.getppid(), "colorsys" in sys.modules, os.environ.get("RANK"), *sys.argv[1:])
    if sys.argv[1:] in (["wait"], ["w"]):
        signal.pause()
    sys.exit(3)
    """


class Node:
    """A spawner with one warm parent of a script, and the record of its events."""

    def __init__(self, folder: Path, imports: str) -> None:
        self.folder = folder
        self.script = folder / "script.py"
        self.script.write_text(textwrap.dedent(SCRIPT))
        self.env = {"PATH": os.defpath, "HOME": "/"}
        self.events: list[SpawnerEvent] = []
        self._changed = asyncio.Event()
        self._handle = clean_spawner()
        recipe = WarmRecipe("key", self.argv(), self.env | {"PYTHONPATH": INJECTED}, None, f"unset:{imports}")
        start_warm_parents(self._handle, [recipe], 0)

    def argv(self, *args: str) -> list[str]:
        return [sys.executable, "-u", str(self.script), *(args or ("-",))]

    def open(self) -> None:
        self.spawner = Spawner(self._handle, self._note)

    def _note(self, event: SpawnerEvent) -> None:
        self.events.append(event)
        self._changed.set()

    async def wait(self, wanted: Callable[[SpawnerEvent], bool]) -> SpawnerEvent:
        """The first event of the record that is wanted, now or later; it is taken out."""
        while True:
            for event in self.events:
                if wanted(event):
                    self.events.remove(event)
                    return event
            self._changed.clear()
            try:
                await asyncio.wait_for(self._changed.wait(), DEADLINE)
            except asyncio.TimeoutError:
                raise AssertionError(f"nothing more for {DEADLINE:g} s; {self._left()}") from None

    def _left(self) -> str:
        """What nobody has waited for, and what runs."""
        running = [(pid, title(pid), is_alive(pid)) for pid in self.children()]
        return f"events: {self.events}; children of the spawner: {running}"

    def imports(self) -> list[bool]:
        """What was told of imports so far, oldest first."""
        return [event.under_way for event in self.events if isinstance(event, Imports)]

    async def news(self) -> WarmNews:
        event = await self.wait(lambda event: isinstance(event, WarmNews))
        assert isinstance(event, WarmNews)
        return event

    def spawn(self, worker: int, *args: str, warm: str | None = "key") -> None:
        self._spawn(worker, self.argv(*args), warm)

    def spawn_another(self, worker: int, code: str, waits: bool = True, alone: bool = False) -> None:
        """Another program in place of the script."""
        (self.folder / "another").mkdir(exist_ok=True)
        path = self.folder / "another" / "program.py"
        path.write_text(textwrap.dedent(code))
        argv = [sys.executable, str(path), "an argument"]
        cpus = frozenset(os.sched_getaffinity(0))
        self._spawn(worker, argv, "key", cpus=cpus, program=str(path), waits=waits, alone=alone)

    def _spawn(self, worker: int, argv: list[str], warm: str | None, **rest: Any) -> None:
        with (self.folder / f"out{worker}").open("wb") as out, Path(os.devnull).open() as null:
            env = {**self.env, "RANK": str(worker)}
            files = (null.fileno(), out.fileno(), out.fileno() if rest else 2)
            self.spawner.spawn(worker, Command(argv, env, None, *files, warm=warm, **rest))

    async def pid(self, worker: int) -> int:
        event = await self.wait(lambda event: isinstance(event, Started) and event.worker == worker)
        assert isinstance(event, Started)
        return event.pid

    async def exit_code(self, worker: int) -> int:
        event = await self.wait(lambda event: isinstance(event, Exited) and event.worker == worker)
        assert isinstance(event, Exited)
        return event.exit_code

    async def run(self, worker: int, *args: str) -> str:
        """What a worker printed that has ended as the script does."""
        self.spawn(worker, *args)
        await self.pid(worker)
        assert await self.exit_code(worker) == 3
        return (self.folder / f"out{worker}").read_text()

    async def ran(self, worker: int, forked: bool = True) -> None:
        """Wait for a worker without arguments, which has to end as the script does."""
        assert await self.exit_code(worker) == 3
        assert (self.folder / f"out{worker}").read_text() == self.told(worker, forked=forked)

    def told(self, worker: int, *args: str, forked: bool = True) -> str:
        """What a worker of this script prints."""
        return " ".join([f"{self.spawner.pid} {forked} {worker}", *(args or ("-",))]) + "\n"

    @property
    def parent(self) -> int:
        """The pid of the warm parent, which is the only child when no worker runs."""
        (pid,) = self.children()
        return pid

    def children(self) -> list[int]:
        path = Path(f"/proc/{self.spawner.pid}/task/{self.spawner.pid}/children")
        return [int(pid) for pid in path.read_text().split()]


Drive = Callable[..., None]


@pytest.fixture
def drive(tmp_path: Path) -> Drive:
    """Run a scenario with a node, then close it; nobody may be left."""

    def drive(scenario: Callable[[Node], Awaitable[None]], imports: str = "colorsys") -> None:
        async def main() -> None:
            node = Node(tmp_path, imports)
            node.open()
            try:
                await scenario(node)
                children = node.children()
            finally:
                await asyncio.wait_for(node.spawner.close(), DEADLINE)
            for pid in children:
                wait_end(pid, 0.0)

        asyncio.run(main())

    return drive


@pytest.fixture
def module(tmp_path: Path) -> Callable[[str], None]:
    """Writes what ``import trouble`` finds beside the script."""

    def module(code: str) -> None:
        (tmp_path / "trouble.py").write_text(textwrap.dedent(code))

    return module


Module = Callable[[str], None]


def test_workers_are_forked_and_are_children_of_the_spawner(drive: Drive) -> None:
    async def scenario(node: Node) -> None:
        assert (await node.news()).is_warm
        assert await node.run(0) == node.told(0)
        assert await node.run(1) == node.told(1)

    drive(scenario)


def test_a_worker_gets_its_own_arguments(drive: Drive) -> None:
    async def scenario(node: Node) -> None:
        assert await node.run(0, "rank0") == node.told(0, "rank0")

    drive(scenario)


def test_without_the_key_it_starts_cold(drive: Drive) -> None:
    async def scenario(node: Node) -> None:
        for number, key in enumerate((None, "another")):
            node.spawn(number, warm=key)
            await node.ran(number, forked=False)

    drive(scenario)


FILES = """
    import os
    for fd in range(1024):
        link = f"/proc/self/fd/{fd}"
        print(end=f"{fd} " if os.path.lexists(link) else "")
    """


def test_workers_born_in_one_go_have_no_files_of_each_other(drive: Drive) -> None:
    forks = 4

    async def scenario(node: Node) -> None:
        await node.news()
        os.kill(parent := node.parent, signal.SIGSTOP)
        for number in range(forks):
            node.spawn_another(number, FILES)
        await heard(node)
        os.kill(parent, signal.SIGCONT)
        for number in range(forks):
            assert await node.exit_code(number) == 0
            assert (node.folder / f"out{number}").read_text() == "0 1 2 "

    drive(scenario)


def test_signals_reach_the_group_of_a_forked_worker(drive: Drive) -> None:
    async def scenario(node: Node) -> None:
        node.spawn(0, "wait")
        assert os.getpgid(pid := await node.pid(0)) == pid
        assert os.getsid(pid) == pid
        node.spawner.signal(0, signal.SIGTERM)
        assert await node.exit_code(0) == -signal.SIGTERM

    drive(scenario)


def test_what_ps_shows(drive: Drive) -> None:
    async def scenario(node: Node) -> None:
        await node.news()
        assert title(node.parent) == "elastic-run: warm parent"
        node.spawn(0, "w")
        assert title(await node.pid(0)) == " ".join(node.argv("w")), "also where the local rank is in it"

    drive(scenario)


def test_a_signal_for_a_worker_that_is_being_born_is_kept(drive: Drive) -> None:
    async def scenario(node: Node) -> None:
        await node.news()
        node.spawn(0, "wait")
        node.spawner.signal(0, signal.SIGTERM)
        await node.pid(0)
        assert await node.exit_code(0) == -signal.SIGTERM

    drive(scenario)


@pytest.fixture
def gate(tmp_path: Path, module: Module) -> Iterator[Path]:
    """A FIFO; the import lasts until something is written to it."""
    path = tmp_path / "gate"
    os.mkfifo(path)
    module(f"open({str(path)!r}).read()")
    yield path


def test_a_spawn_during_the_import_waits_for_it(drive: Drive, gate: Path) -> None:
    async def scenario(node: Node) -> None:
        node.spawn(0)
        node.spawn(1, warm=None)
        assert await node.exit_code(1) == 3  # requests behind it do not wait
        assert not [event for event in node.events if getattr(event, "worker", None) == 0]
        assert node.imports() == [True]
        await asyncio.to_thread(gate.write_text, "go on")
        await node.ran(0)
        assert node.imports() == [True, False]

    drive(scenario, "trouble,colorsys")


def test_a_signal_for_a_worker_that_waits_starts_it_cold(drive: Drive, gate: Path) -> None:
    async def scenario(node: Node) -> None:
        node.spawn(0, "wait")
        node.spawner.signal(0, signal.SIGKILL)
        await node.pid(0)
        assert await node.exit_code(0) == -signal.SIGKILL

    drive(scenario, "trouble,colorsys")


def test_a_sweep_answers_for_those_that_wait_and_spares_the_parent(drive: Drive, gate: Path) -> None:
    async def scenario(node: Node) -> None:
        node.spawn(0)
        node.spawner.sweep()
        failed = await node.wait(lambda event: isinstance(event, SpawnFailed))
        assert failed == SpawnFailed(0, 0, "it was stopped before it had started")
        await node.wait(lambda event: event == Swept(0))
        await asyncio.to_thread(gate.write_text, "go on")
        assert await node.run(1) == node.told(1)

    drive(scenario, "trouble,colorsys")


def test_an_import_that_takes_too_long(drive: Drive, gate: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(warm_parents, "IMPORT_TIMEOUT", 0.0)

    async def scenario(node: Node) -> None:
        assert not (news := await node.news()).is_warm
        assert "after 0 s the warm parent still imports" in news.text
        assert await node.run(0) == node.told(0, forked=False)
        assert node.imports() == [True, False], "nobody waits any more"
        await asyncio.to_thread(gate.write_text, "go on")
        assert (await node.news()).is_warm
        assert await node.run(1) == node.told(1)

    drive(scenario, "trouble,colorsys")


def test_a_sweep_spares_the_parent_and_kills_its_workers(drive: Drive) -> None:
    async def scenario(node: Node) -> None:
        await node.news()
        parent = node.parent
        node.spawn(0, "wait")
        await node.pid(0)
        node.spawner.sweep()
        assert await node.exit_code(0) == -signal.SIGKILL
        assert await node.wait(lambda event: isinstance(event, Swept)) == Swept(1)
        assert node.parent == parent
        assert await node.run(1) == node.told(1)

    drive(scenario)


def test_a_sweep_during_births_leaves_nobody(drive: Drive) -> None:
    async def scenario(node: Node) -> None:
        await node.news()
        for number in range(8):
            node.spawn(number, "wait")
        node.spawner.sweep()
        await node.wait(lambda event: isinstance(event, Swept))
        ended = {event.worker for event in node.events if isinstance(event, Exited | SpawnFailed)}
        assert ended == set(range(8))
        assert len(node.children()) == 1
        assert await node.run(8) == node.told(8)

    drive(scenario)


def test_a_parent_that_is_killed_is_replaced_and_workers_go_on(drive: Drive) -> None:
    async def scenario(node: Node) -> None:
        await node.news()
        parent = node.parent
        node.spawn(0, "wait")
        worker = await node.pid(0)
        os.kill(parent, signal.SIGKILL)
        assert (await node.news()).is_warm
        assert worker in node.children()
        assert await node.run(1) == node.told(1)
        node.spawner.signal(0, signal.SIGTERM)
        assert await node.exit_code(0) == -signal.SIGTERM

    drive(scenario)


def test_a_parent_that_does_not_answer_is_replaced(drive: Drive, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(warm_parents, "FORK_TIMEOUT", 5.0)

    async def scenario(node: Node) -> None:
        await node.news()
        os.kill(node.parent, signal.SIGSTOP)
        assert await node.run(0) == node.told(0, forked=False)
        assert not (await node.news()).is_warm
        assert (await node.news()).is_warm
        assert await node.run(1) == node.told(1)

    drive(scenario)


def test_a_parent_that_is_killed_during_births_is_replaced(drive: Drive) -> None:
    forks = warm_parents.MAX_FAILED_FORKS + 1

    async def scenario(node: Node) -> None:
        assert (await node.news()).is_warm
        os.kill(parent := node.parent, signal.SIGSTOP)
        for number in range(forks):
            node.spawn(number)
        await heard(node)
        os.kill(parent, signal.SIGKILL)
        for number in range(forks):
            assert await node.exit_code(number) == 3
        await node.wait(lambda event: isinstance(event, WarmNews) and event.is_warm)
        assert await node.run(forks) == node.told(forks)

    drive(scenario)


def test_a_parent_that_is_killed_while_it_imports_is_replaced_once(drive: Drive, gate: Path) -> None:
    async def killed(node: Node) -> int:
        """The pid of a parent that was killed once it had begun to import."""
        writer = await asyncio.to_thread(os.open, gate, os.O_WRONLY)
        os.kill(pid := node.parent, signal.SIGKILL)
        await asyncio.to_thread(wait_end, pid)
        os.close(writer)
        return pid

    async def scenario(node: Node) -> None:
        node.spawn(0)
        await killed(node)
        await asyncio.to_thread(gate.write_text, "go on")
        assert (await node.news()).is_warm
        await node.ran(0)
        os.kill(node.parent, signal.SIGKILL)
        assert await killed(node) != await killed(node)
        assert (await node.news()).text.endswith("the warm parent ended while it imported (exit code -9)")
        assert await node.run(1) == node.told(1, forked=False)

    drive(scenario, "trouble,colorsys")


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("raise RuntimeError('no driver')", r"importing trouble failed (RuntimeError: no driver)"),
        ("import sys; sys.exit(0)", "importing trouble failed (SystemExit: 0)"),
        ("import os; os._exit(5)", "the warm parent ended while it imported (exit code 5)"),
        ("import os; os.kill(os.getpid(), 9)", "the warm parent ended while it imported (exit code -9)"),
        (
            """
            import threading
            threading.Thread(target=threading.Event().wait, name="t", daemon=True).start()
            """,
            "the imports started threads (t)",
        ),
        ("import subprocess; subprocess.Popen(['sleep', '9'])", "the imports started processes"),
        (
            """
            import sys, types
            cuda = types.SimpleNamespace(is_initialized=lambda: True)
            sys.modules["torch"] = types.SimpleNamespace(cuda=cuda)
            """,
            "the imports initialised CUDA",
        ),
    ],
)
def test_what_cannot_be_forked_starts_cold(drive: Drive, module: Module, code: str, reason: str) -> None:
    module(code)

    async def scenario(node: Node) -> None:
        node.spawn(0)
        assert await node.news() == WarmNews(False, f"workers start cold: {reason}", over="key")
        await node.ran(0, forked=False)
        assert await node.run(1) == node.told(1, forked=False)
        assert not [event for event in node.events if isinstance(event, WarmNews)]
        assert node.imports() == [True, False]

    drive(scenario, "trouble,colorsys")


UNSEEN_THREAD = """
    import _thread, sys, types
    _thread.start_new_thread(_thread.allocate_lock, ())
    locked = _thread.allocate_lock()
    locked.acquire()
    _thread.start_new_thread(locked.acquire, ())
    sys.modules[{name!r}] = types.ModuleType({name!r})
    """


def test_threads_that_python_does_not_know_of(drive: Drive, module: Module) -> None:
    """Tensorflow starts such threads at its first operation; of other libraries nothing more is asked."""
    module(UNSEEN_THREAD.format(name="tensorflow"))

    async def scenario(node: Node) -> None:
        reason = "workers start cold: the imports started threads in native code"
        assert await node.news() == WarmNews(False, reason, over="key")
        assert await node.run(0) == node.told(0, forked=False)

    drive(scenario, "trouble,colorsys")


NAMED_THREAD = """
    import _thread, sys, types
    named, locked = _thread.allocate_lock(), _thread.allocate_lock()
    named.acquire()
    locked.acquire()
    def wait():
        with open(f"/proc/self/task/{_thread.get_native_id()}/comm", "w") as file:
            file.write("jemalloc_bg_thd")
        named.release()
        locked.acquire()
    _thread.start_new_thread(wait, ())
    named.acquire()
    sys.modules["tensorflow"] = types.ModuleType("tensorflow")
    """


def test_a_thread_that_no_fork_misses(drive: Drive, module: Module) -> None:
    """Tensorflow imports pandas if that is there, which brings one of jemalloc's."""
    module(NAMED_THREAD)

    async def scenario(node: Node) -> None:
        assert (await node.news()).is_warm
        assert await node.run(0) == node.told(0, forked=True)

    drive(scenario, "trouble,colorsys")


def test_threads_of_other_libraries(drive: Drive, module: Module) -> None:
    module(UNSEEN_THREAD.format(name="another"))

    async def scenario(node: Node) -> None:
        assert (await node.news()).is_warm

    drive(scenario, "trouble,colorsys")


BAD_ONCE_FORKED = """
    import os, sys, types
    pid = os.getpid()
    cuda = types.SimpleNamespace(_is_in_bad_fork=lambda: os.getpid() != pid)
    sys.modules["torch"] = types.SimpleNamespace(cuda=cuda)
    """


FORKS_ONE_IN_A_GO = """
    import os
    pid, fork, left = os.getpid(), os.fork, ["one"]
    def fork_one():
        if os.getpid() == pid or left and left.pop():
            return fork()
        raise BlockingIOError("the host refuses another process")
    os.fork = fork_one
    """


def test_those_who_are_refused_a_process_start_cold_beside_others(drive: Drive, module: Module) -> None:
    module(FORKS_ONE_IN_A_GO)
    forks = warm_parents.MAX_FAILED_FORKS + 1

    async def scenario(node: Node) -> None:
        await node.news()
        os.kill(parent := node.parent, signal.SIGSTOP)
        for number in range(forks):
            node.spawn(number)
        await heard(node)
        os.kill(parent, signal.SIGCONT)
        for number in range(forks):
            await node.ran(number, forked=number == 0)
        assert await node.run(forks) == node.told(forks)
        assert node.parent == parent

    drive(scenario, "trouble,colorsys")


HANGS_ONCE_FORKED = """
    import os, signal
    os.register_at_fork(after_in_child=signal.pause)
    """


def test_forks_that_hang(drive: Drive, module: Module, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(warm_parents, "FORK_TIMEOUT", 3.0)
    module(HANGS_ONCE_FORKED)

    async def scenario(node: Node) -> None:
        assert (await node.news()).is_warm
        for number in range(3):
            node.spawn(number)
        for number in range(3):
            await node.ran(number, forked=False)
        hang = WarmNews(False, "workers start cold: forks of the warm parent hang", over="key")
        await node.wait(lambda event: event == hang)
        assert await node.run(3) == node.told(3, forked=False)

    drive(scenario, "trouble,colorsys")


def test_cuda_that_only_a_fork_can_find(drive: Drive, module: Module) -> None:
    module(BAD_ONCE_FORKED)

    async def scenario(node: Node) -> None:
        assert (await node.news()).is_warm
        for number in range(4):
            node.spawn(number)
        for number in range(4):
            await node.ran(number, forked=False)
        assert await node.news() == WarmNews(
            False, "workers start cold: the imports initialised CUDA", over="key"
        )
        assert not [event for event in node.events if isinstance(event, WarmNews)]

    drive(scenario, "trouble,colorsys")


def test_what_the_imports_print_and_change_is_each_workers(drive: Drive, module: Module) -> None:
    module("import os; print('imported'); os.environ['HOME'] = '/new'")

    async def scenario(node: Node) -> None:
        node.script.write_text(node.script.read_text().replace('get("RANK")', 'get("HOME")'))
        for number in (0, 1):
            assert await node.run(number) == f"imported\n{node.spawner.pid} True /new -\n"

    drive(scenario, "trouble,colorsys")


def test_births_that_fail_again_and_again_end_the_parent(drive: Drive, module: Module) -> None:
    module("import os; os.register_at_fork(after_in_child=lambda: os._exit(1))")

    async def scenario(node: Node) -> None:
        await node.news()
        for number in range(4):
            assert await node.run(number) == node.told(number, forked=False)
        told = [(await node.news()).text.partition(":")[0] for _ in range(3)]
        assert told == ["one worker starts cold"] * 2 + ["workers start cold"]

    drive(scenario, "trouble,colorsys")


ANOTHER = """
    import os, sys
    with open("/proc/self/cmdline") as title:
        shown = title.read().split(chr(0))[0]
    print(os.getppid(), "colorsys" in sys.modules, os.environ["RANK"], __name__, shown)
    print(*sys.argv[1:], len(os.sched_getaffinity(0)), sys.modules.get("sitecustomize"))
    """


def test_another_program_is_forked_in_place_of_the_script(drive: Drive, module: Module) -> None:
    module("print('imported')")

    async def scenario(node: Node) -> None:
        for number in (0, 1):
            node.spawn_another(number, ANOTHER)
            assert await node.exit_code(number) == 0
            first, second = (node.folder / f"out{number}").read_text().splitlines()
            assert first == f"{node.spawner.pid} True {number} __main__ {sys.executable}"
            assert second.startswith(f"an argument {len(os.sched_getaffinity(0))} ")
        assert await node.run(2) == f"imported\n{node.told(2)}"

    drive(scenario, "trouble,colorsys")


def test_once_a_forked_worker_that_is_alone_has_ended_its_group_has(drive: Drive) -> None:
    """However soon it ends: perhaps before the spawner has read that it was born."""
    code = """
    import os, signal
    helper = os.fork()
    if helper == 0:
        while True:
            signal.pause()
    print(helper, flush=True)
    os._exit(3)
    """

    async def scenario(node: Node) -> None:
        assert (await node.news()).is_warm
        for worker in range(10):
            node.spawn_another(worker, code, alone=True)
            assert await node.exit_code(worker) == 3
            wait_end(int((node.folder / f"out{worker}").read_text()), 0.0)

    drive(scenario)


def test_another_program_begins_behind_the_users_sitecustomize(drive: Drive, module: Module) -> None:
    module("import os, sys; sys.path.insert(0, os.path.join(os.path.dirname(__file__), 'another'))")

    async def scenario(node: Node) -> None:
        node.spawn_another(0, "print('program'); raise ValueError('oh no')")
        (node.folder / "another" / "sitecustomize.py").write_text("print('customized')")
        assert await node.exit_code(0) == 1
        customized, program, *_, error = (node.folder / "out0").read_text().splitlines()
        assert (customized, program, error) == ("customized", "program", "ValueError: oh no")

    drive(scenario, "trouble,colorsys")


def test_who_does_not_wait_for_an_import_starts_cold(drive: Drive, gate: Path) -> None:
    async def scenario(node: Node) -> None:
        node.spawn_another(0, ANOTHER, waits=False)
        assert await node.exit_code(0) == 0
        assert (node.folder / "out0").read_text().startswith(f"{node.spawner.pid} False 0 __main__")
        node.spawn_another(1, ANOTHER)
        await asyncio.to_thread(gate.write_text, "go on")
        assert await node.exit_code(1) == 0
        node.spawn_another(2, ANOTHER, waits=False)
        assert await node.exit_code(2) == 0
        for number in (1, 2):
            told = (node.folder / f"out{number}").read_text()
            assert told.startswith(f"{node.spawner.pid} True {number} __main__")

    drive(scenario, "trouble,colorsys")


LATER = "colorsys;trouble"
NO_MORE = "the warm parent's replacement failed, the parent stays as it is: "


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A parent is idle as soon as a worker is born."""
    monkeypatch.setattr(warm_parents, "IDLE", 0.0)


async def heard(node: Node) -> None:
    """Return once the spawner has done what came before."""
    node.spawn(99, warm=None)
    assert await node.exit_code(99) == 3


async def importing(node: Node, gate: Path, worker: int = 0) -> tuple[int, int, int]:
    """A parent, its replacement once a worker was forked, and what has to be closed to end its import."""
    parent = node.parent
    assert await node.run(worker) == node.told(worker)
    writer = await asyncio.to_thread(os.open, gate, os.O_WRONLY)
    await heard(node)
    (replacement,) = set(node.children()) - {parent}
    return parent, replacement, writer


def is_of_more(event: SpawnerEvent) -> bool:
    return isinstance(event, WarmNews) and "imported more" in event.text


def test_a_replacement_imports_more_once_a_parent_is_idle(drive: Drive, module: Module) -> None:
    module("import os; print('imported'); os.environ['RANK'] = '/new'")

    async def scenario(node: Node) -> None:
        assert "forked from" in (await node.news()).text
        parent = node.parent
        assert await node.run(0) == node.told(0)
        assert "imported more" in (await node.news()).text
        await asyncio.to_thread(wait_end, parent)
        await heard(node)
        replacement = node.parent
        assert title(replacement) == "elastic-run: warm parent"
        assert os.getsid(replacement) == replacement
        for number in (1, 2):
            assert await node.run(number) == "imported\n" + node.told(number)
        assert node.parent == replacement
        assert not [event for event in node.events if isinstance(event, WarmNews)]

    drive(scenario, LATER)


def test_a_replacement_waits_for_requests_whatever_the_imports_set(
    drive: Drive, module: Module, at_once: None
) -> None:
    module("import socket; socket.setdefaulttimeout(0.0)")

    async def scenario(node: Node) -> None:
        assert "forked from" in (await node.news()).text
        assert await node.run(0) == node.told(0)
        await node.wait(is_of_more)
        await heard(node)
        replacement = node.parent
        for number in (1, 2):
            assert await node.run(number) == node.told(number)
        assert node.parent == replacement

    drive(scenario, "trouble,colorsys;json")


def test_another_program_brings_no_replacement(drive: Drive, at_once: None) -> None:
    async def scenario(node: Node) -> None:
        await node.news()
        parent = node.parent
        node.spawn_another(0, ANOTHER)
        assert await node.exit_code(0) == 0
        await heard(node)
        assert node.parent == parent
        assert await node.run(1) == node.told(1)
        assert is_of_more(await node.news())

    drive(scenario, "colorsys;json")


def test_a_spawn_while_a_replacement_imports_does_not_wait(drive: Drive, gate: Path, at_once: None) -> None:
    async def scenario(node: Node) -> None:
        await node.news()
        _, _, writer = await importing(node, gate)
        assert await node.run(1) == node.told(1)
        assert not [event for event in node.events if is_of_more(event)]
        os.close(writer)
        await node.wait(is_of_more)
        assert await node.run(2) == node.told(2)

    drive(scenario, LATER)


def test_a_sweep_spares_a_replacement(drive: Drive, gate: Path, at_once: None) -> None:
    async def scenario(node: Node) -> None:
        await node.news()
        _, replacement, writer = await importing(node, gate)
        node.spawn(1, "wait")
        await node.pid(1)
        node.spawner.sweep()
        assert await node.exit_code(1) == -signal.SIGKILL
        assert await node.wait(lambda event: isinstance(event, Swept)) == Swept(1)
        os.close(writer)
        await node.wait(is_of_more)
        assert await node.run(2) == node.told(2)
        assert node.children() == [replacement]

    drive(scenario, LATER)


def test_a_sweep_while_a_replacement_is_forked_leaves_nobody(drive: Drive, gate: Path, at_once: None) -> None:
    async def scenario(node: Node) -> None:
        await node.news()
        assert await node.run(0) == node.told(0)
        node.spawner.sweep()
        await node.wait(lambda event: isinstance(event, Swept))
        assert await node.run(1) == node.told(1)

    drive(scenario, LATER)


def test_a_replacement_takes_over_during_forks(drive: Drive, gate: Path, at_once: None) -> None:
    async def scenario(node: Node) -> None:
        await node.news()
        parent, replacement, writer = await importing(node, gate)
        for number in range(1, 9):
            node.spawn(number, "wait")
        os.close(writer)
        await node.wait(is_of_more)
        pids = {await node.pid(number) for number in range(1, 9)}
        await asyncio.to_thread(wait_end, parent)
        await heard(node)
        assert set(node.children()) == {replacement, *pids}
        node.spawner.sweep()
        await node.wait(lambda event: event == Swept(8))

    drive(scenario, LATER)


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("raise RuntimeError('no')", "importing trouble failed (RuntimeError: no)"),
        ("os._exit(5)", "it ended while it imported (exit code 5)"),
        (
            "import sys, types; pid = os.getpid(); "
            "cuda = types.SimpleNamespace(_is_in_bad_fork=lambda: os.getpid() != pid); "
            "sys.modules['torch'] = types.SimpleNamespace(cuda=cuda)",
            "the imports initialised CUDA",
        ),
    ],
)
def test_a_parent_whose_replacement_cannot_import_goes_on(
    drive: Drive, module: Module, at_once: None, code: str, reason: str
) -> None:
    module(f"import os; os.environ['HOME'] = '/new'; {code}")

    async def scenario(node: Node) -> None:
        await node.news()
        parent = node.parent
        assert await node.run(0) == node.told(0)
        assert await node.news() == WarmNews(False, NO_MORE + reason)
        assert await node.run(1) == node.told(1)
        assert node.parent == parent

    drive(scenario, LATER)


def test_a_replacement_that_is_killed_has_one_successor(drive: Drive, gate: Path, at_once: None) -> None:
    async def scenario(node: Node) -> None:
        await node.news()
        for worker in (0, 1):
            _, replacement, writer = await importing(node, gate, worker)
            os.kill(replacement, signal.SIGKILL)
            await asyncio.to_thread(wait_end, replacement)
            os.close(writer)
            await heard(node)
        assert await node.news() == WarmNews(False, f"{NO_MORE}it ended while it imported (exit code -9)")
        parent = node.parent
        assert await node.run(2) == node.told(2)
        assert node.parent == parent

    drive(scenario, LATER)


def test_a_replacement_takes_over_from_the_successor_of_its_parent(
    drive: Drive, gate: Path, at_once: None
) -> None:
    async def scenario(node: Node) -> None:
        await node.news()
        parent, replacement, writer = await importing(node, gate)
        os.kill(parent, signal.SIGKILL)
        assert "forked from" in (await node.news()).text
        assert await node.run(1) == node.told(1)
        os.close(writer)
        await node.wait(is_of_more)
        assert await node.run(2) == node.told(2)
        assert node.parent == replacement

    drive(scenario, LATER)


def test_a_parent_that_is_given_up_has_no_replacement(drive: Drive, gate: Path, at_once: None) -> None:
    early = gate.with_name("early.py")
    early.touch()

    async def scenario(node: Node) -> None:
        await node.news()
        parent, replacement, writer = await importing(node, gate)
        early.write_text("now it is another one")
        for number in range(1, 1 + warm_parents.MAX_FAILED_FORKS):
            assert await node.run(number) == node.told(number, forked=False)
        for pid in (parent, replacement):
            await asyncio.to_thread(wait_end, pid)
        os.close(writer)

    drive(scenario, "early,colorsys;trouble")


def test_what_was_edited_before_a_replacement_had_imported_more_is_noticed(
    drive: Drive, gate: Path, at_once: None
) -> None:
    early = gate.with_name("early.py")
    early.touch()

    async def scenario(node: Node) -> None:
        await node.news()
        _, _, writer = await importing(node, gate)
        early.write_text("now it is another one")
        os.close(writer)
        await node.wait(is_of_more)
        assert await node.run(1) == node.told(1, forked=False)

    drive(scenario, "early,colorsys;trouble")


def score(pid: int) -> int:
    """The larger, the sooner the kernel ends that process when memory is short."""
    return int(Path(f"/proc/{pid}/oom_score_adj").read_text())


def test_a_replacement_that_imports_is_the_first_to_go_if_memory_is_short(
    drive: Drive, gate: Path, at_once: None
) -> None:
    async def scenario(node: Node) -> None:
        await node.news()
        parent, replacement, writer = await importing(node, gate)
        before = score(parent)
        assert score(replacement) == 1000
        os.close(writer)
        await node.wait(is_of_more)
        node.spawn(1, "wait")
        assert score(await node.pid(1)) == score(replacement) == before

    drive(scenario, LATER)


class Silent:
    """A spawner that reports to nobody."""

    def __init__(self) -> None:
        self.poller = Poller()

    def start_cold(self, request: Message, fds: list[int]) -> None:
        raise AssertionError("nobody asked for a worker")

    def forked(self, worker: int, pid: int) -> None:
        raise AssertionError("nobody asked for a worker")

    def signal(self, worker: int, signum: int) -> None:
        raise AssertionError("nobody is to be signalled")

    def report(self, **event: object) -> None:
        return

    def report_failure(self, worker: int, code: int, text: str) -> None:
        raise AssertionError("nobody asked for a worker")


@contextlib.contextmanager
def newborn() -> Iterator[tuple[WarmParents, socket.socket]]:
    """Parents of which one has just forked a replacement, and the replacement's end of its control socket."""
    host = Silent()
    parents = WarmParents(host, lambda option, value: None)
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        parents._replacements.expect(Parent({"key": "key", "terms": LATER}, stdin=0, control=ours))
        _, fds, _, _ = socket.recv_fds(theirs, 1, 1)
        with socket.socket(fileno=fds[0]) as replacement:
            yield parents, replacement
        for each in parents._replacements:
            each.hang_up(host.poller)


def test_a_sweep_spares_a_replacement_whose_pid_is_still_to_be_read() -> None:
    with newborn() as (parents, replacement):
        replacement.send(b'{"pid": 12345}')
        parents.stop(for_good=False)
        assert parents.pids == {12345}


def test_the_last_sweep_spares_no_replacement_that_tells_its_pid_meanwhile() -> None:
    with newborn() as (parents, replacement):
        parents.stop(for_good=True)
        replacement.send(b'{"pid": 12345}')
        parents._replacements.listen()
        assert parents.pids == set()


class Ledger(Silent):
    """A spawner that keeps what becomes of requests."""

    def __init__(self) -> None:
        super().__init__()
        self.parents = WarmParents(self, lambda option, value: None)
        self.became: dict[int, str] = {}
        self.loses_the_agent = False

    def start_cold(self, request: Message, fds: list[int]) -> None:
        self.became[request["worker"]] = "cold"

    def forked(self, worker: int, pid: int) -> None:
        self.became[worker] = "forked"
        if self.loses_the_agent:
            self.parents.stop(for_good=True)

    def report_failure(self, worker: int, code: int, text: str) -> None:
        self.became[worker] = "stopped"


class Womb:
    """A parent that forks nobody: the test says what the new processes would."""

    def __init__(self, theirs: socket.socket, ours: socket.socket) -> None:
        self.host = Ledger()
        self.parent = Parent({"key": "key", "terms": "json"}, stdin=0, state=State.READY, control=ours)
        self.host.parents._parents["key"] = self.parent
        self._socket = theirs
        self._answers: dict[int, int] = {}

    def ask(self, worker: int) -> None:
        rest: Message = {"argv": [], "env": {}, "cpus": None, "program": None, "waits": True}
        assert self.host.parents.take({"worker": worker, "warm": "key", **rest}, [])
        _, (request, self._answers[worker]), _, _ = socket.recv_fds(self._socket, 1, 2)
        os.close(request)

    def answer(self, worker: int, words: bytes = b"", is_heard: bool = True) -> None:
        os.write(self._answers[worker], words)
        os.close(self._answers.pop(worker))
        if is_heard:
            self.host.poller.wait(0.0)

    def close(self) -> None:
        for worker in [*self._answers]:
            self.answer(worker)
        self.parent.hang_up(self.host.poller)


@pytest.fixture
def womb() -> Iterator[Womb]:
    theirs, ours = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs, contextlib.closing(Womb(theirs, ours)) as womb:
        yield womb


BORN = b'{"pid": 12345}'


def test_an_agent_that_is_lost_while_answers_are_read(womb: Womb) -> None:
    womb.host.loses_the_agent = True
    for worker in range(3):
        womb.ask(worker)
    for worker in range(2):
        womb.answer(worker, BORN, is_heard=False)
    womb.host.parents.buried(12345, 0)
    assert womb.host.became == {0: "forked", 1: "forked", 2: "stopped"}


def test_a_sweep_first_hears_who_is_there(womb: Womb) -> None:
    for worker in range(4):
        womb.ask(worker)
    womb.answer(1, BORN, is_heard=False)
    womb.answer(2, is_heard=False)
    womb.host.parents.stop(for_good=False)
    assert womb.host.became == {0: "stopped", 1: "forked", 2: "stopped", 3: "stopped"}


def test_a_go_in_which_somebody_was_born_has_not_failed(womb: Womb) -> None:
    for worker in range(warm_parents.MAX_FAILED_FORKS - 1):
        womb.ask(worker)
        womb.answer(worker)
    womb.ask(8)
    womb.ask(9)
    womb.answer(8, BORN)
    womb.answer(9)
    assert womb.parent.state is State.READY


def test_an_old_birth_that_fails_late_hides_no_failure(womb: Womb) -> None:
    womb.ask(0)
    for worker in range(1, warm_parents.MAX_FAILED_FORKS):
        womb.ask(worker)
        womb.answer(worker)
    womb.answer(0)
    womb.ask(9)
    womb.answer(9)
    assert womb.parent.state is State.GONE
