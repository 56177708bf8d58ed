"""The program between a connection and the launcher of a host, driven through its standard input."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from elasticrun.core.hosts.names import Host
from elasticrun.platforms.remote import BEAT, HELLO, Request, decode, encode, signal_line
from elasticrun.platforms.ssh import SshConfig, command
from tests.support.launcher import clean_environment
from tests.support.processes import DEADLINE, wait_end

TRAP = """\
import signal, sys
signal.signal(15, lambda *_: sys.exit(9))
print("ready", flush=True)
signal.pause()
"""
#: Saves when it is told to stop, and gives that up when it is told again.
ONCE = """\
import os, signal, sys
signal.signal(2, lambda *_: os.write(1, b"ready\\n"))
signal.signal(15, lambda *_: sys.exit(9))
os.write(1, b"ready\\n")
while True:
    signal.pause()
"""
DEAF = TRAP.replace("lambda *_: sys.exit(9)", "signal.SIG_IGN")


class Hosted:
    """A started program."""

    def __init__(self, code: str, **changes: object) -> None:
        values = {"silence": DEADLINE, "grace": DEADLINE, "directory": "/", **changes}
        request = Request([sys.executable, "-c", code], environment={"FOO": "b'a \n$r"}, **values)  # type: ignore[arg-type]
        pipe = subprocess.PIPE
        words = command(Host("localhost"), SshConfig(local_without_ssh=True))
        self.process = subprocess.Popen(words, stdin=pipe, stdout=pipe, stderr=pipe, env=clean_environment())
        self.say(encode(request))

    def say(self, data: bytes) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(data)
        self.process.stdin.flush()

    def child(self) -> int:
        """The pid of what it started."""
        assert self.process.stderr is not None
        line = self.process.stderr.readline()
        assert line.startswith(HELLO), line
        return int(line[len(HELLO) :])

    def ready(self) -> None:
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == b"ready\n"

    def end(self) -> int:
        return self.process.wait(DEADLINE)

    def close(self) -> None:
        self.process.kill()
        self.process.communicate()


@pytest.fixture
def made() -> Iterator[list[Hosted]]:
    made: list[Hosted] = []
    yield made
    for each in made:
        each.close()


def test_what_it_starts_gets_its_variables_and_its_status_is_passed_on(made: list[Hosted]) -> None:
    made.append(
        Hosted("import os, sys; sys.exit(os.environ['FOO'] == \"b'a \\n$r\" and os.getcwd() == '/' and 42)")
    )
    assert made[0].end() == 42


def test_signals_are_passed_on(made: list[Hosted]) -> None:
    made.append(Hosted(TRAP))
    made[0].ready()
    made[0].say(BEAT + b"what\nsignal x\nsignal 9999\n" + signal_line(signal.SIGTERM))
    assert made[0].end() == 9
    made.append(Hosted(DEAF))
    made[1].ready()
    made[1].say(signal_line(signal.SIGTERM) + signal_line(signal.SIGKILL))
    assert made[1].end() == 128 + signal.SIGKILL


def test_the_end_of_input_ends_what_runs(made: list[Hosted]) -> None:
    made.append(Hosted(TRAP))
    made[0].ready()
    assert made[0].process.stdin is not None
    made[0].process.stdin.close()
    assert made[0].end() == 9
    made[0].process.stdin = None


def test_what_ignores_that_is_killed_after_its_grace(made: list[Hosted]) -> None:
    made.append(Hosted(DEAF, grace=0.2))
    made[0].ready()
    assert made[0].process.stdin is not None
    made[0].process.stdin.close()
    assert made[0].end() == 128 + signal.SIGKILL
    made[0].process.stdin = None


def test_what_is_told_to_stop_is_not_told_again_as_its_connection_ends(made: list[Hosted]) -> None:
    made.append(Hosted(ONCE, grace=0.2))
    made[0].ready()
    made[0].say(signal_line(signal.SIGINT))
    made[0].ready()
    assert made[0].process.stdin is not None
    made[0].process.stdin.close()
    assert made[0].end() == 128 + signal.SIGKILL, "it saves until its grace is over"
    made[0].process.stdin = None


def test_silence_is_as_the_end_of_input(made: list[Hosted]) -> None:
    made.append(Hosted(TRAP, silence=0.2))
    assert made[0].end() in (9, 128 + signal.SIGTERM)  # it may have had no time to trap it


def test_it_is_not_survived(made: list[Hosted]) -> None:
    made.append(Hosted(TRAP))
    pid = made[0].child()
    made[0].ready()
    made[0].process.kill()
    wait_end(pid)


def test_a_directory_that_is_not_there_is_said(made: list[Hosted], tmp_path: Path) -> None:
    made.append(Hosted(TRAP, directory=str(tmp_path / "none")))
    assert made[0].end() == 126
    assert made[0].process.stderr is not None
    assert b"none on this host: give --directory" in made[0].process.stderr.read()


@pytest.mark.parametrize("line", [b"", b"hello\n", b"{}\n", b"[]\n"])
def test_garbage_starts_nothing(line: bytes) -> None:
    words = command(Host("localhost"), SshConfig(local_without_ssh=True))
    done = subprocess.run(
        words, input=line, capture_output=True, env=clean_environment(), timeout=DEADLINE, check=False
    )
    assert done.returncode == 126 and len(done.stderr.splitlines()) == 1


def test_requests_survive_the_way() -> None:
    request = Request(["a b", "c\n"], "/d", {"E": "\udcff"}, 1.0, 2.0)
    assert decode(encode(request)) == request
    assert encode(request).count(b"\n") == 1


# -- the command line of ssh


def test_the_users_options_come_first_and_the_host_is_no_option() -> None:
    words = command(Host("::1", "2", "me"), SshConfig("/bin/ssh", ("Port=1",), "/a b/python"))
    assert words[:4] == ["/bin/ssh", "-T", "-o", "Port=1"]
    assert words[-3:] == ["--", "me@::1", "exec '/a b/python' -m elasticrun.cli.hosted"]


@pytest.mark.parametrize("shell", ["sh", "bash", "dash", "csh", "fish", "zsh"])
def test_shells_read_the_path_of_python_as_it_is(shell: str, tmp_path: Path) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"needs {shell}")
    program = tmp_path / "py 'th\"on$HOME"
    program.write_text('#!/bin/sh\necho "$@"\n')
    program.chmod(0o755)
    words = command(Host("a"), SshConfig(python=str(program)))
    done = subprocess.run(
        [shell, "-c", words[-1]], capture_output=True, text=True, timeout=DEADLINE, check=False
    )
    assert done.stdout == "-m elasticrun.cli.hosted\n", done


@pytest.mark.parametrize(
    ("name", "is_local"),
    [("localhost", True), ("127.0.0.3", True), ("::1", True), ("node", False), ("10.0.0.1", False)],
)
def test_only_loopback_needs_no_ssh(name: str, is_local: bool) -> None:
    words = command(Host(name), SshConfig(local_without_ssh=True))
    assert (words[0] == "ssh") is not is_local
    assert command(Host(name), SshConfig())[0] == "ssh"
