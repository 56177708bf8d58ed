"""``elastic-ctl manual`` shows every page, to terminals and to files."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from click.testing import CliRunner

from elasticrun.cli import ctl_manual
from elasticrun.cli.ctl import group
from elasticrun.cli.ctl_manual import FOLDER, TOPICS


def manual(*arguments: str) -> str:
    done = CliRunner().invoke(group, ["manual", *arguments])
    assert done.exit_code == 0, done.output
    return done.stdout


def test_without_a_topic_it_lists_them() -> None:
    lines = manual().splitlines()
    assert [line.split()[0] for line in lines[2:]] == list(TOPICS)
    assert max(map(len, lines)) <= 100
    assert all(line.endswith(".") for line in lines[2:])


@pytest.mark.parametrize("topic", TOPICS)
def test_a_page_is_shown_whole(topic: str) -> None:
    shown = manual(topic)
    title = (FOLDER / f"{topic}.md").read_text().splitlines()[0].removeprefix("# ")
    assert shown.split("\n")[0].strip() == title
    assert "\x1b" not in shown
    assert max(map(len, shown.splitlines())) <= 100
    assert "](" not in shown


def test_an_unknown_topic_is_told_from_those_that_there_are() -> None:
    done = CliRunner().invoke(group, ["manual", "nonsense"])
    assert done.exit_code == 2
    assert "troubleshooting" in done.stderr


def test_a_terminal_gets_colours_and_pages() -> None:
    reader, writer = os.openpty()
    environ = {**os.environ, "PAGER": "cat", "TERM": "xterm"}
    environ.pop("NO_COLOR", None)
    command = [sys.executable, "-m", "elasticrun.cli.ctl", "manual", "hangs"]
    with subprocess.Popen(command, stdin=writer, stdout=writer, stderr=writer, env=environ) as process:
        os.close(writer)
        shown = b""
        while chunk := _read(reader):
            shown += chunk
    os.close(reader)
    assert process.returncode == 0
    assert b"\x1b[" in shown
    assert b"Hangs" in shown


def _read(reader: int) -> bytes:
    try:
        return os.read(reader, 65536)
    except OSError:  # how a terminal tells that nobody can write any more
        return b""


def test_the_help_of_both_programs_leads_to_it(capsys: pytest.CaptureFixture[str]) -> None:
    from elasticrun.cli.help import help_text

    assert "elastic-ctl manual" in help_text()
    assert "manual" in CliRunner().invoke(group, ["--help"]).stdout
    assert ctl_manual.manual.help
