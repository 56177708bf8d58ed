"""The examples that keep their state end with the same bits, however often their workers are killed."""

from __future__ import annotations

import os
import signal
from importlib.util import find_spec

import pytest

from tests.support import launcher as launcher_module
from tests.support.cluster import EXAMPLES, Cluster, cluster
from tests.support.launcher import Launcher
from tests.support.processes import TORCH_DEADLINE

__all__ = ["cluster"]

pytestmark = [pytest.mark.torch, pytest.mark.slow]

KILLS = 5
#: Steps between two kills.
APART = 8
JOB = ("--standalone", "--nproc-per-node=2", f"--max-restarts={KILLS}")
INFO = {"LOGLEVEL": "INFO"}


def needing(script: str, package: str, *args: str) -> object:
    """A script that needs a package which may not be installed."""
    skips = pytest.mark.skipif(find_spec(package) is None, reason=f"needs {package}: pip install {package}")
    return pytest.param(script, args, marks=skips, id=script)


SCRIPTS = [
    needing("gpt.py", "torch", "--steps=64"),
    needing("gpt_trainer.py", "transformers", "--steps=64"),
    needing("digits_lightning.py", "lightning", "--epochs=3"),
]


@pytest.fixture(autouse=True)
def _patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launcher_module, "DEADLINE", TORCH_DEADLINE)


def result_of(launcher: Launcher) -> str:
    """What the training has come to."""
    reached = launcher.wait_line(r"after step \d+ the parameters are \w+").group()
    assert launcher.wait() == 0, launcher.story()
    return reached


def kill_workers(launcher: Launcher) -> None:
    """Kill one rank after the other, some steps apart."""
    for kill in range(KILLS):
        workers = launcher.wait_lines(r"rank (\d) of 2: pid (\d+)", 2 * (kill + 1))[-2:]
        pids = {int(each.group(1)): int(each.group(2)) for each in workers}
        launcher.wait_line(rf"\bstep {APART * (kill + 1)} ", "out")
        os.kill(pids[kill % 2], signal.SIGKILL)
    launcher.wait_lines(r"rank \d of 2: pid \d+", 2 * (KILLS + 1))


@pytest.mark.parametrize(("script", "args"), SCRIPTS)
def test_workers_that_are_killed_change_no_bit(cluster: Cluster, script: str, args: tuple[str, ...]) -> None:
    calm = cluster.launch(*JOB, EXAMPLES / script, *args)
    undisturbed = result_of(calm)
    killed = cluster.launch(*JOB, EXAMPLES / script, *args, env=INFO)
    kill_workers(killed)
    assert result_of(killed) == undisturbed
    assert len(killed.wait_lines(r"step \d+ of round \d+ is restored from memory", KILLS)) == KILLS
