"""Stacks of real processes: by signal, by something that claims to be py-spy, and of those that show none."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from elasticrun.agent.monitors import stacks
from elasticrun.agent.monitors.page import ProgressPage
from elasticrun.agent.monitors.stacks import StackTaker, Taken, Target
from elasticrun.core.progress.stacks import main_stack
from tests.support.processes import DEADLINE

ARMED = """
import elasticrun, threading
elasticrun.report_step()
def somewhere():
    print("ready", flush=True)
    threading.Event().wait()
def elsewhere():
    threading.Event().wait()
threading.Thread(target=elsewhere, daemon=True).start()
somewhere()
"""


IN_SOMEWHERE = ["somewhere", "<module>"]


class Worker:
    """A process that said it is ready."""

    def __init__(self, page: ProgressPage, local_rank: int, code: str) -> None:
        environment = {**os.environ, **page.environment(local_rank, os.environ, auto=False)}
        self._page = page
        self._local_rank = local_rank
        self.process = subprocess.Popen(
            [sys.executable, "-c", code], env=environment, stdout=subprocess.PIPE, start_new_session=True
        )
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == b"ready\n"

    @property
    def target(self) -> Target:
        return self._page.target(self._local_rank, self.process.pid)

    def close(self) -> None:
        self.process.kill()
        self.process.wait(DEADLINE)
        assert self.process.stdout is not None
        self.process.stdout.close()


@pytest.fixture
def start(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Worker]]:
    monkeypatch.setattr(stacks, "SIGNAL_TIMEOUT", DEADLINE)  # a busy machine may hold up any answer
    page = ProgressPage(2)
    workers: list[Worker] = []

    def start(code: str = ARMED) -> Worker:
        workers.append(Worker(page, len(workers), code))
        return workers[-1]

    yield start
    for worker in workers:
        worker.close()
    page.close()


def take(*targets: Target, search_path: str | None = None) -> dict[int, Taken]:
    async def main() -> dict[int, Taken]:
        return await asyncio.wait_for(StackTaker(search_path).take(targets), DEADLINE)

    return asyncio.run(main())


def take_one(target: Target, search_path: str | None = None) -> Taken:
    return take(target, search_path=search_path)[target.local_rank]


def functions(text: str) -> list[str]:
    return [frame.function for frame in main_stack(text)]


def asks_and_answers(worker: Worker) -> int:
    """How many answers come to one question."""
    return take_one(worker.target).text.count("Current thread")


def test_all_threads_of_all_workers_are_seen_by_signal(start: Callable[..., Worker]) -> None:
    taken = take(start().target, start().target)
    assert sorted(taken) == [0, 1]
    for each in taken.values():
        assert functions(each.text)[-2:] == IN_SOMEWHERE
        assert "in elsewhere" in each.text


def test_a_worker_lives_on_and_can_be_asked_again(start: Callable[..., Worker]) -> None:
    worker = start()
    for _ in range(2):
        assert functions(take_one(worker.target).text)[-2:] == IN_SOMEWHERE
    assert worker.process.poll() is None


def test_an_answer_that_came_too_late_is_not_taken_for_the_next(
    start: Callable[..., Worker], monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = start()
    with monkeypatch.context() as patch:
        patch.setattr(stacks, "SIGNAL_TIMEOUT", 0.1)
        worker.process.send_signal(signal.SIGSTOP)
        late = take_one(worker.target)
    assert (late.text, late.problem.partition("; ")[2]) == ("", "the worker did not answer within 0.1 s")
    worker.process.send_signal(signal.SIGCONT)
    assert functions(take_one(worker.target).text)[-2:] == IN_SOMEWHERE
    assert asks_and_answers(worker) == 1


def test_a_worker_that_does_not_answer_keeps_no_other_one_waiting(start: Callable[..., Worker]) -> None:
    stopped, well = start(), start()
    stopped.process.send_signal(signal.SIGSTOP)

    async def main() -> None:
        taker = StackTaker(None)
        silent = asyncio.ensure_future(taker.take([stopped.target]))
        taken = await asyncio.wait_for(taker.take([well.target]), DEADLINE)
        assert functions(taken[1].text)[-2:] == IN_SOMEWHERE
        assert not silent.done()
        stopped.process.send_signal(signal.SIGCONT)
        await silent

    asyncio.run(main())


def test_an_answer_without_end_is_cut() -> None:
    """A worker writes what it likes."""
    reader, writer = stacks.open_pipe()

    def write() -> None:
        with contextlib.suppress(BrokenPipeError):
            while True:
                os.write(writer, b"x" * 65536)

    before = signal.signal(signal.SIGUSR1, lambda *_: None)
    endless = threading.Thread(target=write)
    endless.start()
    try:
        taken = take_one(Target(0, os.getpid(), signal.SIGUSR1, reader))
    finally:
        os.close(reader)
        endless.join(DEADLINE)
        os.close(writer)
        signal.signal(signal.SIGUSR1, before)
    assert (4 << 20) <= len(taken.text) < (5 << 20)


UNARMED = {
    "never armed": "print('ready', flush=True); import signal; signal.pause()",
    "another program now": ARMED.replace(
        "somewhere()\n", "import os; os.execlp('sh', 'sh', '-c', 'echo ready; exec sleep 1000')\n", 1
    ).replace('print("ready", flush=True)', "pass"),
    "its signal given back": ARMED.replace(
        "def somewhere",
        "import signal\nfor s in range(34, 65): signal.signal(s, 0)\ndef somewhere",
    ),
}


@pytest.mark.parametrize("how", UNARMED)
def test_a_process_that_would_not_survive_the_signal_never_gets_it(
    start: Callable[..., Worker], how: str
) -> None:
    worker = start(UNARMED[how])
    target = worker.target
    assert (target.signum > 0) == (how != "never armed")
    taken = take_one(Target(target.local_rank, target.pid, target.signum or 50, target.pipe))
    assert taken == Taken("", "py-spy is not installed; the worker does not answer a signal with its stacks")
    assert worker.process.poll() is None


def test_a_child_is_asked_only_in_its_own_name(start: Callable[..., Worker]) -> None:
    """A page that names a process outside of the worker's session is not believed."""
    stranger = start()
    page = stranger._page
    assert page.target(0, stranger.process.pid).signum > 0
    assert page.target(0, os.getpid()) == Target(0, os.getpid(), 0, page.target(0, 0).pipe)


def test_a_worker_that_has_ended_has_no_stack(start: Callable[..., Worker]) -> None:
    worker = start()
    target = worker.target
    worker.process.kill()
    worker.process.wait(DEADLINE)
    assert take_one(target).text == ""


# -- py-spy


def fake_py_spy(directory: Path, script: str) -> str:
    program = directory / "py-spy"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    return f"{directory}:{os.defpath}"


def test_py_spy_is_preferred(start: Callable[..., Worker], tmp_path: Path) -> None:
    path = fake_py_spy(tmp_path, 'echo "Thread $3 (idle): \\"MainThread\\""; echo "    f (a.py:1)"')
    worker = start()
    assert take_one(worker.target, path).text.startswith(f"Thread {worker.process.pid} (idle)")


@pytest.mark.parametrize(
    ("script", "problem"),
    [
        ("echo 'Error: Permission denied' >&2; exit 1", "py-spy failed: Error: Permission denied"),
        ("exit 3", "py-spy failed: exit status 3"),
        ("echo nothing", "py-spy failed: exit status 0"),
        ("exec sleep 1000", "py-spy took too long"),
    ],
)
def test_where_py_spy_fails_the_worker_is_asked(
    start: Callable[..., Worker],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    script: str,
    problem: str,
) -> None:
    monkeypatch.setattr(stacks, "PY_SPY_TIMEOUT", 0.2 if "sleep" in script else DEADLINE)
    path = fake_py_spy(tmp_path, script)
    worker = start()
    assert "somewhere" in take_one(worker.target, path).text
    unarmed = Target(0, worker.process.pid, 0, worker.target.pipe)
    assert take_one(unarmed, path).problem.startswith(problem)


def test_a_py_spy_that_cannot_be_started_is_reported(start: Callable[..., Worker], tmp_path: Path) -> None:
    path = fake_py_spy(tmp_path, "")
    (tmp_path / "py-spy").write_text("#!/not/there\n")
    unarmed = Target(0, start().process.pid, 0, 0)
    assert take_one(unarmed, path).problem.startswith("py-spy cannot be started: No such file")


@pytest.mark.skipif(shutil.which("py-spy") is None, reason="needs py-spy: pip install py-spy")
def test_the_real_py_spy_and_faulthandler_agree(start: Callable[..., Worker]) -> None:
    worker = start()
    seen = main_stack(take_one(worker.target, os.environ["PATH"]).text)
    told = main_stack(take_one(worker.target).text)
    assert [frame.place for frame in seen[-2:]] == [frame.place for frame in told[-2:]]


# -- files


def saver(*directories: str) -> StackTaker:
    async def make() -> StackTaker:
        return StackTaker(None)

    taker = asyncio.run(make())
    taker.open_round(dict(enumerate(directories)))
    return taker


def test_stacks_are_saved_beside_the_logs(tmp_path: Path) -> None:
    (tmp_path / "0").mkdir()
    (tmp_path / "1").mkdir()
    taker = saver(str(tmp_path / "0"), str(tmp_path / "1"), "")
    taken = {0: Taken("Thread"), 1: Taken("", "why"), 2: Taken("nowhere")}
    assert taker.save(taken) == [str(tmp_path / "0/stacks_0.txt"), str(tmp_path / "1/stacks_0.txt")]
    assert taker.save({0: Taken("again")}) == [str(tmp_path / "0/stacks_1.txt")]
    assert (tmp_path / "0/stacks_0.txt").read_text() == "Thread"
    assert (tmp_path / "1/stacks_0.txt").read_text() == "no stack available: why\n"


def test_what_cannot_be_saved_is_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "stacks_0.txt").symlink_to("/dev/full")
    with caplog.at_level(logging.WARNING):
        assert saver(str(tmp_path)).save({0: Taken("text")}) == []
    assert "No space left on device" in caplog.text
