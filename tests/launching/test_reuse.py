"""A launcher whose job went well takes the next one, and keeps nothing of the last."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import select
import signal
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import elasticrun
from elasticrun.cli.forked_launcher import _Own
from elasticrun.launching.server import Server
from elasticrun.worker.target import LAUNCHER
from tests.support.processes import DEADLINE, is_alive, wait_end


@pytest.fixture
def server() -> Iterator[Server]:
    made = Server()
    yield made
    made.close()


def launcher() -> int:
    """The launcher of the rank that calls this."""
    return int(os.environ[LAUNCHER])


def run(server: Server, function: Any = launcher, **options: Any) -> Any:
    """What the one rank of a job returns."""
    return elasticrun.launch(function, nproc=1, server=server, **options)[0].value


def files(pid: int) -> list[str]:
    """What a process has open."""
    return sorted(str(each.readlink()) for each in Path(f"/proc/{pid}/fd").iterdir())


def facts(pid: int) -> dict[str, str]:
    """What a job might change of its launcher: signals, the session, and more."""
    lines = (line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    kept = ("SigBlk", "SigIgn", "SigCgt", "Umask", "Threads", "NSsid", "Cpus_allowed")
    return {
        "cwd": str(Path(f"/proc/{pid}/cwd").readlink()),
        "limits": Path(f"/proc/{pid}/limits").read_text(),
    } | {name: text.strip() for name, text in lines if name in kept}


def test_jobs_that_go_well_have_one_launcher(server: Server) -> None:
    first = run(server)
    assert [run(server) for _ in range(3)] == [first] * 3
    assert is_alive(first)


@contextlib.contextmanager
def at_work(server: Server, fifo: Path) -> Iterator[int]:
    """A launcher whose job goes on until the end of the block."""
    os.mkfifo(fifo)

    def wait() -> int:
        fifo.open().close()
        return launcher()

    with elasticrun.start(wait, nproc=1, server=server) as job:
        while not job._launchers.pids:
            job.hear(DEADLINE)
        pid = job._launchers.pids[0]
        yield pid
        fifo.open("w").close()
        assert job.wait()[0].value == pid


def test_jobs_side_by_side_have_launchers_of_their_own(server: Server, tmp_path: Path) -> None:
    with at_work(server, tmp_path / "fifo") as mine:
        other = run(server)
    assert mine != other
    assert {run(server), run(server)} <= {mine, other}


def test_a_launcher_keeps_nothing_of_its_job(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever reads a stream that it wrote to would else wait for its end in vain."""
    first = run(server, env={"FIRST": "1"})
    before = files(first), facts(first)
    monkeypatch.chdir(tmp_path)

    def environment() -> dict[str, str]:
        return dict(os.environ)

    with elasticrun.start(environment, nproc=1, server=server, stream=True) as job:
        found = job.wait()[0].value
    assert found[LAUNCHER] == str(first)
    assert "FIRST" not in found
    assert (files(first), facts(first)) == before
    born = facts(server.process)
    assert all(before[1][name] == born[name] for name in ("SigBlk", "limits", "Umask"))
    sigint = 1 << signal.SIGINT - 1  # the server ignores it, as a launcher must not
    assert int(before[1]["SigIgn"], 16) == int(born["SigIgn"], 16) & ~sigint
    assert int(before[1]["SigCgt"], 16) == int(born["SigCgt"], 16) | sigint


def test_each_job_logs_once(
    server: Server, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOGLEVEL", "ERROR")
    run(server)
    monkeypatch.setenv("LOGLEVEL", "INFO")
    said = []
    for _ in range(2):
        run(server)
        said.append(capfd.readouterr().err.count("\n"))
    assert said[0] == said[1] > 0


def test_ranks_find_nothing_of_the_job_before(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a launcher has looked up would else be there in all that is forked from it."""

    def found() -> tuple[int, str, bool]:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                asyncio.get_event_loop().close()
            except RuntimeError:
                return launcher(), tempfile.gettempdir(), False
        return launcher(), tempfile.gettempdir(), True

    first = run(server, found)
    folder = tmp_path / "temporary"
    folder.mkdir()
    with monkeypatch.context() as patch:
        patch.setenv("TMPDIR", str(folder))
        assert run(server, found) == (first[0], str(folder), first[2])
    folder.rmdir()
    assert run(server, found) == first


def test_a_caller_that_hangs_up_late_does_not_disturb_the_next_job(server: Server) -> None:
    """The server hears at once that a job is over, that its caller has gone, and that there is another."""
    with elasticrun.start(launcher, nproc=1, server=server) as job:
        while not job.answers():
            job.hear(DEADLINE)
        os.kill(server.process, signal.SIGSTOP)
        try:
            title = Path(f"/proc/{job.answers()[0]}/cmdline")
            while b"waits" not in title.read_bytes():  # until it has told that, too
                pass
            following = elasticrun.start(launcher, nproc=1, server=server)
            job.close()
        finally:
            os.kill(server.process, signal.SIGCONT)
        with following:
            assert following.wait(DEADLINE)


def fails() -> None:
    raise ValueError(str(launcher()))


def leaves_a_process() -> int:
    subprocess.Popen(["sleep", "600"], start_new_session=True)
    return launcher()


def test_a_launcher_whose_job_failed_takes_no_other(server: Server) -> None:
    first = run(server)
    with pytest.raises(elasticrun.WorkerFailed, match=str(first)):
        run(server, fails)
    assert run(server) != first
    wait_end(first)


def test_a_launcher_that_was_signalled_takes_no_other(server: Server) -> None:
    with elasticrun.start(launcher, nproc=1, server=server) as job:
        job._launchers.tell(0, signal.SIGWINCH)  # which does nothing to it
        first = job.wait()[0].value
    assert run(server) != first


def test_a_launcher_that_has_inherited_a_process_takes_no_other(server: Server) -> None:
    first = run(server, leaves_a_process)
    assert run(server) != first
    wait_end(first)


def test_a_launcher_of_several_nodes_takes_no_other(server: Server) -> None:
    """It has threads by then, so it could not fork what a job needs."""
    found = elasticrun.launch(launcher, nproc=1, nodes=2, server=server)
    again = elasticrun.launch(launcher, nproc=1, nodes=2, server=server)
    assert not {each.value for each in found} & {each.value for each in again}


def test_a_launcher_without_the_newest_imports_takes_no_other(server: Server, tmp_path: Path) -> None:
    first = run(server)
    with at_work(server, tmp_path / "fifo") as busy:
        assert busy == first
        last = run(server, preload=["bdb"])
    wait_end(first)
    assert run(server) == last
    assert run(server, preload=["cmd"]) != last
    wait_end(last)


@pytest.mark.parametrize(
    ("module", "is_foreign"), [("their_logging.handlers", True), ("elasticrun.later", False), ("this", False)]
)
def test_a_launcher_notices_that_code_of_others_was_imported(
    monkeypatch: pytest.MonkeyPatch, module: str, is_foreign: bool
) -> None:
    own = _Own()
    monkeypatch.setitem(sys.modules, module, sys)
    assert own.can_be_restored() is not is_foreign
    for number in own.files:
        os.close(number)


def test_what_a_preloaded_module_has_set_stays(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "setting_module.py").write_text(
        "import asyncio, logging\nclass Policy(asyncio.DefaultEventLoopPolicy): ...\n"
        "asyncio.set_event_loop_policy(Policy())\nlogging.getLogger('elasticrun').setLevel(50)\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))

    def found() -> tuple[str, int]:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return type(asyncio.get_event_loop_policy()).__name__, logging.getLogger("elasticrun").level

    assert [run(server, found, preload=["setting_module"]) for _ in range(3)] == [("Policy", 50)] * 3


def test_a_launcher_that_was_killed_while_it_waited_is_replaced(server: Server) -> None:
    first = run(server)
    os.kill(first, signal.SIGKILL)
    assert run(server) != first


def test_waiting_launchers_end_with_the_server() -> None:
    server = Server()
    first = run(server)
    os.kill(server.process, signal.SIGKILL)
    wait_end(first)
    server.close()


def test_few_launchers_wait(server: Server, tmp_path: Path) -> None:
    with contextlib.ExitStack() as jobs:
        found = [jobs.enter_context(at_work(server, tmp_path / str(number))) for number in range(4)]
    assert len({*found}) == len(found)
    while len(alive := [pid for pid in found if is_alive(pid)]) > 2:
        with contextlib.ExitStack() as files:
            pidfds = [os.pidfd_open(pid) for pid in alive]
            for pidfd in pidfds:
                files.callback(os.close, pidfd)
            assert select.select(pidfds, [], [], DEADLINE)[0], f"{alive} all wait"
    assert run(server) in alive
