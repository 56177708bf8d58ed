"""Clocks jump, or never agreed: every deadline is judged on the monotonic clock of whoever set it.

What the jump of the wall clock proves: nothing that the Python code of agents, masters, spawners and workers
reads from it decides anything. gRPC's core, which is not Python, still sees the machine's real clock.
"""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Callable
from datetime import datetime
from pathlib import Path

import pytest

from tests.support.cluster import cluster
from tests.support.director import Worker
from tests.support.hosts import Hosts, blank_hosts, hosts, network, why_no_uptime
from tests.support.launcher import ROOT, Launcher

__all__ = ["blank_hosts", "cluster", "hosts", "network"]

pytestmark = pytest.mark.root

SHIM = ROOT / "tests" / "support" / "wall_clock"
DAY = 86_400
#: Long enough for a busy machine, and shorter than gRPC's keepalive, which would find a frozen agent as well.
HEARTBEAT = "--rdzv-conf=keep_alive_interval=0.1,keep_alive_max_attempt=25"
UNHURRIED = "--last-call-timeout=60"


class WallClock:
    """The wall clock of one host."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.jump(0)

    @property
    def env(self) -> dict[str, str]:
        return {"ELASTICRUN_TEST_CLOCK": str(self._path), "PYTHONPATH": f"{SHIM}:{ROOT}"}

    def jump(self, seconds: int) -> None:
        """From now on it is ``seconds`` ahead of this box's; whoever reads sees the old value or the new."""
        new = self._path.with_suffix(".new")
        new.write_text(str(seconds))
        new.rename(self._path)


def nobody_was_lost(launchers: list[Launcher]) -> None:
    for launcher in launchers:
        assert "lost" not in launcher.err


def lose_while_frozen(
    hosts: Hosts, index: int, number: int, meanwhile: Callable[[], None] = lambda: None
) -> list[Worker]:
    """A frozen agent is found by its heartbeat, and comes back; the workers of the round that it joins.

    ``meanwhile`` happens when the deadline is set and has not passed.
    """
    frozen = hosts[index].launchers[0]
    frozen.signal(signal.SIGSTOP)
    meanwhile()
    hosts.director.round(number, 2)
    hosts[0].launchers[0].wait_line(f"{hosts[index].name}/.* lost: silent for 2.5 s")
    frozen.signal(signal.SIGCONT)
    return hosts.director.round(number + 1, 3)


def test_the_wall_clocks_jump(hosts: Hosts) -> None:
    clocks = [WallClock(host.folder / "clock") for host in hosts.hosts]
    nodes = [
        hosts.node(index, "2:3", UNHURRIED, HEARTBEAT, "--max-restarts=1", env=clocks[index].env)
        for index in range(3)
    ]
    workers = hosts.director.round(0, 3)
    clocks[0].jump(10 * DAY)  # the master's: every deadline would have passed
    clocks[2].jump(-10 * DAY)
    workers[2].tell("exit 1")
    hosts.director.round(1, 3)
    nobody_was_lost(nodes)
    # None that is pending would ever come.
    last = lose_while_frozen(hosts, 1, 2, meanwhile=lambda: clocks[0].jump(-20 * DAY))
    assert {worker.env["TORCHELASTIC_RESTART_COUNT"] for worker in last} == {"1"}
    last[2].tell("exit 1")
    for launcher in nodes:
        assert launcher.wait() == 1, launcher.story()
        assert "Traceback" not in launcher.err
    found = re.search(r"time +: (\S+)", nodes[0].err)
    assert found is not None
    told = datetime.fromisoformat(found[1].replace("_", " ")).timestamp()
    assert abs(told - (time.time() - 10 * DAY)) < DAY, "the summary tells the time as host 2 knew it"


def test_hosts_that_booted_at_different_times(blank_hosts: Hosts) -> None:
    hosts = blank_hosts
    if why := why_no_uptime():
        pytest.skip(why)
    for uptime in (100 * DAY, 0, DAY):
        hosts.add(uptime)
    nodes = [hosts.node(index, "2:3", UNHURRIED, HEARTBEAT, "--max-restarts=1") for index in range(3)]
    workers = hosts.director.round(0, 3)
    os.kill(hosts.master(), signal.SIGKILL)
    workers[2].tell("exit 1")
    hosts.director.round(1, 3)
    for launcher in nodes:
        launcher.wait_line("the master is back")
    last = lose_while_frozen(hosts, 1, 2)
    assert {worker.env["TORCHELASTIC_RESTART_COUNT"] for worker in last} == {"1"}
    for worker in last:
        worker.tell("exit 0")
    hosts.cluster.wait_all()
    hosts.cluster.nobody_left()
