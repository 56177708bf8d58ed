"""Nothing is left of saved states: no shared memory, no temporary file, no descriptor, whoever is killed."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from tests.faults.leftovers import SHARED_MEMORY, Descriptors, files_left, left_by_killed
from tests.support.cluster import Cluster
from tests.support.launcher import Launcher
from tests.support.processes import marked, only, titled
from tests.support.said import KEEPER

pytestmark = pytest.mark.torch

TWO = ("--standalone", "--nproc-per-node=2")
INFO = {"LOGLEVEL": "INFO"}
LAST = 9  # the round in which nobody is killed
SLACK = 3  # descriptors


def files(cluster: Cluster, killed: int) -> list[str]:
    """The temporary files that are left, but for the logs and the journal of nodes that were killed."""
    temporary = cluster.folder / "tmp"
    journals = {*temporary.glob("elasticrun_master_*")}
    assert len(journals) <= killed
    return files_left(temporary, left_by_killed(temporary, killed) | journals)


def options(tmp_path: Path) -> tuple[str, ...]:
    return (f"--state-storage={tmp_path / 'run'}", "--state-storage-every=0.01")


def waits(job: Launcher, round_: int) -> None:
    """All ranks have saved their state, and nothing of it has a name in shared memory."""
    job.wait_lines(rf"round {round_} rank \d waits after step", 2)
    assert {pid: found for pid in marked(job.mark) if (found := shared_files(pid))} == {}


def shared_files(pid: int) -> list[str]:
    """What a process has open or mapped of shared memory that has a name."""
    place = f"{SHARED_MEMORY}/"
    try:
        links = [str(each.readlink()) for each in Path(f"/proc/{pid}/fd").iterdir()]
        maps = Path(f"/proc/{pid}/maps").read_text().splitlines()
    except (FileNotFoundError, ProcessLookupError):  # it has just ended
        return []
    return [each for each in (*links, *maps) if place in each]


@pytest.mark.parametrize("victim", ["everything", "agent", "spawner"])
@pytest.mark.parametrize("how", [(), ("--sharded",)], ids=["replicated", "sharded"])
def test_after_a_kill(cluster: Cluster, tmp_path: Path, how: tuple[str, ...], victim: str) -> None:
    job = cluster.launch(*TWO, *options(tmp_path), KEEPER, *how, "wait=0:4")
    waits(job, 0)
    if victim == "everything":
        job.kill_node()
    else:
        os.kill({"agent": job.pid, "spawner": job.spawner}[victim], signal.SIGKILL)
    job.wait_status()
    cluster.nobody_left()
    assert files(cluster, killed=1) == []


def test_after_the_end_and_while_workers_are_killed(cluster: Cluster, tmp_path: Path) -> None:
    """An agent has as many descriptors in the last round as it had in the second one."""
    plan = [f"wait={round_}:{round_ + 2}" for round_ in range(LAST)]
    job = cluster.launch(*TWO, f"--max-restarts={LAST}", *options(tmp_path), KEEPER, *plan, env=INFO)
    seen = Descriptors()
    for round_ in range(LAST):
        waits(job, round_)
        workers = job.wait_lines(r"rank \d has pid (\d+)", 2 * (round_ + 1))[-2:]
        if round_:  # in the first one the warm parent may still be starting
            job.wait_line(rf"step {round_ + 2} of round {round_} is in ")
            seen.look("agent", job.pid)
            seen.look("spawner", job.spawner)
            seen.look("master", only(titled(job.mark, "elastic-run: master")))
        os.kill(int(workers[round_ % 2][1]), signal.SIGKILL)
    assert job.wait() == 0
    assert seen.leaks(SLACK) == []
    assert files(cluster, killed=0) == []
