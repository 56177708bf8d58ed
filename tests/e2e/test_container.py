"""The example of an image: what it starts works as a strict platform runs it, without an engine."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.cluster import Cluster
from tests.support.container import USER, inside
from tests.support.launcher import ROOT, Launcher
from tests.support.processes import TORCH_DEADLINE, only, titled, wait_end

pytestmark = pytest.mark.root
FOLDER = ROOT / "examples" / "container"
TORCH = ROOT / "examples" / "torch"
#: Any user's: PATH has to find the programs of this environment, as it does in the image.
PATH = f"PATH={Path(sys.executable).parent}:/usr/bin:/bin"


def lines() -> Iterator[tuple[str, str]]:
    """The instructions of the Dockerfile, each with what follows it."""
    text = re.sub(r"\\\n\s*", "", (FOLDER / "Dockerfile").read_text())
    for line in text.splitlines():
        if line and not line.startswith("#"):
            word, _, rest = line.partition(" ")
            yield word, rest


def run(cluster: Cluster, *more: str) -> Launcher:
    """What a container of this image does with these arguments."""
    said = dict(lines())
    words = [*json.loads(said["ENTRYPOINT"]), *more]
    folders = ("TMPDIR", "XDG_RUNTIME_DIR", "XDG_CONFIG_HOME", "XDG_CACHE_HOME")  # of the test, not there
    without = [word for name in folders for word in ("-u", name)]
    return cluster.launch(command=inside("env", *without, PATH, *said["ENV"].split(), *words), cwd=TORCH)


def test_the_manual_runs_what_the_image_runs() -> None:
    manual = (ROOT / "elasticrun" / "manual" / "kubernetes.md").read_text()
    assert " ".join(json.loads(dict(lines())["CMD"])) in manual


def test_all_that_is_copied_is_there_and_not_ignored() -> None:
    ignore = (FOLDER / "Dockerfile.dockerignore").read_text().split()
    taken = [name[1:] for name in ignore if name.startswith("!")]
    assert ignore[0] == "*"
    assert all((ROOT / name).exists() for name in taken)
    for word, rest in lines():
        source = rest.split()[0]
        if word == "COPY" and source != ".":
            assert any(source.startswith(name) for name in taken)
            assert (ROOT / source).exists()


@pytest.mark.torch
def test_it_trains_under_a_user_that_nobody_knows_and_a_worker_is_killed(cluster: Cluster) -> None:
    pytest.importorskip("sklearn", reason="needs scikit-learn: pip install 'elasticrun[examples]'")
    launcher = run(cluster, *json.loads(dict(lines())["CMD"]))
    launcher.patience = TORCH_DEADLINE
    pid = launcher.wait_line(r"pid (\d+)", "out")
    assert Path(f"/proc/{only(agents(launcher))}").stat().st_uid == USER
    launcher.wait_line("epoch 1 ")
    os.kill(inner(launcher, int(pid[1])), signal.SIGKILL)
    assert launcher.wait() == 0
    assert "recovered in" in launcher.err
    accuracy = re.search(r"test accuracy ([\d.]+)", launcher.out)
    assert accuracy and float(accuracy[1]) > 0.97
    assert "Read-only" not in launcher.output()


def test_what_stops_a_container_stops_its_workers(cluster: Cluster) -> None:
    launcher = run(cluster, "--nproc-per-node", "2", "--no-python", "sh", "-c", "echo up; exec sleep 600")
    launcher.wait_lines("^up$", 2, "out")
    agent = only(agents(launcher))
    os.kill(agent, signal.SIGTERM)
    assert launcher.wait() == 128 + signal.SIGTERM
    wait_end(agent)


def agents(launcher: Launcher) -> list[int]:
    return titled(launcher.mark, "elastic-run: agent")


def inner(launcher: Launcher, pid: int) -> int:
    """The number here of a process that has this one in its container."""
    for here in launcher.processes:
        with contextlib.suppress(OSError):  # it ended meanwhile
            status = Path(f"/proc/{here}/status").read_text()
            if re.search(rf"^NSpid:\s+\d+\s+{pid}$", status, re.MULTILINE):
                return here
    raise AssertionError(f"no process {pid} in the container:\n{launcher.story()}")
