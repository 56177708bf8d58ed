"""Routing of real processes' output: what the console shows, what the files hold, what is never lost."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import fcntl
import os
import random
import re
import socket
import struct
import subprocess
import sys
import termios
import tty
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeVar

import pytest

from elasticrun.agent.logs.console import HIGH_WATER
from elasticrun.agent.logs.dirs import LogDirs, RoundDirs, WorkerPaths, open_worker
from elasticrun.agent.logs.router import LogRouter, RoundLogs, WorkerFds
from elasticrun.agent.logs.stream import DRAIN_LIMIT, READ_SIZE, Source
from elasticrun.config import LogConfig, Std, StdByRank, TaskRole
from elasticrun.core.protocol.questions import LogPiece, LogStream
from elasticrun.core.protocol.tasks import Task
from tests.support.processes import DEADLINE, TORCH_DEADLINE

T = TypeVar("T")

TEE = LogConfig(tee=StdByRank(Std.ALL))
REDIRECT = LogConfig(redirects=StdByRank(Std.ALL))


@dataclass
class Node:
    """A router with files for its consoles, and the worker processes of one round."""

    directory: Path
    reports: list[str] = field(default_factory=list)

    @property
    def stdout(self) -> bytes:
        return (self.directory / "console.out").read_bytes()

    @property
    def stderr(self) -> bytes:
        return (self.directory / "console.err").read_bytes()

    def dirs(self, workers: int = 1) -> RoundDirs:
        return LogDirs(str(self.directory / "logs"), "job").open_round(0, workers)

    @contextlib.contextmanager
    def consoles(self) -> Iterator[tuple[int, int]]:
        with (
            (self.directory / "console.out").open("ab") as out,
            (self.directory / "console.err").open("ab") as err,
        ):
            yield out.fileno(), err.fileno()

    def router(self, config: LogConfig, fds: tuple[int, int]) -> LogRouter:
        return LogRouter(config, "default", *fds, report=self.reports.append)

    def run(self, config: LogConfig, codes: list[str], dirs: RoundDirs | None = None) -> RoundDirs:
        """One round in which local rank i runs ``codes[i]``; every worker must end with 0."""
        dirs = dirs or self.dirs(len(codes))

        async def main() -> None:
            with self.consoles() as fds:
                router = self.router(config, fds)
                logs = router.open_round(dirs, first_rank=0)
                assert await run_workers(logs, codes) == [0] * len(codes)
                logs.close()
                await router.close(DEADLINE)

        asyncio.run(main())
        return dirs


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


def launch(fds: WorkerFds, code: str, stdin: int = subprocess.DEVNULL) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-S", "-E", "-u", "-c", code],
        stdin=stdin,
        stdout=fds.stdout,
        stderr=fds.stderr,
        start_new_session=True,
    )


async def ended(process: subprocess.Popen[bytes]) -> int:
    return await within(asyncio.get_running_loop().run_in_executor(None, process.wait))


async def run_workers(logs: RoundLogs, codes: list[str]) -> list[int]:
    processes = []
    for local_rank, code in enumerate(codes):
        processes.append(launch(logs.fds(local_rank), code))
        logs.started(local_rank)
    return list(await asyncio.gather(*map(ended, processes)))


async def within(awaitable: Awaitable[T]) -> T:
    return await asyncio.wait_for(awaitable, DEADLINE)


class Reader:
    """Somebody who reads the console, once told to."""

    def __init__(self, fd: int) -> None:
        self.data = bytearray()
        self._fd = fd
        self._changed = asyncio.Event()
        os.set_blocking(fd, False)

    def start(self) -> None:
        asyncio.get_running_loop().add_reader(self._fd, self._read)

    def stop(self) -> None:
        asyncio.get_running_loop().remove_reader(self._fd)

    async def until(self, enough: Callable[[bytes], bool]) -> bytes:
        while not enough(bytes(self.data)):
            self._changed.clear()
            await within(self._changed.wait())
        return bytes(self.data)

    def _read(self) -> None:
        data = os.read(self._fd, 1 << 20)
        self.data += data
        self._changed.set()
        if not data:
            self.stop()


WRITE = "import os, sys\nfor fd in (1, 2): os.write(fd, {!r})"
BINARY = bytes(range(256)) * 3 + b"\r\n\r half a line"


def test_unasked_output_reaches_the_console_unchanged(node: Node) -> None:
    node.run(LogConfig(), [WRITE.format(BINARY)])
    assert node.stdout == BINARY
    assert node.stderr == BINARY


def test_unasked_stdout_is_the_agents_own(node: Node) -> None:
    async def main() -> None:
        with node.consoles() as consoles:
            router = node.router(LogConfig(), consoles)
            logs = router.open_round(node.dirs(), first_rank=0)
            fds = logs.fds(0)
            assert fds.stdout == consoles[0]
            assert fds.stderr != consoles[1]
            await router.close()

    asyncio.run(main())


def test_a_partial_line_is_shown_at_once(node: Node) -> None:
    async def main() -> None:
        console, out = os.pipe()
        reader = Reader(console)
        router = LogRouter(LogConfig(), "default", out, out, node.reports.append)
        logs = router.open_round(node.dirs(), first_rank=0)
        question, answer = os.pipe()
        code = "import sys; sys.stderr.write('name? '); sys.stderr.flush(); input()"
        worker = launch(logs.fds(0), code, stdin=question)
        logs.started(0)
        os.close(question)
        reader.start()
        assert await reader.until(lambda data: data.endswith(b"? ")) == b"name? "
        os.write(answer, b"\n")
        os.close(answer)
        assert await ended(worker) == 0
        reader.stop()
        await router.close()
        os.close(console)
        os.close(out)

    asyncio.run(main())


def test_the_tail_holds_the_last_words_as_soon_as_the_worker_is_gone(node: Node) -> None:
    async def main() -> None:
        with node.consoles() as fds:
            router = node.router(LogConfig(local_ranks_filter=frozenset()), fds)
            logs = router.open_round(node.dirs(), first_rank=0)
            worker = launch(logs.fds(0), "import sys; sys.stderr.write('x' * 9000 + '\\nlast words\\n')")
            logs.started(0)
            worker.wait()  # blocks the loop: the words are still in the pipe
            assert logs.stderr_tail(0) == "last words\n"
            await router.close()

    asyncio.run(main())
    assert node.stderr == b""  # filtered out: kept, not shown


def test_redirect_gives_the_worker_the_file(node: Node) -> None:
    async def main() -> RoundDirs:
        with node.consoles() as fds:
            router = node.router(REDIRECT, fds)
            dirs = node.dirs()
            logs = router.open_round(dirs, first_rank=0)
            assert os.fstat(logs.fds(0).stdout).st_ino == os.stat(dirs.workers[0].stdout).st_ino  # noqa: PTH116
            assert await run_workers(logs, [WRITE.format(b"a\nb\n")]) == [0]
            assert logs.stderr_tail(0) == "a\nb\n"
            logs.close()
            await router.close()
            return dirs

    dirs = asyncio.run(main())
    assert Path(dirs.workers[0].stdout).read_bytes() == b"a\nb\n"
    assert Path(dirs.workers[0].stderr).read_bytes() == b"a\nb\n"
    assert (node.stdout, node.stderr) == (b"", b"")


def test_tee_writes_the_bytes_and_shows_the_lines(node: Node) -> None:
    dirs = node.run(TEE, [WRITE.format(b"one\ntwo\r 1%\r 2%\r\nlast")])
    assert Path(dirs.workers[0].stdout).read_bytes() == b"one\ntwo\r 1%\r 2%\r\nlast"
    lines = b"".join(b"[default0]:%s\n" % line for line in (b"one", b"two", b" 1%", b" 2%", b"last"))
    assert node.stdout == lines
    assert node.stderr == lines


def test_each_rank_by_its_own_settings(node: Node) -> None:
    config = LogConfig(
        redirects=StdByRank(by_rank=((1, Std.OUT),)),
        tee=StdByRank(by_rank=((2, Std.ERR),)),
        line_prefix_template="<${rank}> ",
    )
    dirs = node.run(config, [WRITE.format(b"from %d\n" % rank) for rank in range(3)])
    assert sorted(node.stdout.splitlines()) == [b"from 0", b"from 2"]
    assert sorted(node.stderr.splitlines()) == [b"<2> from 2", b"from 0", b"from 1"]
    written = sorted(str(path.relative_to(dirs.directory)) for path in Path(dirs.directory).rglob("*.log"))
    assert written == ["1/stdout.log", "2/stderr.log"]


def test_a_rank_prefix_marks_lines_with_and_without_files(node: Node) -> None:
    config = LogConfig(rank_prefix=True, local_ranks_filter=frozenset({0, 1}))
    dirs = node.run(config, [WRITE.format(b"one\ntwo")] * 3)
    lines = [b"[rank%d] %s" % (rank, text) for rank in range(2) for text in (b"one", b"two")]
    assert sorted(node.stdout.splitlines()) == sorted(node.stderr.splitlines()) == lines
    assert list(Path(dirs.directory).rglob("*.log")) == []


def test_a_rank_prefix_is_that_of_files_too_unless_there_is_a_template(node: Node) -> None:
    dirs = node.run(replace(TEE, rank_prefix=True), [WRITE.format(b"one\n")])
    assert (node.stdout, Path(dirs.workers[0].stdout).read_bytes()) == (b"[rank0] one\n", b"one\n")
    config = LogConfig(rank_prefix=True, line_prefix_template="<${rank}> ")
    node.run(config, [WRITE.format(b"two\n")], node.dirs())
    assert node.stdout.splitlines()[-1] == b"<0> two"


def test_a_rank_prefix_names_tasks(node: Node) -> None:
    async def main() -> None:
        with node.consoles() as fds:
            router = node.router(LogConfig(rank_prefix=True), fds)
            assert (router.prefix(7, 3, PS), router.prefix(7, 3)) == (b"[ps1] ", b"[rank7] ")
            await router.close()

    asyncio.run(main())


@pytest.mark.parametrize(
    ("config", "streams"),
    [
        (LogConfig(), (LogStream.ERR,)),
        (LogConfig(rank_prefix=True), tuple(LogStream)),
        (TEE, tuple(LogStream)),
        (REDIRECT, tuple(LogStream)),
        (LogConfig(duplicate_stdout_filters=("x",)), tuple(LogStream)),
        (LogConfig(local_ranks_filter=frozenset()), (LogStream.ERR,)),
        (LogConfig(local_ranks_filter=frozenset(), rank_prefix=True), (LogStream.ERR,)),
    ],
)
def test_what_goes_through_the_agent_or_to_a_file_can_be_read_again(
    node: Node, config: LogConfig, streams: tuple[LogStream, ...]
) -> None:
    async def main() -> dict[LogStream, LogPiece]:
        with node.consoles() as fds:
            router = node.router(config, fds)
            logs = router.open_round(node.dirs(), first_rank=0)
            assert await run_workers(logs, [WRITE.format(b"one\ntwo\n")]) == [0]
            logs.close()
            found = {stream: router.kept.read(0, stream, "", 1) for stream in LogStream}
            await router.close(DEADLINE)
        return found

    found = asyncio.run(main())
    assert {stream: piece.data for stream, piece in found.items() if not piece.note} == dict.fromkeys(
        streams, b"two\n"
    )
    assert all("nothing is kept" in piece.note for piece in found.values() if piece.note)


def test_a_task_that_starts_again_goes_on_in_its_file_and_is_told_apart(node: Node) -> None:
    async def main() -> list[LogPiece]:
        with node.consoles() as fds:
            router, dirs = node.router(REDIRECT, fds), node.dirs()
            logs = router.open_round(dirs, first_rank=0)
            await run_workers(logs, [WRITE.format(b"one\n")])
            first = router.kept.read(0, LogStream.OUT, "", 1)
            logs.reopen(0, open_worker(dirs, 0, 1), 0, replace(PS, attempt=1))
            await run_workers(logs, [WRITE.format(b"two\n")])
            logs.close()
            second = router.kept.read(0, LogStream.OUT, first.place, 1)
            await router.close(DEADLINE)
        return [first, second]

    pieces = asyncio.run(main())
    assert [(it.data, it.round, it.attempt, it.begins) for it in pieces] == [
        (b"one\n", 0, 0, True),
        (b"two\n", 0, 1, True),
    ]


def test_a_filtered_rank_is_silent_but_logged(node: Node) -> None:
    plain = replace(LogConfig(), local_ranks_filter=frozenset({1}))
    node.run(plain, [WRITE.format(b"zero\n"), WRITE.format(b"one\n")])
    assert (node.stdout, node.stderr) == (b"one\n", b"one\n")
    dirs = node.run(replace(TEE, local_ranks_filter=frozenset({1})), [WRITE.format(b"zero\n")])
    assert Path(dirs.workers[0].stdout).read_bytes() == b"zero\n"
    assert (node.stdout, node.stderr) == (b"one\n", b"one\n")


@pytest.mark.parametrize("config", [LogConfig(), TEE, REDIRECT])
def test_matching_lines_of_every_worker_are_duplicated(node: Node, config: LogConfig) -> None:
    config = replace(config, duplicate_stdout_filters=("loss", "acc"), duplicate_stderr_filters=("warn",))
    config = replace(config, local_ranks_filter=frozenset({0}))
    text = b"loss 1\nwarn\nepoch\nacc 2"
    dirs = node.run(config, [WRITE.format(text)] * 2)
    out, err = Path(dirs.filtered_stdout), Path(dirs.filtered_stderr)
    assert out.name == "filtered_stdout.log"
    assert sorted(out.read_bytes().splitlines()) == [
        b"[default%d]:%s" % (rank, line) for rank in range(2) for line in (b"acc 2", b"loss 1")
    ]
    assert sorted(err.read_bytes().splitlines()) == [b"[default0]:warn", b"[default1]:warn"]
    for worker in dirs.workers if config.tee.default or config.redirects.default else ():
        assert Path(worker.stdout).read_bytes() == text


TORN = """
import os, random
rng = random.Random({rank})
text = b"".join(b"%d:%d:%s:end\\n" % ({rank}, n, b"x" * rng.randrange(200)) for n in range(3000))
while text:
    cut = rng.randrange(1, 3000)
    os.write(1, text[:cut])
    text = text[cut:]
"""


def test_lines_of_different_workers_are_never_torn(node: Node) -> None:
    dirs = node.run(TEE, [TORN.format(rank=rank) for rank in range(4)])
    shown = node.stdout.splitlines()
    assert len(shown) == 4 * 3000
    for rank, worker in enumerate(dirs.workers):
        mine = [line for line in shown if line.startswith(b"[default%d]:" % rank)]
        assert mine == [
            b"[default%d]:" % rank + line for line in Path(worker.stdout).read_bytes().splitlines()
        ]
    assert all(re.fullmatch(rb"\[default(\d)\]:\1:\d+:x*:end", line) for line in shown)


def test_a_full_disk_turns_the_log_to_the_console(node: Node) -> None:
    dirs = replace(node.dirs(), workers=(WorkerPaths("/dev/full", "/dev/full"),))
    code = "import os\nfor n in range(1000): os.write(1, b'line %d\\n' % n)"
    silent = replace(TEE, local_ranks_filter=frozenset())
    for config in (TEE, silent):  # a rank that is not to be shown is shown rather than lost
        node.run(config, [code], dirs)
    assert node.stdout == b"".join(b"[default0]:line %d\n" % n for n in range(1000)) * 2
    report = "/dev/full cannot be written (No space left on device); that output goes to the console"
    assert node.reports == [report] * 2


@pytest.mark.parametrize("config", [TEE, REDIRECT])
def test_a_log_that_cannot_be_opened_turns_to_the_console(node: Node, config: LogConfig) -> None:
    missing = str(node.directory / "missing" / "stdout.log")
    dirs = RoundDirs(0, "", (WorkerPaths(missing, ""),))
    node.run(config, [WRITE.format(b"hello\n")], dirs)
    assert (node.stdout, node.stderr) == (b"[default0]:hello\n", b"[default0]:hello\n")
    assert node.reports == [
        f"{missing} cannot be opened (No such file or directory); that output goes to the console"
    ]


@pytest.mark.parametrize("config", [TEE, LogConfig()])
def test_a_closed_console_stops_nobody(node: Node, config: LogConfig) -> None:
    async def main() -> RoundDirs:
        console, out = os.pipe()
        router = LogRouter(config, "default", out, out, node.reports.append)
        os.close(console)
        dirs = node.dirs()
        logs = router.open_round(dirs, first_rank=0)
        code = "import os\nfor n in range(3): os.write(2, b'x' * 300_000 + b'\\n')"
        assert await run_workers(logs, [code]) == [0]
        assert logs.stderr_tail(0)
        await router.close(DEADLINE)
        os.close(out)
        return dirs

    dirs = asyncio.run(main())
    assert node.reports == [
        "stdout cannot be written (Broken pipe); the workers go on, but what they print is not shown there"
    ]
    if config is TEE:
        assert Path(dirs.workers[0].stderr).read_bytes() == (b"x" * 300_000 + b"\n") * 3


MANY_LINES = "import os\nfor n in range(40_000): os.write(2, b'%0100d\\n' % n)"
MANY = [b"%0100d" % n for n in range(40_000)]  # four times what waits in memory
assert len(MANY) * 101 > 3 * HIGH_WATER


@pytest.fixture(params=["pipe", "socket"])
def console_ends(request: pytest.FixtureRequest) -> Iterator[tuple[int, int]]:
    """The ends of a console to read from and to write to; a socket cannot be opened a second time."""
    if request.param == "pipe":
        ends = os.pipe()
    else:
        one, other = socket.socketpair()
        ends = one.detach(), other.detach()
    yield ends
    for fd in ends:
        os.close(fd)


def test_tee_outruns_a_stopped_console(node: Node, console_ends: tuple[int, int]) -> None:
    async def main() -> None:
        console, out = console_ends
        router = LogRouter(TEE, "default", out, out, node.reports.append)
        logs = router.open_round(node.dirs(), first_rank=0)
        assert await run_workers(logs, [MANY_LINES]) == [0]  # though nobody has read a byte
        logs.close()
        assert router.stderr._size < HIGH_WATER + 200_000
        reader = Reader(console)
        reader.start()
        await router.close(DEADLINE)
        await reader.until(lambda data: data.count(b"\n") == len(MANY))
        assert reader.data.splitlines() == [b"[default0]:" + line for line in MANY]
        reader.stop()

    asyncio.run(main())
    assert node.reports == []


def test_a_worker_without_a_log_waits_for_its_console(node: Node, console_ends: tuple[int, int]) -> None:
    async def main() -> None:
        console, out = console_ends
        router = LogRouter(LogConfig(), "default", out, out, node.reports.append)
        logs = router.open_round(node.dirs(), first_rank=0)
        worker = launch(logs.fds(0), MANY_LINES)
        logs.started(0)
        reader = Reader(console)
        paused = asyncio.Event()
        router.stderr.when_room = announce(router.stderr.when_room, paused)  # type: ignore[method-assign]
        await within(paused.wait())
        assert router.stderr.is_full
        reader.start()
        assert await ended(worker) == 0
        logs.close()
        await router.close(DEADLINE)
        await reader.until(lambda data: data.count(b"\n") == len(MANY))
        assert reader.data.splitlines() == MANY
        reader.stop()

    asyncio.run(main())
    assert node.reports == []


def announce(call: Callable[[Callable[[], None]], None], event: asyncio.Event) -> Callable[..., None]:
    def announced(source: Callable[[], None]) -> None:
        event.set()
        call(source)

    return announced


def test_a_console_that_stays_stopped_is_given_up_with_a_word(node: Node) -> None:
    async def main() -> None:
        console, out = os.pipe()
        router = LogRouter(TEE, "default", out, out, node.reports.append)
        logs = router.open_round(node.dirs(), first_rank=0)
        assert await run_workers(logs, [MANY_LINES]) == [0]
        await router.close(timeout=0.01)
        os.close(console)
        os.close(out)

    asyncio.run(main())
    assert node.reports == ["stdout was too slow; some output of the workers was not shown there"]


def test_a_grandchild_that_holds_the_pipe_does_not_hold_the_round(node: Node) -> None:
    async def main() -> None:
        with node.consoles() as fds:
            router = node.router(TEE, fds)
            logs = router.open_round(node.dirs(), first_rank=0)
            keep, release = os.pipe()
            code = (
                "import os, subprocess, sys\n"
                "subprocess.Popen(['cat'], stdin=0)\n"
                "os.write(2, b'parent is done\\n')"
            )
            worker = launch(logs.fds(0), code, stdin=keep)
            logs.started(0)
            os.close(keep)
            assert await ended(worker) == 0
            logs.close()  # while `cat` still holds the worker's stdout and stderr
            await router.close(DEADLINE)
            os.close(release)

    asyncio.run(main())
    assert node.stderr == b"[default0]:parent is done\n"


def test_a_grandchild_that_never_stops_writing_does_not_hold_the_round(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    left = [b"x" * READ_SIZE] * (2 * DRAIN_LIMIT // READ_SIZE)  # there is always more in the pipe

    async def main() -> None:
        with node.consoles() as fds:
            router = node.router(LogConfig(), fds)
            logs = router.open_round(node.dirs(), first_rank=0)
            logs.started(0)
            monkeypatch.setattr(Source, "read", lambda _: left.pop() if left else b"")
            logs.close()
            await router.close(DEADLINE)

    asyncio.run(main())
    assert node.stderr == b"x" * DRAIN_LIMIT


@contextlib.contextmanager
def terminal() -> Iterator[tuple[int, int]]:
    """(master, slave) of a terminal that passes bytes as they are."""
    master, slave = os.openpty()
    tty.setraw(slave)
    set_size(slave, 33, 77)
    try:
        yield master, slave
    finally:
        os.close(master)
        os.close(slave)


def set_size(fd: int, rows: int, columns: int) -> None:
    fcntl.ioctl(fd, termios.TIOCSWINSZ, struct.pack("4H", rows, columns, 0, 0))


ASK_TERMINAL = r"""
import os, sys
def size(): return "%d %d;" % tuple(os.get_terminal_size(2))
os.write(2, ("%s " % os.isatty(2) + size()).encode())
sys.stdin.readline()
os.write(2, (size() + "a\nb\r\n\t" + "c").encode() + b"\x03\x04\xff!")
"""


def test_on_a_terminal_the_worker_sees_a_terminal(node: Node) -> None:
    async def main() -> None:
        with terminal() as (master, slave):
            reader = Reader(master)
            reader.start()
            router = LogRouter(LogConfig(), "default", slave, slave, node.reports.append)
            logs = router.open_round(node.dirs(), first_rank=0)
            ask, answer = os.pipe()
            worker = launch(logs.fds(0), ASK_TERMINAL, stdin=ask)
            logs.started(0)
            os.close(ask)
            assert await reader.until(lambda data: data.endswith(b";")) == b"True 77 33;"
            set_size(slave, 11, 22)
            router.window_changed()
            os.write(answer, b"\n")
            os.close(answer)
            data = await reader.until(lambda data: data.endswith(b"!"))
            assert data == b"True 77 33;22 11;a\nb\r\n\tc\x03\x04\xff!"
            assert await ended(worker) == 0
            assert logs.stderr_tail(0).startswith("True 77 33;22 11;a\nb")
            logs.close()
            await router.close()
            reader.stop()

    asyncio.run(main())


def test_a_dead_workers_last_words_come_through_the_terminal(node: Node) -> None:
    async def main() -> None:
        with terminal() as (master, slave):
            router = LogRouter(LogConfig(), "default", slave, slave, node.reports.append)
            logs = router.open_round(node.dirs(), first_rank=0)
            worker = launch(logs.fds(0), "import os; os.write(2, b'x' * 3000 + b'end')")
            logs.started(0)
            worker.wait()
            logs.close()  # before the loop had a chance to read anything
            reader = Reader(master)
            reader.start()
            assert await reader.until(lambda data: data.endswith(b"end")) == b"x" * 3000 + b"end"
            await router.close()
            reader.stop()

    asyncio.run(main())


def test_without_ptys_a_pipe_does(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_pty() -> tuple[int, int]:
        raise OSError(errno.ENOSPC, "no pty left")

    async def main() -> None:
        with terminal() as (master, slave):
            monkeypatch.setattr(os, "openpty", no_pty)
            router = LogRouter(LogConfig(), "default", slave, slave, node.reports.append)
            logs = router.open_round(node.dirs(), first_rank=0)
            assert await run_workers(logs, ["import os; os.write(2, b'%d' % os.isatty(2))"]) == [0]
            assert logs.stderr_tail(0) == "0"
            await router.close()
            assert os.read(master, 10) == b"0"

    asyncio.run(main())


def test_the_shared_console_stays_blocking(node: Node, console_ends: tuple[int, int]) -> None:
    """O_NONBLOCK would break whoever shares the open file: the shell, and the workers' own stdout."""

    async def main() -> None:
        _, out = console_ends
        router = LogRouter(LogConfig(), "default", out, out, node.reports.append)
        router.stderr.write(b"x" * 5_000_000)  # returns, though nobody reads
        assert os.get_blocking(out)
        await router.close(0.0)

    asyncio.run(main())


def test_a_console_on_a_full_disk_is_reported_once(node: Node) -> None:
    async def main() -> None:
        full = os.open("/dev/full", os.O_WRONLY)
        router = LogRouter(LogConfig(), "default", full, full, node.reports.append)
        logs = router.open_round(node.dirs(), first_rank=0)
        code = "import os\nfor n in range(3): os.write(2, b'x' * 300_000 + b'\\n')"
        assert await run_workers(logs, [code]) == [0]
        assert logs.stderr_tail(0)
        await router.close()
        os.close(full)

    asyncio.run(main())
    assert node.reports == [
        "stdout cannot be written (No space left on device); the workers go on, but what they "
        "print is not shown there"
    ]


def test_dev_null_as_log_directory_means_no_files(node: Node) -> None:
    config = replace(TEE, log_dir=os.devnull, duplicate_stdout_filters=("a",))
    dirs = node.run(config, [WRITE.format(b"a\n")], LogDirs(os.devnull, "job").open_round(0, 1))
    assert dirs.workers == (WorkerPaths(),)
    assert (node.stdout, node.stderr) == (b"a\n", b"a\n")


# -- tasks that start again ---------------------------------------------------------------------

CHIEF, PS = Task(0, TaskRole.CHIEF, 0), Task(3, TaskRole.PS, 1)


@pytest.mark.parametrize("config", [TEE, REDIRECT])
def test_a_further_life_continues_the_logs(node: Node, config: LogConfig) -> None:
    """A seat that no worker had before, twice; between them the first attempt's last words are taken."""
    attempts: list[WorkerPaths] = []

    async def main() -> None:
        with node.consoles() as fds:
            router = node.router(config, fds)
            dirs = node.dirs()
            logs = router.open_round(dirs, first_rank=0)
            logs.started(0)
            before = open_fds()
            for attempt, words in enumerate((b"first\nlong", b"second\n")):
                attempts.append(open_worker(dirs, 3, attempt))
                logs.reopen(3, attempts[-1], 7, PS)
                process = launch(logs.fds(3), WRITE.format(words))
                logs.started(3)
                assert process.wait() == 0  # the loop has had no time to take anything
            assert logs.stderr_tail(3) == "second\n"
            logs.reopen(3, attempts[-1], 7, PS)
            assert logs.stderr_tail(3) == ""
            logs.started(3)
            assert open_fds() <= before + 4
            logs.close()
            await router.close()

    asyncio.run(main())
    assert [Path(paths.error_file).name for paths in attempts] == ["error.json", "error_1.json"]
    assert attempts[0].stderr == attempts[1].stderr
    assert Path(attempts[0].stdout).read_bytes() == b"first\nlongsecond\n"
    assert Path(attempts[0].stderr).read_bytes() == b"first\nlongsecond\n"
    shown = b"[ps1]:first\n[ps1]:long\n[ps1]:second\n" if config is TEE else b""
    assert (node.stdout, node.stderr) == (shown, shown)


def test_what_the_console_did_not_take_of_one_life_is_shown_beside_the_next(node: Node) -> None:
    """A console that stands still until the second attempt has ended as well."""
    number = HIGH_WATER // 50  # lines of 100 bytes

    async def main() -> bytes:
        console, out = os.pipe()
        fcntl.fcntl(out, 1031, 4096)  # F_SETPIPE_SZ
        router = LogRouter(TEE, "default", out, out, node.reports.append)
        dirs = node.dirs(0)
        logs = router.open_round(dirs, first_rank=0)
        for attempt, letter in enumerate("ab"):
            logs.reopen(0, open_worker(dirs, 0, attempt), 0, CHIEF)
            process = launch(logs.fds(0), f"print(('{letter}' * 99 + chr(10)) * {number}, end='')")
            logs.started(0)
            assert await ended(process) == 0
        logs.close()
        reader = Reader(console)
        reader.start()
        await router.close(DEADLINE)
        return await reader.until(lambda data: data.count(b"\n") >= 2 * number)

    lines = asyncio.run(main()).splitlines()
    assert lines.count(b"[chief0]:" + b"a" * 99) == number
    assert lines.count(b"[chief0]:" + b"b" * 99) == number
    assert len(lines) == 2 * number


def test_the_lines_of_a_task_are_marked_as_a_template_has_it(node: Node) -> None:
    router_config = LogConfig(line_prefix_template="${role_name}/${rank}/${local_rank} ")

    async def main() -> None:
        with node.consoles() as fds:
            router = node.router(router_config, fds)
            assert router.prefix(7, 3, PS) == b"ps/7/3 "
            assert router.prefix(7, 3) == b"default/7/3 "
            await router.close()

    asyncio.run(main())


def test_a_task_without_a_descriptor_leaves_the_others_alone(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        with node.consoles() as fds:
            router = node.router(TEE, fds)
            dirs = node.dirs(2)
            logs = router.open_round(dirs, first_rank=0)
            processes = [launch(logs.fds(local_rank), WRITE.format(b"x")) for local_rank in range(2)]
            logs.started(0)
            logs.started(1)
            assert [await ended(process) for process in processes] == [0, 0]
            assert logs.stderr_tail(1) == "x"
            before = open_fds()
            real = os.pipe
            pipes = [real()]
            monkeypatch.setattr(os, "pipe", lambda: pipes.pop() if pipes else _refuse())
            with pytest.raises(OSError, match="too many open files"):
                logs.reopen(1, open_worker(dirs, 1, 1), 1, PS)
            assert open_fds() <= before  # what the first attempt had is closed as well
            assert logs.stderr_tail(0) == "x"
            logs.close()
            await router.close()

    asyncio.run(main())


def _refuse() -> tuple[int, int]:
    raise OSError(errno.EMFILE, "too many open files")


def open_fds() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


@pytest.mark.parametrize("config", [LogConfig(), TEE, REDIRECT, LogConfig(local_ranks_filter=frozenset())])
def test_rounds_leave_no_descriptor_open(node: Node, config: LogConfig) -> None:
    config = replace(config, duplicate_stderr_filters=("x",))

    async def main() -> None:
        with node.consoles() as fds:
            router = node.router(config, fds)
            before = open_fds()
            for number in range(3):
                logs = router.open_round(replace(node.dirs(2), round=number), first_rank=0)
                assert await run_workers(logs, [WRITE.format(b"x\n")] * 2) == [0, 0]
                logs.close()
            assert open_fds() == before
            await router.close()

    asyncio.run(main())


def test_once_started_only_the_worker_holds_its_ends(node: Node) -> None:
    async def main() -> None:
        with node.consoles() as fds:
            router = node.router(TEE, fds)
            logs = router.open_round(node.dirs(), first_rank=0)
            handed_out = logs.fds(0)
            logs.started(0)
            for fd in handed_out:
                with pytest.raises(OSError, match="Bad file descriptor"):
                    os.fstat(fd)
            await router.close()

    asyncio.run(main())


def test_a_round_that_cannot_be_opened_leaves_nothing_open(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, left = os.pipe, [None] * 3

    def pipe() -> tuple[int, int]:
        if not left:
            raise OSError(errno.EMFILE, "too many open files")
        left.pop()
        return real()

    async def main() -> None:
        with node.consoles() as fds:
            router = node.router(TEE, fds)
            before = open_fds()
            dirs = node.dirs(4)
            monkeypatch.setattr(os, "pipe", pipe)
            with pytest.raises(OSError, match="too many open files"):
                router.open_round(dirs, first_rank=0)
            assert open_fds() == before
            await router.close()

    asyncio.run(main())


def test_writes_in_random_pieces_to_a_slow_reader(node: Node) -> None:
    """Raw bytes of two workers: each worker's own bytes stay in order and complete."""
    rng = random.Random(1)
    text = [bytes(rng.choices(range(128 * rank, 128 * rank + 128), k=200_000)) for rank in range(2)]

    async def main() -> bytes:
        console, out = os.pipe()
        fcntl.fcntl(out, 1031, 4096)  # F_SETPIPE_SZ
        router = LogRouter(LogConfig(), "default", out, out, node.reports.append)
        logs = router.open_round(node.dirs(2), first_rank=0)
        for rank in range(2):
            (node.directory / str(rank)).write_bytes(text[rank])
        reader = Reader(console)
        reader.start()
        codes = [
            f"import os; d = open({str(node.directory / str(rank))!r}, 'rb').read()\n"
            f"while d: d = d[os.write(2, d[:777]):]"
            for rank in range(2)
        ]
        assert await run_workers(logs, codes) == [0, 0]
        await router.close(DEADLINE)
        await reader.until(lambda data: len(data) == 400_000)
        reader.stop()
        os.close(console)
        os.close(out)
        return bytes(reader.data)

    data = asyncio.run(main())
    assert bytes(b for b in data if b < 128) == text[0]
    assert bytes(b for b in data if b >= 128) == text[1]


TORCHRUN_SCRIPT = """
import os, sys
os.write(1, b"loss 1\\nepoch 2\\n 5%\\r 9%\\r\\nacc, 3\\n")
os.write(2, b"warn\\nquiet\\n")
"""


@pytest.mark.torch
@pytest.mark.slow
def test_as_torchrun(node: Node) -> None:
    """Same tree, same console lines, same filtered logs."""
    script = node.directory / "script.py"
    script.write_text(TORCHRUN_SCRIPT)
    theirs = node.directory / "theirs"
    template = "<${role_name} ${rank} ${local_rank} ${else}>"
    options = ["--nproc-per-node=2", "--role=default", "--tee=3", f"--log-dir={theirs}", "--standalone"]
    options += ["--duplicate-stdout-filters=loss,acc,,", "--duplicate-stderr-filters=warn"]
    run = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", *options, str(script)],
        env={**os.environ, "OMP_NUM_THREADS": "1", "TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE": template},
        capture_output=True,
        check=True,
        timeout=TORCH_DEADLINE,
    )
    config = replace(
        TEE,
        line_prefix_template=template,
        duplicate_stdout_filters=("loss", "acc,"),
        duplicate_stderr_filters=("warn",),
    )
    dirs = node.run(config, [TORCHRUN_SCRIPT] * 2)
    (attempt,) = theirs.glob("*/attempt_0")
    assert tree(Path(dirs.directory)) == tree(attempt)
    assert tree(attempt)["filtered_stdout.log"]
    assert sorted(node.stdout.splitlines()) == sorted(run.stdout.splitlines())
    mine = [line for line in run.stderr.splitlines() if line.startswith(b"<default")]
    assert sorted(node.stderr.splitlines()) == sorted(mine)


def tree(directory: Path) -> dict[str, list[bytes]]:
    """The files below a directory, with their lines in any order (the workers' order is by chance)."""
    files = (path for path in directory.rglob("*") if path.is_file())
    return {str(path.relative_to(directory)): sorted(path.read_bytes().splitlines()) for path in files}
