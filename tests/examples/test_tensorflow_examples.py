"""The TensorFlow examples do what their README says, with the command lines that it gives."""

from __future__ import annotations

import os
import re
import signal

import pytest

from tests.support import launcher
from tests.support.cluster import Cluster, cluster
from tests.support.launcher import ROOT
from tests.support.processes import TORCH_DEADLINE

__all__ = ["cluster"]

EXAMPLES = ROOT / "examples" / "tensorflow"
QUIET = {"TF_CPP_MIN_LOG_LEVEL": "2"}

pytestmark = [pytest.mark.tensorflow, pytest.mark.slow]


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launcher, "DEADLINE", TORCH_DEADLINE)


def test_digits_goes_on_with_all_workers_after_one_was_killed(cluster: Cluster) -> None:
    options = ("--framework", "tensorflow", "--standalone", "--nproc-per-node", "2", "--max-restarts", "1")
    job = cluster.launch(*options, EXAMPLES / "digits_mwms.py", "--epochs", "8", env=QUIET)
    victim = job.wait_line(r"worker 1: pid (\d+), one of 2 replicas, 0 of 176 steps done before")
    job.wait_line("epoch 2 loss")
    os.kill(int(victim[1]), signal.SIGKILL)
    cluster.wait_all()

    (resumed,) = {int(found) for found in re.findall(r"(\d+) of 176 steps done before", job.out)} - {0}
    assert resumed % 22 == 0, "it goes on after a whole epoch"
    losses = dict(re.findall(r"epoch (\d) loss (\S+)", job.out))
    assert list(losses) == list("12345678")
    assert float(losses["8"]) < float(losses["1"]) / 10
    (accuracy,) = re.findall(r"test accuracy (\S+)", job.out)
    assert float(accuracy) > 0.95


def test_flights_are_learned_by_workers_and_parameter_servers(cluster: Cluster) -> None:
    train = ("--rows", "20000", "--steps", "300", "--save-every", "100", "--log-every", "50")
    options = ("--role-counts", "chief=1,worker=2,ps=2", EXAMPLES / "wide_deep_ps.py", *train)
    job = cluster.launch(*options, env=QUIET)
    cluster.wait_all()

    assert "2 ps, started at step 0" in job.out
    steps = [int(step) for step in re.findall(r"step (\d+) loss 0\.\d+", job.out)]
    assert len(steps) == 6
    assert steps == sorted(steps)
    numbers = re.search(r"test auc (\S+) accuracy (\S+) majority (\S+)", job.out)
    assert numbers is not None
    auc, accuracy, majority = map(float, numbers.groups())
    assert auc > 0.64
    assert accuracy > majority - 0.02
