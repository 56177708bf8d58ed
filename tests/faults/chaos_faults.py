"""The faults of the chaos. Each returns once the node that it took away, if any, has been replaced."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

from tests.faults.chaos_job import Job
from tests.support.launcher import Launcher
from tests.support.processes import kill_all, listener, marked, title, wait_end

#: How agents end after a fault that they survive: SIGTERM, by it or as a drain; a lost spawner.
PREEMPTED = (128 + signal.SIGTERM, 14)
WITHOUT_SPAWNER = (10,)
FROZEN = (2.0, 12.0)  # seconds, from far too short to be taken for lost to long enough


def kill_worker(job: Job, node: int) -> None:
    kill_all(job.workers(node))


def kill_workers(job: Job, node: int) -> None:
    """Those of all nodes at once."""
    kill_all([pid for each in job.nodes for pid in job.workers(each)])


def stop_worker(job: Job, node: int) -> None:
    """It hangs, and does not react to anything but SIGKILL."""
    for pid in job.workers(node):
        os.kill(pid, signal.SIGSTOP)


def kill_node(job: Job, node: int) -> None:
    """The host loses power."""
    launcher = job.lose(node)
    job.killed_nodes += 1
    launcher.kill_node()
    _replace(job, node)


def kill_agent(job: Job, node: int) -> None:
    """The agent alone; what it started has to end by itself, but a master may serve the others on."""
    launcher = job.lose(node)
    launcher.kill()
    launcher.wait_status()
    for pid in marked(launcher.mark):
        if not title(pid).startswith("elastic-run: master"):
            wait_end(pid)
    _replace(job, node)


def freeze_agent(job: Job, node: int) -> None:
    """For a time that may or may not be long enough to be taken for lost."""
    seconds = job.rng.uniform(*FROZEN)
    launcher = job.nodes[node]
    launcher.signal(signal.SIGSTOP)
    try:
        job.rest(seconds)
    finally:
        launcher.signal(signal.SIGCONT)
    job.note(f"the agent of node {node} goes on after {seconds:.1f} s")


def kill_master(job: Job, node: int) -> None:
    heard = {launcher: len(launcher.lines) for launcher in job.nodes.values()}

    def is_back() -> bool:
        return all(
            any("the master is back" in text for _, text in launcher.lines[number:])
            for launcher, number in heard.items()
        )

    os.kill(listener(job.cluster.port), signal.SIGKILL)
    job.wait(is_back, "news of the master's return on every node")


def kill_spawner(job: Job, node: int) -> None:
    launcher = job.lose(node)
    os.kill(launcher.spawner, signal.SIGKILL)
    _ends(launcher, WITHOUT_SPAWNER)
    _replace(job, node)


def preempt(job: Job, node: int) -> None:
    launcher = job.lose(node)
    launcher.signal(signal.SIGTERM)
    _ends(launcher, PREEMPTED)
    _replace(job, node)


def _ends(launcher: Launcher, statuses: tuple[int, ...]) -> None:
    status = launcher.wait_status()
    assert status in statuses, f"{launcher.name} ended with {status}, not with one of {statuses}"


def _replace(job: Job, node: int) -> None:
    job.rest(job.rng.uniform(0, job.replaced))
    job.start(node)


FAULTS: dict[str, Callable[[Job, int], None]] = {
    "worker": kill_worker,
    "workers": kill_workers,
    "hang": stop_worker,
    "node": kill_node,
    "agent": kill_agent,
    "freeze": freeze_agent,
    "master": kill_master,
    "spawner": kill_spawner,
    "preempt": preempt,
}
