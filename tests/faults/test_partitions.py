"""The network between hosts breaks and heals: there is never more than one world, and it costs no restart.

Nobody is told of these faults: packets vanish, connections stay open, and both ends find out by silence.
A partition that heals in between must go unnoticed.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from elasticrun.agent.link import ATTEMPT_TIMEOUT
from tests.support.cluster import cluster
from tests.support.director import Worker
from tests.support.hosts import Hosts, blank_hosts, hosts, needs_filter, network

__all__ = ["blank_hosts", "cluster", "hosts", "network"]

pytestmark = pytest.mark.root


Cut = Callable[[Hosts], None]

CABLE = "the cable is out"
CUTS: dict[str, Cut] = {
    CABLE: lambda hosts: hosts.cut(2),
    "it is not heard": lambda hosts: hosts.cut_one_way(2, 0),
    "it does not hear": lambda hosts: hosts.cut_one_way(0, 2),
}


def start(hosts: Hosts, nnodes: str, *args: str) -> list[Worker]:
    for host in hosts.hosts:
        hosts.node(host.index, nnodes, "--last-call-timeout=60", *args)
    return hosts.director.round(0, len(hosts.hosts))


def one_world(hosts: Hosts, workers: list[Worker]) -> None:
    """Nobody works but these, all in one round, at one store, and nobody was charged for a restart."""
    assert [worker for worker in hosts.director.workers if not worker.gone and worker not in workers] == []
    assert len({(worker.round, worker.store) for worker in workers}) == 1
    assert {worker.env["TORCHELASTIC_RESTART_COUNT"] for worker in workers} == {"0"}
    assert hosts.director.last_round == workers[0].round


def end(hosts: Hosts, workers: list[Worker]) -> None:
    for worker in workers:
        worker.tell("exit 0")
    hosts.cluster.wait_all()
    hosts.cluster.nobody_left()


@pytest.mark.parametrize("how", CUTS)
def test_a_host_is_cut_off_and_comes_back(hosts: Hosts, how: str) -> None:
    if how != CABLE:
        needs_filter()
    before = start(hosts, "2:3")
    began = time.monotonic()
    CUTS[how](hosts)
    hosts.director.round(1, 2)
    print(f"{how}: the others went on after {time.monotonic() - began:.2f} s")
    hosts[0].launchers[0].wait_line("host2.* lost: no answer for 3.5 s")
    hosts[2].launchers[0].wait_line("lost the master")
    assert before[2].ask("out still here") == "printed", "it cannot know that the others went on without it"
    healed = time.monotonic()
    hosts.heal()
    after = hosts.director.round(2, 3)
    print(f"{how}: and were together again {time.monotonic() - healed:.2f} s after it healed")
    one_world(hosts, after)
    end(hosts, after)


def test_a_short_cut_goes_unnoticed(hosts: Hosts) -> None:
    before = start(hosts, "2:3", "--max-restarts=1")
    hosts.cut(2)
    assert not hosts.reaches(2, 0, within=0.5), "the cut is real"
    hosts.heal()
    assert hosts.reaches(2, 0)
    assert not any(worker.gone for worker in before)
    before[2].tell("exit 1")
    after = hosts.director.round(1, 3)  # with all three: nobody was lost
    assert {worker.env["TORCHELASTIC_RESTART_COUNT"] for worker in after} == {"1"}
    end(hosts, after)
    for launcher in hosts.cluster.launchers:
        assert "lost the master" not in launcher.err


def test_the_masters_host_is_cut_off_and_comes_back(hosts: Hosts) -> None:
    """It goes on alone; the others have no master to tell them so, and train on until they have one again."""
    before = start(hosts, "1:3")
    hosts.cut(0)
    (alone,) = hosts.director.round(1, 1)
    assert alone.store[0] == hosts[0].address
    for index in (1, 2):
        hosts[index].launchers[0].wait_line("lost the master")
        assert before[index].ask("out still here") == "printed"
    hosts.heal()
    after = hosts.director.world(3, after=1)
    one_world(hosts, after)
    end(hosts, after)


def test_who_was_cut_off_for_long_keeps_asking_anew(hosts: Hosts) -> None:
    """The kernel repeats a question after ever longer times; a fresh one is heard soon after all is well."""
    needs_filter()
    before = start(hosts, "2:3")
    hosts.cut_one_way(2, 0)
    hosts[2].launchers[0].wait_line("lost the master")
    counted = hosts.count_connections(2)
    unheard = 0
    while len(counted()) < 2 and unheard < ATTEMPT_TIMEOUT - 3:
        assert not hosts.reaches(2, 0, within=1.0)
        unheard += 1
    assert len(counted()) >= 2, "within one attempt to attach"
    assert not before[2].gone
    healed = time.monotonic()
    hosts.heal()
    after = hosts.director.round(2, 3)
    print(f"together again {time.monotonic() - healed:.2f} s after it healed")
    one_world(hosts, after)
    end(hosts, after)


def test_two_hosts_that_lose_one_another_alone_are_not_the_masters_business(hosts: Hosts) -> None:
    needs_filter()
    before = start(hosts, "2:3")
    hosts.cut_one_way(1, 2)
    assert not hosts.reaches(2, 1, within=0.5)
    assert hosts.reaches(2, 0)
    assert hosts.reaches(1, 0)
    assert not any(worker.gone for worker in before)
    end(hosts, before)
    assert hosts.director.last_round == 0


def test_the_job_ends_without_a_host_that_is_cut_off(hosts: Hosts) -> None:
    """It has no world to come back to: its launcher ends once it has nothing to run."""
    before = start(hosts, "2:3", "--master-timeout=1")
    hosts.cut(2)
    for worker in hosts.director.round(1, 2):
        worker.tell("exit 0")
    for index in (0, 1):
        assert hosts[index].launchers[0].wait() == 0
    hosts.heal()
    late = hosts[2].launchers[0]
    late.wait_line("no master for 1 s; the workers go on")
    before[2].tell("exit 1")
    assert late.wait() == 8, late.story()
    hosts.cluster.nobody_left()
