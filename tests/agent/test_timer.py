"""The watchdog: its decisions on a clock of numbers, and the FIFO with real processes and torch's client."""

from __future__ import annotations

import asyncio
import json
import os
import select
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest

from elasticrun.agent.monitors.timer import Expired, FileTimer, Request, Timers, parse_request
from tests.support.processes import TORCH_DEADLINE


def line(**changes: object) -> bytes:
    fields = {"version": 1, "pid": 7, "scope_id": "step", "expiration_time": 1000.5, "signal": 9}
    return json.dumps({**fields, **changes}).encode()


# -- decisions ---------------------------------------------------------------------------------


def test_wall_clock_becomes_monotonic() -> None:
    assert parse_request(line(), wall_now=1000.0, now=3.0) == Request(7, "step", 3.5, 9)


def test_negative_expiration_releases() -> None:
    assert parse_request(line(expiration_time=-1, signal=0), 1000.0, 3.0) == Request(7, "step", None, 0)


@pytest.mark.parametrize(
    "bad",
    [
        b"",
        b"{",
        b"[1]",
        b"\xff",
        b"[" * 100_000,
        line(pid="7"),
        line(pid=0),
        line(pid=10**30),
        line(pid=True),
        line(scope_id=None),
        line(expiration_time="soon"),
        line(expiration_time=float("nan")),
        line(expiration_time=float("inf")),
        line(expiration_time=10**400),
        line(signal=65),
        line(signal=9.0),
    ],
)
def test_malformed_line_is_a_value_error(bad: bytes) -> None:
    with pytest.raises(ValueError):
        parse_request(bad, 1000.0, 3.0)


def test_timer_expires_once_at_its_deadline() -> None:
    timers = Timers()
    assert timers.next_deadline() is None
    timers.handle(Request(7, "a", 5.0, 9))
    timers.handle(Request(8, "a", 4.0, 15))
    assert timers.next_deadline() == 4.0
    assert timers.expired(3.9) == []
    assert timers.expired(4.0) == [Expired(8, "a", 15)]
    assert timers.next_deadline() == 5.0
    assert timers.expired(9.0) == [Expired(7, "a", 9)]
    assert timers.expired(9.0) == []
    assert timers.next_deadline() is None


def test_released_replaced_and_forgotten_timers_do_not_expire() -> None:
    timers = Timers()
    timers.handle(Request(7, "a", 5.0, 9))
    timers.handle(Request(7, "a", None, 0))
    timers.handle(Request(7, "never acquired", None, 0))
    timers.handle(Request(8, "a", 5.0, 9))
    timers.handle(Request(8, "a", 50.0, 9))
    timers.handle(Request(9, "a", 5.0, 9))
    timers.forget(9)
    timers.forget(9)
    assert timers.expired(49.0) == []
    assert timers.next_deadline() == 50.0


def test_earliest_timer_with_a_signal_decides_for_the_process() -> None:
    timers = Timers()
    for scope, deadline, signum in (("c", 3.0, 15), ("a", 1.0, 0), ("b", 2.0, 9), ("later", 99.0, 10)):
        timers.handle(Request(7, scope, deadline, signum))
    assert timers.expired(5.0) == [Expired(7, "b", 9)]
    assert timers.next_deadline() is None


def test_without_a_signal_the_process_lives() -> None:
    timers = Timers()
    timers.handle(Request(7, "a", 1.0, -1))
    assert timers.expired(5.0) == [Expired(7, "a", 0)]


# -- the FIFO ----------------------------------------------------------------------------------


class Worker:
    """A process in a session of its own, whose end is an event."""

    def __init__(self, *argv: str) -> None:
        self.process = subprocess.Popen(
            argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
        )
        self.pid = self.process.pid

    def exit_code(self) -> int:
        return self.process.wait(TORCH_DEADLINE)

    def line(self) -> bytes:
        assert self.process.stdout is not None
        return self.process.stdout.readline()

    def go_on(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(b"\n")
        self.process.stdin.flush()

    def close(self) -> None:
        self.process.kill()
        self.process.communicate(timeout=TORCH_DEADLINE)


@pytest.fixture
def start() -> Iterator[Callable[..., Worker]]:
    workers: list[Worker] = []

    def start(*argv: str) -> Worker:
        workers.append(Worker(*argv))
        return workers[-1]

    yield start
    for worker in workers:
        worker.close()


class Watch:
    """A FileTimer and what it reported."""

    def __init__(self, path: Path, *pids: int) -> None:
        self.pids = set(pids)
        self.seen: asyncio.Queue[Expired] = asyncio.Queue()
        self.timer = FileTimer(str(path), lambda: self.pids, self.seen.put_nowait)

    def send(self, *lines: bytes) -> None:
        fd = os.open(self.timer.path, os.O_WRONLY | os.O_NONBLOCK)
        os.write(fd, b"\n".join(lines) + b"\n")
        os.close(fd)

    async def next(self) -> Expired:
        return await asyncio.wait_for(self.seen.get(), TORCH_DEADLINE)


def drive(path: Path, pids: tuple[int, ...], scenario: Callable[[Watch], Awaitable[None]]) -> None:
    async def main() -> None:
        watch = Watch(path, *pids)
        try:
            await scenario(watch)
        finally:
            watch.timer.close()

    asyncio.run(main())
    assert not path.exists()


def soon() -> float:
    return time.time() + 0.05


def test_expired_worker_gets_its_signal_and_the_others_live(
    start: Callable[..., Worker], tmp_path: Path
) -> None:
    late, released, spared = (start("sleep", "1000") for _ in range(3))

    async def scenario(watch: Watch) -> None:
        watch.send(line(pid=released.pid, expiration_time=soon()), line(pid=spared.pid, expiration_time=1e11))
        watch.send(line(pid=released.pid, expiration_time=-1.0, signal=0))
        watch.send(line(pid=late.pid, expiration_time=soon(), signal=15))
        assert await watch.next() == Expired(late.pid, "step", 15)

    drive(tmp_path / "fifo", (late.pid, released.pid, spared.pid), scenario)
    assert late.exit_code() == -signal.SIGTERM
    assert released.process.poll() is None
    assert spared.process.poll() is None


def test_process_in_a_workers_session_is_ours(start: Callable[..., Worker], tmp_path: Path) -> None:
    worker = start("sh", "-c", "sleep 1000 & echo $!; wait $!; echo $?")
    child = int(worker.line())

    async def scenario(watch: Watch) -> None:
        watch.send(line(pid=child, expiration_time=soon()))
        assert (await watch.next()).pid == child

    drive(tmp_path / "fifo", (worker.pid,), scenario)
    assert worker.line() == b"137\n"


def test_strangers_dead_processes_and_nonsense_are_survived(
    start: Callable[..., Worker], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    stranger, ended, worker = start("sleep", "1000"), start("true"), start("sleep", "1000")
    ended.exit_code()

    async def scenario(watch: Watch) -> None:
        watch.send(b"x" * 3 * select.PIPE_BUF, b"{", line(pid="me"))
        watch.send(line(pid=stranger.pid, expiration_time=0.0), line(pid=ended.pid, expiration_time=0.0))
        watch.send(line(pid=worker.pid, expiration_time=soon()))
        assert (await watch.next()).pid == worker.pid

    drive(tmp_path / "fifo", (worker.pid, ended.pid), scenario)
    assert worker.exit_code() == -signal.SIGKILL
    assert stranger.process.poll() is None
    assert f"ignores process {stranger.pid}" in caplog.text
    assert "ignoring a watchdog request" in caplog.text


def test_worker_that_ended_is_forgotten(start: Callable[..., Worker], tmp_path: Path) -> None:
    gone, worker = start("sleep", "1000"), start("sleep", "1000")

    async def scenario(watch: Watch) -> None:
        watch.send(line(pid=gone.pid, expiration_time=soon()), line(pid=worker.pid, expiration_time=1e11))
        watch.send(line(pid=worker.pid, expiration_time=soon() + 0.1))
        watch.timer._read()
        watch.timer.forget(gone.pid)
        assert (await watch.next()).pid == worker.pid

    drive(tmp_path / "fifo", (worker.pid, gone.pid), scenario)
    assert gone.process.poll() is None


def test_line_may_come_in_pieces(start: Callable[..., Worker], tmp_path: Path) -> None:
    worker = start("sleep", "1000")

    async def scenario(watch: Watch) -> None:
        whole = line(pid=worker.pid, expiration_time=soon()) + b"\n"
        fd = os.open(watch.timer.path, os.O_WRONLY)
        for piece in (whole[:10], whole[10:]):
            os.write(fd, piece)
            watch.timer._read()
        os.close(fd)
        assert (await watch.next()).pid == worker.pid

    drive(tmp_path / "fifo", (worker.pid,), scenario)


def test_garbage_without_an_end_does_not_swallow_the_next_line(
    start: Callable[..., Worker], tmp_path: Path
) -> None:
    worker = start("sleep", "1000")

    async def scenario(watch: Watch) -> None:
        fd = os.open(watch.timer.path, os.O_WRONLY)
        for piece in (b"x" * (select.PIPE_BUF + 1), line(pid=worker.pid, expiration_time=soon()) + b"\n"):
            os.write(fd, piece)
            watch.timer._read()
        os.close(fd)
        assert (await watch.next()).pid == worker.pid

    drive(tmp_path / "fifo", (worker.pid,), scenario)


def test_left_over_fifo_is_replaced_and_is_private(tmp_path: Path) -> None:
    path = tmp_path / "fifo"
    os.mkfifo(path, 0o666)

    async def scenario(watch: Watch) -> None:
        assert stat.S_IMODE(os.stat(watch.timer.path).st_mode) == 0o600  # noqa: PTH116

    drive(path, (), scenario)


def test_somebodys_file_is_not_removed(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("precious")

    async def main() -> None:
        with pytest.raises(FileExistsError):
            Watch(path)

    asyncio.run(main())
    assert path.read_text() == "precious"


@pytest.mark.torch
def test_torchs_own_client(start: Callable[..., Worker], tmp_path: Path) -> None:
    path = tmp_path / "fifo"
    program = (
        "import signal, sys, torch.distributed.elastic.timer as timer\n"
        "timer.configure(timer.FileTimerClient(sys.argv[1], signal.SIGKILL))\n"
        "with timer.expires(after=3600): pass\n"
        "print('released', flush=True); input()\n"
        "with timer.expires(after=3600, scope='outer'), timer.expires(after=0.05, scope='inner'):\n"
        "    signal.pause()\n"
    )

    async def scenario(watch: Watch) -> None:
        worker = start(sys.executable, "-c", program, str(path))
        watch.pids.add(worker.pid)
        assert worker.line() == b"released\n"
        watch.timer._read()
        assert watch.timer._timers.next_deadline() is None
        worker.go_on()
        assert await watch.next() == Expired(worker.pid, "inner", 9)
        assert worker.exit_code() == -signal.SIGKILL

    drive(path, (), scenario)
