"""The TensorFlow examples do what the READMEs say, with the command lines that these give."""

from __future__ import annotations

import os
import re
import shlex
import signal

import pytest

from tests.support import launcher
from tests.support.cluster import Cluster, cluster
from tests.support.launcher import ROOT, Launcher
from tests.support.processes import TORCH_DEADLINE

__all__ = ["cluster"]

PAGES = ("README.md", "examples/README.md", "elasticrun/manual/tensorflow.md")
QUIET = {"TF_CPP_MIN_LOG_LEVEL": "2"}

pytestmark = [pytest.mark.tensorflow, pytest.mark.slow]


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launcher, "DEADLINE", TORCH_DEADLINE)


def command(script: str) -> list[str]:
    """How the pages start an example on one box, the same on all of them."""
    line = re.compile(rf"^elastic-run (?!.*--rdzv)(.* \S*/{re.escape(script)})$", re.M)
    texts = [re.sub(r" *\\\n *", " ", (ROOT / page).read_text()) for page in PAGES]
    found = [said for text in texts for said in line.findall(text)]
    assert len(found) == len(PAGES), found
    (said,) = set(found)
    *options, path = shlex.split(said)
    return [*options, str(ROOT / path)]


def digits(cluster: Cluster) -> Launcher:
    """Three mirrored workers."""
    return cluster.launch(*command("digits_mwms.py"), "--epochs", "6", env=QUIET)


def accuracy_of(job: Launcher) -> str:
    (accuracy,) = re.findall(r"test accuracy (\S+)", job.out)
    return str(accuracy)


def test_digits_ends_as_if_no_worker_had_been_killed(cluster: Cluster) -> None:
    undisturbed = digits(cluster)
    assert undisturbed.wait() == 0, undisturbed.story()
    job = digits(cluster)
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
    job = cluster.launch(*command("wide_deep_ps.py"), *train, env=QUIET)
    victim = job.wait_line(r"^ps 1: pid (\d+), serves at ")
    job.wait_line("2 ps, started at step 0")
    job.wait_line(r"^step 1\d\d loss")
    os.kill(int(victim[1]), signal.SIGKILL)
    cluster.wait_all()

    (resumed,) = re.findall(r"2 ps, resumed at step (\d+) from copies of the parameter servers", job.out)
    assert resumed in {"100", "200"}, "whatever was saved by then"
    steps = [int(step) for step in re.findall(r"step (\d+) loss 0\.\d+", job.out)]
    assert steps[0] < 20
    assert steps[-1] > 290
    numbers = re.search(r"test auc (\S+) accuracy (\S+) majority (\S+)", job.out)
    assert numbers is not None
    auc, accuracy, majority = map(float, numbers.groups())
    assert auc > 0.64
    assert accuracy > majority - 0.02
