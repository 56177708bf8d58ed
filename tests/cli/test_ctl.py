"""What holds for every verb of ``elastic-ctl``."""

from __future__ import annotations

import subprocess
import sys

import pytest

from elasticrun import __version__


def ctl(*argv: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "elasticrun.cli.ctl", *argv], capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize("argv", [["version"], ["--version"]])
def test_version(argv: list[str]) -> None:
    done = ctl(*argv)
    assert (done.returncode, done.stdout, done.stderr) == (0, f"elastic-ctl {__version__}\n", "")


@pytest.mark.parametrize("argv", [["--help"], ["-h"], ["version", "--help"]])
def test_help(argv: list[str]) -> None:
    done = ctl(*argv)
    assert done.returncode == 0
    assert "Usage: elastic-ctl" in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 100


@pytest.mark.parametrize("argv", [["nonsense"], ["--nonsense"], ["version", "now"]])
def test_usage_errors(argv: list[str]) -> None:
    done = ctl(*argv)
    assert (done.returncode, done.stdout) == (2, "")
    assert "Traceback" not in done.stderr


#: What only single verbs need.
HEAVY = {
    "rich",
    "grpc",
    "asyncio",
    "yaml",
    "elasticrun.core.job",
    "elasticrun.master",
    "elasticrun.sim",
}


def test_no_verb_pays_for_another() -> None:
    code = "import sys; from elasticrun.cli import ctl; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not HEAVY & set(done.stdout.split())
