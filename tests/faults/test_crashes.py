"""Processes are killed and frozen: what the others do, which world follows, and what it costs."""

from __future__ import annotations

import os
import signal
from contextlib import suppress

import pytest

from tests.faults.leftovers import files_left
from tests.support.cluster import Cluster
from tests.support.director import Worker
from tests.support.launcher import Launcher
from tests.support.processes import nobody_left

#: Long enough for the second of two nodes to come, short enough to wait for where a new master asks again.
UNHURRIED = "--last-call-timeout=15"


def alive(workers: list[Worker]) -> None:
    """They were not restarted: each still answers."""
    for worker in workers:
        assert worker.ask("out still here") == "printed"


def end_world(cluster: Cluster, workers: list[Worker], launchers: list[Launcher]) -> None:
    """The workers finish, their launchers end well and nothing is left of anybody."""
    for worker in workers:
        worker.tell("exit 0")
    for launcher in launchers:
        assert launcher.wait() == 0, launcher.story()
    cluster.nobody_left()


def one_store(workers: list[Worker], address: str) -> None:
    """Every worker was told the same store, at ``address``, and rank 0 can host it there."""
    assert {worker.store for worker in workers} == {(address, workers[0].store[1])}
    assert workers[0].ask("bind") == ""


def test_a_killed_worker_is_restarted_with_its_siblings(cluster: Cluster) -> None:
    launcher = cluster.alone("--nproc-per-node=2", "--max-restarts=1")
    before = cluster.director.round(0, 2)
    before[1].kill()
    after = cluster.director.round(1, 2)
    assert before[0].gone
    assert {worker.env["TORCHELASTIC_RESTART_COUNT"] for worker in after} == {"1"}
    end_world(cluster, after, [launcher])


def test_no_survivor_keeps_the_store_of_killed_workers(cluster: Cluster) -> None:
    for rank in range(3):
        options = (f"--node-rank={rank}", f"--local-addr=127.0.0.{rank + 2}", "--nproc-per-node=2")
        cluster.node("3", *options, "--max-restarts=1")
    before = cluster.director.round(0, 6)
    one_store(before, "127.0.0.2")
    cluster.launchers[0].signal(signal.SIGSTOP)  # else it may stop the second one before that is killed
    for worker in before[:2]:
        worker.kill()
    cluster.launchers[0].signal(signal.SIGCONT)
    after = cluster.director.round(1, 6)
    assert after[0].store != before[0].store
    one_store(after, "127.0.0.2")
    assert {worker.env["TORCHELASTIC_RESTART_COUNT"] for worker in after} == {"1"}
    end_world(cluster, after, cluster.launchers)


def three_nodes(cluster: Cluster, host: int) -> list[Launcher]:
    """Three nodes by rank, of which ``host`` also hosts the master."""
    nodes: dict[int, Launcher] = {}
    for rank in (host, *(other for other in range(3) if other != host)):
        nodes[rank] = cluster.node(
            "2:3", f"--node-rank={rank}", f"--local-addr=127.0.0.{rank + 2}", "--nproc-per-node=2",
            "--last-call-timeout=1", "--waiting-notice-interval=0.1",
        )  # fmt: skip
        if rank == host:
            nodes[rank].wait_line("1 of at least 2 nodes is here")
    assert cluster.host() is nodes[host]
    return [nodes[rank] for rank in range(3)]


def test_no_survivor_keeps_the_store_of_a_lost_node(cluster: Cluster) -> None:
    nodes = three_nodes(cluster, host=2)
    before = cluster.director.world(6)
    one_store(before, "127.0.0.2")
    nodes[0].kill_node()
    after = cluster.director.round(before[0].round + 1, 4)
    one_store(after, "127.0.0.3")
    assert {worker.env["TORCHELASTIC_RESTART_COUNT"] for worker in after} == {"0"}
    end_world(cluster, after, nodes[1:])


def test_survivors_host_the_master_of_a_lost_node(cluster: Cluster) -> None:
    """On one box each of them can: whoever binds the endpoint's port first."""
    nodes = three_nodes(cluster, host=0)
    before = cluster.director.world(6)
    nodes[0].kill_node()
    after = cluster.director.world(4, after=before[0].round)
    one_store(after, "127.0.0.3")
    end_world(cluster, after, nodes[1:])


@pytest.mark.parametrize("what", ["agent", "node"])
def test_a_killed_agent_takes_its_workers_with_it_and_the_others_go_on(cluster: Cluster, what: str) -> None:
    first = cluster.node("1:2", UNHURRIED, "--max-restarts=1")
    second = cluster.node("1:2", "--max-restarts=1")
    workers = cluster.director.round(0, 2)
    for worker in workers:
        worker.ask("child detached")
    stay, lost = (first, second) if cluster.host() is first else (second, first)
    if what == "agent":
        lost.kill()
    else:
        lost.kill_node()
    nobody_left(lost.mark)
    (alone,) = after = cluster.director.round(1, 1)
    assert alone.env["TORCHELASTIC_RESTART_COUNT"] == "0"
    one_store(after, alone.store[0])
    end_world(cluster, after, [stay])
    left = files_left(cluster.folder / "tmp", set())
    assert len(left) == (0 if what == "agent" else 1), (
        "somebody outlives an agent that was killed, not a host"
    )


def test_a_killed_agent_that_hosts_the_master_leaves_it_to_the_others(cluster: Cluster) -> None:
    first = cluster.node("1:2", UNHURRIED)
    second = cluster.node("1:2")
    cluster.director.round(0, 2)
    lost = cluster.host()
    stay = second if lost is first else first
    lost.kill()
    (alone,) = cluster.director.round(1, 1)
    assert "lost the master" not in stay.err, "it outlives the agent that started it"
    end_world(cluster, [alone], [stay])
    assert files_left(cluster.folder / "tmp", set()) == []


def test_a_node_comes_back_under_its_name(cluster: Cluster) -> None:
    static = "--rdzv-backend=static"
    nodes = [cluster.node("2", static, f"--node-rank={rank}") for rank in (0, 1)]
    cluster.director.round(0, 2)
    victim = 0 if cluster.host() is nodes[1] else 1
    nodes[victim].kill_node()
    nodes[victim] = cluster.node("2", static, f"--node-rank={victim}")
    after = cluster.director.round(1, 2)
    assert {worker.env["TORCHELASTIC_RESTART_COUNT"] for worker in after} == {"0"}
    end_world(cluster, after, nodes)


def test_without_its_spawner_a_node_gives_up_and_the_others_go_on(cluster: Cluster) -> None:
    first = cluster.node("1:2", UNHURRIED)
    second = cluster.node("1:2")
    cluster.director.round(0, 2)
    stay, lost = (first, second) if cluster.host() is first else (second, first)
    os.kill(lost.spawner, signal.SIGKILL)
    assert lost.wait() == 10
    assert "spawner process was killed" in lost.err
    assert "Traceback" not in lost.err
    end_world(cluster, cluster.director.round(1, 1), [stay])


def test_training_goes_on_without_the_master(cluster: Cluster) -> None:
    nodes = [cluster.node("2", f"--node-rank={rank}") for rank in (0, 1)]
    workers = cluster.director.round(0, 2)
    os.kill(cluster.master_of(cluster.host()), signal.SIGKILL)
    for launcher in nodes:
        launcher.wait_line("the master is back")
    alive(workers)
    assert cluster.director.last_round == 0
    end_world(cluster, workers, nodes)


def test_the_master_may_die_again_and_again(cluster: Cluster) -> None:
    launcher = cluster.alone("--nproc-per-node=2", "--max-restarts=1")
    workers = cluster.director.round(0, 2)
    for number in range(1, 4):
        os.kill(cluster.master_of(launcher), signal.SIGKILL)
        launcher.wait_lines("the master is back", number)
    alive(workers)
    workers[0].tell("exit 1")
    end_world(cluster, cluster.director.round(1, 2), [launcher])


def test_a_failure_while_the_master_is_away_is_handled_when_it_is_back(cluster: Cluster) -> None:
    nodes = [cluster.node("2", f"--node-rank={rank}", "--max-restarts=2") for rank in (0, 1)]
    cluster.director.round(0, 2)[1].tell("exit 1")
    workers = cluster.director.round(1, 2)
    os.kill(cluster.master_of(cluster.host()), signal.SIGKILL)
    workers[1].tell("exit 1")
    after = cluster.director.round(2, 2)
    assert {worker.env["TORCHELASTIC_RESTART_COUNT"] for worker in after} == {"2"}, "the journal remembers"
    after[0].tell("exit 7")
    for launcher in nodes:
        assert launcher.wait() == 1
        assert "all 2 restarts are used" in launcher.err
    cluster.nobody_left()


def test_the_master_and_its_agent_die_together_and_the_budget_is_still_the_jobs(cluster: Cluster) -> None:
    """The survivor resumes from the journal that another agent's master wrote, whatever its own options."""
    first = cluster.node("1:2", UNHURRIED, "--max-restarts=2")
    second = cluster.node("1:2", UNHURRIED, "--max-restarts=2", "--waiting-notice-interval=7")
    cluster.director.round(0, 2)[0].tell("exit 1")
    cluster.director.round(1, 2)
    lost = cluster.host()
    stay = second if lost is first else first
    lost.kill_node()
    (alone,) = cluster.director.world(1, after=1)
    assert alone.env["TORCHELASTIC_RESTART_COUNT"] == "1"
    end_world(cluster, [alone], [stay])


def test_a_job_that_was_killed_whole_is_forgotten_by_the_next(cluster: Cluster) -> None:
    """It leaves its journal behind; who starts anew does not wait for its nodes nor pay for its failures."""
    for _ in range(2):
        launcher = cluster.node("2", "--max-restarts=1")
        other = cluster.node("2", "--max-restarts=1")
        cluster.director.arrivals(2)
        cluster.director.of_round(0)[0].tell("exit 1")
        workers = cluster.director.round(1, 2)
        assert {worker.env["TORCHELASTIC_RESTART_COUNT"] for worker in workers} == {"1"}
        for node in (launcher, other):
            node.kill_node()
        cluster.nobody_left()
        cluster.director.forget()


def test_an_end_while_the_master_is_away_is_handled_when_it_is_back(cluster: Cluster) -> None:
    nodes = [cluster.node("2", f"--node-rank={rank}") for rank in (0, 1)]
    workers = cluster.director.round(0, 2)
    os.kill(cluster.master_of(cluster.host()), signal.SIGKILL)
    end_world(cluster, workers, nodes)
    assert cluster.director.last_round == 0


def test_the_master_and_an_agent_die_together(cluster: Cluster) -> None:
    first = cluster.node("1:2", UNHURRIED, "--max-restarts=3")
    second = cluster.node("1:2", "--max-restarts=3")
    cluster.director.round(0, 2)[0].tell("exit 1")
    cluster.director.round(1, 2)
    stay, lost = (first, second) if cluster.host() is first else (second, first)
    os.kill(cluster.master_of(stay), signal.SIGKILL)
    lost.kill_node()
    (alone,) = cluster.director.world(1)
    assert alone.env["TORCHELASTIC_RESTART_COUNT"] == "1"
    end_world(cluster, [alone], [stay])


def test_a_frozen_master_delays_a_restart_and_nothing_else(cluster: Cluster) -> None:
    launcher = cluster.alone("--nproc-per-node=2", "--max-restarts=1")
    workers = cluster.director.round(0, 2)
    master = cluster.master_of(launcher)
    os.kill(master, signal.SIGSTOP)
    workers[0].tell("exit 1")
    launcher.wait_line("exited with 1")
    workers[1].wait_end()
    with suppress(ProcessLookupError):  # given up already, if all that took very long
        os.kill(master, signal.SIGCONT)
    end_world(cluster, cluster.director.round(1, 2), [launcher])


def test_a_node_alone_replaces_a_master_that_stays_frozen(cluster: Cluster) -> None:
    conf = "--rdzv-conf=keep_alive_interval=1,keep_alive_max_attempt=60"
    launcher = cluster.alone("--max-restarts=1", conf)
    workers = cluster.director.round(0, 1)
    os.kill(cluster.master_of(launcher), signal.SIGSTOP)
    workers[0].tell("exit 1")
    launcher.wait_line("the master of this node reads nothing")
    end_world(cluster, cluster.director.round(1, 1), [launcher])


def test_a_master_frozen_until_its_agents_give_it_up_is_taken_back(cluster: Cluster) -> None:
    nodes = [cluster.node("2", f"--node-rank={rank}") for rank in (0, 1)]
    workers = cluster.director.round(0, 2)
    master = cluster.master_of(cluster.host())
    os.kill(master, signal.SIGSTOP)
    for launcher in nodes:
        launcher.wait_line("lost the master")
    alive(workers)
    os.kill(master, signal.SIGCONT)
    for launcher in nodes:
        launcher.wait_line("the master is back")
    cluster.director.order("exit 0")
    cluster.wait_all()


def test_a_frozen_agent_is_lost_and_its_workers_make_way_when_it_thaws(cluster: Cluster) -> None:
    conf = "--rdzv-conf=keep_alive_interval=0.1,keep_alive_max_attempt=25,last_call_timeout=60"
    first = cluster.node("1:2", conf)
    second = cluster.node("1:2", conf)
    before = cluster.director.round(0, 2)
    stay, frozen = (first, second) if cluster.host() is first else (second, first)
    frozen.signal(signal.SIGSTOP)
    (alone,) = cluster.director.round(1, 1)
    frozen.signal(signal.SIGCONT)
    both = cluster.director.round(2, 2)
    assert alone.gone
    assert all(worker.gone for worker in before)
    assert {worker.env["TORCHELASTIC_RESTART_COUNT"] for worker in both} == {"0"}
    end_world(cluster, both, [stay, frozen])
