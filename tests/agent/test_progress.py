"""The page, and the watch over real processes that train, evaluate and hang."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
import subprocess
import sys
import textwrap
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from elasticrun.agent.monitors import page as progress
from elasticrun.agent.monitors.page import HEADER_SIZE, SLOT, SLOT_SIZE, TIMES, ProgressPage
from elasticrun.agent.monitors.progress import HangWatch
from elasticrun.agent.programs import INJECTED
from elasticrun.core.progress.silence import MULTIPLE, HangTerms, WorkerProgress
from elasticrun.core.progress.stacks import is_in_collective, main_stack
from elasticrun.core.protocol.messages import Evidence, Stall
from elasticrun.core.protocol.usage import Pace
from elasticrun.worker import marks, own_time, reporter

DEADLINE = 100.0
QUICK = HangTerms(floor=0.5)

# -- the page


def test_both_sides_have_the_same_layout() -> None:
    for name in ("VARIABLE", "VERSION", "SLOT_SIZE", "HEADER_SIZE"):
        assert getattr(progress, name) == getattr(reporter, name)
    assert progress.SLOT.format == reporter.SLOT.format
    assert progress.HEADER.format == reporter.HEADER.format
    assert progress.TIMES.format == own_time.TIMES.format
    assert progress.OWN.format == own_time.OWN.format
    assert f"/memfd:{progress.NAME}" == reporter.MEMFD
    fields = (1, 2, -3, 4, 5, 6, 7, 8, 1)
    assert progress.checksum(fields) == marks.checksum(fields)
    assert progress.SLOT.size + progress.TIMES.size <= SLOT_SIZE


def fill(page: ProgressPage, fields: tuple[int, ...], check: int | None = None) -> None:
    SLOT.pack_into(page._map, HEADER_SIZE, *fields, progress.checksum(fields) if check is None else check)


OLD = (71, 3, 2, 5_000_000_000, 1_000_000_000, 0, 0, 50, 0)
NEW = (71, 4, 3, 6_000_000_000, 1_000_000_000, 2_000_000_000, 5_500_000_000, 50, 1)


def test_a_slot_is_read_in_seconds() -> None:
    page = ProgressPage(1)
    assert page.read(0) is None
    fill(page, NEW)
    slot = page.read(0)
    assert slot is not None
    assert (slot.owner, slot.signum, slot.listens) == (71, 50, True)
    assert slot.progress == WorkerProgress(0, 4, 3, 6.0, 1.0, 2.0, 5.5)
    page.reset()
    assert page.read(0) is None
    page.close()


@pytest.mark.parametrize("written", range(1, len(OLD)))
def test_a_slot_that_is_being_written_is_read_as_it_was(written: int) -> None:
    page = ProgressPage(1)
    fill(page, OLD)
    before = page.read(0)
    torn = NEW[:written] + OLD[written:]
    if torn not in (OLD, NEW):
        fill(page, torn, progress.checksum(OLD))
        assert page.read(0) == before
        fill(page, torn, progress.checksum(NEW))
        assert page.read(0) == before
    page.close()


@pytest.mark.parametrize(
    ("times", "checked", "pace"),
    [
        ((71, 4, 2_500_000_000), None, Pace(71, 3, 4, 2.5)),
        ((71, 4, 2_500_000_000), (71, 3, 2_500_000_000), Pace(71, 3)),  # being written
        ((70, 4, 2_500_000_000), None, Pace(71, 3)),  # of an earlier owner
        ((0, 0, 0), (0, 0, 1), Pace(71, 3)),  # of a library that times nothing
    ],
)
def test_times_count_if_they_are_whole_and_of_the_owner(
    times: tuple[int, ...], checked: tuple[int, ...] | None, pace: Pace
) -> None:
    page = ProgressPage(1)
    TIMES.pack_into(page._map, HEADER_SIZE + SLOT.size, *times, progress.checksum(checked or times))
    assert page.pace(0) is None
    assert page.pace(1) is None, "it has no slot"
    fill(page, NEW)
    assert page.pace(0) == pace
    page.close()


def test_nobody_can_shrink_the_page_under_us() -> None:
    page = ProgressPage(1)
    with pytest.raises(PermissionError):
        os.truncate(page._fd, 0)
    page.close()


def descriptors() -> list[str]:
    return sorted(entry.name for entry in Path("/proc/self/fd").iterdir())


def test_a_page_leaves_no_descriptor_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    before = descriptors()
    ProgressPage(3).close()
    opened: list[None] = []

    def scarce() -> tuple[int, int]:
        opened.append(None)
        if len(opened) == 2:
            raise OSError(24, "Too many open files")
        return os.pipe()

    monkeypatch.setattr(progress, "open_pipe", scarce)
    with pytest.raises(OSError, match="Too many"):
        ProgressPage(3)
    assert descriptors() == before


@pytest.mark.parametrize(
    ("before", "path", "mark"), [(None, "{}", "unset"), ("", "{}", "set"), ("/a:", "{}:/a:", "set")]
)
def test_the_environment_says_how_it_was(before: str | None, path: str, mark: str) -> None:
    page = ProgressPage(1)
    inherited = {} if before is None else {"PYTHONPATH": before}
    environment = page.environment(0, inherited, auto=True)
    assert environment["PYTHONPATH"] == path.format(INJECTED)
    assert environment[progress.VARIABLE].endswith(f":{mark}")
    assert "PYTHONPATH" not in page.environment(0, inherited, auto=False)
    page.close()


def test_a_directory_that_python_path_cannot_name_is_not_put_there(monkeypatch: pytest.MonkeyPatch) -> None:
    page = ProgressPage(1)
    monkeypatch.setattr(progress, "INJECTED", "/not/there")
    assert list(page.environment(0, {}, auto=True)) == [progress.VARIABLE]
    page.close()


# -- the watch

TRAIN = """
import os, threading, time
rank = int(os.environ["LOCAL_RANK"])
import elasticrun
for _ in range(20): elasticrun.report_step()
def say(what): print(what, flush=True)
def stuck():
    lock = threading.Lock(); lock.acquire(); lock.acquire()
def all_reduce():
    lock = threading.Lock(); lock.acquire(); lock.acquire()
def work(seconds):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        sum(range(1000))
        sum(range(1000))
        sum(range(1000))
        sum(range(1000))
        sum(range(1000))
        sum(range(1000))
"""


class Stage:
    """A HangWatch with its workers."""

    def __init__(self, size: int, terms: HangTerms, directory: Path, search_path: str | None = None) -> None:
        self.stalls: asyncio.Queue[Stall | None] = asyncio.Queue()
        self.watch = HangWatch(size, terms, search_path, self._on_stall)
        self.directory = directory
        self.processes: list[asyncio.subprocess.Process] = []
        self.watch.start(3, 10, range(size), 1)
        for local_rank in range(size):
            (directory / str(local_rank)).mkdir()
            self.watch.start_worker(local_rank, str(directory / str(local_rank)))

    def _on_stall(self, round_: int, stall: Stall | None) -> None:
        assert round_ == 3
        self.stalls.put_nowait(stall)

    async def spawn(self, code: str, before: str = TRAIN, **variables: str) -> asyncio.subprocess.Process:
        local_rank = len(self.processes)
        inherited = {**os.environ, "LOCAL_RANK": str(local_rank), "RANK": str(local_rank), **variables}
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", before + textwrap.dedent(code)),
            env={**inherited, **self.watch.environment(local_rank, inherited)},
            start_new_session=True,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        self.processes.append(process)
        self.watch.started(local_rank, process.pid)
        return process

    async def stall(self) -> Stall | None:
        return await asyncio.wait_for(self.stalls.get(), DEADLINE)

    async def close(self) -> None:
        await self.watch.close()
        for process in self.processes:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # and what it has started
            await process.communicate()


async def line(process: asyncio.subprocess.Process) -> str:
    assert process.stdout is not None
    return (await asyncio.wait_for(process.stdout.readline(), DEADLINE)).decode().strip()


def play(tmp_path: Path, size: int, scenario: Callable[[Stage], Awaitable[None]], terms: HangTerms) -> None:
    async def main() -> None:
        stage = Stage(size, terms, tmp_path)
        try:
            await scenario(stage)
        finally:
            await stage.close()

    asyncio.run(main())


def test_a_hang_is_found_within_three_times_the_learnt_silence(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    pause, began = 0.3, time.time()

    async def scenario(stage: Stage) -> None:
        await stage.spawn(f"""
            for _ in range(3): threading.Event().wait({pause}); elasticrun.report_step()
            stuck()""")
        stall = await stage.stall()
        assert stall is not None
        assert (stall.rank, stall.step, stall.in_collective) == (10, 22, False)
        assert stall.where.startswith("stuck")
        assert stall.allowed >= MULTIPLE * pause
        assert 2 * stall.allowed <= stall.silence <= 3 * stall.allowed
        assert stage.watch.step(0) == 22
        assert (stall.stacks, stall.timestamp > began) == (str(tmp_path), True)
        again = await stage.stall()
        assert again is not None
        assert (again.stacks, again.timestamp) == (stall.stacks, stall.timestamp), "it is the same hang"

    with caplog.at_level(logging.WARNING):
        play(tmp_path, 1, scenario, QUICK)
    assert "the slowest is rank 10, at step 22, in stuck" in caplog.text
    assert "in stuck" in (tmp_path / "0/stacks_0.txt").read_text()


def test_of_two_workers_the_one_that_lags_is_named(tmp_path: Path) -> None:
    async def scenario(stage: Stage) -> None:
        await stage.spawn("all_reduce()")
        await stage.spawn("stuck()")
        stall = await stage.stall()
        assert stall is not None
        assert (stall.local_rank, stall.rank) == (1, 11)

    play(tmp_path, 2, scenario, QUICK)
    assert "all_reduce" in (tmp_path / "0/stacks_0.txt").read_text()
    assert "in stuck" in (tmp_path / "1/stacks_0.txt").read_text()


DDP = """
import os, threading, torch, torch.distributed as dist
dist.init_process_group("gloo")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(3, 3))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
def load(step):
    lock = threading.Lock(); lock.acquire()
    if step == 9 and dist.get_rank() == 1: lock.acquire()
    return torch.ones(2, 3)
for step in range(1000):
    model(load(step)).sum().backward()
    optimizer.step(); optimizer.zero_grad()
"""


@pytest.mark.torch
def test_a_script_that_knows_nothing_of_us_is_watched(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    where = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": "2"}

    async def scenario(stage: Stage) -> None:
        for _ in range(2):
            await stage.spawn("", DDP, **where)
        stall = await stage.stall()
        assert stall is not None
        assert (stall.rank, stall.step, stall.in_collective) == (11, 8, False)
        assert stall.where.startswith("load")
        assert 2 * stall.allowed <= stall.silence <= 3 * stall.allowed

    play(tmp_path, 2, scenario, HangTerms(floor=3.0))
    waiting = main_stack((tmp_path / "0/stacks_0.txt").read_text())
    assert waiting[0].function == "_engine_run_backward"
    assert is_in_collective(waiting)


def test_an_evaluation_is_no_hang(tmp_path: Path) -> None:
    async def scenario(stage: Stage) -> None:
        process = await stage.spawn("work(2); say('worked'); elasticrun.report_step(); stuck()")
        assert await line(process) == "worked"
        assert stage.stalls.empty()
        stall = await stage.stall()
        assert stall is not None
        assert stall.step == 20

    play(tmp_path, 1, scenario, QUICK)


#: Waits in a function of torch's, as far as a stack can tell, until a line comes.
WAITING = (
    TRAIN
    + """
code = "def barrier(): lock = threading.Lock(); lock.acquire(); lock.acquire()"
exec(compile(code, "/v/site-packages/torch/distributed/distributed_c10d.py", "exec"))
"""
)


async def evidence(stage: Stage, wanted: Evidence) -> Stall:
    """The first stall with that evidence; those before it are still without any."""
    while True:
        stall = await stage.stall()
        assert stall is not None
        if stall.evidence is wanted:
            return stall
        assert stall.evidence is Evidence.NONE


def test_workers_that_wait_in_collectives_and_do_nothing_are_still(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario(stage: Stage) -> None:
        for _ in range(2):
            await stage.spawn("barrier()", WAITING)
        stall = await evidence(stage, Evidence.STILL)
        assert (stall.in_collective, stall.doubt) == (True, "")
        assert stall.lasting >= stall.allowed

    with caplog.at_level(logging.WARNING):
        play(tmp_path, 2, scenario, HangTerms(floor=1.0))
    assert "no process below one has used CPU time or I/O" in caplog.text
    assert "once that is so on every node, the round starts again" in caplog.text


OTHERWISE = {
    "one works in a subprocess": (
        "import subprocess; subprocess.run(['sleep', '600'])",
        "rank 11 is outside any collective",
    ),
    "a program below it computes": (
        "import subprocess; subprocess.Popen([sys.executable, '-c', 'while True: pass']); barrier()",
        "rank 11 ",
    ),
    "a thread writes to slow storage": (
        "import subprocess\n"
        "cat = subprocess.Popen(['cat'], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)\n"
        "def save():\n"
        "    while True: cat.stdin.write(bytes(10000)); cat.stdin.flush(); threading.Event().wait(0.05)\n"
        "threading.Thread(target=save, daemon=True).start(); barrier()",
        "",  # told once there was time to measure it
    ),
    "one waits for somebody's line": ("input()", "rank 11 waits for input"),
    "one is at a breakpoint": ("breakpoint()", "rank 11 waits for input"),
    "one is stopped": (
        "import signal; os.kill(os.getpid(), signal.SIGSTOP)",
        "rank 11 is stopped by a signal (state T)",
    ),
    "it polls, as NCCL does": (
        "code = 'def all_reduce():\\n while True: pass'\n"
        "exec(compile(code, '/x/torch/distributed/distributed_c10d.py', 'exec'))\n"
        "all_reduce()",
        "rank 11 ",
    ),
}


@pytest.mark.parametrize("what", OTHERWISE)
def test_who_is_not_seen_to_wait_is_waited_for(what: str, tmp_path: Path) -> None:
    code, doubt = OTHERWISE[what]

    async def scenario(stage: Stage) -> None:
        await stage.spawn("barrier()", WAITING)
        await stage.spawn(code, f"import sys\n{WAITING}")
        for _ in range(2):
            stall = await stage.stall()
            assert stall is not None
            assert stall.evidence is Evidence.NONE
            assert stall.doubt.startswith(doubt)

    play(tmp_path, 2, scenario, HangTerms(floor=1.0))


def test_the_last_bound_needs_no_evidence(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(stage: Stage) -> None:
        await stage.spawn("stuck()")
        stall = await evidence(stage, Evidence.LAST_BOUND)
        assert stall.silence >= 2.0

    with caplog.at_level(logging.WARNING):
        play(tmp_path, 1, scenario, HangTerms(floor=0.5, last_bound=2.0))
    told = [line for line in caplog.text.splitlines() if "no worker of round 3 has made a step" in line]
    assert "nothing has moved for longer than the last bound" in told[-1]


def test_a_checkpoint_is_no_hang(tmp_path: Path) -> None:
    async def scenario(stage: Stage) -> None:
        process = await stage.spawn("""
            with elasticrun.checkpointing(): threading.Event().wait(2)
            say('saved')""")
        assert await line(process) == "saved"
        assert stage.stalls.empty()

    play(tmp_path, 1, scenario, QUICK)


def test_workers_that_go_on_after_all_are_announced(tmp_path: Path) -> None:
    async def scenario(stage: Stage) -> None:
        process = await stage.spawn("input(); elasticrun.report_step(); all_reduce()")
        assert await stage.stall() is not None
        assert process.stdin is not None
        process.stdin.write(b"\n")
        assert await stage.stall() is None
        assert await stage.stall() is not None

    play(tmp_path, 1, scenario, QUICK)


def test_a_fixed_timeout_ignores_that_the_stack_moves(tmp_path: Path) -> None:
    async def scenario(stage: Stage) -> None:
        await stage.spawn("work(1000)")
        stall = await stage.stall()
        assert stall is not None
        assert stall.allowed == 1.0 <= stall.silence

    play(tmp_path, 1, scenario, HangTerms(timeout=1.0))


def test_the_others_are_judged_when_one_has_ended(tmp_path: Path) -> None:
    async def scenario(stage: Stage) -> None:
        first = await stage.spawn("[elasticrun.report_step() for _ in iter(input, 'end')]")
        await stage.spawn("stuck()")
        await asyncio.wait_for(first.communicate(b"\nend\n"), DEADLINE)
        stage.watch.ended(0)
        assert stage.watch.step(0) == 20
        stall = await stage.stall()
        assert stall is not None
        assert stall.rank == 11

    play(tmp_path, 2, scenario, QUICK)


def test_a_worker_that_is_restarted_alone_is_watched_anew(tmp_path: Path) -> None:
    """Its first attempt made steps, and was killed; the second one is silent until it is told to make one."""
    terms = HangTerms(timeout=0.5)

    async def scenario(stage: Stage) -> None:
        first = await stage.spawn("say('made'); stuck()")
        assert await line(first) == "made"
        assert await stage.stall() is not None
        first.kill()
        await first.wait()
        stage.watch.ended(0)
        assert stage.watch.step(0) == 19
        assert await stage.stall() is None
        stage.watch.start_worker(0, str(tmp_path / "0"))
        assert stage.watch.step(0) == -1
        stage.processes.clear()  # the next one takes its place
        words = "print('here', flush=True); input(); elasticrun.report_step(7); input()"
        second = await stage.spawn(words, before="import elasticrun\n")
        assert await line(second) == "here"
        assert (stage.watch.step(0), stage.stalls.empty()) == (-1, True)
        assert second.stdin is not None
        second.stdin.write(b"\n")
        stall = await stage.stall()
        assert stall is not None
        assert stall.step == 7

    play(tmp_path, 1, scenario, terms)


def test_a_task_that_was_added_has_no_slot_and_is_no_trouble(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario(stage: Stage) -> None:
        assert stage.watch.environment(1, {}) == {}
        (tmp_path / "1").mkdir()
        stage.watch.start_worker(1, str(tmp_path / "1"))
        await stage.spawn("stuck()")
        await stage.spawn("stuck()")
        assert stage.watch.step(1) == -1
        assert not stage.watch.listens(1)
        stage.watch.save_stacks()
        await asyncio.gather(*stage.watch._tasks)
        stage.watch.ended(1)

    with caplog.at_level(logging.WARNING):
        play(tmp_path, 1, scenario, QUICK)
    assert "the stacks of 2 workers were saved" in caplog.text
    assert (tmp_path / "1/stacks_0.txt").read_text().startswith("no stack available")


def test_a_round_that_is_being_stopped_is_not_judged(tmp_path: Path) -> None:
    async def scenario(stage: Stage) -> None:
        await stage.spawn("stuck()")
        await stage.stall()
        stage.watch.stop()
        stage.watch.ended(0)
        assert stage.watch._timer is None
        assert stage.watch._machine is None

    play(tmp_path, 1, scenario, QUICK)


def test_stacks_are_saved_on_demand(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(stage: Stage) -> None:
        # From within, as the worker may still be on its way there when its word arrives.
        process = await stage.spawn("""
            def all_reduce(): say("ready"); stuck()
            all_reduce()""")
        await line(process)
        stage.watch.save_stacks()
        await asyncio.wait_for(asyncio.gather(*stage.watch._tasks), DEADLINE)

    with caplog.at_level(logging.WARNING):
        play(tmp_path, 1, scenario, HangTerms(timeout=0.0))
    assert "all_reduce" in (tmp_path / "0/stacks_0.txt").read_text()
    assert "stacks of 1 workers were saved" in caplog.text


def test_a_drain_reaches_the_workers(tmp_path: Path) -> None:
    async def scenario(stage: Stage) -> None:
        process = await stage.spawn("""
            elasticrun.on_drain(lambda: say("saved"))
            say("ready"); input(); elasticrun.report_step()""")
        await line(process)
        assert stage.watch.listens(0)
        stage.watch.request_drain(30.0)
        assert process.stdin is not None
        process.stdin.write(b"\n")
        assert await line(process) == "saved"

    play(tmp_path, 1, scenario, HangTerms())


def test_a_bug_in_taking_stacks_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(stage: Stage) -> None:
        seen: asyncio.Queue[object] = asyncio.Queue()
        asyncio.get_running_loop().set_exception_handler(
            lambda _, context: seen.put_nowait(context["exception"])
        )
        monkeypatch.setattr(stage.watch.page, "target", None)
        await line(await stage.spawn("say('ready'); stuck()"))
        stage.watch.save_stacks()
        assert isinstance(await asyncio.wait_for(seen.get(), DEADLINE), TypeError)

    play(tmp_path, 1, scenario, HangTerms())
