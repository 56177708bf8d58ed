"""Accelerate and Lightning: scripts, functions, and their own launchers. A killed rank starts again."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.support import launcher as launcher_module
from tests.support.cluster import Cluster, cluster
from tests.support.processes import TORCH_DEADLINE

__all__ = ["cluster"]

ROOT = Path(__file__).parents[2]
ENDS = ["rank 0 of 2 has ended in round 1", "rank 1 of 2 has ended in round 1"]

pytestmark = [pytest.mark.torch, pytest.mark.slow]


def needing(package: str) -> pytest.MarkDecorator:
    """For what needs a package which may not be installed."""
    return pytest.mark.skipif(find_spec(package) is None, reason=f"needs {package}: pip install {package}")


def run(*command: str | Path) -> list[str]:
    """What a program of Python's prints, by line; it must not fail."""
    done = subprocess.run(
        [sys.executable, *command],
        capture_output=True,
        text=True,
        timeout=TORCH_DEADLINE,
        cwd=ROOT,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def ends(lines: list[str]) -> list[str]:
    """What ranks have said at their end."""
    return sorted(line for line in lines if line.startswith("rank "))


@pytest.mark.parametrize(
    "module",
    [
        pytest.param("accelerate_training", marks=needing("accelerate")),
        pytest.param("lightning_training", marks=needing("lightning")),
        pytest.param("fabric_training", marks=needing("lightning")),
    ],
)
def test_a_script_under_elastic_run(module: str) -> None:
    script = ROOT / "tests" / "support" / f"{module}.py"
    command = ("-m", "elasticrun", "--standalone", "--nproc-per-node=2", "--max-restarts=1")
    assert ends(run(*command, script)) == ENDS


@pytest.mark.skipif(find_spec("lightning") is None, reason="needs lightning: pip install lightning")
def test_a_restart_of_a_script_does_not_import_lightning_again(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launcher_module, "DEADLINE", TORCH_DEADLINE)
    script = ROOT / "tests" / "support" / "lightning_rank.py"
    command = ("--standalone", "--nproc-per-node=2", "--max-restarts=1", script)
    launcher = cluster.launch(*command, env={"LOGLEVEL": "INFO"})
    told = [launcher.wait_line(rf"rank {rank} of round 0 is (\d+), for Lightning {rank}$") for rank in (0, 1)]
    launcher.wait_line("the warm parent has imported more")
    os.kill(int(told[1].group(1)), signal.SIGKILL)
    for rank in (0, 1):
        launcher.wait_line(rf"rank {rank} of round 1 is \d+, for Lightning {rank}$")
    assert launcher.wait() == 0
    assert "goes on cold" not in launcher.story()


ACCELERATE = """
import elasticrun
from accelerate import notebook_launcher
from elasticrun.compat import in_place_of_torch
from tests.support.accelerate_training import train
first, second = elasticrun.launch(train, 1.0, max_restarts=1)
print("trained", first.value >= 1.0)
with in_place_of_torch(max_restarts=1):
    notebook_launcher(train, (1.0,), num_processes=2)
"""
LIGHTNING = """
import elasticrun, torch
from elasticrun.compat import in_place_of_torch
from lightning.fabric.utilities.rank_zero import rank_zero_only
from tests.support import fabric_training, lightning_training
print("ranks", [it.value for it in elasticrun.launch(lambda: rank_zero_only.rank)])
for module, untrained in ((fabric_training, None), (lightning_training, lightning_training.first())):
    first, second = elasticrun.launch(module.train, max_restarts=1)
    print("trained", first.value != untrained)
    with in_place_of_torch(max_restarts=1):
        for strategy in ("ddp_notebook", "ddp_spawn"):
            print("trained", module.train(strategy) != untrained)
"""


@pytest.mark.parametrize(
    ("program", "trainings", "told"),
    [
        pytest.param(ACCELERATE, 2, 1, marks=needing("accelerate"), id="accelerate"),
        pytest.param(LIGHTNING, 6, 6, marks=needing("lightning"), id="lightning"),
    ],
)
def test_functions_that_are_launched_and_the_launchers_of_the_frameworks(
    program: str, trainings: int, told: int
) -> None:
    """One program for each, as its imports take longer than all the rest."""
    lines = run("-c", program)
    assert ends(lines) == sorted(ENDS * trainings)
    assert [line for line in lines if line.startswith("trained")] == ["trained True"] * told
    assert ("ranks [0, 1]" in lines) == (program is LIGHTNING)
