"""The spawner with real processes: starts, signals, sweeps, and what survives whose death (nothing)."""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
import signal
import subprocess
import sys
import textwrap
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from elasticrun.agent.spawner import process as spawner_process
from elasticrun.agent.spawner import process_tree
from elasticrun.agent.spawner.client import (
    Command,
    Exited,
    Spawner,
    SpawnerDied,
    SpawnerEvent,
    SpawnerHandle,
    SpawnFailed,
    Started,
    Swept,
    fork_spawner,
)
from elasticrun.agent.spawner.wire import Frames, encode
from tests.support.processes import DEADLINE, is_alive, wait_end
from tests.support.spawner import clean_spawner

#: A worker whose grandchild hides: double fork, own session, no environment, deaf to SIGTERM.
HIDING = """
import os, signal, sys
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        program = "import os, signal; os.write(1, b'hidden\\\\n'); signal.pause()"
        os.execve(sys.executable, ["innocent", "-c", program], {})
    os._exit(0)
os.wait()
signal.pause()
"""


class Pipe:
    """Counts lives: its end of file means that no process holds the write end any more."""

    def __init__(self) -> None:
        self.read_end, self.write_end = os.pipe()

    def close_write_end(self) -> None:
        os.close(self.write_end)
        self.write_end = -1

    def read_line(self) -> bytes:
        line = b""
        while not line.endswith(b"\n"):
            line += self._read(1)
        return line

    def read_all(self) -> bytes:
        """Everything until the last holder of the write end is gone."""
        if self.write_end >= 0:
            self.close_write_end()
        chunks = iter(lambda: self._read(65536), b"")
        return b"".join(chunks)

    def at_end(self) -> bool:
        """Whether nobody is left at this very moment."""
        self.close_write_end()
        os.set_blocking(self.read_end, False)
        try:
            return os.read(self.read_end, 1) == b""
        except BlockingIOError:
            return False

    def _read(self, size: int) -> bytes:
        readable, _, _ = select.select([self.read_end], [], [], DEADLINE)
        assert readable, "somebody still holds the pipe"
        return os.read(self.read_end, size)

    def close(self) -> None:
        os.close(self.read_end)
        if self.write_end >= 0:
            os.close(self.write_end)


class Node:
    """A spawner and the record of its events."""

    def __init__(self, handle: SpawnerHandle) -> None:
        self.events: list[SpawnerEvent] = []
        self._news = asyncio.Event()
        self.spawner = Spawner(handle, self._note)

    def _note(self, event: SpawnerEvent) -> None:
        self.events.append(event)
        self._news.set()

    async def wait(self, wanted: Callable[[SpawnerEvent], bool]) -> SpawnerEvent:
        """The first event of the record that is ``wanted``, now or later."""
        while True:
            for event in self.events:
                if wanted(event):
                    return event
            self._news.clear()
            await asyncio.wait_for(self._news.wait(), DEADLINE)

    async def kind(self, kind: type[SpawnerEvent]) -> SpawnerEvent:
        return await self.wait(lambda event: isinstance(event, kind))

    async def pid(self, worker: int) -> int:
        event = await self.wait(lambda event: isinstance(event, Started) and event.worker == worker)
        assert isinstance(event, Started)
        return event.pid

    async def exit_code(self, worker: int) -> int:
        event = await self.wait(lambda event: isinstance(event, Exited) and event.worker == worker)
        assert isinstance(event, Exited)
        return event.exit_code

    async def failure(self, worker: int) -> SpawnFailed:
        event = await self.wait(lambda event: getattr(event, "worker", None) == worker)
        assert isinstance(event, SpawnFailed)
        return event


def drive(
    scenario: Callable[[Node], Awaitable[None]], start: Callable[[], SpawnerHandle] = clean_spawner
) -> None:
    """Start a spawner, run the scenario on a loop, close."""
    handle = start()

    async def main() -> None:
        node = Node(handle)
        try:
            await scenario(node)
        finally:
            await asyncio.wait_for(node.spawner.close(), DEADLINE)

    asyncio.run(main())


@pytest.fixture
def pipe() -> Iterator[Pipe]:
    pipe = Pipe()
    yield pipe
    pipe.close()


@pytest.fixture
def null() -> Iterator[int]:
    fd = os.open(os.devnull, os.O_RDWR)
    yield fd
    os.close(fd)


@pytest.fixture
def command(null: int, pipe: Pipe) -> Callable[..., Command]:
    """Builds commands that write stdout and stderr into the pipe."""

    def build(
        *argv: str,
        env: dict[str, str] | None = None,
        cwd: str | None = None,
        cpus: frozenset[int] | None = None,
        stdin: int = null,
    ) -> Command:
        env = {"PATH": os.defpath} if env is None else env
        return Command(argv, env, cwd, stdin, pipe.write_end, pipe.write_end, cpus)

    return build


def python(program: str) -> tuple[str, str, str]:
    return sys.executable, "-c", textwrap.dedent(program)


# -- starting and ending -----------------------------------------------------------------------


@pytest.mark.parametrize("code", [0, 1, 7, 255])
def test_exit_code_is_reported(code: int, command: Callable[..., Command]) -> None:
    async def scenario(node: Node) -> None:
        node.spawner.spawn(5, command("sh", "-c", f"exit {code}"))
        assert await node.exit_code(5) == code
        assert [type(event) for event in node.events] == [Started, Exited]

    drive(scenario)


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGKILL, signal.SIGSEGV])
def test_end_by_signal_is_negative(signum: int, command: Callable[..., Command]) -> None:
    async def scenario(node: Node) -> None:
        node.spawner.spawn(0, command("sleep", "1000"))
        await node.kind(Started)
        node.spawner.signal(0, signum)
        assert await node.exit_code(0) == -signum

    drive(scenario)


def test_an_end_tells_the_signals_that_came_before_it(command: Callable[..., Command]) -> None:
    async def scenario(node: Node) -> None:
        node.spawner.spawn(0, command("sh", "-c", "kill -KILL $$"))
        node.spawner.spawn(1, command("sleep", "1000"))
        os.kill(await node.pid(1), signal.SIGCONT)  # not by us
        node.spawner.signal(1, signal.SIGTERM)
        assert await node.exit_code(0) == -signal.SIGKILL
        assert await node.exit_code(1) == -signal.SIGTERM
        told = {event.worker: tuple(event.told) for event in node.events if isinstance(event, Exited)}
        assert told == {0: (), 1: (signal.SIGTERM,)}

    drive(scenario)


def test_a_signal_right_behind_the_spawn_is_not_lost(command: Callable[..., Command]) -> None:
    async def scenario(node: Node) -> None:
        for worker in range(20):
            node.spawner.spawn(worker, command("sleep", "1000"))
            node.spawner.signal(worker, signal.SIGTERM)
        for worker in range(20):
            assert await node.exit_code(worker) == -signal.SIGTERM

    drive(scenario)


def test_signal_reaches_the_whole_group(command: Callable[..., Command], pipe: Pipe) -> None:
    async def scenario(node: Node) -> None:
        node.spawner.spawn(0, command("sh", "-c", "sleep 1000 & echo ready; wait"))
        assert pipe.read_line() == b"ready\n"
        node.spawner.signal(0, signal.SIGTERM)
        assert await node.exit_code(0) == -signal.SIGTERM
        assert pipe.read_all() == b""  # before the spawner is closed: the sleep is gone as well

    drive(scenario)


def test_signal_to_an_ended_or_unknown_worker_does_nothing(command: Callable[..., Command]) -> None:
    async def scenario(node: Node) -> None:
        node.spawner.spawn(0, command("true"))
        await node.exit_code(0)
        node.spawner.signal(0, signal.SIGKILL)
        node.spawner.signal(99, signal.SIGKILL)
        node.spawner.spawn(1, command("true"))
        assert await node.exit_code(1) == 0

    drive(scenario)


def test_started_tells_the_pid_of_a_session_leader(command: Callable[..., Command], pipe: Pipe) -> None:
    async def scenario(node: Node) -> None:
        node.spawner.spawn(0, command(*python("import os; print(os.getpid(), os.getsid(0), os.getpgid(0))")))
        await node.exit_code(0)
        started = node.events[0]
        assert isinstance(started, Started)
        assert [int(word) for word in pipe.read_all().split()] == [started.pid] * 3

    drive(scenario)


def test_twenty_workers_at_once(command: Callable[..., Command], pipe: Pipe) -> None:
    async def scenario(node: Node) -> None:
        for worker in range(20):
            node.spawner.spawn(worker, command("sh", "-c", f"echo worker{worker}; exit {worker}"))
        assert [await node.exit_code(worker) for worker in range(20)] == list(range(20))
        for worker in range(20):
            mine = [type(event) for event in node.events if getattr(event, "worker", None) == worker]
            assert mine == [Started, Exited]
        assert sorted(pipe.read_all().split()) == sorted(b"worker%d" % worker for worker in range(20))

    drive(scenario)


def test_requests_larger_than_the_socket_wait_their_turn(null: int, pipe: Pipe) -> None:
    """The caller closes its descriptors at once although most requests are not sent yet."""
    env = {"PATH": os.defpath, **{f"BIG{n}": str(n) * 100_000 for n in range(8)}}

    async def scenario(node: Node) -> None:
        for worker in range(12):
            out = os.dup(pipe.write_end)
            node.spawner.spawn(worker, Command(("sh", "-c", "echo ${#BIG7}"), env, None, null, out, out))
            os.close(out)
        for worker in range(12):
            assert await node.exit_code(worker) == 0
        assert pipe.read_all().split() == [b"100000"] * 12

    drive(scenario)


# -- workers that are started again alone ------------------------------------------------------

#: Says the pid of a helper in its group, deaf to all that can be ignored, and ends once told to.
HELPED = """
import os, signal, sys
reader, writer = os.pipe()
helper = os.fork()
if helper == 0:
    {first}
    for signum in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(signum, signal.SIG_IGN)
    os.write(writer, b"x")
    while True:
        signal.pause()
os.read(reader, 1)
print(helper, flush=True)
{then}
"""


@pytest.mark.parametrize("then", ["signal.pause()", "sys.exit(42)", "os.kill(os.getpid(), signal.SIGKILL)"])
def test_once_a_lone_worker_has_ended_its_group_has(
    command: Callable[..., Command], pipe: Pipe, then: str
) -> None:
    async def scenario(node: Node) -> None:
        program = python(HELPED.format(first="", then=then))
        for worker in range(10):  # a helper that is not waited for would be missed now and then
            node.spawner.spawn(worker, replace(command(*program), alone=True))
            helper = int(pipe.read_line())
            if then == "signal.pause()":
                os.kill(await node.pid(worker), signal.SIGKILL)  # the leader alone
            await node.exit_code(worker)
            assert not is_alive(helper)

    drive(scenario)


def test_what_a_worker_left_behind_lives_until_the_sweep(command: Callable[..., Command], pipe: Pipe) -> None:
    """The group of a worker that is not alone, and a session below one that is."""

    async def scenario(node: Node) -> None:
        other = command(*python(HELPED.format(first="", then="sys.exit(0)")))
        lone = command(*python(HELPED.format(first="os.setsid()", then="sys.exit(0)")))
        node.spawner.spawn(0, other)
        node.spawner.spawn(1, replace(lone, alone=True))
        assert (await node.exit_code(0), await node.exit_code(1)) == (0, 0)
        helpers = [int(pipe.read_line()) for _ in range(2)]
        assert all(map(is_alive, helpers))
        node.spawner.sweep()
        await node.kind(Swept)
        assert not any(map(is_alive, helpers))

    drive(scenario)


def test_the_end_of_a_helper_that_nobody_waits_for_is_seen(
    command: Callable[..., Command], pipe: Pipe
) -> None:
    """Its parent lives in a session of its own, stopped: a zombie stays in the group."""
    program = """
    import os, signal
    reader, writer = os.pipe()
    parent = os.fork()
    if parent == 0:
        child = os.fork()
        if child == 0:
            signal.pause()
        os.setsid()
        os.write(writer, b"%d" % child)
        os.kill(os.getpid(), signal.SIGSTOP)
    print(os.read(reader, 9).decode(), flush=True)
    """

    async def scenario(node: Node) -> None:
        node.spawner.spawn(0, replace(command(*python(program)), alone=True))
        child = int(pipe.read_line())
        assert await node.exit_code(0) == 0
        os.kill(child, 0)  # it is there, but
        assert not is_alive(child)

    drive(scenario)


def test_a_sweep_tells_the_end_of_a_group_that_was_still_ending(
    monkeypatch: pytest.MonkeyPatch, command: Callable[..., Command], pipe: Pipe
) -> None:
    # A pipe stands for a process that does not end, as one in a system call that hangs.
    monkeypatch.setattr(spawner_process, "kill_group", lambda leader: frozenset({os.pipe()[0]}))

    async def scenario(node: Node) -> None:
        node.spawner.spawn(0, replace(command("sh", "-c", "exit 3"), alone=True))
        wait_end(await node.pid(0))
        node.spawner.spawn(1, command("sh", "-c", "exit 4"))
        assert await node.exit_code(1) == 4
        node.spawner.sweep()
        await node.kind(Swept)
        assert await node.exit_code(0) == 3
        kinds = [type(event) for event in node.events if getattr(event, "worker", 0) == 0]
        assert kinds == [Started, Exited, Swept]

    drive(scenario, fork_spawner)


def test_a_lone_worker_that_cannot_be_started(command: Callable[..., Command]) -> None:
    async def scenario(node: Node) -> None:
        node.spawner.spawn(0, replace(command("/no/such/program"), alone=True))
        assert (await node.failure(0)).errno == 2

    drive(scenario)


# -- what cannot be started --------------------------------------------------------------------


def test_missing_program(command: Callable[..., Command]) -> None:
    async def scenario(node: Node) -> None:
        node.spawner.spawn(0, command("/no/such/program"))
        failure = await node.failure(0)
        assert failure.errno == 2
        assert failure.message == "cannot execute /no/such/program: No such file or directory"
        node.spawner.spawn(1, command("true"))
        assert await node.exit_code(1) == 0
        assert len(node.events) == 3  # the failed child's own exit is nobody's business

    drive(scenario)


def test_program_that_is_not_executable(command: Callable[..., Command], tmp_path: Path) -> None:
    script = tmp_path / "script"
    script.write_text("#!/bin/sh\n")

    async def scenario(node: Node) -> None:
        node.spawner.spawn(0, command(str(script)))
        assert (await node.failure(0)).errno == 13

    drive(scenario)


def test_missing_working_directory(command: Callable[..., Command]) -> None:
    async def scenario(node: Node) -> None:
        node.spawner.spawn(0, command("true", cwd="/no/such/dir"))
        failure = await node.failure(0)
        assert failure.errno == 2
        assert failure.message.startswith("cannot enter the directory /no/such/dir:")

    drive(scenario)


def test_cpus_that_do_not_exist(command: Callable[..., Command]) -> None:
    async def scenario(node: Node) -> None:
        node.spawner.spawn(0, command("true", cpus=frozenset({100_000})))
        assert "cannot run on the CPUs [100000]" in (await node.failure(0)).message

    drive(scenario)


def test_argument_with_a_nul_byte(command: Callable[..., Command]) -> None:
    async def scenario(node: Node) -> None:
        node.spawner.spawn(0, command("true", "a\0b"))
        assert "null byte" in (await node.failure(0)).message

    drive(scenario)


# -- what a worker finds -----------------------------------------------------------------------


def test_environment_and_arguments_need_not_be_text(command: Callable[..., Command], pipe: Pipe) -> None:
    program = "import os, sys; print(os.environb[b'ODD'], os.fsencode(sys.argv[1]), len(os.environb))"
    env = {"ODD": os.fsdecode(b"\xff\x80=\n"), "LC_ALL": "C.UTF-8"}

    async def scenario(node: Node) -> None:
        node.spawner.spawn(0, command(*python(program), os.fsdecode(b"\xfe"), env=env))
        await node.exit_code(0)
        assert pipe.read_all() == b"b'\\xff\\x80=\\n' b'\\xfe' 2\n"

    drive(scenario)


def test_working_directory_and_cpus(command: Callable[..., Command], pipe: Pipe, tmp_path: Path) -> None:
    cpu = min(os.sched_getaffinity(0))
    expected = tmp_path.resolve()
    program = "import os; print(os.getcwd(), os.sched_getaffinity(0))"

    async def scenario(node: Node) -> None:
        node.spawner.spawn(0, command(*python(program), cwd=str(tmp_path), cpus=frozenset({cpu})))
        await node.exit_code(0)
        assert pipe.read_all().decode() == f"{expected} {{{cpu}}}\n"

    drive(scenario)


def test_standard_streams_are_passed_and_nothing_else(null: int, tmp_path: Path) -> None:
    leak = os.open(os.devnull, os.O_RDWR)
    os.set_inheritable(leak, True)
    paths = [tmp_path / name for name in ("in", "out", "err")]
    paths[0].write_text("question")
    fds = [os.open(path, os.O_RDWR | os.O_CREAT) for path in paths]
    program = """
        import os, sys
        links = []
        for name in os.listdir("/proc/self/fd"):
            try:
                links.append((int(name), os.readlink("/proc/self/fd/" + name)))
            except FileNotFoundError:  # the listing itself
                pass
        print(sorted(links))
        print(sys.stdin.read(), file=sys.stderr)
    """

    async def scenario(node: Node) -> None:
        node.spawner.spawn(0, Command(python(program), {}, None, fds[0], fds[1], fds[2]))
        await node.exit_code(0)

    drive(scenario)
    for fd in (leak, *fds):
        os.close(fd)
    assert paths[1].read_text() == f"{[(number, str(path)) for number, path in enumerate(paths)]}\n"
    assert paths[2].read_text() == "question\n"


def test_signals_are_at_their_defaults(command: Callable[..., Command], pipe: Pipe) -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGWINCH})

    async def scenario(node: Node) -> None:
        node.spawner.spawn(0, command("cat", "/proc/self/status"))
        await node.exit_code(0)

    try:
        drive(scenario, fork_spawner)  # posix_spawn has glibc's own two signals ignored
    finally:
        signal.signal(signal.SIGHUP, before)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    status = dict(line.split(b":\t", 1) for line in pipe.read_all().splitlines())
    assert [status[name] for name in (b"SigBlk", b"SigIgn", b"SigCgt")] == [b"0" * 16] * 3


# -- what survives -----------------------------------------------------------------------------


def test_sweep_leaves_nobody(command: Callable[..., Command], pipe: Pipe) -> None:
    async def scenario(node: Node) -> None:
        for worker in range(2):
            node.spawner.spawn(worker, command(*python(HIDING), env={}))
        node.spawner.spawn(2, command("sh", "-c", "echo stopped; kill -STOP $$"))
        assert sorted(pipe.read_line() for _ in range(3)) == [b"hidden\n", b"hidden\n", b"stopped\n"]
        node.spawner.sweep()
        assert await node.kind(Swept) == Swept(5, 0)
        assert pipe.at_end()
        assert [await node.exit_code(worker) for worker in range(3)] == [-signal.SIGKILL] * 3

    drive(scenario)


def test_a_sweep_spares_what_it_is_told_to(command: Callable[..., Command]) -> None:
    async def scenario(node: Node) -> None:
        for worker in (0, -5):
            node.spawner.spawn(worker, command("sleep", "1000"))
        for worker in (0, -5):
            await node.pid(worker)
        node.spawner.sweep(spare=[-5])
        assert await node.kind(Swept) == Swept(1)
        assert await node.exit_code(0) == -signal.SIGKILL
        assert not [event for event in node.events if isinstance(event, Exited) and event.worker == -5]
        node.spawner.sweep()
        assert await node.exit_code(-5) == -signal.SIGKILL

    drive(scenario)


def test_sweep_of_nothing_and_requests_behind_a_sweep(command: Callable[..., Command]) -> None:
    async def scenario(node: Node) -> None:
        node.spawner.sweep()
        assert await node.kind(Swept) == Swept(0, 0)
        node.spawner.spawn(0, command("sleep", "1000"))
        node.spawner.sweep()
        node.spawner.spawn(1, command("true"))
        assert await node.exit_code(0) == -signal.SIGKILL
        assert await node.exit_code(1) == 0

    drive(scenario)


def test_orphan_of_an_ended_worker_is_swept(command: Callable[..., Command], pipe: Pipe) -> None:
    async def scenario(node: Node) -> None:
        node.spawner.spawn(0, command("sh", "-c", "sleep 1000 & exit 3"))
        assert await node.exit_code(0) == 3
        node.spawner.sweep()
        assert await node.kind(Swept) == Swept(1, 0)
        assert pipe.at_end()

    drive(scenario)


def test_close_sweeps_and_is_silent(command: Callable[..., Command], pipe: Pipe) -> None:
    async def scenario(node: Node) -> None:
        node.spawner.spawn(0, command(*python(HIDING), env={}))
        assert pipe.read_line() == b"hidden\n"
        await node.spawner.close()
        assert pipe.at_end()
        assert not any(isinstance(event, SpawnerDied) for event in node.events)
        with pytest.raises(ProcessLookupError):
            os.kill(node.spawner.pid, 0)
        node.spawner.spawn(1, command("true"))
        assert (await node.failure(1)).errno == 32
        node.spawner.sweep()

    drive(scenario)


def test_death_of_the_spawner_kills_the_workers(command: Callable[..., Command], pipe: Pipe) -> None:
    async def scenario(node: Node) -> None:
        for worker in range(3):
            node.spawner.spawn(worker, command("sh", "-c", "echo ready; exec sleep 1000"))
        assert [pipe.read_line() for _ in range(3)] == [b"ready\n"] * 3
        os.kill(node.spawner.pid, signal.SIGKILL)
        assert await node.kind(SpawnerDied) == SpawnerDied()
        assert pipe.read_all() == b""

    drive(scenario)


AGENT = """
import asyncio, os, subprocess, sys
from elasticrun.agent.spawner.client import Command, Spawner, fork_spawner

handle = fork_spawner()
if sys.argv[2] == "held":  # somebody else keeps the socket open: no end of file when this process dies
    null, fd = subprocess.DEVNULL, handle.control.fileno()
    subprocess.Popen(["sleep", "1000"], pass_fds=[fd], stdout=null, stderr=null)

async def main():
    spawner = Spawner(handle, lambda event: None)
    for worker in range(2):
        spawner.spawn(worker, Command([sys.executable, "-c", sys.argv[1]], {}, None, 0, 1, 2))
    await asyncio.Event().wait()

asyncio.run(main())
"""


@pytest.mark.parametrize("mode", ["plain", "held"])
@pytest.mark.parametrize("signum", [signal.SIGKILL, signal.SIGTERM])
def test_death_of_the_agent_leaves_nobody(mode: str, signum: int, pipe: Pipe) -> None:
    """Its output is a pipe that the agent, the spawner, the workers and the hidden ones all hold."""
    argv = [sys.executable, "-c", AGENT, HIDING, mode]
    agent = subprocess.Popen(
        argv, stdin=subprocess.DEVNULL, stdout=pipe.write_end, stderr=pipe.write_end, start_new_session=True
    )
    try:
        assert [pipe.read_line() for _ in range(2)] == [b"hidden\n"] * 2
        # The spawner is not in the agent's group: a kill of the group must not take it away.
        (os.killpg if mode == "plain" else os.kill)(agent.pid, signum)
        assert pipe.read_all() == b""
        assert agent.wait(DEADLINE) == -signum
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(agent.pid, signal.SIGKILL)  # the holder


STOPPED = """
import asyncio, os, signal, sys
from elasticrun.agent.spawner.client import Command, Spawner, WarmRecipe, fork_spawner, start_warm_parents

handle = fork_spawner()
print(handle.pid, flush=True)
start_warm_parents(handle, [WarmRecipe("key", ["sleep", "1000"], {"PATH": os.defpath}, None, "")], 0)

async def main():
    spawner = Spawner(handle, lambda event: None)
    spawner.spawn(0, Command(["true"], {}, None, 0, 1, 2, warm="key"))  # it waits for the warm parent
    spawner.spawn(-5, Command([sys.executable, "-c", sys.argv[1]], {}, None, 0, 1, 2))
    await asyncio.to_thread(sys.stdin.readline)
    os.kill(handle.pid, signal.SIGSTOP)
    if sys.argv[2] == "sweeps":
        spawner.sweep(spare=[-5])
    os.kill(os.getpid(), signal.SIGKILL)

asyncio.run(main())
"""


WITH_CHILD = """
import signal, subprocess
subprocess.Popen(["sleep", "1000"])
print("hidden", flush=True)
signal.pause()
"""


@pytest.mark.parametrize("mode", ["waits", "sweeps"])
@pytest.mark.parametrize("program", [HIDING, WITH_CHILD], ids=["hiding", "child"])
def test_death_of_the_agent_of_a_stopped_spawner_leaves_nobody(program: str, mode: str, pipe: Pipe) -> None:
    argv = [sys.executable, "-c", STOPPED, program, mode]
    agent = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=pipe.write_end, stderr=pipe.write_end)
    spawner = int(pipe.read_line())
    try:
        assert pipe.read_line() == b"hidden\n"
        agent.communicate(b"\n", DEADLINE)
        assert agent.returncode == -signal.SIGKILL
        assert pipe.read_all() == b""
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(spawner, signal.SIGCONT)


HEIR = """
import asyncio, sys
from elasticrun.agent.spawner.client import Command, Spawner, fork_spawner
from tests.support.processes import is_alive

handle = fork_spawner()

async def main():
    started = asyncio.Event()
    spawner = Spawner(handle, lambda event: started.set())
    spawner.inherit(sys.argv[1])
    spawner.inherit(sys.argv[3], whole=True)
    spawner.spawn(0, Command([sys.executable, "-c", "import signal; signal.pause()"], {}, None, 0, 1, 2))
    await started.wait()
    if sys.argv[2] == "close":
        await spawner.close()
    print("here", flush=True)
    sys.stdin.read()

asyncio.run(main())
"""


@pytest.mark.parametrize(
    ("mode", "name"), [("killed", "error.json"), ("killed", "a.log"), ("close", "error.json")]
)
def test_the_spawner_clears_what_an_agent_that_was_killed_leaves(
    mode: str, name: str, pipe: Pipe, tmp_path: Path
) -> None:
    """Not the logs, and nothing that is an agent's own business because it closed the spawner."""
    folder = tmp_path / "elasticrun_x"
    (folder / "job").mkdir(parents=True)
    (folder / "job" / name).write_text("x")
    copies = tmp_path / "copies"
    copies.mkdir()
    (copies / "a.log").write_text("x")
    agent = subprocess.Popen(
        [sys.executable, "-c", HEIR, str(folder), mode, str(copies)],
        stdin=subprocess.PIPE, stdout=pipe.write_end, stderr=pipe.write_end,
    )  # fmt: skip
    assert pipe.read_line() == b"here\n"
    agent.kill()
    assert pipe.read_all() == b""
    agent.communicate(timeout=DEADLINE)
    assert folder.exists() == (mode == "close" or name == "a.log")
    assert copies.exists() == (mode == "close")


def test_spawner_ignores_the_signals_of_a_terminal(command: Callable[..., Command]) -> None:
    async def scenario(node: Node) -> None:
        for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1):
            os.kill(node.spawner.pid, signum)
        node.spawner.spawn(0, command("true"))
        assert await node.exit_code(0) == 0

    drive(scenario)


def test_crash_of_the_spawner_never_runs_the_agents_code(
    monkeypatch: pytest.MonkeyPatch, pipe: Pipe, capfd: pytest.CaptureFixture[str]
) -> None:
    def crash(*_: object) -> None:
        raise RuntimeError("made up")

    monkeypatch.setattr(spawner_process, "_isolate", crash)

    async def scenario(node: Node) -> None:
        assert await node.kind(SpawnerDied) == SpawnerDied()

    drive(scenario, fork_spawner)
    os.write(pipe.write_end, b"once\n")
    assert pipe.read_all() == b"once\n"
    assert "RuntimeError: made up" in capfd.readouterr().err


# -- cost --------------------------------------------------------------------------------------


def test_spawner_is_small_and_named() -> None:
    program = """
        import sys
        from elasticrun.agent.spawner.client import encode, fork_spawner
        assert not {"asyncio", "ctypes", "subprocess", "grpc", "torch"} & set(sys.modules), sys.modules
        handle = fork_spawner()
        handle.control.sendall(encode({"op": "sweep"}))
        handle.control.recv(100)  # so it is set up
        print(open(f"/proc/{handle.pid}/smaps_rollup").read(), open(f"/proc/{handle.pid}/cmdline").read())
    """
    output = subprocess.check_output(python(program), text=True, timeout=DEADLINE)
    sizes = {line.split()[0]: int(line.split()[1]) for line in output.splitlines() if line.endswith(" kB")}
    assert sizes["Pss:"] < 12_000
    assert sizes["Rss:"] < 24_000
    assert "elastic-run: spawner" in output


# -- parts -------------------------------------------------------------------------------------


def test_frames_take_any_cut() -> None:
    messages = [{"op": "a", "text": "\udcff" * 3}, {"op": "b"}]
    stream = b"".join(encode(message) for message in messages)
    whole, bytewise = Frames(), Frames()
    assert list(whole.feed(stream)) == messages
    assert [message for byte in stream for message in bytewise.feed(bytes([byte]))] == messages


def test_children_are_found_without_the_kernels_list(tmp_path: Path) -> None:
    for pid, parent in ((10, 1), (11, 10), (12, 11), (13, 10)):
        (tmp_path / str(pid)).mkdir()
        (tmp_path / str(pid) / "stat").write_text(f"{pid} (odd) name) S {parent} 0 0")
    (tmp_path / "14").mkdir()  # ended while we looked
    (tmp_path / "uptime").write_text("")
    assert sorted(process_tree.children_of(10, str(tmp_path))) == [11, 13]
