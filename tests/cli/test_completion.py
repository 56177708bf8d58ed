"""The completion scripts, loaded into the shells that they are for."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import click
import pytest

from elasticrun.cli.arguments import ShowText, read_arguments
from elasticrun.cli.completion import SHELLS, launcher, script, variable
from elasticrun.cli.ctl import group
from elasticrun.cli.options import OPTIONS
from elasticrun.errors import UsageError

PROGRAMS: dict[str, click.Command] = {"elastic-run": launcher(), "elastic-ctl": group}


def shell(name: str, *arguments: str, path: Path | None = None) -> str:
    """What a shell prints for a command; our programs are those beside this interpreter."""
    program = shutil.which(name)
    if program is None:
        pytest.skip(f"there is no {name} here")
    beside = Path(sys.executable).parent
    env = {**os.environ, "PATH": f"{beside}{os.pathsep}{os.environ['PATH']}", "HOME": str(path or beside)}
    done = subprocess.run(
        [program, *arguments], capture_output=True, text=True, env=env, cwd=path, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def in_bash(line: str, path: Path) -> list[str]:
    """What bash offers for the last word of a line."""
    words = line.split(" ")
    program = words[0]
    (path / "completion").write_text(script(PROGRAMS[program], program, "bash"))
    code = (
        "source ./completion; compopt() { echo files; }; "
        f"COMP_WORDS=({' '.join(words[:-1])} '{words[-1]}'); "
        f"COMP_CWORD={len(words) - 1}; _{program.replace('-', '_')}_completion {program}; "
        'printf "%s\\n" "${COMPREPLY[@]}"'
    )
    return shell("bash", "--norc", "-c", code, path=path).split()


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("elastic-run --rdzv-b", ["--rdzv-backend"]),
        ("elastic-run --rdzv-backend e", ["etcd", "etcd-v2"]),
        ("elastic-run --nnodes 2 --warm ", ["auto", "on", "off"]),
        ("elastic-run --health-check a", ["auto", "always"]),
        ("elastic-run --policy ", ["files"]),
        ("elastic-run tr", ["files"]),
        ("elastic-run train.py --nnod", []),
        ("elastic-ctl dr", ["drain"]),
        ("elastic-ctl scale o", ["out"]),
        ("elastic-ctl scale c", ["cancel"]),
        ("elastic-ctl scale --ro", ["--role"]),
        ("elastic-ctl scale in --co", ["--count"]),
        ("elastic-ctl cordon nobody-is-here", []),
        ("elastic-ctl status --endp", ["--endpoint"]),
    ],
)
def test_bash(line: str, offered: list[str], tmp_path: Path) -> None:
    assert in_bash(line, tmp_path) == offered


@pytest.mark.parametrize("program", PROGRAMS)
def test_zsh_knows_the_function(program: str, tmp_path: Path) -> None:
    (tmp_path / "completion").write_text(script(PROGRAMS[program], program, "zsh"))
    code = f"autoload -U compinit; compinit -u; source ./completion; print -r -- $_comps[{program}]"
    expected = f"_{program.replace('-', '_')}_completion"
    assert shell("zsh", "-f", "-c", code, path=tmp_path).strip() == expected


def test_fish(tmp_path: Path) -> None:
    (tmp_path / "completion").write_text(script(PROGRAMS["elastic-run"], "elastic-run", "fish"))
    code = "source ./completion; complete -C 'elastic-run --framework t'"
    assert shell("fish", "--no-config", "-c", code, path=tmp_path).split() == ["tensorflow", "torch"]


@pytest.mark.parametrize(
    ("program", "rules"),
    [
        ("elastic-run", ["'n/--warm/(auto on off)/'", "'p/*/f/'"]),
        ("elastic-ctl", ["'p/1/(", "'n/status/(--endpoint"]),
    ],
)
def test_tcsh_takes_the_command(program: str, rules: list[str], tmp_path: Path) -> None:
    text = script(PROGRAMS[program], program, "tcsh")
    assert all(rule in text for rule in rules)
    (tmp_path / "completion").write_text(text)
    shown = shell("tcsh", "-f", "-c", "source completion; complete", path=tmp_path)
    assert shown.startswith(program)


def test_every_option_is_offered() -> None:
    command = launcher()
    items = command.shell_complete(click.Context(command), "--")
    assert {item.value for item in items} == {option.flag for option in OPTIONS if not option.hidden}


@pytest.mark.parametrize("name", SHELLS)
def test_the_option_prints_the_script_and_nothing_else(name: str) -> None:
    with pytest.raises(ShowText) as shown:
        read_arguments(["--print-completion", name, "train.py"], {})
    assert shown.value.text == script(launcher(), "elastic-run", name)
    from click.testing import CliRunner

    done = CliRunner().invoke(group, ["--print-completion", name], prog_name="elastic-ctl")
    assert done.exit_code == 0
    assert done.output.strip() == script(group, "elastic-ctl", name).strip()


def test_another_shell_is_refused() -> None:
    with pytest.raises(UsageError, match="give bash, zsh, tcsh or fish"):
        read_arguments(["--print_completion=csh"], {})


def test_each_program_is_asked_by_a_variable_of_its_own() -> None:
    assert variable("elastic-run") == "_ELASTIC_RUN_COMPLETE"
    assert variable("elastic-ctl") == "_ELASTIC_CTL_COMPLETE"
