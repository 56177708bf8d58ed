"""A node whose forward pass is slow makes the other one wait: it is found, told, and accounted for."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.cluster import Cluster
from tests.support.launcher import ROOT, clean_environment
from tests.support.processes import DEADLINE

pytestmark = [pytest.mark.torch, pytest.mark.slow]

SCRIPT = ROOT / "tests" / "support" / "uneven_ddp.py"
#: Often, so that figures come soon; nobody is lost who is late.
BEATS = "keep_alive_interval=0.5,keep_alive_max_attempt=120"


def launch(cluster: Cluster, slow: int, steps: int) -> Path:
    """Two nodes of one worker each; the file that ends them."""
    stop = cluster.folder / "stop"
    for node in range(2):
        folder = cluster.folder / f"state{node}"
        options = (*cluster.options("2"), "--node-rank", str(node), "--rdzv-conf", BEATS)
        cluster.launch(*options, "--state-dir", folder, SCRIPT, str(slow), str(steps), stop)
    return stop


def state_of(cluster: Cluster) -> Path:
    """The folder of the node that hosts the master, once it trains."""
    cluster.launchers[0].wait_line("it trains")
    return cluster.folder / f"state{cluster.launchers.index(cluster.host())}"


def entries(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "events.jsonl").read_text().splitlines()]


def ctl(*words: str | Path) -> str:
    command = [sys.executable, "-m", "elasticrun.cli.ctl", *map(str, words)]
    done = subprocess.run(
        command, env=clean_environment(), capture_output=True, text=True, timeout=DEADLINE, check=True
    )
    return done.stdout


def follow_steps(folder: Path, count: int) -> None:
    """Return once so many samples of steps came after the straggler was told of."""
    command = [sys.executable, "-m", "elasticrun.cli.ctl", "events", str(folder), "--follow", "--json"]
    with subprocess.Popen(command, env=clean_environment(), stdout=subprocess.PIPE, text=True) as reader:
        assert reader.stdout is not None
        kinds = (json.loads(line)["kind"] for line in reader.stdout)
        next(kind for kind in kinds if kind == "straggler_found")
        for _ in range(count):
            next(kind for kind in kinds if kind == "steps_done")
        reader.kill()


def test_the_slow_node_is_found_told_and_accounted_for(cluster: Cluster) -> None:
    stop = launch(cluster, slow=1, steps=100_000)
    folder = state_of(cluster)
    line = cluster.host().wait_line(r"round 0: (\S+) makes others wait; .* on the median of 2 nodes; look at")
    follow_steps(folder, 3)
    stop.touch()
    cluster.wait_all()
    told = entries(folder)
    (names,) = (entry["names"] for entry in told if entry["kind"] == "round_started")
    (straggler,) = (entry for entry in told if entry["kind"] == "straggler_found")
    assert (straggler["round"], straggler["node"], line[1]) == (0, names[1], names[1])
    assert 1.5 < straggler["factor"] < 5.5
    spent = json.loads(ctl("report", folder, "--json"))["nodes"]
    assert [row["seconds"] > 0 for row in spent if row["activity"] == "slow"] == [True]
    assert f"{names[1]} takes up to" in ctl("advice", folder)


def test_nodes_that_are_equal_are_no_stragglers(cluster: Cluster) -> None:
    launch(cluster, slow=-1, steps=150)
    folder = state_of(cluster)
    cluster.wait_all()
    told = entries(folder)
    assert "steps_done" in {entry["kind"] for entry in told}
    assert "straggler_found" not in {entry["kind"] for entry in told}
