"""Nodes come, wait, leave and come back; the workers' world follows, and nothing of it costs a restart."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from elasticrun.errors import ExitCode
from tests.support.cluster import ENV_REPORT, WORKER, Cluster

AT_ONCE = "--last-call-timeout=0"
NOTICES = "--waiting-notice-interval=0.2"
#: For jobs that have to start with everybody who was launched.
UNHURRIED = "--last-call-timeout=60"


def end(cluster: Cluster, number: int, size: int) -> None:
    """The workers of a round finish, and with them every launcher."""
    for worker in cluster.director.round(number, size):
        assert worker.env["TORCHELASTIC_RESTART_COUNT"] == "0"
        worker.tell("exit 0")
    cluster.wait_all()
    assert cluster.director.last_round == number


def test_a_joiner_enlarges_the_world_of_a_node_that_trains(cluster: Cluster) -> None:
    first = cluster.node("1:2", "--node-rank=0", AT_ONCE)
    (alone,) = cluster.director.round(0, 1)
    cluster.node("1:2", "--node-rank=1", AT_ONCE)
    both = cluster.director.round(1, 2)
    assert alone.gone
    assert len({worker.store for worker in both}) == 1
    assert "can join" in first.err
    end(cluster, 1, 2)


def test_a_world_trains_on_while_a_joiner_imports(cluster: Cluster, tmp_path: Path) -> None:
    """Also one that is formed meanwhile for another reason. The import lasts until this test ends it."""
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    (tmp_path / "slow.py").write_text(f"open({str(gate)!r}).read()")
    first = cluster.node("1:2", "--node-rank=0", AT_ONCE, NOTICES, "--max-restarts=1")
    (alone,) = cluster.director.round(0, 1)
    late = {"PYTHONPATH": os.pathsep.join(filter(None, (str(tmp_path), os.environ.get("PYTHONPATH"))))}
    joiner = cluster.node("1:2", "--node-rank=1", "--warm=on", "--warm-import=slow", env=late)
    joiner.wait_line("1 node joins once its workers' imports are done")
    assert alone.ask("out still here") == "printed"
    alone.tell("exit 9")
    (alone,) = cluster.director.round(1, 1)
    assert alone.ask("out and again") == "printed"
    assert "stops" not in first.err
    gate.write_text("done")
    for worker in cluster.director.round(2, 2):
        assert worker.env["TORCHELASTIC_RESTART_COUNT"] == "1"
        worker.tell("exit 0")
    assert "round 1 stops: " in first.err
    cluster.wait_all()


def test_a_spare_waits_beyond_max_and_replaces_a_lost_node(cluster: Cluster) -> None:
    for rank in (0, 1):
        cluster.node("2", f"--node-rank={rank}", NOTICES)
    before = cluster.director.round(0, 2)
    spare = cluster.node("2", "--node-rank=7", NOTICES)
    spare.wait_line("the world is full with 2 of at most 2 nodes; 1 spare node waits")
    assert not any(worker.gone for worker in before), "a spare disturbs nobody"
    host = cluster.host()
    lost = next(it for it in cluster.launchers[:2] if it is not host)
    lost.kill_node()
    cluster.director.round(1, 2)
    cluster.launchers.remove(lost)
    end(cluster, 1, 2)
    cluster.launchers.append(lost)


def test_without_a_token_a_stranger_never_becomes_the_stores_host(cluster: Cluster) -> None:
    """Whoever gets rank 0 can run code on every node, as the others unpickle what it broadcasts."""
    anywhere = (AT_ONCE, f"--rdzv-endpoint=0.0.0.0:{cluster.port}", "--no-token", "--health-check=off")
    owner = cluster.node("1:2", *anywhere)
    owner.wait_line("the job has no token: anybody who reaches")
    cluster.director.round(0, 1)
    cluster.node("1:2", *anywhere, "--node-rank=0", "--local-addr=127.0.0.9")
    for worker in cluster.director.round(1, 2):
        assert worker.env["MASTER_ADDR"] == "127.0.0.1"
        worker.tell("exit 0")
    cluster.wait_all()


def test_without_a_token_the_masters_node_is_rank_0_of_the_first_round(cluster: Cluster) -> None:
    anywhere = ("--no-token", "--health-check=off")
    owner = cluster.node("2", *anywhere, "--waiting-notice-interval=0.1")
    owner.wait_line("1 of at least 2 nodes is here")
    cluster.node("2", *anywhere, "--node-rank=0", "--local-addr=127.0.0.9")
    for worker in cluster.director.round(0, 2):
        assert worker.env["MASTER_ADDR"] == "127.0.0.1"
        worker.tell("exit 0")
    cluster.wait_all()


def test_a_node_with_other_bounds_is_refused_and_both_are_told(cluster: Cluster) -> None:
    """The user of the second line wanted another job, and forgot to give it an endpoint of its own."""
    host = cluster.node("1:2", "--last-call-timeout=0")
    (worker,) = cluster.director.round(0, 1)
    bounds = cluster.node("1:3")
    assert bounds.wait() == ExitCode.WRONG_JOB
    assert "was started with --nnodes 1:3, but the job has --nnodes 1:2" in bounds.err
    host.wait_line("was started with --nnodes 1:3")
    worker.tell("exit 0")
    assert host.wait() == 0
    cluster.nobody_left()


@pytest.mark.parametrize("is_other", [False, True])
def test_a_spare_never_stands_for_the_success_of_its_script(cluster: Cluster, is_other: bool) -> None:
    nodes = [cluster.node("2", f"--node-rank={rank}", NOTICES) for rank in range(2)]
    workers = cluster.director.round(0, 2)
    spare = cluster.launch(*cluster.options("2"), NOTICES, ENV_REPORT if is_other else WORKER)
    spare.wait_line("world is full")
    if is_other:  # the user of rank 0's node hears it as well
        for launcher in (spare, nodes[0]):
            launcher.wait_line("was started with another program")
    for worker in workers:
        worker.tell("exit 0")
    assert spare.wait() == (ExitCode.WRONG_JOB if is_other else 0)
    assert "this node was a spare" in spare.err and "never ran" in spare.err
    assert [node.wait() for node in nodes] == [0, 0]


def test_below_min_the_launcher_says_who_is_there_and_who_is_missing(cluster: Cluster) -> None:
    first = cluster.node("3", "--node-rank=0", NOTICES)
    first.wait_line(r"1 of at least 3 nodes is here \(\S+/\w+\), 2 missing: node rank 1, 2")
    cluster.node("3", "--node-rank=2", NOTICES)
    first.wait_line(r"2 of at least 3 nodes are here \(\S+, \S+\), 1 missing: node rank 1")
    cluster.node("3", "--node-rank=1", NOTICES)
    end(cluster, 0, 3)


def test_too_few_nodes_within_the_join_timeout_end_with_3(cluster: Cluster) -> None:
    for rank in (0, 2):
        cluster.node("3", f"--node-rank={rank}", "--rdzv-conf=join_timeout=2")
    cluster.wait_all(3)
    for launcher in cluster.launchers:
        assert "gave up after 2 s" in launcher.err
        assert "missing" in launcher.err
        assert "Traceback" not in launcher.err


def test_a_job_that_falls_below_min_waits_for_a_new_node(cluster: Cluster) -> None:
    stay = cluster.node("2", "--node-rank=0", NOTICES)
    (leave,) = [cluster.node("2", "--node-rank=1", NOTICES)]
    cluster.director.round(0, 2)
    if cluster.host() is leave:
        stay, leave = leave, stay
    leave.kill_node()
    stay.wait_line("1 of at least 2 nodes is here")
    cluster.launchers.remove(leave)
    cluster.node("2", "--node-rank=5", NOTICES)
    end(cluster, 1, 2)
    cluster.launchers.append(leave)


def test_a_late_joiner_stays_a_spare_once_somebody_has_finished(cluster: Cluster) -> None:
    for rank in (0, 1):
        cluster.node("2:3", f"--node-rank={rank}", "--last-call-timeout=0", "--event-log-handler=console")
    first, second = cluster.director.round(0, 2)
    first.tell("exit 0")
    cluster.launchers[0].wait_line("elasticrun.agent.finished")
    late = cluster.node("2:3", "--node-rank=2")
    late.wait_line("spare")
    second.tell("exit 0")
    cluster.wait_all()
    assert cluster.director.last_round == 0
    assert len(cluster.director.workers) == 2


def test_a_finished_and_departed_node_does_not_close_the_job(cluster: Cluster) -> None:
    """One agent's exit makes torchrun's rendezvous unusable for the rest."""
    nodes = [cluster.node("1:3", f"--node-rank={rank}", UNHURRIED, "--max-restarts=1") for rank in range(3)]
    cluster.director.round(0, 3)
    leave = next(it for it in nodes if it is not cluster.host())
    leave.signal(signal.SIGTERM)
    assert leave.wait() == 128 + signal.SIGTERM
    for worker in cluster.director.round(1, 2)[:1]:
        worker.tell("exit 9")
    cluster.director.round(2, 2)
    again = cluster.node("1:3")
    for worker in cluster.director.round(3, 3):
        assert worker.env["TORCHELASTIC_RESTART_COUNT"] == "1"
        worker.tell("exit 0")
    assert [it.wait() for it in (*nodes, again) if it is not leave] == [0, 0, 0]


@pytest.mark.parametrize("order", [(2, 0, 1), (1, 2, 0)])
def test_node_rank_orders_the_ranks(cluster: Cluster, order: tuple[int, ...]) -> None:
    for rank in order:
        cluster.node("3", f"--node-rank={rank}", "--role", f"node{rank}")
    workers = cluster.director.round(0, 3)
    assert [worker.env["ROLE_NAME"] for worker in workers] == ["node0", "node1", "node2"]
    end(cluster, 0, 3)


def test_a_survivor_keeps_its_rank_when_the_world_changes(cluster: Cluster) -> None:
    nodes = [
        cluster.node("2:3", f"--node-rank={rank}", "--role", f"r{rank}", UNHURRIED) for rank in (0, 1, 2)
    ]
    cluster.director.round(0, 3)
    nodes[2].signal(signal.SIGTERM)
    nodes[2].wait()
    assert [worker.env["ROLE_NAME"] for worker in cluster.director.round(1, 2)] == ["r0", "r1"]
    cluster.node("2:3", "--role", "r3")
    workers = cluster.director.round(2, 3)
    assert [worker.env["ROLE_NAME"] for worker in workers] == ["r0", "r1", "r3"]
    for worker in workers:
        worker.tell("exit 0")
    for launcher in (*nodes[:2], cluster.launchers[3]):
        assert launcher.wait() == 0


@pytest.mark.parametrize("attempt", range(10))
@pytest.mark.parametrize("way", ["0 first", "1 first", "together"])
def test_two_agents_of_one_box_share_an_endpoint_whoever_comes_first(
    cluster: Cluster, way: str, attempt: int
) -> None:
    ranks = (1, 0) if way == "1 first" else (0, 1)
    first = cluster.launch(
        *cluster.options("2"), f"--node-rank={ranks[0]}", "--waiting-notice-interval=0.05", ENV_REPORT
    )
    if way != "together":
        first.wait_line("1 missing")
    second = cluster.launch(*cluster.options("2"), f"--node-rank={ranks[1]}", ENV_REPORT)
    assert first.wait() == second.wait() == 0
    cluster.nobody_left()


def test_many_agents_at_once(cluster: Cluster) -> None:
    for _ in range(6):
        cluster.node("6")
    end(cluster, 0, 6)


def test_min_and_max_with_a_last_call(cluster: Cluster) -> None:
    """All come within the last call, so the first world is the full one."""
    for _ in range(3):
        cluster.node("1:3", UNHURRIED)
    end(cluster, 0, 3)


def test_the_last_call_ends(cluster: Cluster) -> None:
    cluster.node("1:3", "--rdzv-conf=last_call_timeout=0.2")
    end(cluster, 0, 1)


def test_nodes_come_in_units(cluster: Cluster) -> None:
    for rank in range(3):
        cluster.node("2:4", f"--node-rank={rank}", "--node-unit=2", "--last-call-timeout=1")
    cluster.director.world(2)
    cluster.node("2:4", "--node-unit=2", "--node-rank=3")
    workers = cluster.director.world(4)
    for worker in workers:
        worker.tell("exit 0")
    cluster.wait_all()


def test_a_job_of_the_same_name_can_follow_at_the_same_endpoint(cluster: Cluster) -> None:
    for size in (2, 4):
        for rank in (0, 1):
            cluster.node("2", f"--node-rank={rank}")
        cluster.director.arrivals(size)
        for worker in cluster.director.workers[-2:]:
            worker.tell("exit 0")
        cluster.wait_all()


def test_localhost_by_name(cluster: Cluster) -> None:
    endpoint = f"--rdzv-endpoint=localhost:{cluster.port}"
    for _ in range(2):
        cluster.node("2", endpoint)
    workers = cluster.director.round(0, 2)
    assert {worker.store[0] for worker in workers} <= {"localhost", "127.0.0.1", "::1"}
    end(cluster, 0, 2)
