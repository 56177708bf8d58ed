"""How a failed job ends: the exit code, the summary on every node, the error file, the budget."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
from pathlib import Path

import pytest

from tests.support.cluster import Cluster

RAISES = """
import os, sys
from torch.distributed.elastic.multiprocessing.errors import record
@record
def main():
    raise ValueError("no such layer: " + os.environ["RANK"])
main()
"""


def test_a_failed_worker_ends_the_job_with_1_and_is_the_root_cause(cluster: Cluster) -> None:
    launcher = cluster.alone("--nproc-per-node=2")
    _, second = cluster.director.round(0, 2)
    second.ask("err the disk is on fire")
    second.tell("exit 41")
    assert launcher.wait() == 1
    assert "worker.py FAILED" in launcher.err
    for expected in (
        "Root Cause (first observed failure):",
        "rank      : 1 (local_rank: 1)",
        f"exitcode  : 41 (pid: {second.pid})",
        f"host      : {os.uname().nodename}",
        "the disk is on fire",
        "no restart allowed",
    ):
        assert expected in launcher.err, launcher.story()
    assert "local_rank: 0)" not in launcher.err, "a sibling that the launcher stopped is no failure"
    assert "\nFailures:" not in launcher.err, "there are no others"


def test_a_signal_is_named(cluster: Cluster) -> None:
    launcher = cluster.alone()
    (worker,) = cluster.director.round(0, 1)
    worker.kill()
    assert launcher.wait() == 1
    assert f"exitcode  : -9 (pid: {worker.pid}) (SIGKILL)" in launcher.err


def test_an_exception_is_shown_without_record(cluster: Cluster) -> None:
    launcher = cluster.alone()
    (worker,) = cluster.director.round(0, 1)
    worker.tell("raise seven bananas")
    assert launcher.wait() == 1
    summary = launcher.err.partition("Root Cause")[2]
    assert "Traceback (most recent call last)" in summary
    assert "RuntimeError: seven bananas" in summary
    assert summary.count("Traceback (most recent call last)") == 1


def test_every_node_is_told_the_first_failure_of_the_job(cluster: Cluster) -> None:
    for rank in (0, 1):
        cluster.node("2", f"--node-rank={rank}", "--nproc-per-node=2")
    workers = cluster.director.round(0, 4)
    workers[3].ask("err only node 1 knows this")
    workers[3].tell("exit 3")
    cluster.wait_all(1)
    for launcher in cluster.launchers:
        summary = launcher.err.partition("Root Cause")[2]
        assert "rank      : 3 (local_rank: 1)" in summary, launcher.story()
        assert f"exitcode  : 3 (pid: {workers[3].pid})" in summary
        assert "only node 1 knows this" in summary
        assert "(local_rank: 0)" not in launcher.err


@pytest.mark.torch
def test_torchs_record_gives_the_traceback_and_the_error_file_is_copied(
    cluster: Cluster, tmp_path: Path
) -> None:
    script = tmp_path / "train.py"
    script.write_text(RAISES)
    reply = tmp_path / "reply.json"
    launcher = cluster.launch("--standalone", script, env={"TORCHELASTIC_ERROR_FILE": str(reply)})
    assert launcher.wait() == 1
    summary = launcher.err.partition("Root Cause")[2]
    assert "traceback : Traceback (most recent call last):" in summary, launcher.story()
    assert "ValueError: no such layer: 0" in summary
    copied = json.loads(reply.read_text())
    assert copied["message"]["message"] == "ValueError: no such layer: 0"
    assert copied["message"]["errorCode"] == 1 or copied["errorCode"] == 1, copied


def test_an_error_file_is_copied_without_torch(cluster: Cluster, tmp_path: Path) -> None:
    reply = tmp_path / "reply.json"
    launcher = cluster.alone(env={"TORCHELASTIC_ERROR_FILE": str(reply)})
    (worker,) = cluster.director.round(0, 1)
    assert worker.env["TORCHELASTIC_ERROR_FILE"] != str(reply)
    Path(worker.env["TORCHELASTIC_ERROR_FILE"]).write_text(
        json.dumps({"message": "written by hand", "timestamp": 1234567890})
    )
    worker.tell("exit 5")
    assert launcher.wait() == 1
    assert "written by hand" in launcher.err
    assert "written by hand" in reply.read_text()


def test_a_malformed_error_file_is_only_reported(cluster: Cluster) -> None:
    launcher = cluster.alone()
    (worker,) = cluster.director.round(0, 1)
    Path(worker.env["TORCHELASTIC_ERROR_FILE"]).write_text('{"mess')
    worker.tell("exit 5")
    assert launcher.wait() == 1
    assert "exitcode  : 5" in launcher.err
    assert "Traceback" not in launcher.err


def test_a_worker_that_cannot_be_executed_fails_the_job(cluster: Cluster, tmp_path: Path) -> None:
    program = tmp_path / "program"
    program.write_text("#!/no/such/interpreter\n")
    program.chmod(0o755)
    launcher = cluster.launch("--standalone", "--no-python", program)
    assert launcher.wait() == 1
    assert f"cannot execute {program}" in launcher.err


def test_the_budget_is_the_jobs_not_each_nodes(cluster: Cluster) -> None:
    for rank in (0, 1):
        cluster.node("2", f"--node-rank={rank}", "--max-restarts=2")
    director = cluster.director
    for number, victim in enumerate((0, 1, 0)):
        workers = director.round(number, 2)
        assert {w.env["TORCHELASTIC_RESTART_COUNT"] for w in workers} == {str(number)}
        workers[victim].tell(f"exit {number + 1}")
    cluster.wait_all(1)
    assert director.last_round == 2
    for launcher in cluster.launchers:
        assert "all 2 restarts are used" in launcher.err
        assert "exitcode  : 3" in launcher.err.partition("Root Cause")[2], launcher.story()


def test_a_failure_restarts_all_workers_of_all_nodes(cluster: Cluster) -> None:
    for rank in (0, 1):
        cluster.node("2", f"--node-rank={rank}", "--nproc-per-node=2", "--max-restarts=1")
    before = cluster.director.round(0, 4)
    before[0].tell("exit 1")
    after = cluster.director.round(1, 4)
    assert not {worker.pid for worker in before} & {worker.pid for worker in after}
    assert len({worker.store for worker in after}) == 1
    assert after[0].store[1] != before[0].store[1], "a fresh port for each round's store"
    for worker in after:
        worker.tell("exit 0")
    cluster.wait_all(0)
    for launcher in cluster.launchers:
        line = r"elastic-run\S*: recovered in \d+\.\d+ s: 4 workers on 2 nodes, restart 1 of 1\n"
        assert len(re.findall(line, launcher.err)) == 1, launcher.story()
        assert re.search(r": done: 4 workers, 1 restart, \d", launcher.err)


def test_a_good_end_is_silent_where_nobody_looks(cluster: Cluster) -> None:
    launcher = cluster.alone()
    (worker,) = cluster.director.round(0, 1)
    worker.tell("exit 0")
    assert launcher.wait() == 0
    assert launcher.err == ""


def test_nodes_that_fail_together_are_all_listed(cluster: Cluster) -> None:
    for rank in (0, 1):
        cluster.node("2", f"--node-rank={rank}")
    workers = cluster.director.round(0, 2)
    master = cluster.master_of(cluster.host())
    os.kill(master, signal.SIGSTOP)  # both have failed when it hears of the first
    for worker, launcher in zip(workers, cluster.launchers, strict=True):
        worker.tell(f"exit {worker.rank + 1}")
        launcher.wait_line(f"exited with {worker.rank + 1}")
    os.kill(master, signal.SIGCONT)
    cluster.wait_all(1)
    for launcher in cluster.launchers:
        assert "exitcode  : 1" in launcher.err
        assert "exitcode  : 2" in launcher.err


def test_a_port_taken_by_another_program_is_a_free_retry(cluster: Cluster, tmp_path: Path) -> None:
    launcher = cluster.alone("--max-restarts=0")
    (worker,) = cluster.director.round(0, 1)
    port = worker.store[1]
    worker.ask(f"err RuntimeError: The server socket has failed to listen on port {port}: EADDRINUSE")
    with socket.create_server(("", int(port))):
        worker.tell("exit 1")
        (again,) = cluster.director.round(1, 1)
    assert again.env["TORCHELASTIC_RESTART_COUNT"] == "0"
    assert again.store[1] != port
    again.tell("exit 0")
    assert launcher.wait() == 0


def test_a_port_that_nobody_else_has_is_the_scripts_own_mistake(cluster: Cluster) -> None:
    launcher = cluster.alone("--max-restarts=0")
    (worker,) = cluster.director.round(0, 1)
    port = worker.store[1]
    worker.ask(f"err RuntimeError: The server socket has failed to listen on port {port}: EADDRINUSE")
    worker.tell("exit 1")
    assert launcher.wait() == 1
    assert "no restart allowed" in launcher.err


def test_a_node_whose_workers_finished_waits_for_the_others(cluster: Cluster) -> None:
    quick, slow = (cluster.node("2", f"--node-rank={rank}", "--max-restarts=1") for rank in (0, 1))
    first, second = cluster.director.round(0, 2)
    first.tell("exit 0")
    first.wait_end()
    second.tell("exit 1")
    again = cluster.director.round(1, 2)  # so the one that had finished was still there
    again[1].tell("exit 0")
    again[0].tell("exit 0")
    assert quick.wait() == slow.wait() == 0
