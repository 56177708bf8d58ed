"""A job in which nothing happens sleeps: its processes wait for events, and for times that are far away."""

from __future__ import annotations

import math
import platform
import select
from pathlib import Path

import pytest

from tests.support.cluster import Cluster
from tests.support.processes import marked, title

#: Seconds. The heartbeat, every ten, is the only thing that an idle job does on its own account.
LONG = 3.0
#: x86_64's numbers of what waits for descriptors, and which argument is the time: milliseconds, -1: for ever.
WAITS = {232: 3, 281: 3, 7: 2}  # epoll_wait, epoll_pwait, poll


def wait_of(pid: int) -> float:
    """For how many seconds the process's main thread waits right now; 0 if it runs."""
    try:
        words = Path(f"/proc/{pid}/syscall").read_text().split()
    except OSError:  # it has just ended
        return 0.0
    if words[0] == "running" or int(words[0]) not in WAITS:
        return 0.0
    milliseconds = int(words[1 + WAITS[int(words[0])]], 16) & 0xFFFF_FFFF
    return math.inf if milliseconds == 0xFFFF_FFFF else milliseconds / 1000


def ours(cluster: Cluster) -> list[int]:
    """Agents, masters and spawners."""
    pids = (pid for launcher in cluster.launchers for pid in marked(launcher.mark))
    return [pid for pid in pids if title(pid).startswith("elastic-run: ")]


@pytest.fixture
def idle(cluster: Cluster) -> Cluster:
    """Two nodes whose workers run and do nothing."""
    for _ in range(2):
        cluster.node("2")
    cluster.director.round(0, 2)
    return cluster


@pytest.mark.skipif(platform.machine() != "x86_64", reason="the numbers of system calls are x86_64's")
def test_no_process_wakes_up_to_see_whether_something_happened(idle: Cluster) -> None:
    """Whoever asks again and again never waits for long, however often one looks."""
    asleep: set[int] = set()
    for _ in range(300):
        there = set(ours(idle))  # one master more, while it gives up in favour of the other
        asleep |= {pid for pid in there if wait_of(pid) >= LONG}
        if there <= asleep and len(there) == 5:  # two agents, two spawners and a master
            return
        select.select([], [], [], 0.1)
    pytest.fail(f"{len(there)} processes; polling: {[(title(pid), wait_of(pid)) for pid in there - asleep]}")
