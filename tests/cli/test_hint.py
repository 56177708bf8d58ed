"""The line that finds a job: what is in it, and where it is shown."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from elasticrun.cli.hint import how_to_ask
from elasticrun.cli.parse import parse_command_line
from elasticrun.config import LaunchConfig, TlsConfig
from tests.support.launcher import clean_environment, private_folders
from tests.support.orders import TOKEN

Parse = Callable[..., LaunchConfig]

PID = "OURS"  # as each process that runs tests has another, and tests have the same names in all of them
MULTI = ("--nnodes=1:2", "--rdzv-backend=c10d", "--rdzv-endpoint=node0,node1:29500", "--rdzv-id=a b")


@pytest.fixture
def parse(tmp_path: Path) -> Parse:
    script = tmp_path / "script.py"
    script.touch()

    def parsed(*arguments: str, **environ: str) -> LaunchConfig:
        return parse_command_line([*arguments, str(script)], {**private_folders(tmp_path), **environ})

    return parsed


@pytest.mark.parametrize(
    ("arguments", "environ", "line"),
    [
        (("--standalone",), {}, f"elastic-ctl status --pid {PID}"),
        (("--standalone",), {"ELASTICRUN_TOKEN": TOKEN}, f"elastic-ctl status --pid {PID}"),
        (MULTI, {}, "elastic-ctl status --rdzv-id 'a b' (on the host of the master)"),
        (
            MULTI,
            {"ELASTICRUN_TOKEN": TOKEN},
            "elastic-ctl status --endpoint node0:29400,node1:29500 --rdzv-id 'a b'",
        ),
        (
            (*MULTI, "--insecure-token"),
            {"ELASTICRUN_TOKEN": "weak"},
            "elastic-ctl status --endpoint node0:29400,node1:29500 --rdzv-id 'a b' --insecure-token",
        ),
    ],
)
def test_a_line_has_what_finds_the_job(
    parse: Parse, arguments: tuple[str, ...], environ: dict[str, str], line: str
) -> None:
    assert how_to_ask(parse(*arguments, **environ)) == line.replace(PID, str(os.getpid()))


def test_a_line_names_the_files_of_the_token_and_of_tls(parse: Parse, tmp_path: Path) -> None:
    path = tmp_path / "it's a token"
    path.write_text(TOKEN)
    path.chmod(0o600)
    config = parse(*MULTI, f"--token-file={path}")
    config = replace(config, security=replace(config.security, tls=TlsConfig("/ca", "/cert", "/key")))
    line = how_to_ask(config)
    script = f"set -- {line.removeprefix('elastic-ctl status')}; printf '%s\\n' \"$@\""
    words = subprocess.run(
        ["sh", "-c", script], capture_output=True, text=True, check=True
    ).stdout.splitlines()
    assert words[4:] == [
        "--token-file",
        str(path),
        "--tls-ca",
        "/ca",
        "--tls-cert",
        "/cert",
        "--tls-key",
        "/key",
    ]


@pytest.mark.parametrize(("level", "is_shown"), [("", True), ("ERROR", False)])
def test_a_terminal_shows_the_line(tmp_path: Path, level: str, is_shown: bool) -> None:
    (tmp_path / "script.py").touch()
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "elasticrun", "--standalone", "script.py"]
    env = clean_environment(**private_folders(tmp_path), **({"LOGLEVEL": level} if level else {}))
    with subprocess.Popen(
        command, cwd=tmp_path, stdin=subprocess.DEVNULL, stderr=theirs, env=env
    ) as launcher:
        os.close(theirs)
        shown = b""
        while chunk := _read(ours):
            shown += chunk
    os.close(ours)
    assert launcher.returncode == 0
    line = f"elastic-run: ask about this job with: elastic-ctl status --pid {launcher.pid}\r\n"
    assert shown.decode().startswith(line) if is_shown else not shown, shown


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 65536)
    except OSError:  # how a terminal tells that nobody can write any more
        return b""
