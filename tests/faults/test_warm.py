"""Warm workers in a real launch: a restart is a fork, and trouble with the warm parent costs no job."""

from __future__ import annotations

import json
import os
import re
import signal
import textwrap
from contextlib import suppress
from pathlib import Path

import pytest

from tests.faults import test_hangs as hangs
from tests.faults import test_nobody_left as ends
from tests.support.cluster import Cluster
from tests.support.director import Worker
from tests.support.launcher import ROOT, Launcher
from tests.support.processes import marked

WARM = ("--warm=on", "--warm-import=colorsys")
FIRST_LINES = """
    import sys
    there = "torch._C" in sys.modules  # the public ones are hidden until they are imported
    import os, signal
    with open(f"/proc/{os.getppid()}/cmdline") as parent:
        print("first", os.environ["ELASTICRUN_ROUND"], there, parent.read(20), flush=True)
    import torch
    torch.ones(2).sum()
    if os.environ["ELASTICRUN_ROUND"] == "0":
        os.kill(os.getpid(), signal.SIGKILL)
    """


def is_forked(pid: int) -> bool:
    """Whether a process was forked from a warm parent, or is one: the kernel shows what was executed."""
    return b"\0ELASTICRUN_WARM=" in b"\0" + Path(f"/proc/{pid}/environ").read_bytes()


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def warm_parents(launcher: Launcher, workers: list[Worker]) -> list[int]:
    found = []
    for pid in set(marked(launcher.mark)) - {worker.pid for worker in workers}:
        with suppress(OSError):  # it has just ended
            if is_forked(pid) and parent_of(pid) == launcher.spawner:
                found.append(pid)
    return found


def warm(cluster: Cluster, *args: str, **rest: object) -> Launcher:
    return cluster.alone(*WARM, *args, **rest)


@pytest.mark.torch
@pytest.mark.parametrize("options", [(), ("--warm=off",)], ids=["auto", "off"])
def test_a_restart_is_a_fork(cluster: Cluster, tmp_path: Path, options: tuple[str, ...]) -> None:
    script = tmp_path / "train.py"
    script.write_text(textwrap.dedent(FIRST_LINES))
    launcher = cluster.launch("--standalone", "--max-restarts=1", *options, script)
    assert launcher.wait() == 0, launcher.story()
    told = [line for line in launcher.out.splitlines() if line.startswith("first")]
    assert told == [f"first {number} {not options} elastic-run: spawner" for number in (0, 1)]


def test_the_warm_parent_is_killed(cluster: Cluster) -> None:
    launcher = warm(cluster, "--max-restarts=2", "--nproc-per-node=2")
    workers = cluster.director.round(0, 2)
    for number in (1, 2):
        (parent,) = warm_parents(launcher, workers)
        os.kill(parent, signal.SIGKILL)
        assert workers[1].ask("out still here") == "printed"
        workers[0].kill()
        workers = cluster.director.round(number, 2)
        assert {parent_of(worker.pid) for worker in workers} == {launcher.spawner}
    for worker in workers:
        worker.tell("exit 0")
    assert launcher.wait() == 0, launcher.story()
    cluster.nobody_left()


def test_an_import_that_fails(cluster: Cluster) -> None:
    launcher = cluster.alone("--warm=on", "--warm-import=nowhere.at_all")
    (worker,) = cluster.director.round(0, 1)
    assert not is_forked(worker.pid)
    worker.tell("exit 0")
    assert launcher.wait() == 0
    told = [line for line in launcher.err.splitlines() if "cold" in line]
    assert told == [
        "elastic-run: workers start cold: importing nowhere.at_all failed "
        "(ModuleNotFoundError: No module named 'nowhere')"
    ]


def test_workers_wait_for_the_import(cluster: Cluster, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    (tmp_path / "slow.py").write_text(f"open({str(gate)!r}).read()")
    env = {"PYTHONPATH": f"{ROOT}:{tmp_path}", "LOGLEVEL": "INFO"}
    launcher = cluster.alone("--warm=on", "--warm-import=slow", "--nproc-per-node=2", env=env)
    launcher.wait_line("round 0: node 0 of 1")
    assert not cluster.director.of_round(0)
    gate.write_text("go on")
    workers = cluster.director.round(0, 2)
    launcher.wait_line(
        r"workers are forked from a warm parent, ready after .* each worker shares "
        r".* MiB of its memory"
    )
    for worker in workers:
        assert is_forked(worker.pid)
        worker.tell("exit 0")
    assert launcher.wait() == 0


ENDINGS = {"exit 3": "exit", "kill 9": "SIGKILL", "kill 15": "SIGTERM", "raise oh no": "RuntimeError: oh no"}


@pytest.mark.parametrize("order", ENDINGS)
def test_a_failure_is_told_as_of_a_cold_worker(cluster: Cluster, order: str) -> None:
    found = []
    for options in (WARM, ("--warm=off",)):
        cluster.director.forget()
        launcher = cluster.alone(*options)
        (worker,) = cluster.director.round(0, 1)
        assert is_forked(worker.pid) == (options is WARM)
        worker.ask("out a line of stdout")
        worker.ask("err a line of stderr")
        worker.tell(order)
        assert launcher.wait() == 1
        assert "a line of stdout" in launcher.out
        found.append(comparable(launcher, worker))
    assert found[0] == found[1]
    assert ENDINGS[order] in found[0]


def comparable(launcher: Launcher, worker: Worker) -> str:
    """What the launcher said on stderr, without what differs between any two runs."""
    text = launcher.err.replace(str(worker.pid), "PID")
    text = text.replace(worker.env["TORCHELASTIC_RUN_ID"], "ID")
    return "\n".join(line for line in text.splitlines() if not re.match(r"  (?:time|error_file) +:", line))


def test_the_error_file_of_a_forked_worker(cluster: Cluster, tmp_path: Path) -> None:
    error_file = tmp_path / "reply.json"
    launcher = warm(cluster, "--run-path", env={"TORCHELASTIC_ERROR_FILE": str(error_file)})
    (worker,) = cluster.director.round(0, 1)
    assert is_forked(worker.pid)
    worker.tell("raise oh no")
    assert launcher.wait() == 1
    assert json.loads(error_file.read_text())["message"]["message"] == "RuntimeError: oh no"


def test_a_forked_worker_hangs(cluster: Cluster) -> None:
    options = ("--standalone", "--nproc-per-node=2", "--hang-timeout=5", *WARM, hangs.AT_ONCE)
    launcher = cluster.launch(*options, hangs.STEPPER, "20", "0:5:stick:0")
    assert hangs.found(launcher).rank == 0
    assert launcher.wait() == 1
    assert re.search(r"made no step for \S+ s after step\s+4", launcher.err)


def kill_warm_parent(cluster: Cluster, launcher: Launcher, workers: list[Worker]) -> int:
    for pid in warm_parents(launcher, workers):
        os.kill(pid, signal.SIGKILL)
    return ends.normal(cluster, launcher, workers)


def kill_agent_while_forking(cluster: Cluster, launcher: Launcher, workers: list[Worker]) -> int:
    workers[0].kill()
    launcher.kill()
    return -signal.SIGKILL


@pytest.mark.parametrize(
    "end",
    [
        ends.normal,
        ends.failure,
        ends.term,
        ends.interrupt_twice,
        ends.kill_agent,
        ends.kill_master,
        ends.kill_agent_and_master,
        ends.kill_spawner,
        kill_warm_parent,
        kill_agent_while_forking,
    ],
    ids=lambda end: end.__name__,
)
def test_nobody_is_left(cluster: Cluster, end: ends.End) -> None:
    options = ["--max-restarts=1"] if "forking" in end.__name__ else []
    if end in (ends.normal, ends.kill_master, kill_warm_parent):
        options.append("--kill-leftovers")  # what was detached would outlive a good end
    launcher = warm(cluster, "--nproc-per-node=2", *options)
    ends.end_of_everybody(cluster, launcher, end, 10)  # a warm parent more than without


def test_the_agent_ends_while_the_parent_imports(cluster: Cluster, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    (tmp_path / "slow.py").write_text(f"open({str(gate)!r}).read()")
    env = {"PYTHONPATH": f"{ROOT}:{tmp_path}", "LOGLEVEL": "INFO"}
    for signum, status in ((signal.SIGTERM, 128 + signal.SIGTERM), (signal.SIGKILL, -signal.SIGKILL)):
        launcher = cluster.alone("--warm=on", "--warm-import=slow", env=env)
        launcher.wait_line("round 0: node 0 of 1")
        launcher.signal(signum)
        assert launcher.wait_status() == status
        cluster.nobody_left()
