"""The launcher's edges, as whole processes: before its loop runs, after it, and without a usual terminal."""

from __future__ import annotations

import asyncio
import fcntl
import os
import pty
import re
import signal
import socket
import struct
import subprocess
import sys
import termios
import threading
from pathlib import Path

import pytest

from elasticrun.agent.logs.console import Console
from elasticrun.cli import main as module
from elasticrun.core.protocol.messages import NodeCheck
from elasticrun.errors import ExitCode, NodeFaultError
from tests.support.processes import DEADLINE

ROOT = Path(__file__).parent.parent.parent
PYTHON = sys.executable


def run(
    *arguments: str, cwd: Path = ROOT, around: str = "{}", code: str = "", tmp: Path | None = None
) -> subprocess.CompletedProcess[str]:
    """Run ``python -m elasticrun`` in a shell line; ``code`` runs in its process before it."""
    start = f"import sys; sys.path.insert(0, {str(ROOT)!r}); {code or 'pass'}\n"
    start += "from elasticrun.cli.main import main; sys.exit(main())"
    command = around.format('"$0" -c "$START" "$@"')
    environment = {**os.environ, "START": start}
    environment.pop("PYTHONUNBUFFERED", None)  # what is not written yet is half of the matter here
    if tmp is not None:
        environment["TMPDIR"] = str(tmp)
    return subprocess.run(
        ["bash", "-c", command, PYTHON, *arguments],
        capture_output=True,
        text=True,
        timeout=DEADLINE,
        cwd=cwd,
        env=environment,
        stdin=subprocess.DEVNULL,
        check=False,
    )


@pytest.fixture
def script(tmp_path: Path) -> str:
    """A worker that says what its standard streams are and who it is."""
    path = tmp_path / "worker.py"
    path.write_text(
        "import os\n"
        "with open(os.environ.get('OUT', os.devnull), 'w') as out:\n"
        "    print(*[os.path.realpath(f'/proc/self/fd/{n}') for n in range(3)], file=out)\n"
        "print('worker', os.environ['RANK'])\n"
    )
    return str(path)


@pytest.fixture
def tmp(tmp_path: Path) -> Path:
    """Where temporary files go."""
    path = tmp_path / "tmp"
    path.mkdir()
    return path


def test_a_good_launch_says_nothing_and_leaves_nothing(script: str, tmp: Path) -> None:
    ended = run("--standalone", script, tmp=tmp)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "worker 0\n", "")
    assert list(tmp.iterdir()) == []


@pytest.mark.parametrize("wrong", ["--nproc-per-node=some", "--role-counts=ps=2"])
def test_a_usage_error_is_one_sentence(wrong: str, tmp: Path) -> None:
    ended = run(wrong, "x.py", tmp=tmp)
    assert ended.returncode == ExitCode.USAGE
    assert ended.stderr.startswith("elastic-run: error: ")
    assert ended.stderr.count("\n") == 1
    assert ended.stdout == ""


# -- nobody reads, nobody writes


@pytest.mark.parametrize("option", ["--help", "--version"])
def test_a_text_to_a_reader_that_is_gone(option: str) -> None:
    code = "import os; r, w = os.pipe(); os.dup2(w, 1); os.close(r); os.close(w)"
    ended = run(option, around="{}; echo $? >&2", code=code)
    assert (ended.returncode, ended.stderr) == (0, "0\n")


@pytest.mark.parametrize("option", ["--help", "--version"])
def test_a_text_to_a_full_disk(option: str) -> None:
    ended = run(option, around="{} > /dev/full")
    assert (ended.returncode, ended.stderr) == (ExitCode.USAGE, "")


def test_a_usage_error_without_a_stderr() -> None:
    ended = run("--nnodes=x", "x.py", around="{} 2>&-")
    assert (ended.returncode, ended.stdout, ended.stderr) == (ExitCode.USAGE, "", "")


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_missing_standard_streams_are_none_of_our_sockets(
    script: str, tmp: Path, tmp_path: Path, closed: str
) -> None:
    out = tmp_path / "out"
    ended = run("--standalone", script, around=f"OUT={out} {{}} {closed}", tmp=tmp)
    assert ended.returncode == 0
    assert ended.stdout == ("" if ">&-" in closed.replace("2>&-", "") else "worker 0\n")
    assert ended.stderr == ""
    seen = out.read_text().split()
    for number, redirection in enumerate(("<&-", ">&-", "2>&-")):
        # Of stderr the worker has a pipe, at whose other end is the agent's.
        if redirection in closed.split() and number != 2:
            assert seen[number] == os.devnull


def test_what_stands_in_for_a_missing_stderr_is_passed_on_to_children() -> None:
    code = "import elasticrun.cli.main as m, subprocess; m._open_missing_std()"
    seen = run(around="{} 2>&-", code=f"{code}; subprocess.run(['readlink', '/proc/self/fd/2']); sys.exit()")
    assert seen.stdout == "/dev/null\n"


# -- stopped early


def interrupted_in(place: str) -> str:
    """Code that makes SIGINT come while ``place`` is called."""
    target = place.rpartition(".")[0]
    return (
        f"import {target}, os, signal; real = {place};"
        f"{place} = lambda *a, **k: (os.kill(os.getpid(), signal.SIGINT), real(*a, **k))[1]"
    )


def test_an_interrupt_before_the_signals_are_ours(script: str, tmp: Path) -> None:
    code = interrupted_in("elasticrun.cli.parse.parse_command_line")
    ended = run("--standalone", script, code=code, tmp=tmp)
    assert (ended.returncode, ended.stdout, ended.stderr) == (128 + signal.SIGINT, "", "")


def test_an_interrupt_after_the_signals_are_ours(script: str, tmp: Path) -> None:
    code = interrupted_in("elasticrun.agent.master_host.hosting.fork")
    ended = run("--standalone", script, code=code, tmp=tmp)
    assert ended.returncode == 128 + signal.SIGINT
    assert ended.stdout == ""
    assert "Traceback" not in ended.stderr
    assert "SIGINT" in ended.stderr
    assert list(tmp.iterdir()) == []


# -- what goes wrong around the loop


def failing(place: str, error: str) -> str:
    """Code that makes ``place`` raise ``error``."""
    target = place.rpartition(".")[0]
    module_name = target if not target.rpartition(".")[2][:1].isupper() else target.rpartition(".")[0]
    return f"import {module_name}, elasticrun.errors\ndef fail(*a, **k): raise {error}\n{place} = fail"


@pytest.mark.parametrize(
    ("place", "error", "status"),
    [
        (
            "elasticrun.agent.spawner.client.fork_spawner",
            "elasticrun.errors.NodeFaultError('no process')",
            10,
        ),
        (
            "elasticrun.agent.master_host.hosting.MasterHost.begin",
            "elasticrun.errors.UsageError('no port')",
            2,
        ),
        ("elasticrun.agent.logs.dirs.LogDirs.__init__", "elasticrun.errors.UsageError('no logs')", 2),
    ],
)
def test_a_known_reason_is_one_sentence_and_nothing_stays(
    script: str, tmp: Path, place: str, error: str, status: int
) -> None:
    ended = run("--standalone", script, code=failing(place, error), tmp=tmp)
    assert ended.returncode == status
    assert ended.stderr.startswith("elastic-run: error: no ")
    assert ended.stderr.count("\n") == 1
    assert list(tmp.iterdir()) == []


@pytest.mark.parametrize(
    "place",
    [
        "elasticrun.cli.parse.parse_command_line",
        "elasticrun.agent.master_host.hosting.MasterHost.begin",
        "elasticrun.agent.logs.dirs.LogDirs.__init__",
        "elasticrun.agent.workers.ports.PortReserve.reserve",
        "elasticrun.agent.workers.group.WorkerGroup.start",
    ],
)
def test_a_bug_is_a_traceback_with_a_status_of_its_own(script: str, tmp: Path, place: str) -> None:
    code = failing(place, "ZeroDivisionError('oops')")
    ended = run("--standalone", "--shutdown-timeout=0.1", script, code=code, tmp=tmp)
    assert ended.returncode == ExitCode.INTERNAL
    assert "Traceback" in ended.stderr
    assert "ZeroDivisionError: oops" in ended.stderr
    assert list(tmp.glob("elasticrun_master_*")) == []


@pytest.mark.parametrize(
    "place",
    [
        "elasticrun.agent.spawner.client.Spawner.close",
        "elasticrun.agent.master_host.hosting.MasterHost.close",
        "elasticrun.agent.shutdown_report.ShutdownReport.say",
    ],
)
def test_a_bug_at_the_end_does_not_change_the_end(script: str, tmp: Path, place: str) -> None:
    ended = run("--standalone", script, code=failing(place, "ZeroDivisionError('oops')"), tmp=tmp)
    assert ended.returncode == 0
    assert "ZeroDivisionError: oops" in ended.stderr
    assert "Exception" not in ended.stderr


def test_an_endpoint_held_by_another_program(script: str, tmp: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as held:
        port = held.getsockname()[1]
        hangs_up = threading.Thread(target=hang_up_on_all, args=(held,), daemon=True)
        hangs_up.start()
        endpoint = f"--rdzv-endpoint=127.0.0.1:{port}"
        ended = run("--nnodes=1:2", endpoint, "--rdzv-backend=c10d", script, tmp=tmp)
    assert ended.returncode == ExitCode.ENDPOINT_TAKEN
    assert f"127.0.0.1:{port} is held by a program that is not an elasticrun master" in ended.stderr
    assert "Traceback" not in ended.stderr


def hang_up_on_all(server: socket.socket) -> None:
    try:
        while True:
            server.accept()[0].close()
    except OSError:
        return


def test_an_endpoint_where_nobody_answers(script: str, tmp: Path) -> None:
    conf = "--rdzv-conf=read_timeout=0.5,is_host=false"
    endpoint = "127.0.0.1:1"
    ended = run("--nnodes=2", f"--rdzv-endpoint={endpoint}", "--rdzv-backend=c10d", conf, script, tmp=tmp)
    assert ended.returncode == ExitCode.MASTER_UNREACHABLE
    assert f"cannot connect to {endpoint}: Connection refused; tried for " in ended.stderr
    assert "Traceback" not in ended.stderr


def test_a_master_that_crashes_is_not_started_for_ever(script: str, tmp: Path) -> None:
    code = "import elasticrun.cli.master as master; master.main = lambda: 9"
    ended = run("--standalone", script, code=code, tmp=tmp)
    assert ended.returncode == ExitCode.INTERNAL
    assert "the master's process ended with exit code 9 before it served" in ended.stderr


def test_the_exit_status_is_that_of_the_error(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(arguments: list[str]) -> int:
        raise NodeFaultError("this node is broken")

    monkeypatch.setattr(module, "_main", fail)
    assert module.main(["x.py"]) == ExitCode.NODE_FAULT
    assert capsys.readouterr().err == "elastic-run: error: this node is broken\n"


# -- the table of the health check

ROWS = (NodeCheck("a/0", 1e12, 2e9, 3e-4, "good"), NodeCheck("b/0", 0.0, 0.0, 0.0, "faulty", "words " * 30))


def shown_on(fd: int) -> None:
    async def show() -> None:
        console = Console(fd, "stdout", report=pytest.fail)
        module.show_checkup(console, ROWS)
        assert await console.flush(DEADLINE)
        console.close()

    asyncio.run(show())


def test_a_checkup_in_a_file_is_plain_and_not_folded(tmp_path: Path) -> None:
    path = tmp_path / "table"
    with path.open("wb") as file:
        shown_on(file.fileno())
    lines = path.read_text().split("\n")
    assert [line.split()[:1] for line in lines] == [["node"], ["a/0"], ["b/0"], []]


@pytest.mark.parametrize(("columns", "least", "most"), [(80, 5, 80), (0, 3, 1000)])
@pytest.mark.parametrize("no_color", [None, "", "1"])
def test_a_checkup_on_a_terminal_fits_its_window(
    columns: int, least: int, most: int, no_color: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    if no_color is not None:
        monkeypatch.setenv("NO_COLOR", no_color)
    ours, theirs = pty.openpty()
    try:
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
        shown_on(theirs)
        text = os.read(ours, 65536).decode()
    finally:
        os.close(ours)
        os.close(theirs)
    assert ("\x1b[1;31mfaulty" in text) is (not no_color)
    plain = re.sub(r"\x1b\[[0-9;]*m", "", text)
    lines = plain.rstrip().split("\r\n")
    assert len(lines) >= least
    assert max(map(len, lines)) <= most


def test_a_checkup_alone_from_beginning_to_end(tmp: Path) -> None:
    ended = run("--health-check-only", tmp=tmp)
    assert (ended.returncode, ended.stderr) == (0, "")
    heading, row = ended.stdout.splitlines()
    assert heading.startswith("node ")
    assert row.startswith(f"{socket.gethostname()}/")
    assert row.endswith("good")
    assert list(tmp.iterdir()) == []
