"""The host that ran the master is lost: the next one of the list goes on, and never two of them."""

from __future__ import annotations

import json
import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from elasticrun.core.protocol.messages import AgentPhase
from elasticrun.errors import ExitCode
from tests.support.cluster import Cluster, cluster
from tests.support.director import WORKER
from tests.support.launcher import Launcher
from tests.support.ports import free_port
from tests.support.processes import listener, titled

__all__ = ["cluster"]


class Hosts:
    """Launchers on this box that share a list of endpoints; each of the first ones serves one of them."""

    def __init__(self, cluster: Cluster, count: int) -> None:
        self.cluster = cluster
        self.ports = [free_port() for _ in range(count)]

    def node(self, nnodes: str, *args: str | Path) -> Launcher:
        """One more launcher."""
        endpoints = ",".join(f"127.0.0.1:{port}" for port in self.ports)
        options = ("--nnodes", nnodes, "--rdzv-backend=c10d", "--rdzv-endpoint", endpoints, "--rdzv-id=job")
        return self.cluster.launch(*options, "--last-call-timeout=60", *args, WORKER)

    def start(self, nnodes: str, count: int, *args: str) -> list[Launcher]:
        """Launchers one after the other, so that the endpoints are theirs in this order."""
        first = self.node(nnodes, "--waiting-notice-interval=0.1", *args)
        first.wait_line("missing: number 2")
        return [first, *(self.node(nnodes, *args) for _ in range(count - 1))]

    def serves(self, number: int) -> Launcher:
        """Whose master listens at an endpoint."""
        master = listener(self.ports[number])
        return next(it for it in self.cluster.launchers if master in titled(it.mark, "elastic-run: master"))

    def journal(self, name: str) -> list[dict[str, Any]]:
        """The events in the journals, or copies, of this name below the temporary directory."""
        found = sorted((self.cluster.folder / "tmp").glob(f"elasticrun_master_*/{name}"))
        return [json.loads(line) for path in found for line in path.read_text().splitlines()]


@pytest.fixture
def hosts(cluster: Cluster) -> Iterator[Hosts]:
    yield Hosts(cluster, 2)


def end(launchers: list[Launcher], workers: list[Any]) -> None:
    for worker in workers:
        worker.tell("exit 0")
    for launcher in launchers:
        assert launcher.wait() == 0, launcher.story()


def test_the_next_host_takes_over_and_the_rest_of_the_world_trains_on(hosts: Hosts) -> None:
    launchers = hosts.start("2:3", 3, "--max-restarts=1")
    before = hosts.cluster.director.round(0, 3)
    assert hosts.serves(0) is launchers[0]
    launchers[0].kill_node()
    after = hosts.cluster.director.round(1, 2)
    assert all(worker.gone for worker in before)
    assert {worker.env["TORCHELASTIC_RESTART_COUNT"] for worker in after} == {"0"}
    for launcher in launchers[1:]:  # a master that outlived its agent by a moment may have begun the round
        launcher.wait_line("the master is back")
    assert hosts.serves(1) in launchers[1:]
    started = [
        line["event"]["epoch"]
        for line in hosts.journal("journal.jsonl")
        if line.get("kind") == "MasterStarted"
    ]
    assert max(started) % 2 == 1  # the newest master is the second host's
    after[0].tell("exit 1")
    last = hosts.cluster.director.round(2, 2)
    assert {worker.env["TORCHELASTIC_RESTART_COUNT"] for worker in last} == {"1"}
    end(launchers[1:], last)


def test_a_host_that_comes_back_without_its_state_ends_the_job_with_advice(hosts: Hosts) -> None:
    """Half of the world is lost with the master that formed it: no master can form another one."""
    launchers = hosts.start("2", 2, "--rdzv-conf=join_timeout=20")
    hosts.cluster.director.round(0, 2)
    launchers[0].kill_node()
    for folder in (hosts.cluster.folder / "tmp").glob(f"elasticrun_master_*{hosts.ports[0]}*"):
        shutil.rmtree(folder)
    back = hosts.node("2", "--rdzv-conf=join_timeout=20")
    for launcher in (back, launchers[1]):
        assert launcher.wait() == ExitCode.RENDEZVOUS_TIMEOUT, launcher.story()
        assert "--state-dir" in launcher.err.splitlines()[-1], launcher.story()
    assert hosts.cluster.director.last_round == 0


def test_a_copy_of_the_journal_is_kept_where_it_may_be_needed(hosts: Hosts) -> None:
    launchers = hosts.start("3", 3)
    workers = hosts.cluster.director.round(0, 3)
    reported = [
        line for line in hosts.journal("copy.jsonl")
        if line.get("kind") == "Reported" and line["event"]["status"]["phase"] == AgentPhase.RUNNING.value
    ]  # fmt: skip
    assert reported
    end(launchers, workers)
    hosts.cluster.nobody_left()


def test_a_master_that_is_killed_is_back_before_another_host_takes_over(hosts: Hosts) -> None:
    launchers = hosts.start("3", 3)
    workers = hosts.cluster.director.round(0, 3)
    os.kill(hosts.cluster.master_of(launchers[0]), signal.SIGKILL)
    for launcher in launchers:
        launcher.wait_line("the master is back")
    assert hosts.serves(0) is launchers[0]
    for worker in workers:
        assert worker.ask("out still here") == "printed"
    end(launchers, workers)
