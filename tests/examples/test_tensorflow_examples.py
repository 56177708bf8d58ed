"""The TensorFlow examples do what their README says, with the command lines that it gives."""

from __future__ import annotations

import os
import re
import signal

import pytest

from tests.support import launcher
from tests.support.cluster import Cluster, cluster
from tests.support.launcher import ROOT, Launcher
from tests.support.processes import TORCH_DEADLINE, tasks

__all__ = ["cluster"]

EXAMPLES = ROOT / "examples" / "tensorflow"
QUIET = {"TF_CPP_MIN_LOG_LEVEL": "2"}

pytestmark = [pytest.mark.tensorflow, pytest.mark.slow]


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launcher, "DEADLINE", TORCH_DEADLINE)


def digits(cluster: Cluster, *options: str) -> Launcher:
    """Three mirrored workers."""
    usual = ("--framework", "tensorflow", "--standalone", "--nproc-per-node", "3")
    return cluster.launch(*usual, *options, EXAMPLES / "digits_mwms.py", "--epochs", "6", env=QUIET)


def accuracy_of(job: Launcher) -> str:
    (accuracy,) = re.findall(r"test accuracy (\S+)", job.out)
    return str(accuracy)


def test_digits_ends_as_if_no_worker_had_been_killed(cluster: Cluster) -> None:
    undisturbed = digits(cluster)
    assert undisturbed.wait() == 0, undisturbed.story()
    job = digits(cluster, "--max-restarts", "1")
    victim = job.wait_line(r"worker 1: pid (\d+), one of 3 replicas, 0 of 132 steps done before")
    job.wait_line("epoch 2 loss")
    os.kill(int(victim[1]), signal.SIGKILL)
    assert job.wait() == 0, job.story()

    (resumed,) = {int(found) for found in re.findall(r"(\d+) of 132 steps done before", job.out)} - {0}
    assert resumed % 22 == 0, "it goes on after a whole epoch"
    losses = dict(re.findall(r"epoch (\d) loss (\S+)", job.out))
    assert losses == dict(re.findall(r"epoch (\d) loss (\S+)", undisturbed.out))
    assert accuracy_of(job) == accuracy_of(undisturbed)
    assert float(accuracy_of(job)) > 0.9


def test_flights_are_learned_on_from_peers_copies_after_a_parameter_server_was_killed(
    cluster: Cluster,
) -> None:
    train = ("--rows", "20000", "--steps", "300", "--save-every", "100", "--log-every", "20")
    options = ("--role-counts", "chief=1,worker=2,ps=2", "--max-restarts", "1", EXAMPLES / "wide_deep_ps.py")
    job = cluster.launch(*options, *train, env=QUIET)
    job.wait_line("2 ps, started at step 0")
    job.wait_line(r"^step 1\d\d loss")
    os.kill(tasks(job.mark)["ps", 1][0], signal.SIGKILL)
    cluster.wait_all()

    assert "2 ps, resumed at step 100 from copies of the parameter servers" in job.out
    steps = [int(step) for step in re.findall(r"step (\d+) loss 0\.\d+", job.out)]
    assert steps[0] < 20
    assert steps[-1] > 290
    numbers = re.search(r"test auc (\S+) accuracy (\S+) majority (\S+)", job.out)
    assert numbers is not None
    auc, accuracy, majority = map(float, numbers.groups())
    assert auc > 0.64
    assert accuracy > majority - 0.02
