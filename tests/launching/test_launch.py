"""Functions and scripts launched from Python, as real jobs."""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import inspect
import io
import os
import pickle
import re
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import elasticrun
from elasticrun.core.protocol.status import JobPhase
from elasticrun.errors import MasterUnreachableError, NodeFaultError, UsageError
from elasticrun.launching import api
from elasticrun.launching.server import Server
from elasticrun.worker.target import LAUNCHER
from tests.support.processes import DEADLINE, is_alive, nobody_left, wait_end


def values(results: list[elasticrun.Result]) -> list[Any]:
    """What the ranks returned, in their order."""
    assert [each.rank for each in results] == [*range(len(results))]
    return [each.value for each in results]


# -- what comes back


def test_each_rank_returns_what_its_function_returns() -> None:
    offset = 10
    assert values(elasticrun.launch(lambda base: base + offset + int(os.environ["RANK"]), 100, nproc=3)) == [
        110,
        111,
        112,
    ]


def test_nodes_have_launchers_of_their_own() -> None:
    def place() -> tuple[str, ...]:
        return tuple(os.environ[name] for name in ("RANK", "LOCAL_RANK", "GROUP_RANK", "WORLD_SIZE"))

    found = values(elasticrun.launch(place, nproc=2, nodes=2))
    assert found == [("0", "0", "0", "4"), ("1", "1", "0", "4"), ("2", "0", "1", "4"), ("3", "1", "1", "4")]


def test_the_newest_round_of_a_restarted_rank_answers() -> None:
    def fail_once() -> str:
        if os.environ["ELASTICRUN_ROUND"] == "0":
            os.kill(os.getpid(), signal.SIGKILL)
        return os.environ["TORCHELASTIC_RESTART_COUNT"]

    assert values(elasticrun.launch(fail_once, nproc=1, max_restarts=1)) == ["1"]


def test_what_an_earlier_round_has_left_is_no_answer() -> None:
    def end() -> None:
        if os.environ["ELASTICRUN_ROUND"] == "0":
            raise LookupError("of round 0")
        sys.exit(0)

    assert values(elasticrun.launch(end, nproc=1, max_restarts=1)) == [None]


def test_a_function_may_change_its_environment_and_fork() -> None:
    def change() -> str:
        rank = os.environ["RANK"]
        os.environ.clear()
        if os.fork() == 0:
            return "from a child"
        os.wait()
        return rank

    assert values(elasticrun.launch(change)) == ["0", "1"]


def test_what_was_edited_after_its_import_is_imported_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = tmp_path / "a_module_that_is_edited.py"
    module.write_text("VALUE = 1")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")

    def value() -> int:
        import a_module_that_is_edited  # type: ignore[import-not-found]

        return int(a_module_that_is_edited.VALUE)

    server = Server()
    for text, found in (("VALUE = 1", 1), ("VALUE = 1", 1), ("VALUE = 22", 22)):
        module.write_text(text) if text != module.read_text() else None
        job = elasticrun.start(value, nproc=1, preload=[module.stem], server=server)
        assert values(job.wait()) == [found]
    server.close()


@pytest.mark.torch
def test_what_a_rank_had_to_import_the_next_one_finds() -> None:
    pytest.importorskip("torch")

    def imports() -> bool:
        is_there = "torch._dynamo" in sys.modules
        import torch._dynamo as dynamo

        return is_there and bool(dynamo)

    server = Server()
    found = [values(elasticrun.launch(imports, nproc=1, preload=["torch"], server=server)) for _ in range(2)]
    server.close()
    assert found == [[False], [True]]


def test_what_is_slow_to_import_is_imported_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A module of that name stands for the real one."""
    (tmp_path / "accelerate.py").write_text("import os\nIMPORTER = os.getpid()\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "accelerate", raising=False)
    server = Server()
    for has_it in (False, True):
        if has_it:
            monkeypatch.setitem(sys.modules, "accelerate", ModuleType("accelerate"))
        with elasticrun.start(importer, server=server) as job:
            assert [pid == server.process for pid in values(job.wait())] == [has_it, has_it]
    server.close()


def importer() -> int:
    """Who has imported the module that this rank finds."""
    return int(importlib.import_module("accelerate").IMPORTER)


def test_a_fork_of_the_caller_does_not_end_its_job(tmp_path: Path) -> None:
    with elasticrun.start(sleeper(tmp_path)) as job:
        found = pids(tmp_path)
        child = os.fork()
        if child == 0:
            job.cancel()
            os._exit(0)
        os.waitpid(child, 0)
        assert all(is_alive(pid) for pid in found)
        assert not job.is_over


def test_classes_of_the_caller_come_back_as_its_own() -> None:
    class Point:
        def __init__(self, x: int) -> None:
            self.x = x

    (found,) = values(elasticrun.launch(lambda: Point(3), nproc=1))
    assert isinstance(found, Point)
    assert found.x == 3


def test_a_function_sees_the_callers_command_line_and_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["train.py", "--lr", "1"])
    monkeypatch.setattr(sys, "path", [tmp_path, str(tmp_path), *sys.path])
    server = Server()
    with elasticrun.start(lambda: (sys.argv, sys.path[0]), nproc=1, server=server) as job:
        assert values(job.wait()) == [(["train.py", "--lr", "1"], str(tmp_path))]
    server.close()


def test_a_script_gets_its_arguments(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text("import sys\nfrom pathlib import Path\nPath(sys.argv[1]).write_text(sys.argv[2])\n")
    assert values(elasticrun.launch(script, tmp_path / "out", 7, nproc=1)) == [None]
    assert (tmp_path / "out").read_text() == "7"


def test_workers_meet_in_a_process_group_without_an_import_of_torch() -> None:
    pytest.importorskip("torch")

    def reduce() -> tuple[float, bool]:
        was_there = "torch" in sys.modules
        import torch
        import torch.distributed as dist

        dist.init_process_group("gloo")
        total = torch.ones(1)
        dist.all_reduce(total)
        dist.destroy_process_group()
        return total.item(), was_there

    assert values(elasticrun.launch(reduce, preload=["torch"])) == [(2.0, True), (2.0, True)]


def test_a_worker_ends_as_the_interpreter_does(tmp_path: Path) -> None:
    """Threads are waited for, handlers of the exit run, and what was printed or written is not lost."""
    log, kept = tmp_path / "log", tmp_path / "kept"

    def leave() -> None:
        import atexit
        import threading

        def add(line: str) -> None:
            with log.open("a") as file:
                file.write(line)

        def late() -> None:
            started.set()
            threading.main_thread().join()
            add("thread ")

        started = threading.Event()
        atexit.register(add, "exit")
        vars(os)["kept"] = kept.open("w")  # nobody closes it
        vars(os)["kept"].write("written")
        threading.Thread(target=late).start()
        started.wait()

    elasticrun.launch(leave, nproc=1)
    assert log.read_text() == "thread exit"
    assert kept.read_text() == "written"


# -- failures


def test_the_first_failure_is_the_cause_with_its_own_traceback() -> None:
    def fail() -> None:
        if os.environ["RANK"] == "1":
            raise LookupError("no such thing")
        threading.Event().wait()

    with pytest.raises(elasticrun.WorkerFailed, match="no such thing") as failed:
        elasticrun.launch(fail)
    error = failed.value
    assert (error.rank, error.worker_exit_code) == (1, 1)
    assert isinstance(error.__cause__, LookupError)
    assert 'raise LookupError("no such thing")' in error.traceback
    assert "target.py" not in str(error), "no frame of ours"


def test_an_exception_that_is_no_pickle_is_told_in_words() -> None:
    class Odd(Exception):
        def __init__(self) -> None:
            super().__init__("it holds a lock")
            self.lock = threading.Lock()

    def fail() -> None:
        raise Odd

    with pytest.raises(elasticrun.WorkerFailed, match="Odd: it holds a lock") as failed:
        elasticrun.launch(fail, nproc=1)
    assert failed.value.__cause__ is None


def test_an_exception_that_cannot_be_made_again_is_told_in_words() -> None:
    class Odd(Exception):
        def __init__(self, words: str, more: int) -> None:
            super().__init__(words)
            self.more = more

    def fail() -> None:
        raise Odd("it takes two arguments", 2)

    with pytest.raises(elasticrun.WorkerFailed, match="Odd: it takes two arguments") as failed:
        elasticrun.launch(fail, nproc=1)
    assert failed.value.__cause__ is None


def test_an_exception_that_has_no_text_is_told_by_its_traceback() -> None:
    class Mute(Exception):
        def __str__(self) -> str:
            raise RuntimeError

    def fail() -> None:
        raise Mute

    with pytest.raises(elasticrun.WorkerFailed, match="exited with 1: Mute") as failed:
        elasticrun.launch(fail, nproc=1)
    assert "raise Mute" in failed.value.traceback
    assert "target.py" not in str(failed.value)


def test_a_killed_worker_is_told_of() -> None:
    def die() -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    with pytest.raises(elasticrun.WorkerFailed, match="SIGKILL") as failed:
        elasticrun.launch(die, nproc=1)
    assert failed.value.worker_exit_code == -signal.SIGKILL


def test_what_an_earlier_round_raised_is_not_the_cause() -> None:
    def fail() -> None:
        if os.environ["ELASTICRUN_ROUND"] == "0":
            raise LookupError("an old story")
        os.kill(os.getpid(), signal.SIGKILL)

    with pytest.raises(elasticrun.WorkerFailed, match="SIGKILL") as failed:
        elasticrun.launch(fail, nproc=1, max_restarts=1)
    assert failed.value.__cause__ is None


def test_a_script_that_fails_shows_its_output(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text("import sys\nsys.exit('the disk is full')\n")
    with pytest.raises(elasticrun.WorkerFailed, match="the disk is full"):
        elasticrun.launch(script, nproc=1)


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (lambda: threading.Lock(), "returned a lock that cannot be sent back"),
        (lambda: bytes(2000), "bytes, more than 1,000: write what is large to a file, or give max_result"),
    ],
)
def test_what_cannot_be_returned_is_the_ranks_failure(function: Any, words: str) -> None:
    with pytest.raises(elasticrun.WorkerFailed, match=words):
        elasticrun.launch(function, nproc=1, max_result_bytes=1000)


@pytest.mark.parametrize(
    "error",
    [
        elasticrun.WorkerFailed(1, "it failed", -9, "a traceback", "its output", ("another",)),
        elasticrun.JobFailedError("it was stopped", 143),
    ],
)
def test_errors_reach_another_process(error: Exception) -> None:
    """As from a pool of processes whose tasks launch jobs."""
    again = pickle.loads(pickle.dumps(error))
    assert (type(again), str(again), vars(again)) == (type(error), str(error), vars(error))


# -- bad input


def test_what_cannot_be_sent_is_named() -> None:
    lock = threading.Lock()
    with pytest.raises(UsageError, match=r"'lock', a _thread.lock that .*<lambda> uses, cannot be sent"):
        elasticrun.launch(lambda: lock)
    with pytest.raises(UsageError, match=r"argument 2, a _thread.lock, cannot be sent"):
        elasticrun.launch(print, 1, lock)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"nproc": 0}, "nproc=0 was given: give a whole number of 1 or more"),
        ({"nodes": 0}, "nodes=0 was given"),
        ({"nproc": "2"}, "nproc='2' was given: give a whole number of 1 or more"),
        ({"max_result_bytes": 1.5}, "max_result_bytes=1.5 was given"),
        ({"env": {"A": 1}}, "env has 'A': 1: give names and values as text"),
        ({"env": {"A=B": "1"}}, "env has 'A=B': '1', which no environment can hold"),
        ({"env": ["A"]}, "env=['A'] was given: give a dict"),
        ({"preload": "torch"}, "preload='torch' was given: give a list of names, as ['torch']"),
        ({"nproc": 10_000}, "10000 workers, more than"),
        ({"hang_timeout": "soon"}, "--hang-timeout"),
        ({"max_restart": 3}, "launch has no option max_restart: did you mean max_restarts?"),
        ({"nprocs": 2}, "launch has no option nprocs: did you mean nproc?"),
        ({"timeout": 2}, "launch has no option timeout: start the job, and give it to wait()"),
        ({"policy": {"a": 1}}, "policy={'a': 1} was given: give text, a path, a number, True or False"),
        ({"frobnicate": True}, "launch has no option frobnicate: elastic-run --help lists all"),
        ({"kill_leftovers": 3}, "kill_leftovers=3 was given: give True or False"),
        ({"nnodes": 2}, "nnodes was given: launch settles it itself, give nodes"),
        ({"standalone": True}, "launch settles it itself"),
    ],
)
def test_wrong_options_are_refused_in_one_sentence(options: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=re.escape(words)) as refused:
        elasticrun.launch(print, **options)
    assert "\n" not in str(refused.value)


def test_hints_know_what_launch_and_start_take() -> None:
    from elasticrun.cli.keywords import ARGUMENTS

    named = {it.name for it in inspect.signature(elasticrun.start).parameters.values()}
    assert named - {"target", "args", "options"} == {*ARGUMENTS}


def test_what_is_no_target_is_refused() -> None:
    with pytest.raises(
        UsageError, match="launch was given 5 to run: give a function, or the path of a script"
    ):
        elasticrun.launch(5)  # type: ignore[arg-type]


def test_a_coroutine_function_is_refused() -> None:
    async def work() -> int:
        return 1

    with pytest.raises(
        UsageError, match=r"the coroutine function work: give lambda: asyncio\.run\(work\(\)\)"
    ):
        elasticrun.launch(work)
    assert inspect.CO_COROUTINE == api._COROUTINE


def test_a_directory_that_is_gone_is_told_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    with pytest.raises(UsageError, match="the working directory has been removed"):
        elasticrun.launch(print)


def test_a_worker_may_not_launch() -> None:
    def nested() -> None:
        elasticrun.launch(print)

    with pytest.raises(elasticrun.WorkerFailed, match="launch was called in a worker"):
        elasticrun.launch(nested, nproc=1)


# -- the handle


def sleeper(folder: Path) -> Any:
    """A function that says its pid in a file, and waits for ever."""

    def sleep() -> None:
        path = folder / os.environ["RANK"]
        path.with_suffix(".new").write_text(str(os.getpid()))
        path.with_suffix(".new").rename(path)
        threading.Event().wait()

    return sleep


def pids(folder: Path, count: int = 2) -> list[int]:
    """The pids of the sleepers, once all sleep."""
    deadline = time.monotonic() + DEADLINE
    while len(found := [path for path in folder.iterdir() if not path.suffix]) < count:
        assert time.monotonic() < deadline
        os.sched_yield()
    return [int(path.read_text()) for path in found]


def test_a_job_that_is_cancelled_leaves_nothing(tmp_path: Path) -> None:
    job = elasticrun.start(sleeper(tmp_path))
    found = pids(tmp_path)
    with pytest.raises(TimeoutError, match=r"still runs after 0\.01 s"):
        job.wait(0.01)
    assert not job.is_over
    job.cancel()
    for pid in found:
        wait_end(pid)
    with pytest.raises(elasticrun.JobFailedError):
        job.wait()


def outcome(job: elasticrun.Job) -> str:
    """How a wait for a job has ended, in words."""
    try:
        return f"returned {values(job.wait())}"
    except elasticrun.JobFailedError as error:
        return str(error)


@pytest.mark.parametrize("way", ["cancel", "close"])
def test_another_thread_may_end_a_job_that_is_waited_for(tmp_path: Path, way: str) -> None:
    job = elasticrun.start(sleeper(tmp_path))
    with ThreadPoolExecutor(2) as pool:
        waiting = [pool.submit(outcome, job), pool.submit(outcome, job)]
        found = pids(tmp_path)
        getattr(job, way)()
        ended = "stopped by signal 15" if way == "cancel" else "was cancelled"
        assert [ended in each.result(DEADLINE) for each in waiting] == [True, True]
    for pid in found:
        wait_end(pid)


@pytest.mark.parametrize("way", ["cancel", "close"])
def test_a_handler_of_a_signal_may_end_a_job_that_is_waited_for(tmp_path: Path, way: str) -> None:
    job = elasticrun.start(sleeper(tmp_path))
    before = signal.signal(signal.SIGUSR1, lambda *_: getattr(job, way)())

    def end() -> list[int]:
        found = pids(tmp_path)
        os.kill(os.getpid(), signal.SIGUSR1)
        return found

    try:
        with ThreadPoolExecutor(1) as pool:
            ending = pool.submit(end)
            assert ("stopped by signal 15" if way == "cancel" else "was cancelled") in outcome(job)
    finally:
        signal.signal(signal.SIGUSR1, before)
    for pid in ending.result():
        wait_end(pid)


def test_threads_that_wait_for_one_job_get_the_same(tmp_path: Path) -> None:
    with elasticrun.start(lambda: 7) as job, ThreadPoolExecutor(4) as pool:
        assert {*pool.map(outcome, [job] * 4)} == {"returned [7, 7]"}


def test_a_job_that_has_not_begun_is_given_up_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its fork server imports a module that does not end until this test lets it."""
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    (tmp_path / "slow_module.py").write_text(f"open({str(fifo)!r}).close()\n")
    monkeypatch.syspath_prepend(tmp_path)
    server = Server()
    job = elasticrun.start(print, preload=["slow_module"], server=server)
    job.cancel(patience=1000)
    with pytest.raises(elasticrun.JobFailedError, match="was cancelled"):
        job.wait()
    fifo.open("w").close()
    with elasticrun.start(lambda: 7, server=server) as again:
        assert values(again.wait()) == [7, 7]
    server.close()


def test_the_end_of_a_with_block_ends_the_job(tmp_path: Path) -> None:
    with elasticrun.start(sleeper(tmp_path)):
        found = pids(tmp_path)
    for pid in found:
        wait_end(pid)


def test_a_fork_of_the_caller_keeps_no_job_alive(tmp_path: Path) -> None:
    job = elasticrun.start(sleeper(tmp_path))
    found = pids(tmp_path)
    gate, held = os.pipe()
    fork = os.fork()
    if fork == 0:
        os.close(held)
        os.read(gate, 1)
        os._exit(0)
    try:
        job.close()
        for pid in found:
            wait_end(pid)
    finally:
        os.close(held)
        os.close(gate)
        os.waitpid(fork, 0)


def test_a_handle_that_is_dropped_ends_its_job(tmp_path: Path) -> None:
    elasticrun.launch(print)
    before = {*Path("/proc/self/fd").iterdir()}
    job = elasticrun.start(sleeper(tmp_path))
    found = pids(tmp_path)
    del job
    for pid in found:
        wait_end(pid)
    assert {*Path("/proc/self/fd").iterdir()} == before


def test_results_outlast_the_with_block() -> None:
    with elasticrun.start(lambda: 7) as job:
        while not job.is_over:
            job.hear(None)
    assert values(job.wait()) == [7, 7]
    assert values(job.wait()) == [7, 7]


def test_a_job_that_was_closed_has_no_results(tmp_path: Path) -> None:
    job = elasticrun.start(sleeper(tmp_path))
    job.close()
    job.close()
    with pytest.raises(elasticrun.JobFailedError, match="was cancelled"):
        job.wait()


def test_a_job_tells_how_it_does(tmp_path: Path) -> None:
    with elasticrun.start(sleeper(tmp_path)) as job:
        pids(tmp_path)
        status = job.status()
        assert status.phase is JobPhase.RUNNING
        assert [node.rank for node in status.nodes] == [0]
    with pytest.raises(MasterUnreachableError):
        job.status()


def test_a_job_tells_how_it_does_where_a_loop_runs(tmp_path: Path) -> None:
    """As in a cell of a notebook."""

    async def cell() -> JobPhase:
        with elasticrun.start(sleeper(tmp_path)) as job:
            pids(tmp_path)
            return job.status().phase

    assert asyncio.run(cell()) is JobPhase.RUNNING


def test_jobs_run_side_by_side_from_threads() -> None:
    with ThreadPoolExecutor(3) as pool:
        found = pool.map(lambda number: values(elasticrun.launch(lambda: number, nproc=1)), range(3))
    assert [*found] == [[0], [1], [2]]


def test_threads_that_launch_at_once_start_one_server(monkeypatch: pytest.MonkeyPatch) -> None:
    servers: list[Server] = []

    def counted() -> Server:
        servers.append(Server())
        return servers[-1]

    monkeypatch.setattr(api, "Server", counted)
    monkeypatch.setattr(api._Shared, "server", None)
    with ThreadPoolExecutor(3) as pool:
        found = pool.map(lambda number: values(elasticrun.launch(lambda: number, nproc=1)), range(3))
    assert [*found] == [[0], [1], [2]]
    assert len(servers) == 1
    servers[0].close()


def test_a_caller_may_ignore_the_end_of_its_children() -> None:
    """Programs inherit that, and then have no children to wait for."""
    before = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    try:
        server = Server()
    finally:
        signal.signal(signal.SIGCHLD, before)

    def run() -> int:
        return subprocess.run(["false"], check=False).returncode

    with elasticrun.start(run, server=server) as job:
        assert values(job.wait()) == [1, 1]
    server.close()


def test_the_end_of_the_fork_server_ends_its_jobs(tmp_path: Path) -> None:
    server = Server()
    with elasticrun.start(sleeper(tmp_path), server=server) as job:
        found = pids(tmp_path)
        os.kill(server.process, signal.SIGKILL)
        with pytest.raises(elasticrun.JobFailedError, match="ended without a word"):
            job.wait()
    for pid in found:
        wait_end(pid)
    with pytest.raises(NodeFaultError, match="the fork server is gone"):
        elasticrun.start(print, server=server)
    server.close()


def test_a_launcher_that_is_let_go_tidies_up_by_itself(tmp_path: Path) -> None:
    """Its caller goes on before it has ended; it is waited for at the end, and not killed."""

    def places() -> tuple[int, str]:
        return int(os.environ[LAUNCHER]), os.environ["TORCHELASTIC_ERROR_FILE"]

    server = Server(early=True)
    env = {"TMPDIR": str(tmp_path)}
    found = [values(elasticrun.launch(places, nproc=1, server=server, env=env))[0] for _ in range(5)]
    server.close()
    assert all(str(tmp_path) in file for _, file in found)
    assert [pid for pid, _ in found if Path(f"/proc/{pid}").exists()] == []
    assert [*tmp_path.iterdir()] == []


@pytest.mark.parametrize(("nodes", "status"), [(2, 0), (1, 3)])
def test_a_job_of_several_nodes_or_that_failed_is_waited_for(nodes: int, status: int) -> None:
    def ends() -> int:
        if status:
            os._exit(status)
        return int(os.environ[LAUNCHER])

    server = Server(early=True)
    with elasticrun.start(ends, nproc=1, nodes=nodes, server=server) as job:
        with contextlib.nullcontext() if not status else pytest.raises(elasticrun.WorkerFailed):
            job.wait()
        assert not any(Path(f"/proc/{pid}").exists() for pid in job._launchers.pids.values())
    server.close()


def test_a_fork_server_that_is_gone_is_replaced() -> None:
    elasticrun.launch(print, nproc=1)
    server = api._Shared.server
    assert server is not None
    os.kill(server.process, signal.SIGKILL)
    os.waitid(os.P_PID, server.process, os.WEXITED | os.WNOWAIT)
    assert values(elasticrun.launch(lambda: 7, nproc=1)) == [7]
    assert api._Shared.server is not server


def test_a_server_that_has_hung_up_is_not_alive(tmp_path: Path) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    opened = f"open({str(fifo)!r}"
    server = Server(f"import os\nos.close(int(sys.argv[1]))\n{opened}, 'w').close()\n{opened}).read()\n")
    fifo.open().close()
    assert not server.is_alive
    fifo.open("w").close()
    server.close()


def test_a_module_that_exits_is_left_to_the_workers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "exiting_module.py").write_text("raise SystemExit(3)\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    server = Server()
    with elasticrun.start(lambda: 7, nproc=1, preload=["exiting_module"], server=server) as job:
        assert values(job.wait()) == [7]
    server.close()


def test_files_that_a_preloaded_module_opens_stay_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "opening_module.py").write_text("file = open(__file__)\n")
    monkeypatch.syspath_prepend(str(tmp_path))

    def read() -> str:
        import opening_module  # type: ignore[import-not-found]

        return str(opening_module.file.read())

    server = Server()
    with elasticrun.start(read, nproc=1, preload=["opening_module"], server=server) as job:
        assert values(job.wait()) == ["file = open(__file__)\n"]
    server.close()


ASKS_FOR_CUDA = """
    import os, sys, types
    asked_softly, pid = os.environ.get("PYTORCH_NVML_BASED_CUDA_CHECK") == "1", os.getpid()
    cuda = types.SimpleNamespace(_is_in_bad_fork=lambda: os.getpid() != pid and not asked_softly)
    sys.modules["torch"] = types.SimpleNamespace(cuda=cuda)
    """


@pytest.mark.parametrize("asks_softly", [True, False])
def test_ranks_can_use_cuda_whatever_asks_for_it_while_it_is_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, asks_softly: bool
) -> None:
    """Softly, forks can; else the ranks of a job are no forks of what was imported."""
    (tmp_path / "asking_module.py").write_text(textwrap.dedent(ASKS_FOR_CUDA))
    monkeypatch.syspath_prepend(str(tmp_path))
    if not asks_softly:
        monkeypatch.setenv("PYTORCH_NVML_BASED_CUDA_CHECK", "0")

    def is_fit() -> tuple[bool, bool, str | None]:
        is_there = "asking_module" in sys.modules
        import asking_module  # type: ignore[import-not-found]

        asks_softly = os.environ.get("PYTORCH_NVML_BASED_CUDA_CHECK")
        return is_there, not asking_module.cuda._is_in_bad_fork(), asks_softly

    server = Server()
    job = elasticrun.start(is_fit, nproc=1, preload=["asking_module"], server=server)
    assert values(job.wait()) == [(asks_softly, True, None if asks_softly else "0")]
    server.close()


def test_this_process_is_never_forked() -> None:
    forks: list[int] = []
    os.register_at_fork(before=lambda: forks.append(1))
    assert values(elasticrun.launch(os.getpid, nproc=1)) != [os.getpid()]
    assert forks == []


# -- output


@pytest.mark.parametrize("way", ["capsys", "capfd"])
def test_output_goes_where_the_caller_prints(way: str, request: pytest.FixtureRequest) -> None:
    captured = request.getfixturevalue(way)

    def speak() -> None:
        print("said")
        print("complained", file=sys.stderr)

    elasticrun.launch(speak, nproc=1)
    out, err = captured.readouterr()
    assert out == "said\n"
    assert err == "complained\n"


def test_no_character_is_broken_where_a_piece_of_the_output_ends(capsys: pytest.CaptureFixture[str]) -> None:
    elasticrun.launch(lambda: print("x" + "é" * 200_000), nproc=1)
    assert capsys.readouterr().out == "x" + "é" * 200_000 + "\n"


@pytest.mark.parametrize("stream", [None, io.StringIO()])
def test_a_stream_that_takes_nothing_fails_no_worker(
    stream: io.StringIO | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    if stream is not None:
        stream.close()
    monkeypatch.setattr(sys, "stdout", stream)
    assert values(elasticrun.launch(lambda: print("x" * 200_000), nproc=1)) == [None]


def test_a_job_does_not_wait_for_what_a_worker_leaves(capsys: pytest.CaptureFixture[str]) -> None:
    def leave() -> int:
        print("said")
        return subprocess.Popen(["sleep", "1000"], start_new_session=True).pid

    (left,) = values(elasticrun.launch(leave, nproc=1))
    assert capsys.readouterr().out == "said\n"
    os.kill(left, signal.SIGKILL)
    wait_end(left)


@pytest.mark.parametrize("closed", [(2,), (0, 1, 2)])
def test_a_caller_may_have_closed_its_standard_files(tmp_path: Path, closed: tuple[int, ...]) -> None:
    """As some daemons do."""
    code = f"""
import elasticrun
from pathlib import Path
found = elasticrun.launch(lambda: print("said") or 7)
Path({str(tmp_path)!r}, "found").write_text(repr([it.value for it in found]))
"""
    redirected = " ".join(f"{number}>&-" for number in closed)
    command = ["sh", "-c", f'exec "$0" -c "$1" {redirected}', sys.executable, code]
    subprocess.run(command, check=True, timeout=DEADLINE)
    assert (tmp_path / "found").read_text() == "[7, 7]"


# -- the caller's end


@pytest.fixture
def caller(tmp_path: Path) -> Iterator[tuple[subprocess.Popen[str], list[int], str]]:
    """A program that waits for a job of sleepers, and their pids; without a guard of ``__main__``."""
    mark = f"LAUNCH_MARK={tmp_path}"
    script = tmp_path / "caller.py"
    folder = tmp_path / "pids"
    folder.mkdir()
    script.write_text(
        textwrap.dedent(f"""
        import os, threading
        from pathlib import Path
        import elasticrun
        def sleep():
            path = Path({str(folder)!r}, os.environ["RANK"])
            path.with_suffix(".new").write_text(str(os.getpid()))
            path.with_suffix(".new").rename(path)
            threading.Event().wait()
        elasticrun.launch(sleep)
        """)
    )
    env = {**os.environ, "LAUNCH_MARK": str(tmp_path)}
    process = subprocess.Popen([sys.executable, script], env=env, stderr=subprocess.PIPE, text=True)
    with process:
        try:
            yield process, pids(folder), mark
        finally:
            process.kill()
    nobody_left(mark)


def test_nothing_is_left_of_a_caller_that_is_killed(caller: Any) -> None:
    process, found, mark = caller
    process.kill()
    for pid in found:
        wait_end(pid)
    nobody_left(mark)


def test_an_interrupt_ends_the_job_first(caller: Any) -> None:
    process, found, mark = caller
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=DEADLINE)
    assert process.returncode == -signal.SIGINT
    assert "KeyboardInterrupt" in err
    for pid in found:
        wait_end(pid)
    nobody_left(mark)
