"""A disk that is full costs what would have been written to it, never the job."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from tests.support.cluster import WORKER, Cluster
from tests.support.launcher import MODULE, Launcher

pytestmark = pytest.mark.root

#: Runs a launcher that sees a file system of a few pages at the directory that comes first.
MOUNT = 'mount -t tmpfs -o mode=700,size="$1" none "$2" && shift 2 && exec "$@"'


def at_once(folder: Path) -> tuple[str | Path, ...]:
    """Options for many restarts, none of which waits because failures come fast."""
    policy = folder / "policy.yaml"
    policy.write_text("backoff: {first: 0}\n")
    return ("--max-restarts=50", "--policy", policy)


def on_tiny_disk(cluster: Cluster, size: str, directory: Path, *args: str | Path) -> Launcher:
    directory.mkdir()
    mounted = ("unshare", "--mount", "sh", "-ec", MOUNT, "sh", size, str(directory))
    return cluster.launch("--standalone", *args, WORKER, command=(*mounted, *MODULE))


def test_a_journal_on_a_full_disk(cluster: Cluster, tmp_path: Path) -> None:
    state = tmp_path / "state"
    launcher = on_tiny_disk(cluster, "8k", state, "--state-dir", state, *at_once(tmp_path))
    for number in range(20):
        (worker,) = cluster.director.round(number, 1)
        worker.tell("exit 1")
    (worker,) = cluster.director.round(20, 1)
    assert worker.env["TORCHELASTIC_RESTART_COUNT"] == "20"
    worker.tell("exit 0")
    assert launcher.wait() == 0
    assert "cannot write the journal" in launcher.err
    assert "No space left on device" in launcher.err
    assert "Traceback" not in launcher.err


def test_the_master_dies_after_its_journal_was_cut_off(cluster: Cluster, tmp_path: Path) -> None:
    """Its successor remembers less, and the job goes on all the same."""
    state = tmp_path / "state"
    launcher = on_tiny_disk(cluster, "8k", state, "--state-dir", state, *at_once(tmp_path))
    for number in range(20):
        (worker,) = cluster.director.round(number, 1)
        worker.tell("exit 1")
    cluster.director.round(20, 1)
    os.kill(cluster.master_of(launcher), signal.SIGKILL)
    launcher.wait_line("the master is back")
    cluster.director.order("exit 0")
    assert launcher.wait() == 0
    assert "Traceback" not in launcher.err


def test_a_disk_too_full_for_any_journal(cluster: Cluster, tmp_path: Path) -> None:
    state = tmp_path / "state"
    fill = ("--no-python", "true")
    state.mkdir()
    full = 'mount -t tmpfs -o mode=700,size=4k none "$1" && printf x > "$1/x" && shift && exec "$@"'
    command = ("unshare", "--mount", "sh", "-ec", full, "sh", str(state), *MODULE)
    launcher = cluster.launch("--standalone", "--state-dir", state, *fill, command=command)
    assert launcher.wait() == 2
    assert "No space left on device" in launcher.err
    assert "--state-dir" in launcher.err
    assert "Traceback" not in launcher.err


def test_logs_on_a_full_disk(cluster: Cluster, tmp_path: Path) -> None:
    logs = tmp_path / "logs"
    launcher = on_tiny_disk(cluster, "64k", logs, "--log-dir", logs, "-t3", "--max-restarts=1")
    (worker,) = cluster.director.round(0, 1)
    for _ in range(40):
        worker.ask("out " + 4000 * "x")
    worker.ask("out the last line")
    worker.tell("exit 1")
    (again,) = cluster.director.round(1, 1)
    again.ask("out and another round")
    again.tell("exit 0")
    assert launcher.wait() == 0
    assert "[default0]:the last line" in launcher.out, "the console gets everything"
    assert "[default0]:and another round" in launcher.out
    assert "No space left on device" in launcher.err
    assert "Traceback" not in launcher.err
