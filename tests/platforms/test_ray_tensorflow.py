"""A job of TensorFlow on a real Ray cluster: each task is a node on a host of its own.

No TensorFlow here: the tasks only say what they are told, and serve nothing.
"""

from __future__ import annotations

import importlib.util
import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from elasticrun.dataclass import dataclass
from tests.support.launcher import Launcher
from tests.support.ray_cluster import RayHosts, ray_hosts

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("ray") is None, reason="needs ray: pip install 'elasticrun[ray]'"
)

#: Says who it is, and then waits; SIGUSR1 says that all is done.
SCRIPT = """\
import json, os, signal, sys
signal.signal(signal.SIGUSR1, lambda *_: sys.exit(0))
env = os.environ
told = {"raylet": env["RAY_RAYLET_PID"], "pid": os.getpid(), **json.loads(env["TF_CONFIG"])}
print("task", json.dumps(told), flush=True)
while True:
    signal.pause()
"""
ROLES = ("chief", "worker", "ps")


@dataclass(frozen=True, slots=True)
class Task:
    """What one attempt of a task says."""

    role: str
    raylet: str
    pid: int
    address: str  # of its host, as the other tasks know it
    cluster: dict[str, Any]


class Job:
    """A chief, a worker and a parameter server on the cluster, and what they have said."""

    def __init__(self, hosts: RayHosts, folder: Path) -> None:
        (folder / "train.py").write_text(SCRIPT)
        (folder / "tensorflow.py").touch()  # it is looked for, and not imported
        counts = ",".join(f"{role}=1" for role in ROLES)
        options = ("--role-counts", counts, "--tf-servers", "script", "--max-restarts", "3")
        env = {"RAY_ADDRESS": hosts.address, "RAY_USAGE_STATS_ENABLED": "0", "LOGLEVEL": "INFO"}
        quick = ("--health-check", "off")
        words = ("--platform", "ray", *options, *quick, "train.py")
        self.launcher = Launcher(*words, cwd=folder, env=env)

    def next(self, count: int, after: int) -> dict[str, Task]:
        """The next attempts, by role, once so many tasks have begun after this line."""
        found = map(_task, self.launcher.wait_lines(r"task (.*)", count, after=after))
        return {task.role: task for task in found}


def _task(match: Any) -> Task:
    told = json.loads(match[1])
    role = told["task"]["type"]
    assert told["task"]["index"] == 0
    address = told["cluster"][role][0].rpartition(":")[0]
    return Task(role, told["raylet"], told["pid"], address, told["cluster"])


@pytest.fixture
def hosts() -> Iterator[RayHosts]:
    with ray_hosts(len(ROLES)) as found:
        yield found


@pytest.fixture
def job(hosts: RayHosts, tmp_path: Path) -> Iterator[Job]:
    made = Job(hosts, tmp_path)
    yield made
    made.launcher.finish()


def test_tasks_that_are_killed_and_hosts_that_are_lost_come_back_in_their_roles(
    hosts: RayHosts, job: Job
) -> None:
    first = job.next(3, after=0)
    assert first.keys() == set(ROLES)
    _check_places(first)

    seen = len(job.launcher.lines)
    os.kill(first["ps"].pid, signal.SIGKILL)
    second = job.next(2, after=seen)
    assert second.keys() == {"ps", "chief"}  # the worker runs on
    assert all(task.cluster == first["ps"].cluster for task in second.values())

    seen = len(job.launcher.lines)
    os.kill(first["worker"].pid, signal.SIGKILL)
    assert job.next(1, after=seen).keys() == {"worker"}

    hosts.add()
    seen = len(job.launcher.lines)
    hosts.lose(first["ps"].raylet)
    third = job.next(3, after=seen)
    assert third.keys() == set(ROLES)
    _check_places(third)
    assert third["ps"].raylet != first["ps"].raylet and third["ps"].address != first["ps"].address
    assert third["chief"].raylet == first["chief"].raylet

    os.kill(third["chief"].pid, signal.SIGUSR1)
    assert job.launcher.wait() == 0


def _check_places(tasks: dict[str, Task]) -> None:
    """All know the same cluster, in which each has a host of its own."""
    assert all(task.cluster == tasks["chief"].cluster for task in tasks.values())
    assert tasks["chief"].cluster.keys() == set(ROLES)
    assert len({task.raylet for task in tasks.values()}) == len(tasks)
    assert len({task.address for task in tasks.values()}) == len(tasks)
