"""A worker is killed again and again, and each sample is in the final model's history once."""

from __future__ import annotations

import json
import os
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from click.testing import CliRunner

from elasticrun.cli.ctl import group
from tests.support.cluster import Cluster
from tests.support.launcher import ROOT

pytestmark = [pytest.mark.torch, pytest.mark.slow, pytest.mark.timeout(600)]

SCRIPTS = ROOT / "tests" / "support"
KILLS = int(os.environ.get("ELASTICRUN_KILLS", "50"))
EPOCHS = 3
PATIENCE = 500.0  # seconds


@pytest.mark.parametrize(
    ("script", "samples", "steps"), [("reader.py", 37, 15), ("shared_reader.py", 53, 36)]
)
def test_fifty_kills_lose_and_repeat_no_sample(
    cluster: Cluster, tmp_path: Path, script: str, samples: int, steps: int
) -> None:
    """One rank, then the other, after its batch and before its save; first early, at last near the end."""
    folder = tmp_path / "diary"
    folder.mkdir()
    plan = [f"kill={kill}:{kill % 2}:{2 + kill * (steps - 2) // KILLS}" for kill in range(KILLS)]
    options = ("--standalone", "--nproc-per-node=2", f"--max-restarts={KILLS}")
    with TemporaryDirectory(prefix="elastic-") as brief:  # a loader's processes have sockets below it
        job = cluster.launch(*options, SCRIPTS / script, folder, *plan, env={"TMPDIR": brief})
        assert job.wait(PATIENCE) == 0, job.story()
    assert len(list(folder.glob("*-0"))) == KILLS + 1
    done = CliRunner().invoke(group, ["audit", f"{folder}-run", "--json"])
    assert done.exit_code == 0, done.output
    (found,) = json.loads(done.stdout)["data"].values()
    assert [each["samples"] for each in found["epochs"]] == [samples] * EPOCHS
