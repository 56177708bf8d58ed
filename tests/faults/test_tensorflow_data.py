"""Parameter servers are killed again and again, and each sample counts once.

The model is a count of each sample, kept on the parameter servers. So the test need not believe the audit.
"""

from __future__ import annotations

import json
import os
import re
import signal
from typing import Any

import pytest
from click.testing import CliRunner

from elasticrun.cli.ctl import group
from tests.support import launcher
from tests.support.cluster import Cluster
from tests.support.launcher import ROOT, Launcher
from tests.support.processes import TORCH_DEADLINE, listener

COUNTER = ROOT / "tests" / "support" / "tf_counter.py"
KILLS = 10
APART = 47  # steps between two kills, not in step with the saves, which are 5 apart
EPOCHS, STEPS_OF_EPOCH, LENGTH = 20, 26, 101

pytestmark = [pytest.mark.tensorflow, pytest.mark.slow, pytest.mark.timeout(600)]


def said(job: Launcher, pattern: str) -> dict[str, Any]:
    """The first line of a chief that has this."""
    found: dict[str, Any] = json.loads(job.wait_line(rf"^chief: (\{{.*{pattern}.*\}})$")[1])
    return found


def test_after_ten_kills_each_sample_was_trained_on_once_in_each_epoch(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launcher, "DEADLINE", TORCH_DEADLINE)
    records = cluster.folder / "records"
    options = ("--role-counts", "chief=1,worker=2,ps=2", "--max-restarts", str(KILLS))
    program = (COUNTER, cluster.folder / "checkpoints", records, str(EPOCHS * STEPS_OF_EPOCH))
    job = cluster.launch(*options, *cluster.options("1"), *program, env={"TF_CPP_MIN_LOG_LEVEL": "3"})
    redone = 0
    for kill in range(KILLS):
        servers = said(job, rf'"attempt": {kill}, "cluster".*')["cluster"]["ps"]
        said(job, rf'"attempt": {kill}, "step": {(kill + 1) * APART}')
        os.kill(listener(int(servers[kill % 2].rpartition(":")[2])), signal.SIGKILL)
        again = said(job, rf'"attempt": {kill + 1}, "cluster".*')
        redone += again["resumed"] < (kill + 1) * APART
    assert redone, "no kill cost a step: then nothing was tried"
    cluster.wait_all()

    done = said(job, '"counts"')
    assert done["counts"] == [EPOCHS] * LENGTH
    assert done["samples"] == EPOCHS * LENGTH
    result = CliRunner().invoke(group, ["audit", str(records)])
    assert (result.exit_code, result.stdout.splitlines()[1]) == (0, "data: exact"), result.stdout
    assert len(re.findall(r"each of 101 samples exactly once", result.stdout)) == EPOCHS
