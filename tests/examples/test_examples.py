"""The examples do what their README says, here without any launcher: the test sets the environment."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.ports import free_port
from tests.support.processes import TORCH_DEADLINE

EXAMPLES = Path(__file__).parent.parent.parent / "examples" / "torch"
WORLD_OF_ONE = {
    "RANK": "0",
    "LOCAL_RANK": "0",
    "WORLD_SIZE": "1",
    "LOCAL_WORLD_SIZE": "1",
    "MASTER_ADDR": "127.0.0.1",
    "CUDA_VISIBLE_DEVICES": "",
    "OMP_NUM_THREADS": "1",
}


def environment(**extra: str) -> dict[str, str]:
    """The environment of a test run under no launcher, and ``extra``."""
    ours = {name: value for name, value in os.environ.items() if not name.startswith("TORCHELASTIC_")}
    return {**ours, **extra}


def world_of_one() -> dict[str, str]:
    """The environment of the only worker of a world, with a port of its own for the store."""
    return environment(**WORLD_OF_ONE, MASTER_PORT=str(free_port()))


def digits(*args: object) -> list[str]:
    return [sys.executable, "-u", str(EXAMPLES / "digits.py"), *map(str, args)]


def train(*args: object) -> list[str]:
    """Train to the end; the lines that it printed."""
    done = subprocess.run(
        digits(*args), env=world_of_one(), capture_output=True, text=True, timeout=TORCH_DEADLINE, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.mark.torch
@pytest.mark.slow
def test_a_killed_training_goes_on_as_if_nothing_had_happened(tmp_path: Path) -> None:
    undisturbed = train("--epochs", 4, "--checkpoint-dir", tmp_path / "undisturbed")

    disturbed = tmp_path / "disturbed"
    with subprocess.Popen(
        digits("--epochs", 4, "--checkpoint-dir", disturbed),
        env=world_of_one(),
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert any(line.startswith("epoch 1 ") for line in process.stdout)
        process.kill()
    resumed = train("--epochs", 4, "--checkpoint-dir", disturbed)

    (done,) = re.findall(r"(\d) of 4 epochs done before", resumed[0])
    assert int(done) >= 1
    assert resumed[1:] == undisturbed[1 + int(done) :]
    assert resumed[-1].startswith("test accuracy ")

    finished = train("--epochs", 4, "--checkpoint-dir", disturbed)
    assert finished[1:] == [undisturbed[-1]]


@pytest.mark.torch
def test_digits_without_a_launcher_says_how_to_start_it() -> None:
    env = {name: value for name, value in environment().items() if name not in WORLD_OF_ONE}
    done = subprocess.run(
        digits(), env=env, capture_output=True, text=True, timeout=TORCH_DEADLINE, check=False
    )
    assert done.returncode == 1
    assert "elastic-run --nproc-per-node 2" in done.stderr
    assert "Traceback" not in done.stderr


def test_env_report_is_one_line_of_json(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / "env_report.py"), "--flag", "two words"],
        env=environment(RANK="3", TORCHELASTIC_RUN_ID="job", SECRET="no"),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
        timeout=TORCH_DEADLINE,
    )
    (line,) = done.stdout.splitlines()
    report = json.loads(line)
    assert report["argv"][1:] == ["--flag", "two words"]
    assert report["directory"] == str(tmp_path)
    assert report["env"]["RANK"] == "3"
    assert report["env"]["TORCHELASTIC_RUN_ID"] == "job"
    assert "SECRET" not in report["env"]
