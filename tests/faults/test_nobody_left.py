"""However a launch ends, nothing that it started is alive afterwards, not even what hid itself well.

After a good end that is so with ``--kill-leftovers``; what is spared without it has tests of its own.
"""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.cluster import Cluster
from tests.support.director import Worker
from tests.support.launcher import MODULE, Launcher
from tests.support.processes import DEADLINE, only, titled, wait_end

End = Callable[[Cluster, Launcher, list[Worker]], int]


def normal(cluster: Cluster, launcher: Launcher, workers: list[Worker]) -> int:
    for worker in workers:
        worker.tell("exit 0")
    return 0


def failure(cluster: Cluster, launcher: Launcher, workers: list[Worker]) -> int:
    workers[0].tell("exit 3")
    return 1


def term(cluster: Cluster, launcher: Launcher, workers: list[Worker]) -> int:
    launcher.signal(signal.SIGTERM)
    return 128 + signal.SIGTERM


def interrupt_twice(cluster: Cluster, launcher: Launcher, workers: list[Worker]) -> int:
    for worker in workers:
        worker.ask(f"ignore {signal.SIGINT:d}")
    for number in (1, 2):
        launcher.signal(signal.SIGINT)
        launcher.wait_lines("received SIGINT", number)
    return 128 + signal.SIGINT


def kill_agent(cluster: Cluster, launcher: Launcher, workers: list[Worker]) -> int:
    launcher.kill()
    return -signal.SIGKILL


def kill_master(cluster: Cluster, launcher: Launcher, workers: list[Worker]) -> int:
    os.kill(cluster.master_of(launcher), signal.SIGKILL)
    launcher.wait_line("the master is back")
    return normal(cluster, launcher, workers)


def kill_agent_and_master(cluster: Cluster, launcher: Launcher, workers: list[Worker]) -> int:
    os.kill(cluster.master_of(launcher), signal.SIGKILL)
    return kill_agent(cluster, launcher, workers)


def kill_spawner(cluster: Cluster, launcher: Launcher, workers: list[Worker]) -> int:
    os.kill(launcher.spawner, signal.SIGKILL)
    return 10


@pytest.mark.parametrize(
    "end",
    [normal, failure, term, interrupt_twice, kill_agent, kill_master, kill_agent_and_master, kill_spawner],
)
def test_nobody_is_left(cluster: Cluster, end: End) -> None:
    good = end in (normal, kill_master)  # what was detached would outlive it
    launcher = cluster.alone("--nproc-per-node=2", *(["--kill-leftovers"] if good else []))
    end_of_everybody(cluster, launcher, end, 9)  # agent, master, spawner, 2 workers, 4 children


def end_of_everybody(cluster: Cluster, launcher: Launcher, end: End, processes: int) -> None:
    """Of two workers with children that hide, after which nobody is there."""
    workers = cluster.director.round(0, 2)
    for worker in workers:
        worker.ask("child")
        worker.ask("child detached")
    assert len(launcher.processes) == processes
    status = end(cluster, launcher, workers)
    assert launcher.wait_status() == status
    cluster.nobody_left()


@pytest.mark.parametrize("end", [normal, failure])
def test_no_temporary_file_is_left(cluster: Cluster, tmp_path: Path, end: End) -> None:
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    launcher = cluster.alone(env={"TMPDIR": str(temporary)})
    status = end(cluster, launcher, cluster.director.round(0, 1))
    assert launcher.wait() == status
    left = [str(path.relative_to(temporary)) for path in temporary.rglob("*") if path.is_file()]
    assert not [path for path in left if not path.endswith(("error.json", ".log"))], left


def zombies() -> dict[int, int]:
    """Processes that have ended and whose parents have not asked, with those parents."""
    found = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if fields[0] == "Z":
            found[int(path.parent.name)] = int(fields[1])
    return found


@pytest.mark.root
def test_as_the_first_process_of_a_container(cluster: Cluster) -> None:
    unshare = ("unshare", "--pid", "--fork", "--mount-proc", "--kill-child")
    launcher = cluster.alone("--max-restarts=1", command=(*unshare, "setsid", *MODULE))
    (worker,) = cluster.director.round(0, 1)
    assert worker.env["RANK"] == "0"
    agent = only(titled(launcher.mark, "elastic-run: agent"))
    # Somebody looks into the container, and leaves what ends later; who reads its output waits for that.
    look = ("nsenter", "--target", str(agent), "--pid", "--mount", "setsid", "sh", "-c", "cat /dev/null &")
    subprocess.run(look, stdout=subprocess.PIPE, check=True, timeout=DEADLINE)
    worker.ask("orphan")
    worker.tell("exit 1")
    (again,) = cluster.director.round(1, 1)  # so the spawner has swept
    assert not set(zombies().values()) & set(launcher.processes)
    again.ask("child detached")
    os.kill(agent, signal.SIGTERM)
    assert launcher.wait() == 128 + signal.SIGTERM
    wait_end(agent)
    cluster.nobody_left()
