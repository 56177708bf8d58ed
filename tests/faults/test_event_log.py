"""The event log of a real job whose master and whose worker are killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

from tests.support.cluster import Cluster


def test_the_log_is_whole_although_the_master_was_killed(cluster: Cluster, tmp_path: Path) -> None:
    state = tmp_path / "state"
    launcher = cluster.alone("--state-dir", state, "--max-restarts=1", "--nproc-per-node=2")
    first, _ = cluster.director.round(0, 2)
    os.kill(cluster.master_of(launcher), signal.SIGKILL)
    launcher.wait_line("the master is back")
    first.kill()
    for worker in cluster.director.round(1, 2):
        worker.tell("exit 0")
    assert launcher.wait() == 0
    entries = [json.loads(line) for line in events(state, "--json").splitlines()]
    assert [it["event"] for it in entries] == sorted(it["event"] for it in entries)
    told = [it for it in entries if it["kind"] not in ("decision", "node_changed")]
    assert [it["kind"] for it in told if it["kind"] != "node_detached"] == [
        "master_started",
        "node_joined",
        "round_started",
        "master_started",
        "node_joined",
        "worker_failed",
        "round_stopping",
        "round_stopped",
        "round_started",
        "round_stopped",
        "job_ended",
        "node_gone",
    ]
    assert [it["epoch"] for it in told if it["kind"] == "master_started"] == [1, 2]
    assert [it["returns"] for it in told if it["kind"] == "node_joined"] == [False, True]
    why = events(state, "--why", "1").splitlines()
    assert f"pid {first.pid}" in why[0]
    assert "killed by SIGKILL" in why[0]
    assert "round 1 starts" in why[-1]


def events(state: Path, *options: str) -> str:
    """What ``elastic-ctl events`` prints."""
    command = [sys.executable, "-m", "elasticrun.cli.ctl", "events", str(state), *options]
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout
