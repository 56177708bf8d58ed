"""A node is taken away and says so before: everybody saves, the others go on, and nobody counts a failure."""

from __future__ import annotations

import re
import signal
from pathlib import Path

import pytest

from tests.support.cluster import Cluster
from tests.support.director import Worker
from tests.support.launcher import ROOT, Launcher
from tests.support.orders import TOKEN, Orders

SAVER = ROOT / "tests" / "support" / "saver.py"
#: For jobs that have to start with everybody who was launched.
UNHURRIED = "--last-call-timeout=60"
DRAINED = 14
INFO = {"LOGLEVEL": "INFO"}

NOT_PROVEN = 15


def roles(rank: int) -> tuple[str, ...]:
    """Options by which a worker is known to be this launcher's."""
    return (f"--node-rank={rank}", "--role", f"r{rank}")


def of(workers: list[Worker], rank: int) -> Worker:
    return next(worker for worker in workers if worker.env["ROLE_NAME"] == f"r{rank}")


def go_on(cluster: Cluster, number: int, stay: list[Launcher]) -> None:
    """The others form the next world, which cost nothing, and end well."""
    workers = cluster.director.round(number, len(stay))
    assert {worker.env["TORCHELASTIC_RESTART_COUNT"] for worker in workers} == {"0"}
    for worker in workers:
        worker.tell("exit 0")
    for launcher in stay:
        assert launcher.wait() == 0, launcher.story()
    assert cluster.director.last_round == number


# -- SIGTERM to the launcher


@pytest.mark.parametrize("where", ["beside the master", "elsewhere"])
def test_everybody_may_save_when_a_launcher_is_told_to_go(cluster: Cluster, where: str) -> None:
    options = (UNHURRIED, "--drain-signal=SIGUSR1", "--shutdown-timeout=60")
    nodes = [cluster.node("2:3", *roles(rank), *options) for rank in range(3)]
    before = cluster.director.round(0, 3)
    for worker in before:
        assert worker.ask(f"note {int(signal.SIGTERM)} {int(signal.SIGUSR1)}") == "noting"
    leaver = next(n for n in range(3) if (nodes[n] is cluster.host()) == (where == "beside the master"))
    nodes[leaver].signal(signal.SIGTERM)
    for rank in range(3):
        signum = signal.SIGTERM if rank == leaver else signal.SIGUSR1
        assert of(before, rank).answer() == {"signal": signum}
    assert not any(worker.gone for worker in before), "each takes the time that it needs"
    for worker in before:
        worker.tell("exit 0")
        worker.wait_end()
        assert not worker.answers, "they were signalled once"
    assert nodes[leaver].wait() == 128 + signal.SIGTERM, nodes[leaver].story()
    go_on(cluster, 1, [node for node in nodes if node is not nodes[leaver]])
    for node in nodes:
        assert "FAILED" not in node.err


def test_two_may_be_told_at_once_and_one_of_them_hosts_the_master(cluster: Cluster) -> None:
    nodes = [cluster.node("1:3", *roles(rank), UNHURRIED) for rank in range(3)]
    cluster.director.round(0, 3)
    leave = cluster.host(), next(node for node in nodes if node is not cluster.host())
    for launcher in leave:
        launcher.signal(signal.SIGTERM)
    for launcher in leave:
        assert launcher.wait() == 128 + signal.SIGTERM, launcher.story()
    (alone,) = cluster.director.world(1)
    assert alone.env["TORCHELASTIC_RESTART_COUNT"] == "0"
    alone.tell("exit 0")
    assert next(node for node in nodes if node not in leave).wait() == 0


def test_whoever_fails_while_others_leave_is_not_counted(cluster: Cluster) -> None:
    nodes = [cluster.node("1:3", *roles(rank), UNHURRIED) for rank in range(3)]
    before = cluster.director.round(0, 3)
    for worker in before:
        worker.ask(f"note {int(signal.SIGTERM)}")
    leave = next(node for node in nodes if node is not cluster.host())
    leave.signal(signal.SIGTERM)
    for worker in before:
        assert worker.answer() == {"signal": signal.SIGTERM}
        worker.tell("exit 3")
    assert leave.wait() == 128 + signal.SIGTERM
    go_on(cluster, 1, [node for node in nodes if node is not leave])


# -- the file


def test_a_node_leaves_when_its_file_appears(cluster: Cluster, tmp_path: Path) -> None:
    notice = tmp_path / "notice"
    stay = cluster.node("1:2", *roles(0), UNHURRIED)
    leave = cluster.node("1:2", *roles(1), UNHURRIED, f"--preemption-file={notice}")
    before = cluster.director.round(0, 2)
    assert of(before, 1).ask(f"note {int(signal.SIGTERM)}") == "noting"
    draft = tmp_path / "draft"
    draft.write_text("the spot market wants it back\nand more\n")
    draft.rename(notice)
    assert of(before, 1).answer() == {"signal": signal.SIGTERM}
    of(before, 1).tell("exit 0")
    assert leave.wait() == DRAINED
    reason = f"preemption notice {notice}: the spot market wants it back"
    assert reason in leave.err
    assert "and more" not in leave.err
    assert f"left: {reason}" in stay.err
    go_on(cluster, 1, [stay])


def test_a_file_that_is_there_already_counts(cluster: Cluster, tmp_path: Path) -> None:
    notice = tmp_path / "notice"
    notice.touch()
    launcher = cluster.alone(f"--preemption-file={notice}")
    assert launcher.wait() == DRAINED
    assert f"preemption notice {notice} (the file existed before the agent started; remove it" in launcher.err
    assert cluster.director.last_round <= 0


# -- workers that ask


@pytest.mark.parametrize("way", ["on_drain", "ask"])
def test_a_worker_that_asks_saves_its_state_and_is_not_killed_before(
    cluster: Cluster, tmp_path: Path, way: str
) -> None:
    saved = tmp_path / "saved"
    saved.mkdir()
    options = (*cluster.options("1:2"), UNHURRIED, "--nproc-per-node=2")
    nodes = [cluster.launch(*roles(rank), *options, SAVER, saved, way) for rank in (0, 1)]
    for node in nodes:
        node.wait_lines("training", 2, "out")
    leave = next(node for node in nodes if node is not cluster.host())
    stay = next(node for node in nodes if node is not leave)
    leave.signal(signal.SIGTERM)
    assert leave.wait() == 128 + signal.SIGTERM
    assert stay.wait() == 0, stay.story()
    assert sorted(file.name for file in saved.iterdir()) == ["0-0", "0-1", "0-2", "0-3"]
    assert all(file.read_text().isdigit() for file in saved.iterdir())
    assert "restart 0 of 0" in stay.err.partition("round 1: ")[2]


# -- orders


@pytest.fixture
def orders(cluster: Cluster) -> Orders:
    return Orders(cluster)


def node(cluster: Cluster, nnodes: str, rank: int, *args: str) -> Launcher:
    return cluster.node(nnodes, *roles(rank), UNHURRIED, *args, env={**INFO, "ELASTICRUN_TOKEN": TOKEN})


def name(launcher: Launcher) -> str:
    """The node's name, as the others know it."""
    return launcher.wait_line(r"^elastic-run\[(\S+)\]: round 0: node")[1]


def test_an_operator_asks_for_the_status_and_drains_a_node(cluster: Cluster, orders: Orders) -> None:
    nodes = [node(cluster, "1:2", rank, "--drain-signal=SIGUSR1") for rank in (0, 1)]
    before = cluster.director.round(0, 2)
    assert not any("ELASTICRUN_TOKEN" in worker.env for worker in before)
    for worker in before:
        worker.ask(f"note {int(signal.SIGTERM)} {int(signal.SIGUSR1)}")
    status = orders.done("status")
    assert status.startswith("job 'job': running, round 0, 2 nodes of 1:2, 0 of 0 restarts used\n")
    for rank, launcher in enumerate(nodes):
        assert f"  {name(launcher)}: node {rank}, running\n" in status
    assert "is asked to leave" in orders.done("drain", name(nodes[1]), "--reason", "its disk is failing")
    assert of(before, 1).answer() == {"signal": signal.SIGTERM}
    assert of(before, 0).answer() == {"signal": signal.SIGUSR1}
    for worker in before:
        worker.tell("exit 0")
    assert nodes[1].wait() == DRAINED, nodes[1].story()
    agent = "\n".join(line for line in nodes[1].err.splitlines() if "master: " not in line)
    assert "drained: its disk is failing" in agent
    go_on(cluster, 1, nodes[:1])


def test_an_operator_scales_the_job(cluster: Cluster, orders: Orders) -> None:
    nodes = [node(cluster, "3", rank) for rank in range(3)]
    before = cluster.director.round(0, 3)
    assert "1 to 2 nodes" in orders.done("scale", "1:2")
    after = cluster.director.round(1, 2)
    assert all(worker.gone for worker in before)
    status = orders.done("status")
    assert "round 1, 3 nodes of 1:2, 0 of 0 restarts used" in status
    assert status.count(": spare, ") == 1
    assert "1 to 3 nodes" in orders.done("scale", "1:3")
    again = cluster.director.round(2, 3)
    assert {worker.env["TORCHELASTIC_RESTART_COUNT"] for worker in (*after, *again)} == {"0"}
    for worker in again:
        worker.tell("exit 0")
    for launcher in nodes:
        assert launcher.wait() == 0, launcher.story()


def test_an_operator_has_the_stacks_saved(cluster: Cluster, orders: Orders) -> None:
    token = cluster.folder / "token"
    token.write_text(f"{TOKEN}\n")
    token.chmod(0o600)
    options = (*cluster.options("1"), "--nproc-per-node=2", "--log-dir=logs", f"--token-file={token}")
    launcher = cluster.launch(*options, SAVER, cluster.folder, "ask")
    launcher.wait_lines("training", 2, "out")
    given = orders.give("stacks", "--token-file", str(token), token="")
    assert given.returncode == 0, given
    paths = launcher.wait_line("the stacks of 2 workers were saved: (.*)")[1].split(", ")
    assert len(paths) == 2
    for path in paths:
        assert Path(path).is_relative_to(cluster.folder / "logs")
        assert "saver.py" in Path(path).read_text()
    launcher.signal(signal.SIGTERM)
    assert launcher.wait() == 128 + signal.SIGTERM


@pytest.mark.parametrize(
    ("token", "status", "words"),
    [("", 2, "no token found"), (TOKEN[::-1], NOT_PROVEN, "token")],
    ids=["none", "another"],
)
def test_who_does_not_know_the_token_has_no_say(
    cluster: Cluster, orders: Orders, token: str, status: int, words: str
) -> None:
    launcher = node(cluster, "1", 0)
    (worker,) = cluster.director.round(0, 1)
    for verb in (("status",), ("drain", "somebody"), ("scale", "1"), ("stacks",)):
        refused = orders.give(*verb, token=token)
        assert (refused.returncode, refused.stdout) == (status, ""), refused
        assert words in refused.stderr
        assert "Traceback" not in refused.stderr
    worker.tell("exit 0")
    assert launcher.wait() == 0, "nobody was obeyed"
    assert "stacks" not in launcher.err


def test_a_job_without_a_token_takes_no_orders(cluster: Cluster, orders: Orders) -> None:
    launcher = cluster.node("1:2", "--last-call-timeout=0", "--no-token")
    (worker,) = cluster.director.round(0, 1)
    refused = orders.give("status")
    assert refused.returncode == NOT_PROVEN, refused
    assert re.search("this job has no token.*--token-file", refused.stderr)
    worker.tell("exit 0")
    assert launcher.wait() == 0
