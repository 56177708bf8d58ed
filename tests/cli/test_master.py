"""The master process as its agent sees it: one line in, one line out, and an end when the agent is gone."""

from __future__ import annotations

import json
import os
import pty
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import pytest

from elasticrun.config import JobConfig
from elasticrun.master.service import MasterConfig
from elasticrun.rpc.records import to_json
from tests.support.processes import DEADLINE

ROOT = Path(__file__).parent.parent.parent


class Process:
    """A master, in the hands of a test."""

    def __init__(self, stderr: int | IO[bytes] = subprocess.PIPE) -> None:
        self.popen = subprocess.Popen(
            [sys.executable, "-m", "elasticrun.cli.master"],
            bufsize=0,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=stderr,
            cwd=ROOT,
        )

    def tell(self, directory: Path, **changes: object) -> None:
        config = MasterConfig(JobConfig(job_id="a job"), "127.0.0.1", 0, str(directory))
        settings = {**to_json(config), **changes}
        assert self.popen.stdin is not None
        self.popen.stdin.write(json.dumps(settings).encode() + b"\n")

    def answer(self) -> dict[str, Any]:
        assert self.popen.stdout is not None
        line = self.popen.stdout.readline()
        assert self.popen.stdout.read() == b""  # and not a word more
        answer: dict[str, Any] = json.loads(line)
        return answer

    def end(self) -> int:
        """The agent is gone."""
        assert self.popen.stdin is not None
        self.popen.stdin.close()
        return self.popen.wait(DEADLINE)

    def errors(self) -> str:
        assert self.popen.stderr is not None
        return self.popen.stderr.read().decode()


@pytest.fixture
def master() -> Iterator[Process]:
    process = Process()
    with process.popen as popen:
        yield process
        popen.kill()


def test_it_says_its_port_and_its_name_and_ends_with_its_agent(master: Process, tmp_path: Path) -> None:
    master.tell(tmp_path)
    port = master.answer()["port"]
    socket.create_connection(("127.0.0.1", port)).close()
    title = Path(f"/proc/{master.popen.pid}/cmdline").read_bytes()
    assert title.startswith(b"elastic-run: master a job")
    assert master.end() == 0
    assert master.errors() == ""


def test_signals_that_mean_its_agent_do_not_end_it(master: Process, tmp_path: Path) -> None:
    """Slurm's notice, SIGUSR1, reaches all processes of a step."""
    master.tell(tmp_path)
    master.answer()
    for name in ("SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT", "SIGUSR1"):
        master.popen.send_signal(signal.Signals[name])
    assert master.end() == 0


def test_an_agent_that_ends_before_it_says_anything(master: Process) -> None:
    assert master.end() == 0
    assert master.errors() == ""


def test_an_agent_that_ends_before_it_hears_the_port(master: Process, tmp_path: Path) -> None:
    assert master.popen.stdout is not None
    master.popen.stdout.close()
    master.tell(tmp_path)
    assert master.end() == 0
    assert master.errors() == ""


def test_a_port_in_use(master: Process, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as held:
        port = held.getsockname()[1]
        master.tell(tmp_path, port=port)
        assert f"127.0.0.1:{port} is in use" in master.answer()["taken"]
    assert master.end() == 5
    assert master.errors() == ""


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"host": "192.0.2.1"}, "the master cannot listen on 192.0.2.1 port 0"),
        ({"host": "no.such.host.invalid"}, "the master cannot listen on no.such.host.invalid port 0"),
        ({"state_dir": "/dev/null"}, "cannot use the state directory /dev/null"),
    ],
)
def test_what_it_cannot_do_it_says(
    master: Process, tmp_path: Path, changes: dict[str, object], words: str
) -> None:
    master.tell(tmp_path, **changes)
    assert words in master.answer()["error"]
    assert master.end() == 2
    assert master.errors() == ""


def test_a_temporary_directory_goes_with_an_orphan(master: Process, tmp_path: Path) -> None:
    state = tmp_path / "state"
    master.tell(state, temporary=True)
    master.answer()
    assert state.is_dir()
    assert master.end() == 0
    assert not state.exists()


def test_a_directory_of_the_users_stays(master: Process, tmp_path: Path) -> None:
    master.tell(tmp_path / "state")
    master.answer()
    assert master.end() == 0
    assert (tmp_path / "state" / "journal.jsonl").exists()


def test_its_log_is_marked(master: Process, tmp_path: Path) -> None:
    master.tell(tmp_path, log_level="INFO")
    master.answer()
    assert master.popen.stderr is not None
    assert master.popen.stderr.readline().startswith(
        b"elastic-run: master: event 1, round -1, gathering: master epoch 1"
    )
    assert master.end() == 0


def test_a_terminal_that_stands_still_does_not_stop_it(tmp_path: Path) -> None:
    reader, terminal = pty.openpty()
    try:
        fill(terminal)
        process = Process(stderr=terminal)
        with process.popen as popen:
            process.tell(tmp_path, log_level="DEBUG")
            assert process.answer()["port"]
            process.end()
            assert popen.returncode == 0
    finally:
        os.close(terminal)
        os.close(reader)


def fill(fd: int) -> None:
    """Write until nobody could write any more without waiting."""
    os.set_blocking(fd, False)
    while select.select([], [fd], [], 0)[1]:
        try:
            os.write(fd, b"x" * 64)
        except BlockingIOError:
            break
    os.set_blocking(fd, True)
