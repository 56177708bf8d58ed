"""Two hosts that share a home, and a stranger on a third: who is in the job, and what everybody types."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from elasticrun.errors import ExitCode
from tests.support.cluster import WORKER, cluster
from tests.support.hosts import PORT, Hosts, blank_hosts, hosts, network
from tests.support.launcher import ROOT, clean_environment, private_folders
from tests.support.processes import DEADLINE

__all__ = ["blank_hosts", "cluster", "hosts", "network"]

pytestmark = pytest.mark.root


def home(hosts: Hosts, name: str) -> dict[str, str]:
    """A home, as the environment of whoever has it mounted."""
    folder = hosts.cluster.folder / name
    folder.mkdir(exist_ok=True)
    return {**private_folders(folder), "XDG_CONFIG_HOME": "", "HOME": str(folder), "TMPDIR": str(folder)}


def ctl(hosts: Hosts, index: int, env: dict[str, str], *argv: str) -> subprocess.CompletedProcess[str]:
    """``elastic-ctl`` on a host."""
    command = (*hosts[index].namespace.enter, sys.executable, "-m", "elasticrun.cli.ctl", *argv)
    return subprocess.run(
        command,
        env=clean_environment(**env),
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=DEADLINE,
        check=False,
    )


def test_a_token_in_a_shared_home_is_all_that_two_hosts_need(hosts: Hosts) -> None:
    shared, other, nothing = home(hosts, "shared"), home(hosts, "other"), home(hosts, "nothing")
    for env in (shared, other):
        assert ctl(hosts, 0, env, "token", "create").returncode == 0
    for index in (0, 1):
        hosts.node(index, "2", env={**shared, "LOGLEVEL": "INFO"})
    workers = hosts.director.round(0, 2)
    source = str(Path(shared["HOME"]) / ".config/elasticrun/token")
    for index in (0, 1):
        assert f"the job's token was read from {source}" in hosts[index].launchers[0].err

    target = ("status", "--endpoint", hosts[0].address, "--rdzv-id", "job")
    status = ctl(hosts, 1, shared, *target)
    assert (status.returncode, status.stderr) == (0, "")
    assert status.stdout.startswith("job 'job': running, round 0, 2 nodes of 2:2")

    for env, words in ((nothing, "this node has none"), (other, "this node has another one")):
        stranger = hosts.node(2, "2", env=env)
        assert stranger.wait() == ExitCode.UNAUTHENTICATED
        last = stranger.err.splitlines()[-1]
        assert words in last and (env is nothing or other["HOME"] in last)
        refused = ctl(hosts, 2, env, *target)
        code = ExitCode.USAGE if env is nothing else ExitCode.UNAUTHENTICATED
        assert (refused.returncode, refused.stdout, refused.stderr.count("\n")) == (code, "", 1), refused
        assert env is nothing or other["HOME"] in refused.stderr
        print(f"{stranger.story()}\nelastic-ctl: {refused.returncode} {refused.stderr}")
    print(status.stdout)
    for worker in workers:
        worker.tell("exit 0")
    assert [hosts[index].launchers[0].wait() for index in (0, 1)] == [0, 0]


def launch_all(hosts: Hosts, *args: str) -> list[Any]:
    """The workers of a job without a token on all three hosts, two of which may become the master's."""
    endpoints = ",".join(f"{hosts[index].address}:{PORT}" for index in (0, 1))
    for index in range(3):
        own = ("--rdzv-backend=c10d", "--rdzv-id=job", f"--rdzv-endpoint={endpoints}", "--nnodes=2:3")
        hosts.launch(index, *own, "--last-call-timeout=20", f"--node-rank={index}", *args, WORKER)
    return hosts.director.round(0, 3)


def test_without_a_token_the_next_host_proves_to_workers_that_run_that_it_may_stop_them(hosts: Hosts) -> None:
    launch_all(hosts)
    hosts.lose(0)
    after = hosts.director.round(1, 2)
    for launcher in (hosts[1].launchers[0], hosts[2].launchers[0]):
        assert "cannot prove" not in launcher.err, launcher.story()
    for worker in after:
        worker.tell("exit 0")
    assert [hosts[index].launchers[0].wait() for index in (1, 2)] == [0, 0]


def test_without_a_token_who_takes_a_listed_port_stops_no_workers(hosts: Hosts) -> None:
    command = (*hosts[1].namespace.enter, sys.executable, "-m", "tests.support.thief", hosts[1].address)
    workers = launch_all(hosts)
    with subprocess.Popen(
        (*command, str(PORT)), cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as thief:
        assert thief.stdout is not None and thief.stdout.readline() == "serving\n"
        hosts.lose(0)
        for index in (1, 2):
            hosts[index].launchers[0].wait_line("cannot prove that it is the one")
            assert workers[index].ask("out still here") == "printed"
        for index in (1, 2):
            workers[index].tell("exit 0")
        thief.communicate(timeout=DEADLINE)
