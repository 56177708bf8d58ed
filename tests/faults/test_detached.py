"""What workers put into sessions of their own outlives a good end, and no other."""

from __future__ import annotations

import os
import re
import signal
import sys
import textwrap
from pathlib import Path

import pytest

from tests.support.cluster import Cluster
from tests.support.launcher import Launcher
from tests.support.processes import wait_end

SCRIPT = """
    import os, subprocess, sys
    HELPER = "import os, sys; open(sys.argv[1]).read(); open(sys.argv[2], 'w').write('done')"
    def helper(name, **rest):
        process = subprocess.Popen([sys.executable, "-c", HELPER, "gate", name], **rest)
        print(name, process.pid, flush=True)
    helper("detached", start_new_session=True)
    helper("attached")
    match sys.argv[1]:
        case "fail": sys.exit(3)
        case "wait": __import__("signal").pause()
    """


def launch(cluster: Cluster, folder: Path, end: str, *options: str) -> tuple[Launcher, dict[str, int]]:
    (folder / "train.py").write_text(textwrap.dedent(SCRIPT))
    os.mkfifo(folder / "gate")
    launcher = cluster.launch("--standalone", *options, "train.py", end, cwd=folder)
    pids = {name: int(launcher.wait_line(rf"{name} (\d+)")[1]) for name in ("detached", "attached")}
    return launcher, pids


@pytest.mark.parametrize("warm", ["--warm=off", "--warm=on"])
def test_an_upload_goes_on_after_a_good_end(cluster: Cluster, tmp_path: Path, warm: str) -> None:
    launcher, pids = launch(cluster, tmp_path, "end", warm, "--warm-import=colorsys")
    assert launcher.wait_status() == 0
    wait_end(pids["attached"], 0.0)
    os.kill(pids["detached"], 0)
    launcher.wait_line(
        rf"left alone, as workers .*: {pids['detached']} \({re.escape(sys.executable)} -c import"
    )
    assert str(pids["attached"]) not in launcher.err
    (tmp_path / "gate").write_text("")
    wait_end(pids["detached"])
    assert (tmp_path / "detached").read_text() == "done"
    assert launcher.wait() == 0
    cluster.nobody_left()


@pytest.mark.parametrize(
    ("end", "options"),
    [("end", ("--kill-leftovers",)), ("fail", ()), ("wait", ())],
    ids=["asked", "failure", "signal"],
)
def test_any_other_end_is_that_of_all(
    cluster: Cluster, tmp_path: Path, end: str, options: tuple[str, ...]
) -> None:
    launcher, pids = launch(cluster, tmp_path, end, *options)
    if end == "wait":
        launcher.signal(signal.SIGTERM)
    assert launcher.wait() == {"end": 0, "fail": 1, "wait": 128 + signal.SIGTERM}[end]
    for pid in pids.values():
        wait_end(pid, 0.0)
    assert "left alone" not in launcher.err


def test_a_restart_kills_what_was_detached_before(cluster: Cluster, tmp_path: Path) -> None:
    launcher, pids = launch(cluster, tmp_path, "fail", "--max-restarts=1")
    assert launcher.wait() == 1
    found = [int(pid) for pid in re.findall(r"detached (\d+)", launcher.out)]
    assert len(found) == 2
    assert found[0] == pids["detached"]
    for pid in found:
        wait_end(pid, 0.0)
