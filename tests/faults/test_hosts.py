"""Things die on one of several hosts: what the others do, which world follows, and what it costs.

``-s`` or ``-rP`` shows the times; no test decides by them.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from tests.faults.recovery import FAULTS, recover
from tests.support.cluster import cluster
from tests.support.director import Worker
from tests.support.hosts import Hosts, blank_hosts, hosts, needs_filter, network

__all__ = ["blank_hosts", "cluster", "hosts", "network"]

pytestmark = pytest.mark.root

UNHURRIED = "--last-call-timeout=60"
#: A frozen agent is lost after two seconds and a half; gRPC's own keepalive would need more than three.
QUICK_HEARTBEAT = "--rdzv-conf=keep_alive_interval=0.1,keep_alive_max_attempt=25"
#: Runs a command that sees a file system of a few pages at the directory that comes second.
MOUNT = 'mount -t tmpfs -o size="$1" none "$2" && shift 2 && exec "$@"'


def start(hosts: Hosts, nnodes: str, *args: str) -> list[Worker]:
    """One node on each host; the workers of the first round."""
    for host in hosts.hosts:
        hosts.node(host.index, nnodes, UNHURRIED, *args)
    return hosts.director.round(0, len(hosts.hosts))


def restarts(workers: list[Worker]) -> set[str]:
    return {worker.env["TORCHELASTIC_RESTART_COUNT"] for worker in workers}


def end(hosts: Hosts, workers: list[Worker], *, lost: int | None = None) -> None:
    """The workers end, and with them every launcher but those of a host that was lost."""
    for worker in workers:
        worker.tell("exit 0")
    for host in hosts.hosts:
        for launcher in host.launchers:
            assert host.index == lost or launcher.wait() == 0, launcher.story()
    hosts.cluster.nobody_left()
    assert hosts.director.last_round == workers[0].round


def test_hosts_see_one_another_by_their_own_addresses(hosts: Hosts) -> None:
    workers = start(hosts, "3")
    assert {worker.store[0] for worker in workers} == {hosts[0].address}
    assert [hosts.reaches(0, 2), hosts.reaches(2, 1)] == [True, True]
    workers[1].tell("exit 1")
    launcher = hosts[2].launchers[0]
    assert launcher.wait() == 1
    assert "host1" in launcher.err, "the summary names the host on which the failure was"


def test_a_worker_is_killed_on_another_host(hosts: Hosts) -> None:
    start(hosts, "3", "--max-restarts=1")[2].kill()
    after = hosts.director.round(1, 3)
    assert restarts(after) == {"1"}
    end(hosts, after)


def test_an_agent_is_killed_on_another_host_and_comes_back(hosts: Hosts) -> None:
    start(hosts, "2:3")
    hosts[2].launchers[0].kill()
    after = hosts.director.round(1, 2)
    assert {worker.store[0] for worker in after} == {hosts[0].address}
    hosts[2].launchers[0].wait_status()
    hosts[2].launchers.clear()
    hosts.node(2, "2:3")
    after = hosts.director.round(2, 3)
    assert restarts(after) == {"0"}
    end(hosts, after)


@pytest.mark.torch
@pytest.mark.parametrize("fault", FAULTS)
def test_the_survivors_of_a_host_reduce_on(hosts: Hosts, fault: str) -> None:
    """No restart is allowed, so a peer's broken connection must not count as a failure of its worker."""
    if fault == "host":
        needs_filter()
    print(f"{fault}: {recover(hosts, FAULTS[fault])}")


def test_a_frozen_agent_is_lost_and_its_workers_make_way_when_it_thaws(hosts: Hosts) -> None:
    before = start(hosts, "2:3", QUICK_HEARTBEAT)
    frozen = hosts[2].launchers[0]
    frozen.signal(signal.SIGSTOP)
    during = hosts.director.round(1, 2)
    assert not before[2].gone, "nobody but its agent could have stopped it"
    frozen.signal(signal.SIGCONT)
    after = hosts.director.round(2, 3)
    assert all(worker.gone for worker in (*before, *during))
    assert restarts(after) == {"0"}
    end(hosts, after)


def test_a_frozen_host_is_found_without_a_heartbeat(hosts: Hosts) -> None:
    """Its kernel takes what is sent; gRPC's pings are not answered."""
    before = start(hosts, "2:3")
    hosts.freeze(2)
    hosts.director.round(1, 2)
    hosts.thaw(2)
    after = hosts.director.round(2, 3)
    assert all(worker.gone for worker in before)
    assert restarts(after) == {"0"}
    end(hosts, after)


def test_a_worker_fails_on_another_host_while_the_master_is_away(hosts: Hosts) -> None:
    before = start(hosts, "3", "--max-restarts=1")
    os.kill(hosts.master(), signal.SIGKILL)
    before[2].kill()
    after = hosts.director.round(1, 3)
    assert restarts(after) == {"1"}
    end(hosts, after)


def test_the_masters_host_is_lost_for_good(hosts: Hosts) -> None:
    """Workers go on until they end; their launchers then wait as long as they were told, and say so."""
    workers = start(hosts, "2:3", "--master-timeout=1")
    hosts.lose(0)
    for index in (1, 2):
        hosts[index].launchers[0].wait_line("no master for 1 s; the workers go on")
        assert workers[index].ask("out still here") == "printed"
    workers[1].tell("exit 0")
    workers[2].tell("exit 1")
    for index in (1, 2):
        launcher = hosts[index].launchers[0]
        assert launcher.wait() == 8, launcher.story()
        assert "the master went away and did not come back within 1 s" in launcher.err
        assert "Traceback" not in launcher.err
    hosts.cluster.nobody_left()


def test_a_launcher_that_waits_for_others_gives_up_on_a_master_whose_host_is_gone(hosts: Hosts) -> None:
    hosts.node(0, "3", "--waiting-notice-interval=0.1")
    late = hosts.node(1, "3", "--master-timeout=1", "--rdzv-conf=join_timeout=600")
    late.wait_line("2 of at least 3 nodes are here")
    hosts.kill(0)
    assert late.wait() == 8, late.story()
    assert "lost the master" in late.err
    assert "the master went away and did not come back within 1 s" in late.err


def test_the_disk_of_the_logs_is_full_on_another_host(hosts: Hosts, tmp_path: Path) -> None:
    logs = tmp_path / "logs"
    logs.mkdir()
    hosts.node(0, "2")
    mounted = ("unshare", "--mount", "sh", "-ec", MOUNT, "sh", "8k", str(logs))
    full = hosts.node(1, "2", "--log-dir", logs, "-t3", inside=mounted)
    workers = hosts.director.round(0, 2)
    for _ in range(5):
        workers[1].ask("out " + 4000 * "x")
    workers[1].ask("out the last line")
    end(hosts, workers)
    assert "[default0]:the last line" in full.out, "the console gets everything"
    assert "No space left on device" in full.err


def test_a_host_is_preempted(hosts: Hosts) -> None:
    """Its agent is asked to stop: it says so to the master, and the others need not find out."""
    start(hosts, "2:3")
    preempted = hosts[2].launchers[0]
    preempted.signal(signal.SIGTERM)
    after = hosts.director.round(1, 2)
    assert restarts(after) == {"0"}
    assert preempted.wait() == 128 + signal.SIGTERM
    end(hosts, after, lost=2)


def test_a_slow_network_delays_everything_and_breaks_nothing(hosts: Hosts) -> None:
    needs_filter()
    hosts.slow(2, delay=0.1)
    before = start(hosts, "3", "--max-restarts=1", QUICK_HEARTBEAT)
    before[0].kill()
    after = hosts.director.round(1, 3)
    assert restarts(after) == {"1"}
    end(hosts, after)
