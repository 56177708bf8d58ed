"""The tasks of a TensorFlow job: told who they are, restarted with no more than they take along, and counted
anew.

No TensorFlow here: the tasks are remote-controlled, and serve nothing. tests/faults/test_tensorflow.py has
it.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from elasticrun.errors import ExitCode
from tests.support.cluster import WORKER, Cluster
from tests.support.director import Worker
from tests.support.launcher import Launcher
from tests.support.orders import TOKEN, Orders
from tests.support.processes import title

SAVED = 42
COUNTS = "chief=1,worker=2,ps=2"
SERVED = [("chief", 0), ("worker", 0), ("worker", 1), ("ps", 0), ("ps", 1)]


@pytest.fixture(autouse=True)
def tensorflow(cluster: Cluster) -> None:
    cluster.pretend_tensorflow()


@pytest.fixture
def orders(cluster: Cluster) -> Orders:
    return Orders(cluster)


def launch(cluster: Cluster, *args: str, counts: str = COUNTS) -> Launcher:
    options = ("--role-counts", counts, "--tf-servers", "script", *cluster.options("1"), *args)
    return cluster.launch(*options, WORKER, env={"ELASTICRUN_TOKEN": TOKEN, "LOGLEVEL": "INFO"})


def node(cluster: Cluster, nnodes: str, role: str, *args: str) -> Launcher:
    """One of several nodes with a task of this role each."""
    options = (*cluster.options(nnodes), f"--tf-role={role}", "--tf-servers=script", *args)
    return cluster.launch(*options, WORKER, env={"ELASTICRUN_TOKEN": TOKEN})


def tasks(cluster: Cluster, wanted: list[tuple[str, int]], round_: int = 0) -> dict[tuple[str, int], Worker]:
    return {name: cluster.director.task(*name, round_=round_) for name in wanted}


def alive(workers: dict[tuple[str, int], Worker], *but: tuple[str, int]) -> None:
    """All but these were not restarted: each still answers."""
    for name, worker in workers.items():
        if name not in but:
            assert worker.ask("out still here") == "printed"


def succeed(cluster: Cluster, chief: Worker) -> None:
    """The chief ends with 0, and with it the job."""
    chief.tell("exit 0")
    cluster.wait_all()


def succeed_but(cluster: Cluster, chief: Worker, left: Launcher) -> None:
    """The chief ends with 0, and with it all launchers but one, which has left."""
    chief.tell("exit 0")
    for launcher in cluster.launchers:
        assert launcher.wait() == (128 + signal.SIGTERM if launcher is left else 0), launcher.story()


def can_serve(worker: Worker) -> None:
    """The task can bind the address that the others know it by."""
    role, index = worker.task
    assert worker.ask(f"listen {worker.tf_cluster[role][index].rpartition(':')[2]}") == ""


# -- who they are


def test_each_task_is_told_its_place_and_can_serve_there(cluster: Cluster) -> None:
    launch(cluster, counts=f"{COUNTS},evaluator=1")
    found = tasks(cluster, [*SERVED, ("evaluator", 0)])
    told = found["chief", 0].tf_cluster
    assert {role: len(places) for role, places in told.items()} == {"chief": 1, "worker": 2, "ps": 2}
    assert len({place for places in told.values() for place in places}) == 5
    for rank, (name, worker) in enumerate(found.items()):
        assert worker.tf_cluster == told
        assert (worker.rank, worker.env["WORLD_SIZE"], worker.env["ROLE_NAME"]) == (rank, "6", name[0])
        if name[0] != "evaluator":
            can_serve(worker)
    assert "ELASTICRUN_BACKUP_ROOTS" not in found["ps", 0].env
    homes = homes_of_copies(found["chief", 0])
    assert [home.stat().st_mode & 0o77 for home in homes] == [0, 0]
    found["evaluator", 0].tell("exit 0")
    succeed(cluster, found["chief", 0])
    assert not any(home.parent.exists() for home in homes)


def homes_of_copies(chief: Worker) -> list[Path]:
    """Where parameter servers may keep copies of their variables, as their chief finds it."""
    roots = [root.lstrip("/") for root in chief.env["ELASTICRUN_BACKUP_ROOTS"].split(os.pathsep)]
    ports = [place.rpartition(":")[2] for place in chief.tf_cluster["ps"]]
    return [home for port in ports for root in roots for home in Path("/").glob(f"{root}/{port}")]


def test_nodes_of_one_role_each_make_one_cluster(cluster: Cluster) -> None:
    roles = {"chief": 1, "worker": 2, "ps": 2}
    for role, count in roles.items():
        options = (
            f"--tf-role={role}",
            f"--nproc-per-node={count}",
            "--tf-servers=script",
            "--max-restarts=1",
        )
        cluster.launch(*cluster.options("3"), *options, WORKER)
    found = tasks(cluster, SERVED)
    assert {role: len(places) for role, places in found["ps", 1].tf_cluster.items()} == roles
    found["ps", 1].kill()
    chief = cluster.director.task("chief", attempt=1)
    can_serve(cluster.director.task("ps", 1, attempt=1))
    alive(found, ("ps", 1), ("chief", 0))
    succeed(cluster, chief)


def test_nodes_whose_roles_make_no_cluster_are_told_so(cluster: Cluster) -> None:
    cluster.launch(
        *cluster.options("2"),
        "--tf-role=ps",
        "--rdzv-conf=join_timeout=15",
        "--waiting-notice-interval=0.2",
        WORKER,
    )
    cluster.launch(*cluster.options("2"), "--tf-role=ps", "--rdzv-conf=join_timeout=15", WORKER)
    for launcher in cluster.launchers:
        assert launcher.wait() == ExitCode.RENDEZVOUS_TIMEOUT
    assert "ps=2 lacks the chief and the worker" in cluster.launchers[0].err


# -- what is lost


@pytest.mark.parametrize(
    ("lost", "restarted"),
    [
        (("worker", 1), [("worker", 1)]),
        (("ps", 0), [("ps", 0), ("chief", 0)]),
        (("chief", 0), [("chief", 0)]),
        (("evaluator", 0), [("evaluator", 0)]),
    ],
    ids=lambda value: value[0] if isinstance(value, tuple) else "",
)
def test_a_lost_task_takes_along_no_more_than_it_must(
    cluster: Cluster, lost: tuple[str, int], restarted: list[tuple[str, int]]
) -> None:
    launcher = launch(cluster, "--max-restarts=1", counts=f"{COUNTS},evaluator=1")
    found = tasks(cluster, [*SERVED, ("evaluator", 0)])
    for name, worker in found.items():
        if name[0] != "evaluator":
            can_serve(worker)
    found[lost].kill()
    again = {name: cluster.director.task(*name, attempt=1) for name in restarted}
    for name, worker in again.items():
        assert worker.tf_cluster == found[name].tf_cluster
        assert worker.env["TORCHELASTIC_RESTART_COUNT"] == "1"
        if name[0] != "evaluator":
            can_serve(worker)
    alive(found, *restarted)
    assert f"{lost[0]} {lost[1]} (attempt 1)" in launcher.err
    assert f"{lost[0]} {lost[1]} ended; restart 1 of 1" in launcher.err
    final = {**found, **again}
    final["evaluator", 0].tell("exit 0")
    succeed(cluster, final["chief", 0])


def test_a_server_that_ends_is_lost_even_if_it_ends_well(cluster: Cluster) -> None:
    launch(cluster, "--max-restarts=1")
    found = tasks(cluster, SERVED)
    found["worker", 0].tell("exit 0")
    cluster.director.task("worker", 0, attempt=1)
    alive(found, ("worker", 0))
    succeed(cluster, found["chief", 0])


def test_what_is_lost_together_costs_one_restart(cluster: Cluster) -> None:
    """Whichever of them is heard of first; if it is the chief, it starts twice."""
    launcher = launch(cluster, "--max-restarts=1")
    found = tasks(cluster, SERVED)
    launcher.signal(signal.SIGSTOP)  # else it may end the chief of its own accord before that is killed
    found["ps", 1].kill()
    found["chief", 0].kill()
    launcher.signal(signal.SIGCONT)
    launcher.wait_line("goes on without .*ps 1")
    verdicts = [line for line in launcher.err.splitlines() if "goes on without" in line]
    chief = cluster.director.task("chief", attempt=len(verdicts))
    assert chief.env["TORCHELASTIC_RESTART_COUNT"] == "1"
    succeed(cluster, chief)


def test_a_job_whose_restarts_are_used_names_the_task(cluster: Cluster) -> None:
    launcher = launch(cluster)
    found = tasks(cluster, SERVED)
    found["worker", 1].kill()
    assert launcher.wait() == ExitCode.JOB_FAILED
    assert "rank 2 (local rank 2" in launcher.err
    assert "no restart allowed (--max-restarts 0)" in launcher.err


def test_a_chief_that_saved_its_state_starts_again_for_free(cluster: Cluster) -> None:
    launch(cluster)
    found = tasks(cluster, SERVED)
    found["chief", 0].tell(f"exit {SAVED}")
    chief = cluster.director.task("chief", attempt=1)
    assert chief.env["TORCHELASTIC_RESTART_COUNT"] == "0"
    alive(found, ("chief", 0))
    succeed(cluster, chief)


def test_nothing_of_a_lost_task_is_left_when_its_next_life_starts(cluster: Cluster) -> None:
    launch(cluster, "--max-restarts=1")
    found = tasks(cluster, SERVED)
    child = found["ps", 0].ask("child")
    found["ps", 0].kill()
    cluster.director.task("ps", 0, attempt=1)
    assert title(child) == ""
    succeed(cluster, cluster.director.task("chief", attempt=1))


def test_a_master_that_comes_back_restarts_nothing(cluster: Cluster) -> None:
    launcher = launch(cluster, "--max-restarts=2")
    found = tasks(cluster, SERVED)
    found["worker", 0].kill()
    found["worker", 0] = cluster.director.task("worker", 0, attempt=1)
    os.kill(cluster.master_of(launcher), signal.SIGKILL)
    launcher.wait_line("the master is back")
    alive(found)
    found["worker", 0].kill()
    cluster.director.task("worker", 0, attempt=2)
    succeed(cluster, found["chief", 0])


# -- mirrored


def test_mirrored_workers_are_restarted_together(cluster: Cluster) -> None:
    cluster.alone("--framework=tensorflow", "--nproc-per-node=3", "--max-restarts=1")
    names = [("worker", index) for index in range(3)]
    before = tasks(cluster, names)
    before["worker", 2].kill()
    after = tasks(cluster, names, round_=1)
    assert all(worker.gone for worker in before.values())
    assert before["worker", 0].tf_cluster != after["worker", 0].tf_cluster
    assert set(after["worker", 0].tf_cluster) == {"worker"}
    for worker in after.values():
        can_serve(worker)
        worker.tell("exit 0")
    cluster.wait_all()


def test_mirrored_workers_that_saved_their_state_start_again_for_free(cluster: Cluster) -> None:
    cluster.alone("--framework=tensorflow", "--nproc-per-node=2")
    names = [("worker", index) for index in range(2)]
    for worker in tasks(cluster, names).values():
        worker.tell(f"exit {SAVED}")
    again = tasks(cluster, names, round_=1)
    assert again["worker", 1].env["TORCHELASTIC_RESTART_COUNT"] == "0"
    for worker in again.values():
        worker.tell("exit 0")
    cluster.wait_all()


def test_the_others_may_end_by_themselves_after_worker_0(cluster: Cluster) -> None:
    launcher = cluster.alone("--framework=tensorflow", "--nproc-per-node=2")
    found = tasks(cluster, [("worker", 0), ("worker", 1)])
    found["worker", 0].tell("exit 0")
    found["worker", 0].wait_end()
    assert found["worker", 1].ask("out saving") == "printed"
    found["worker", 1].tell("exit 0")
    assert launcher.wait() == 0, launcher.story()


# -- counted anew


def test_parameter_servers_are_added_and_taken_away(cluster: Cluster, orders: Orders) -> None:
    launch(cluster)
    found = tasks(cluster, SERVED)
    chief = found["chief", 0]
    chief.ask(f"note {int(signal.SIGTERM)}")
    assert "3" in orders.done("scale", "--role", "ps=3")
    added = cluster.director.task("ps", 2)
    can_serve(added)
    assert chief.answer() == {"signal": signal.SIGTERM}
    chief.tell(f"exit {SAVED}")
    chief = cluster.director.task("chief", attempt=1)
    assert len(chief.tf_cluster["ps"]) == 3
    assert chief.tf_cluster["ps"][:2] == found["ps", 0].tf_cluster["ps"]
    assert chief.env["TORCHELASTIC_RESTART_COUNT"] == "0"
    alive(found, ("chief", 0))

    chief.ask(f"note {int(signal.SIGTERM)}")
    orders.done("scale", "--role", "ps=2")
    assert chief.answer() == {"signal": signal.SIGTERM}
    assert added.ask("out the chief may still save") == "printed"
    chief.tell(f"exit {SAVED}")
    chief = cluster.director.task("chief", attempt=2)
    added.wait_end()
    assert chief.tf_cluster == found["chief", 0].tf_cluster
    alive(found, ("chief", 0))

    orders.done("scale", "--role", "worker=3")
    third = cluster.director.task("worker", 2)
    chief = cluster.director.task("chief", attempt=3)
    assert len(chief.tf_cluster["worker"]) == 3
    alive({**found, ("worker", 2): third}, ("chief", 0))
    succeed(cluster, chief)


def test_what_was_ordered_outlives_the_loss_of_a_node(cluster: Cluster, orders: Orders) -> None:
    """Twice as many as a node has free ports for in the beginning."""
    nodes = {role: node(cluster, "3", role) for role in ("chief", "worker", "ps")}
    tasks(cluster, [(role, 0) for role in nodes])
    for count in (9, 17):
        orders.done("scale", "--role", f"ps={count}")
        cluster.director.task("ps", count - 1)
    lost = next(role for role in ("worker", "chief") if nodes[role] is not cluster.host())
    nodes[lost].kill_node()
    nodes[f"{lost} again"] = node(cluster, "3", lost)
    chief = cluster.director.task("chief", round_=1)
    assert len(chief.tf_cluster["ps"]) == 17
    chief.tell("exit 0")
    assert {name: launcher.wait() for name, launcher in nodes.items() if name != lost} == {
        name: 0 for name in nodes if name != lost
    }


def test_roles_that_cannot_be_scaled_are_refused(cluster: Cluster, orders: Orders) -> None:
    launch(cluster)
    found = tasks(cluster, SERVED)
    for wrong in ("ps=2", "ps=99", "chief=2"):
        given = orders.give("scale", "--role", wrong)
        assert given.returncode != 0, wrong
        assert len(given.stderr.strip().splitlines()) == 1, given.stderr
    alive(found)
    succeed(cluster, found["chief", 0])


# -- stopped


def test_servers_outlast_a_chief_that_saves_what_they_hold(cluster: Cluster) -> None:
    launcher = launch(cluster)
    found = tasks(cluster, SERVED)
    for name in (("chief", 0), ("ps", 0)):
        found[name].ask(f"note {int(signal.SIGTERM)}")
    launcher.signal(signal.SIGTERM)
    assert found["chief", 0].answer() == {"signal": signal.SIGTERM}
    alive(found, ("chief", 0))
    found["chief", 0].tell(f"exit {SAVED}")
    assert found["ps", 0].answer() == {"signal": signal.SIGTERM}
    assert launcher.wait() == 128 + signal.SIGTERM


@pytest.mark.parametrize("leaves", ["chief", "worker", "ps"])
def test_a_node_leaves_and_the_chief_saves_before_the_others_stop(cluster: Cluster, leaves: str) -> None:
    nodes = {}
    for role, count in {"chief": 1, "worker": 2, "ps": 2}.items():
        options = (f"--tf-role={role}", f"--nproc-per-node={count}", "--tf-servers=script")
        nodes[role] = cluster.launch(*cluster.options("3"), *options, WORKER)
    found = tasks(cluster, SERVED)
    found["chief", 0].ask(f"note {int(signal.SIGTERM)}")
    nodes[leaves].signal(signal.SIGTERM)
    assert found["chief", 0].answer() == {"signal": signal.SIGTERM}
    alive(found, ("chief", 0))
    found["chief", 0].tell(f"exit {SAVED}")
    for name, worker in found.items():
        if name[0] != leaves:
            worker.wait_end()
    cluster.launch(*cluster.options("3"), f"--tf-role={leaves}", "--tf-servers=script", WORKER)
    again = cluster.director.task("chief", round_=1)
    assert again.env["TORCHELASTIC_RESTART_COUNT"] == "0"
    nodes[leaves].signal(signal.SIGTERM)  # what is left of it need not be waited for
    succeed_but(cluster, again, nodes[leaves])
