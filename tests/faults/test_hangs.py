"""Workers that run and make no steps: the hang is found, its stacks are saved, and the round starts again.

``-rP`` shows how long it took; no test decides by that.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.faults.leftovers import files_left
from tests.support.cluster import Cluster
from tests.support.launcher import ROOT, Launcher
from tests.support.ports import free_port

SUPPORT = ROOT / "tests" / "support"
STEPPER = SUPPORT / "stepper.py"
DDP_STEPPER = SUPPORT / "ddp_stepper.py"
SILENT = SUPPORT / "silent.py"

RESTART = "--max-restarts=1"
#: A worker that is stuck in a lock needs no time to save its state.
AT_ONCE = "--shutdown-timeout=5"
INFO = {"LOGLEVEL": "INFO"}

#: As much of torch as the hooks touch. Its one function makes a step.
FAKE_TORCH = {
    "torch/__init__.py": "from torch import compiler, cuda, optim\n",
    "torch/compiler.py": "def is_compiling(): return False\n",
    "torch/cuda.py": "def is_initialized(): return False\n",
    "torch/optim/__init__.py": "from torch.optim import optimizer\n",
    "torch/optim/optimizer.py": """
import torch
hooks = []
def register_optimizer_step_post_hook(hook): hooks.append(hook)
def step():
    for hook in hooks: hook(None, (), {})
""",
}
NO_TORCH = """raise ModuleNotFoundError("No module named 'torch'", name="torch")\n"""


@dataclass(frozen=True)
class Hang:
    """What an agent said of one that it found."""

    silence: float  # seconds until it was sure
    allowed: float
    rank: int
    step: int
    where: str
    folder: Path  # of the stacks

    def stacks(self, local_rank: int) -> str:
        return (self.folder / str(local_rank) / "stacks_0.txt").read_text()


def found(launcher: Launcher) -> Hang:
    """The hang that this launcher found; prints how long that took."""
    match = launcher.wait_line(
        r"no worker of round 0 has made a step for (\d+) s \(allowed: (\d+) s\); the slowest is "
        r"rank (\d+), at step (\d+), "
        r"in (\S+) .*; all stacks are in ([^;]*);"
    )
    silence, allowed, rank, step, where, folder = match.groups()
    hang = Hang(float(silence), float(allowed), int(rank), int(step), where, Path(folder))
    times = hang.silence / hang.allowed
    print(f"allowed: {hang.allowed:g} s; found after {hang.silence:g} s, {times:.1f} times that")
    return hang


def blamed(launcher: Launcher) -> int:
    """The rank that the round was stopped for."""
    return int(launcher.wait_line(r"round 0 stops: rank (\d+) .* made no step for")[1])


def modules(folder: Path, files: dict[str, str]) -> dict[str, str]:
    """Environment in which Python finds these modules as well, and before others of the same name."""
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return {**INFO, "PYTHONPATH": f"{folder}:{ROOT}"}


@pytest.mark.torch
@pytest.mark.slow
def test_the_worker_that_stops_is_named_and_not_the_one_that_waits_for_it(cluster: Cluster) -> None:
    options = ("--standalone", "--nproc-per-node=2", "--hang-timeout=5", "--log-dir=logs", AT_ONCE)
    # On a busy machine the end of such a process may take as long as a hang, and needs another restart.
    launcher = cluster.launch(*options, "--max-restarts=3", DDP_STEPPER, "20", "1:7", env=INFO)
    hang = found(launcher)
    assert (hang.rank, hang.step, hang.where, hang.allowed) == (1, 6, "stick", 5)
    assert "stick" in hang.stacks(1)
    assert "backward" in hang.stacks(0), "it waits for the gradients of the other"
    assert hang.folder.is_relative_to(cluster.folder / "logs"), "beside the logs"
    assert blamed(launcher) == 1
    launcher.wait_line("round 1: .* ranks 0-1 of 2 .*restart 1 of 3")
    assert launcher.wait() == 0, launcher.story()
    assert files_left(cluster.folder / "tmp", set()) == []


@pytest.mark.torch
@pytest.mark.slow
def test_a_hang_needs_evidence_that_nothing_can_move(cluster: Cluster, tmp_path: Path) -> None:
    """In one job the ranks wait for each other; in another one works on, and the other node waits for it.

    They run at the same time, as ten seconds is the least that is allowed.
    """
    options = (*cluster.options("2"), "--health-check=auto", RESTART, AT_ONCE)
    hung = [
        cluster.launch(*options, f"--node-rank={node}", SILENT, "no-sender", "0", env=INFO) for node in (0, 1)
    ]
    cluster.port = free_port()
    env = modules(tmp_path / "modules", {"torch.py": NO_TORCH})
    busy = two_nodes(cluster, "0:19:evaluate:45", env, RESTART)
    for rank, launcher in enumerate(hung):
        hang = found(launcher)
        assert (hang.rank, hang.step, hang.where) == (rank, 198, "recv")
        assert "recv" in hang.stacks(0)
        assert "no process below one has used CPU time or I/O" in launcher.wait_line("round 0 stops: (.*)")[1]
    cluster.wait_all()
    said = "\n".join(launcher.err for launcher in hung)
    checks = re.findall(r"master: .* checking: checking \S+, \S+$", said, re.MULTILINE)
    assert len(checks) == 2, "of both nodes, before each round"
    assert "has made a step" not in busy[0].err, "whose stacks move does not hang"
    assert "has made a step" in busy[1].err, "or the next line would be worth nothing"
    assert not any("round 0 stops" in launcher.err for launcher in busy), "nor does who waits for it"


@pytest.mark.slow
def test_a_silence_alone_is_told_and_stops_nothing(cluster: Cluster, tmp_path: Path) -> None:
    """One that is stuck outside any collective could be at work."""
    env = modules(tmp_path / "modules", {"torch.py": NO_TORCH})
    options = ("--standalone", "--nproc-per-node=2", RESTART, AT_ONCE, STEPPER, "20", "0:19:pause:45")
    launcher = cluster.launch(*options, env=env)
    found(launcher)
    assert launcher.wait() == 0, launcher.story()
    assert (
        "rank 0 is outside any collective, so it is waited for; it counts as a hang after 30 min"
        in launcher.err
    )
    assert "the workers of round 0 make steps again" in launcher.err
    assert "round 0 stops" not in launcher.err


def two_nodes(cluster: Cluster, what: str, env: dict[str, str], *args: str) -> list[Launcher]:
    """Two nodes of steppers, of which one misbehaves."""
    options = (*cluster.options("2"), *args)
    return [cluster.launch(*options, f"--node-rank={n}", STEPPER, "20", what, env=env) for n in (0, 1)]


def test_a_hang_in_the_last_round_ends_the_job_with_its_place(cluster: Cluster) -> None:
    launcher = cluster.launch(
        "--standalone", "--nproc-per-node=2", "--hang-timeout=5", AT_ONCE, STEPPER, "20", "0:5:stick:0"
    )
    hang = found(launcher)
    assert hang.rank == 0
    assert launcher.wait() == 1
    summary = launcher.err.partition("Root Cause")[2]
    assert "rank      : 0 (local_rank: 0)" in summary, launcher.story()
    assert re.search(r"made no step for \S+ s after step\s+4", summary)
    assert f"  stacks    : {hang.folder}\n" in summary and "stick" in hang.stacks(0)
    assert re.search(r"  time      : \d{4}-", summary)
    assert re.search(r"no restart\s+allowed", launcher.err)


def test_a_chief_that_hangs_is_found_though_its_servers_make_no_steps(
    cluster: Cluster, tmp_path: Path
) -> None:
    """Each on a node of its own."""
    cluster.pretend_tensorflow()
    task = tmp_path / "task.py"
    task.write_text(
        "import os, threading, elasticrun\n"
        "if os.environ['ROLE_NAME'] != 'chief':\n    threading.Event().wait()\n"
        "elasticrun.report_step(1)\n"
        "if os.environ['ELASTICRUN_ROUND'] == '0':\n    threading.Event().wait()\n"
    )
    options = (*cluster.options("3"), "--hang-timeout=5", "--tf-servers=script", RESTART, AT_ONCE)
    for role in ("chief", "worker", "ps"):
        cluster.launch(*options, f"--tf-role={role}", task)
    hang = found(cluster.launchers[0])
    cluster.wait_all()
    assert hang.step == 1
    assert "restart 1 of 1" in cluster.launchers[2].err


def test_what_is_no_hang(cluster: Cluster, tmp_path: Path) -> None:
    """Silent seconds are none in a checkpoint, nor where nobody looks for them."""
    env = modules(tmp_path / "modules", FAKE_TORCH)
    short = "--hang-timeout=5"
    jobs = {
        "in a checkpoint": (short, STEPPER, "20", "0:5:save:15"),
        "switched off": ("--hang-timeout=off", STEPPER, "20", "0:5:pause:15"),
        "not watched": (short, "--no-auto-progress", STEPPER, "20", "0:5:train:15"),
        "a hang": (short, RESTART, AT_ONCE, STEPPER, "20", "0:5:train:15"),
    }
    launchers = {what: cluster.launch("--standalone", *argv, env=env) for what, argv in jobs.items()}
    control = launchers.pop("a hang")
    hang = found(control)
    assert hang.step == 4, "the script is one that can hang, and its optimizer is watched"
    assert control.wait() == 0
    kept = re.search(r"stacks of hangs are kept in (\S+);", control.err)
    assert kept and hang.folder.is_relative_to(kept[1]) and hang.stacks(0), "there was no --log-dir for them"
    for what, launcher in launchers.items():
        assert launcher.wait() == 0, launcher.story()
        assert "has made a step" not in launcher.err, what
        assert "on it goes" in launcher.out
    assert files_left(cluster.folder / "tmp", set()) == [Path(kept[1]).parent.name], "and nothing else is"
