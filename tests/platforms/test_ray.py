"""Jobs on a real Ray cluster: several hosts of 127.0.0.0/8, all on this one."""

from __future__ import annotations

import importlib.util
import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.launcher import Launcher, run
from tests.support.processes import only, titled, wait_end
from tests.support.ray_cluster import RayHosts, ray_hosts

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("ray") is None, reason="needs ray: pip install 'elasticrun[ray]'"
)

#: Says where it runs, and then waits, or ends as it is told.
SCRIPT = """\
import os, signal, sys
env = os.environ
place = f"raylet {env['RAY_RAYLET_PID']} pid {os.getpid()}"
print(f"rank {env['RANK']} of {env['WORLD_SIZE']} {place}", flush=True)
if sys.argv[1] == "wait":
    signal.pause()
assert sys.argv[1] == "0", "as it was told"
"""
CTL = (sys.executable, "-m", "elasticrun.cli.ctl")
QUICK = ("--health-check", "off")


Launch = Callable[..., Launcher]


@pytest.fixture(scope="module")
def hosts() -> Iterator[RayHosts]:
    with ray_hosts(2) as found:
        yield found


@pytest.fixture
def launch(hosts: RayHosts, tmp_path: Path) -> Iterator[Launch]:
    """Starts a driver."""
    (tmp_path / "train.py").write_text(SCRIPT)
    started = []

    def start(*words: str) -> Launcher:
        env = {"RAY_ADDRESS": hosts.address, "RAY_USAGE_STATS_ENABLED": "0", "LOGLEVEL": "INFO"}
        made = Launcher("--platform", "ray", *words, cwd=tmp_path, env=env)
        started.append(made)
        return made

    yield start
    for each in started:
        each.finish()


def placed(job: Launcher, world: int, after: int = 0) -> list[tuple[str, int]]:
    """The raylet and the pid of each rank of a world of this size, once all have begun."""
    pattern = rf"rank (\d+) of {world} raylet (\d+) pid (\d+)"
    found = {
        int(match[1]): (match[2], int(match[3])) for match in job.wait_lines(pattern, world, after=after)
    }
    return [found[rank] for rank in range(world)]


def test_a_job_runs_on_hosts_of_the_cluster(launch: Launch) -> None:
    job = launch("--nnodes", "2", *QUICK, "train.py", "0")
    assert job.wait() == 0
    assert len({raylet for raylet, _ in placed(job, 2)}) == 2


def test_the_error_of_a_worker_is_the_job_s(launch: Launch) -> None:
    job = launch("--nnodes", "2", *QUICK, "train.py", "1")
    assert job.wait() == 1
    job.wait_line("AssertionError: as it was told")


def test_a_lost_host_is_replaced_and_a_signal_ends_the_job(hosts: RayHosts, launch: Launch) -> None:
    job = launch("--nnodes", "2", *QUICK, "train.py", "wait")
    (_, first), (raylet, second) = placed(job, 2)
    hosts.add()
    seen = len(job.lines)
    hosts.lose(raylet)
    (_, third), (_, fourth) = placed(job, 2, after=seen)
    assert {third, fourth}.isdisjoint({first, second})
    job.wait_line("replica 1 is lost with its host on ", after=seen)
    job.signal(signal.SIGTERM)
    assert job.wait() == 143
    for pid in (third, fourth):
        wait_end(pid)


def test_a_job_waits_for_room_for_all_that_it_needs(hosts: RayHosts, launch: Launch) -> None:
    other = launch("--nnodes", "1", *QUICK, "train.py", "wait")
    placed(other, 1)
    job = launch("--nnodes", "2", *QUICK, "train.py", "0")
    job.wait_line("replica 0: waits for a host of the cluster with 1 CPU to spare")
    other.signal(signal.SIGINT)
    assert job.wait() == 0 and other.wait() == 130


def test_the_job_goes_on_without_its_master_and_ends_with_its_driver(launch: Launch) -> None:
    job = launch("--nnodes", "2", *QUICK, "train.py", "wait")
    pids = [pid for _, pid in placed(job, 2)]
    os.kill(only(titled(job.mark, "elastic-run: master")), signal.SIGKILL)
    job.wait_line("the job's master was killed")
    job.wait_line("master epoch 2 starts; 2 known nodes may re-attach")
    job.kill()
    for pid in pids:
        wait_end(pid)


def test_a_job_is_submitted_and_its_end_is_told(hosts: RayHosts, tmp_path: Path) -> None:
    words = ("ray", "submit", "--address", hosts.url, "--working-dir", ".", "--name")
    for name, argument, status in (("good", "0", 0), ("bad", "1", 1)):
        # Ray removes what a job has uploaded at its end, also while the next one uploads the same.
        (tmp_path / "train.py").write_text(f"{SCRIPT}# {name}\n")
        job = run(*words, name, "--", *QUICK, "train.py", argument, cwd=tmp_path, command=CTL)
        assert job.process.returncode == status
        assert placed(job, 1)
    assert "AssertionError: as it was told" in job.out
