"""Operators steer real jobs of two and three nodes: scale in and out, cordon, check and stop."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Sequence
from typing import Any

import pytest

from elasticrun.cli.documents import FOLDER
from elasticrun.errors import ExitCode
from tests.support.cluster import Cluster
from tests.support.director import Worker
from tests.support.launcher import Launcher
from tests.support.orders import TOKEN, Orders
from tests.support.processes import DEADLINE
from tests.support.schema import misfits

INFO = {"LOGLEVEL": "INFO", "ELASTICRUN_TOKEN": TOKEN}
DECLINED = 1
#: Longer than any test.
LONG = "600"


@pytest.fixture
def orders(cluster: Cluster) -> Orders:
    return Orders(cluster)


def start(cluster: Cluster, nnodes: str, rank: int, *args: str) -> Launcher:
    options = (f"--node-rank={rank}", "--role", f"r{rank}", "--last-call-timeout=60", *args)
    return cluster.node(nnodes, *options, env=INFO)


def name(launcher: Launcher) -> str:
    """The node's name, as the others know it."""
    return launcher.wait_line(r"^elastic-run\[(\S+)\]: round \d+: node")[1]


def roles(workers: Sequence[Worker]) -> set[str]:
    return {worker.env["ROLE_NAME"] for worker in workers}


def document(orders: Orders, *argv: str) -> dict[str, Any]:
    """What an order that is obeyed prints with --json."""
    printed: dict[str, Any] = json.loads(orders.done(*argv, "--json"))
    assert misfits(printed, json.loads((FOLDER / "order.json").read_text())) == []
    return printed


def status(orders: Orders) -> dict[str, Any]:
    printed = json.loads(orders.done("status", "--json"))
    assert misfits(printed, json.loads((FOLDER / "status.json").read_text())) == []
    job: dict[str, Any] = printed["job"]
    return job


def end_well(workers: Sequence[Worker], launchers: Sequence[Launcher]) -> None:
    """The job ends well, and nothing that happened has spent a restart."""
    assert {worker.env["TORCHELASTIC_RESTART_COUNT"] for worker in workers} == {"0"}
    for worker in workers:
        worker.tell("exit 0")
    for launcher in launchers:
        assert launcher.wait() == 0, launcher.story()


# -- scale in


def test_one_node_leaves_and_nothing_replaces_it(cluster: Cluster, orders: Orders) -> None:
    nodes = [start(cluster, "1:2", rank) for rank in range(2)]
    cluster.director.round(0, 2)
    answer = document(orders, "scale", "in", "--count", "1", "--reason", "it is night")
    (after,) = cluster.director.round(1, 1)
    host = cluster.host()
    assert after.env["ROLE_NAME"] == f"r{nodes.index(host)}", "the one that hosts the master stays"
    (leaver,) = (launcher for launcher in nodes if launcher is not host)
    assert leaver.wait() == ExitCode.DRAINED, leaver.story()
    assert "scaled in: it is night" in leaver.err
    assert (answer["order"], answer["ended"]) == ("scale in", None)
    assert name(leaver) in answer["answer"] and "1 to 1 nodes" in answer["answer"]
    job = status(orders)
    assert (job["min_nodes"], job["max_nodes"], job["scaling"]) == (1, 1, "")
    refused = orders.give("scale", "in", "--count", "1")
    assert (refused.returncode, refused.stdout) == (DECLINED, "")
    assert "0 of 1 nodes would be left of 1:1, but the job needs 1" in refused.stderr
    assert settled(status(orders)) == settled(job), "a refused order changes nothing"
    end_well([after], [host])


def settled(job: dict[str, Any]) -> dict[str, Any]:
    """A status without what changes by itself."""
    return {**job, "uptime": 0, "nodes": [{**node, "figures": None} for node in job["nodes"]]}


def test_named_nodes_leave(cluster: Cluster, orders: Orders) -> None:
    nodes = [start(cluster, "1:3", rank) for rank in range(3)]
    cluster.director.round(0, 3)
    leavers = [launcher for launcher in nodes if launcher is not cluster.host()]
    unknown = orders.give("scale", "in", "--name", "nobody")
    assert (unknown.returncode, unknown.stdout) == (DECLINED, "")
    assert unknown.stderr.startswith("there is no node 'nobody'")
    document(orders, "scale", "in", *(word for each in leavers for word in ("--name", name(each))))
    after = cluster.director.round(1, 1)
    for launcher in leavers:
        assert launcher.wait() == ExitCode.DRAINED, launcher.story()
    job = status(orders)
    assert (job["max_nodes"], len(job["nodes"])) == (1, 1)
    end_well(after, [cluster.host()])


def test_two_scale_operations_are_one_after_the_other(cluster: Cluster, orders: Orders) -> None:
    nodes = [start(cluster, "1:3", rank, "--shutdown-timeout=300") for rank in range(3)]
    before = cluster.director.round(0, 3)
    for worker in before:
        worker.ask(f"note {int(signal.SIGTERM)}")  # and goes on
    orders.done("scale", "in", "--count", "1")
    for second in (("in", "--count", "1"), ("out", "--count", "1", "--timeout", "9"), ("1:2",)):
        refused = orders.give("scale", *second)
        assert (refused.returncode, refused.stdout) == (DECLINED, ""), refused
        assert "scale in by 1" in refused.stderr and "until the nodes have left" in refused.stderr
    assert "scale in by 1" in status(orders)["scaling"]
    for worker in before:
        worker.tell("exit 0")
    cluster.director.round(1, 2)
    orders.done("scale", "in", "--count", "1")
    end_well(cluster.director.round(2, 1), [cluster.host()])
    assert sorted(launcher.wait() for launcher in nodes) == [0, ExitCode.DRAINED, ExitCode.DRAINED]


# -- scale out


def waiting(cluster: Cluster, orders: Orders, *argv: str) -> subprocess.Popen[str]:
    """An order that waits; it has been obeyed once this returns."""
    process = orders.begin(*argv)
    assert process.stdout is not None
    assert "once they come" in process.stdout.readline()
    return process


def test_nodes_that_do_not_come_leave_the_job_as_it_was(cluster: Cluster, orders: Orders) -> None:
    nodes = [start(cluster, "1:2", rank) for rank in range(2)]
    before = cluster.director.round(0, 2)
    failed = orders.give("scale", "out", "--count", "1", "--timeout", "0.5", "--json")
    assert (failed.returncode, failed.stdout) == (ExitCode.SCALE_FAILED, ""), failed
    assert "not enough nodes came within 0.5 s for a world of 3" in failed.stderr
    assert "wants 1 to 2 nodes as before" in failed.stderr
    job = status(orders)
    assert (job["min_nodes"], job["max_nodes"], job["scaling"], job["round"]) == (1, 2, "", 0)
    assert not any(worker.gone for worker in before)
    end_well(before, nodes)


def test_a_node_that_comes_is_waited_for(cluster: Cluster, orders: Orders) -> None:
    nodes = [start(cluster, "1:2", rank) for rank in range(2)]
    cluster.director.round(0, 2)
    process = waiting(cluster, orders, "scale", "out", "--count", "1", "--timeout", LONG)
    assert "waits for a world of 3 nodes" in status(orders)["scaling"]
    nodes.append(start(cluster, "1:2", 2))
    after = cluster.director.round(1, 3)
    out, err = process.communicate(timeout=DEADLINE)
    assert (process.returncode, out, err) == (0, "the world has 3 nodes\n", "")
    assert status(orders)["max_nodes"] == 3
    end_well(after, nodes)


def test_a_wait_that_is_broken_off_leaves_the_operation(cluster: Cluster, orders: Orders) -> None:
    nodes = [start(cluster, "1:2", rank) for rank in range(2)]
    before = cluster.director.round(0, 2)
    process = waiting(cluster, orders, "scale", "out", "--count", "1", "--timeout", LONG)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=DEADLINE)
    assert (process.returncode, out) == (128 + signal.SIGINT, "")
    assert "the operation goes on" in err and "elastic-ctl scale cancel" in err and "Traceback" not in err
    assert "waits for a world of 3 nodes" in status(orders)["scaling"]
    answer = document(orders, "scale", "cancel", "--reason", "it is late")["answer"]
    assert answer == "operation 1 is over: cancelled: it is late; the job wants 1 to 2 nodes as before"
    assert status(orders)["scaling"] == ""
    end_well(before, nodes)


def test_who_waits_for_an_operation_hears_that_it_is_cancelled(cluster: Cluster, orders: Orders) -> None:
    nodes = [start(cluster, "1:2", rank) for rank in range(2)]
    before = cluster.director.round(0, 2)
    process = waiting(cluster, orders, "scale", "out", "--count", "1", "--timeout", LONG)
    orders.done("scale", "cancel", "--reason", "it is late")
    out, err = process.communicate(timeout=DEADLINE)
    assert (process.returncode, out) == (ExitCode.SCALE_FAILED, "")
    assert "cancelled: it is late; the job wants 1 to 2 nodes as before" in err
    end_well(before, nodes)


def test_the_deadline_outlives_the_master(cluster: Cluster, orders: Orders) -> None:
    nodes = [start(cluster, "1:2", rank) for rank in range(2)]
    before = cluster.director.round(0, 2)
    process = waiting(cluster, orders, "scale", "out", "--count", "1", "--timeout", "6")
    host = cluster.host()
    os.kill(cluster.master_of(host), signal.SIGKILL)
    out, err = process.communicate(timeout=DEADLINE)
    assert process.returncode == ExitCode.SCALE_FAILED, (out, err)
    assert "wants 1 to 2 nodes as before" in err
    end_well(before, nodes)


# -- cordon


def test_a_cordoned_node_is_in_no_new_world(cluster: Cluster, orders: Orders) -> None:
    nodes = [start(cluster, "1:2", rank) for rank in range(2)]
    before = cluster.director.round(0, 2)
    out = next(rank for rank in range(2) if nodes[rank] is not cluster.host())
    who = name(nodes[out])
    assert "goes on in round 0" in document(orders, "cordon", who, "--reason", "its fan is loud")["answer"]
    assert not any(worker.gone for worker in before)
    (told,) = (node for node in status(orders)["nodes"] if node["name"] == who)
    assert told["cordoned"] == "cordoned: its fan is loud"
    assert f"{who}: node {told['rank']}, running, cordoned: its fan is loud" in orders.done("status")
    (other,) = (launcher for launcher in nodes if launcher is not nodes[out])
    refused = orders.give("cordon", name(other))
    assert (refused.returncode, refused.stdout) == (DECLINED, "")
    assert "0 nodes would be left for the next world, but it needs 1" in refused.stderr
    orders.done("restart")
    assert roles(cluster.director.round(1, 1)) == {f"r{1 - out}"}
    document(orders, "uncordon", who)
    after = cluster.director.round(2, 2)
    assert orders.give("uncordon", who).stderr == f"{who} is not cordoned\n"
    end_well(after, nodes)


# -- check


def test_nodes_are_checked_although_the_job_was_started_without(cluster: Cluster, orders: Orders) -> None:
    pytest.importorskip("torch")
    nodes = [start(cluster, "2", rank) for rank in range(2)]
    before = cluster.director.round(0, 2)
    assert "all nodes are checked" in document(orders, "check", "--reason", "it is slow")["answer"]
    for worker in before:
        worker.wait_end()
    after = cluster.director.round(1, 2)
    cluster.host().wait_line("checked nodes are good|2 checked nodes")
    end_well(after, nodes)


# -- stop


def test_a_job_is_stopped_with_grace(cluster: Cluster, orders: Orders) -> None:
    nodes = [start(cluster, "1:2", rank) for rank in range(2)]
    before = cluster.director.round(0, 2)
    for worker in before:
        worker.ask(f"note {int(signal.SIGTERM)}")
    assert "the job ends" in document(orders, "stop", "--reason", "the money is spent")["answer"]
    for worker in before:
        assert worker.answer() == {"signal": signal.SIGTERM}
    again = orders.give("stop")
    assert (again.returncode, again.stdout) == (DECLINED, "")
    assert "stopped by an operator: the money is spent already" in again.stderr
    for worker in before:
        worker.tell("exit 0")
    for launcher in nodes:
        assert launcher.wait() in (0, ExitCode.DRAINED), launcher.story()


def test_a_job_that_is_stopped_has_not_succeeded(cluster: Cluster, orders: Orders) -> None:
    nodes = [start(cluster, "1:2", rank) for rank in range(2)]
    before = cluster.director.round(0, 2)
    orders.done("stop", "--reason", "the money is spent")
    for worker in before:
        worker.wait_end()
    for launcher in nodes:
        assert launcher.wait() == ExitCode.DRAINED, launcher.story()
        assert "stopped by an operator: the money is spent" in launcher.err


# -- who may


@pytest.mark.parametrize(
    "verb",
    [
        ("scale", "in", "--count", "1"),
        ("scale", "out", "--count", "1"),
        ("scale", "cancel"),
        ("cordon", "n"),
        ("uncordon", "n"),
        ("check",),
        ("stop",),
    ],
)
def test_without_the_token_nobody_is_obeyed(cluster: Cluster, orders: Orders, verb: tuple[str, ...]) -> None:
    launcher = start(cluster, "1", 0)
    (worker,) = cluster.director.round(0, 1)
    for token, code in (("", ExitCode.USAGE), (TOKEN[::-1], ExitCode.UNAUTHENTICATED)):
        refused = orders.give(*verb, token=token)
        assert (refused.returncode, refused.stdout) == (code, ""), refused
        assert "token" in refused.stderr and "Traceback" not in refused.stderr
    end_well([worker], [launcher])
