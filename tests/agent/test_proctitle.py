"""Titles as the kernel shows them, each in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from elasticrun.agent.spawner import proctitle

ROOT = Path(__file__).parent.parent.parent

PROGRAM = """
import os, sys
sys.path.insert(0, {root!r})
from elasticrun.agent.spawner.proctitle import set_title
environment = open("/proc/self/environ", "rb").read()
set_title(sys.argv[1])
def show():
    print(open("/proc/self/cmdline").read().rstrip("\\0"), open("/proc/self/comm").read().strip(), sep="|",
          flush=True)
show()
assert open("/proc/self/environ", "rb").read() == environment
assert os.environ["KEPT"] == "intact"
assert "ctypes" not in sys.modules
if os.fork() == 0:
    set_title("child")
    show()
    os._exit(0)
os.wait()
show()
os.execv("/bin/sh", ["sh", "-c", "echo $KEPT"])
"""


def titles(tmp_path: Path, title: str) -> list[str]:
    program = tmp_path / "a program with a long name"
    program.write_text(PROGRAM.format(root=str(ROOT)))
    argv = [sys.executable, "-B", str(program), title]
    output = subprocess.check_output(argv, text=True, timeout=30, env={"KEPT": "intact"})
    return output.splitlines()


def test_title_replaces_all_arguments_and_a_fork_has_its_own(tmp_path: Path) -> None:
    assert titles(tmp_path, "elastic-run: agent") == [
        "elastic-run: agent|elastic-run:age",
        "child|child",
        "elastic-run: agent|elastic-run:age",
        "intact",
    ]


SHORT = """
import sys
sys.path.insert(0, {root!r})
from elasticrun.agent.spawner.proctitle import set_title
environment = open("/proc/self/environ", "rb").read()
set_title("y" * 10_000)
assert open("/proc/self/environ", "rb").read() == environment
print(open("/proc/self/cmdline").read().rstrip("\\0").count("y"))
"""


def test_long_title_is_cut_before_the_environment() -> None:
    argv = [sys.executable, "-c", SHORT.format(root=str(ROOT))]
    shown = int(subprocess.check_output(argv, text=True, timeout=30))
    assert shown == sum(len(argument) + 1 for argument in argv) - 1  # each has a NUL, and so has the title


@pytest.mark.parametrize("stat", [None, b"", b"1 (x) S 1 2 3", b"1 (x) S " + b"q " * 60])
def test_strange_proc_is_survived(stat: bytes | None, monkeypatch: pytest.MonkeyPatch) -> None:
    before = Path("/proc/self/cmdline").read_bytes()

    def read(fd: int, size: int) -> bytes:
        if stat is None:
            raise FileNotFoundError(2, "no /proc")
        return stat

    monkeypatch.setattr(os, "read", read)
    proctitle.set_title("changed")
    monkeypatch.undo()
    assert Path("/proc/self/cmdline").read_bytes() == before


def test_no_room_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    before = Path("/proc/self/cmdline").read_bytes()
    monkeypatch.setattr(proctitle, "_argument_area", lambda: (0, 0))
    name = Path("/proc/self/comm").read_text().strip()
    proctitle.set_title(name)
    assert Path("/proc/self/cmdline").read_bytes() == before
