"""The tasks of one round: where they sit, which attempt of each is wanted, and what is taken for a loss."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest

from elasticrun.config import TaskRole
from elasticrun.core.protocol.tasks import Task, TaskReport
from elasticrun.core.tensorflow import round_tasks
from elasticrun.core.tensorflow.round_tasks import RoundTasks, compatible, misfit
from tests.core.tf_build import CHIEF, EVALUATOR, MIRRORED, PS, SERVED, TORCH, WORKER, Roles, died, members

PORTS = {name: tuple(range(8001, 8009)) for name in "abc"}
BROKEN = died("a", 0)


def placed(roles: Roles = SERVED, ports: Mapping[str, Sequence[int]] = PORTS) -> RoundTasks:
    return RoundTasks(members(roles), ports)


def test_a_round_of_plain_workers_has_no_tasks() -> None:
    for tasks in (RoundTasks(), placed(TORCH)):
        assert not tasks
        assert tasks.of("a") == ()
        assert tasks.cluster == ()
        assert not tasks.absorb("a", [TaskReport(0, 0, True, BROKEN)])
        assert not tasks.lost
        assert not tasks.is_over


@pytest.mark.parametrize(
    ("roles", "ports", "reason"),
    [
        (TORCH, PORTS, ""),
        (SERVED, PORTS, ""),
        (MIRRORED, PORTS, ""),
        (SERVED | {"b": ()}, PORTS, "b gives its workers no role; give --tf-role there, or on no node"),
        (SERVED, PORTS | {"a": (8001,)}, "a has no ports left for its tasks"),
        ({"c": (EVALUATOR,), "a": (WORKER,)}, PORTS | {"c": ()}, ""),
        (
            SERVED | {"c": (CHIEF,)},
            PORTS,
            "the nodes' roles make no TensorFlow cluster: chief=2, but a cluster has one chief at most;"
            " give chief=1",
        ),
    ],
)
def test_only_some_nodes_fit_together(roles: Roles, ports: Mapping[str, Sequence[int]], reason: str) -> None:
    assert misfit(members(roles), ports) == reason


@pytest.mark.parametrize(
    ("roles", "found"),
    [
        (SERVED, "abc"),
        (SERVED | {"c": (CHIEF,)}, "ab"),
        ({"a": (CHIEF,), "b": (CHIEF,), "c": (WORKER,)}, "ac"),
        ({"a": (EVALUATOR, EVALUATOR), "b": (WORKER, EVALUATOR), "c": (EVALUATOR,)}, "b"),
        (TORCH, "ab"),
        (TORCH | {"b": (WORKER,), "c": ()}, "ac"),
        (SERVED | {"b": ()}, "ac"),
        (SERVED | {"b": (WORKER,) * 9}, "ac"),
    ],
)
def test_who_fits_nobody_before_him_is_passed_over(roles: Roles, found: str) -> None:
    assert compatible(members(roles), PORTS) == list(found)


def test_who_is_too_many_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(round_tasks, "MAX_CLUSTER", 3)
    assert compatible(members(SERVED), PORTS) == ["a", "c"]


def test_each_node_is_told_of_its_own_tasks_and_of_all_addresses() -> None:
    tasks = placed()
    assert tasks.of("b") == (Task(0, WORKER, 0, port=8001), Task(1, PS, 1, port=8002))
    assert tasks.of("c") == (Task(0, EVALUATOR, 0),)
    assert dict(tasks.cluster) == {
        CHIEF: ("a.net:8001",),
        WORKER: ("b.net:8001",),
        PS: ("a.net:8002", "b.net:8002"),
    }
    assert [tasks.count(role) for role in (CHIEF, WORKER, PS, EVALUATOR)] == [1, 1, 2, 1]


# -- what is heard


@pytest.mark.parametrize(
    ("node", "report", "lost"),
    [
        ("b", TaskReport(0, 0), False),
        ("b", TaskReport(0, 0, True, BROKEN), True),
        ("b", TaskReport(0, 0, True), True),
        ("a", TaskReport(0, 0, True, BROKEN), True),
        ("a", TaskReport(0, 0, True), False),
        ("c", TaskReport(0, 0, True, BROKEN), True),
        ("c", TaskReport(0, 0, True), False),
        ("b", TaskReport(7, 0, True, BROKEN), False),
        ("b", TaskReport(-1, 0, True, BROKEN), False),
        ("z", TaskReport(0, 0, True, BROKEN), False),
        ("b", TaskReport(0, 99, True, BROKEN), True),
        ("b", TaskReport(0, -1, True, BROKEN), False),
    ],
)
def test_what_is_taken_for_a_loss(node: str, report: TaskReport, lost: bool) -> None:
    tasks = placed()
    tasks.absorb(node, [report])
    assert set(tasks.lost) == ({(node, 0)} if lost else set())


def test_without_parameter_servers_only_an_evaluator_is_lost_alone() -> None:
    tasks = placed(MIRRORED)
    tasks.absorb("a", [TaskReport(0, 0, True, BROKEN), TaskReport(1, 0, True, BROKEN)])
    tasks.absorb("b", [TaskReport(0, 0, True)])
    assert set(tasks.lost) == {("a", 1)}


def test_a_life_that_has_to_make_way_is_not_lost() -> None:
    tasks = placed()
    tasks.absorb("b", [TaskReport(0, 0, True, BROKEN)])
    assert tasks.restart(list(tasks.lost.values())) == ["b"]
    assert not tasks.lost
    tasks.absorb("b", [TaskReport(0, 0, True, BROKEN)])
    assert not tasks.lost, "it was judged"
    tasks.absorb("b", [TaskReport(0, 1, True, BROKEN)])
    assert set(tasks.lost) == {("b", 0)}


def test_a_lost_parameter_server_takes_the_chief_along() -> None:
    tasks = placed()
    tasks.absorb("b", [TaskReport(0, 0), TaskReport(1, 0, True, BROKEN)])
    assert tasks.restart(list(tasks.lost.values())) == ["a", "b"]
    assert [task.attempt for node in "abc" for task in tasks.of(node)] == [1, 0, 0, 1, 0]
    assert not any(task.saves for node in "abc" for task in tasks.of(node))


@pytest.mark.parametrize(
    ("roles", "leader"),
    [
        (SERVED, ("a", 0)),
        (MIRRORED, ("a", 0)),
        ({"a": (WORKER,), "b": (CHIEF,)}, ("b", 0)),
        ({"a": (EVALUATOR, WORKER), "b": (WORKER,)}, ("a", 1)),
    ],
)
def test_the_round_is_over_when_its_leader_ends_with_0(roles: Roles, leader: tuple[str, int]) -> None:
    tasks = placed(roles)
    keys = [(node, task.local_rank) for node in roles for task in tasks.of(node)]
    for node, local_rank in keys:
        tasks.absorb(node, [TaskReport(local_rank, 0, True, BROKEN)])
        if (node, local_rank) != leader:
            tasks.absorb(node, [TaskReport(local_rank, 0, True)])
        assert not tasks.is_over
    tasks.absorb(leader[0], [TaskReport(leader[1], 0, True)])
    assert tasks.is_over


def test_who_ends_by_itself_is_waited_for() -> None:
    assert placed().unfinished == {("a", 0), ("c", 0)}
    tasks = placed(MIRRORED)
    assert tasks.unfinished == {("a", 0), ("a", 1), ("b", 0)}
    tasks.absorb("b", [TaskReport(0, 0, True)])
    tasks.absorb("a", [TaskReport(0, 0, True), TaskReport(1, 0, True, BROKEN)])
    assert tasks.unfinished == set()
    tasks.restart(list(tasks.lost.values()))
    assert tasks.unfinished == {("a", 1)}, "its next attempt may end by itself as well"
    tasks.absorb("a", [TaskReport(1, 0, True, BROKEN)])
    assert tasks.unfinished == {("a", 1)}
    tasks.absorb("a", [TaskReport(1, 1, True)])
    assert tasks.unfinished == set()


def test_a_chief_that_ends_with_0_is_done_whichever_life_was_wanted_by_then() -> None:
    tasks = placed()
    tasks.absorb("b", [TaskReport(1, 0, True, BROKEN)])
    tasks.restart(list(tasks.lost.values()))
    tasks.absorb("a", [TaskReport(0, 0, True)])
    assert tasks.is_over
    assert tasks.unfinished == {("c", 0)}


# -- another number of servers


def indexes(tasks: RoundTasks, role: TaskRole) -> list[tuple[str, int, int]]:
    found = [(node, task) for node in PORTS for task in tasks.of(node) if task.role is role]
    return sorted((node, task.local_rank, task.index) for node, task in found)


def test_what_is_added_gets_fresh_ranks_and_ports_on_the_nodes_of_its_role() -> None:
    tasks = placed()
    tasks.resize(PS, 5, PORTS)
    assert indexes(tasks, PS) == [("a", 1, 0), ("a", 2, 2), ("a", 3, 4), ("b", 1, 1), ("b", 2, 3)]
    assert dict(tasks.cluster)[PS] == (
        "a.net:8002",
        "b.net:8002",
        "a.net:8003",
        "b.net:8003",
        "a.net:8004",
    )
    chief, *servers = tasks.of("a")
    assert (chief.attempt, chief.saves) == (1, True)
    assert {server.attempt for server in servers} == {0}
    assert tasks.of("c") == placed().of("c")


def test_who_has_the_fewest_gets_the_next_one() -> None:
    tasks = placed({"a": (CHIEF, PS, PS), "b": (WORKER, PS)})
    tasks.resize(PS, 4, PORTS)
    assert indexes(tasks, PS)[-1] == ("b", 2, 3)


def test_a_node_without_a_free_port_is_passed_over() -> None:
    tasks = placed()
    ports = PORTS | {"a": (8001, 8002)}
    assert tasks.room(PS, ports) == 6
    tasks.resize(PS, 8, ports)
    assert [node for node, _, _ in indexes(tasks, PS)] == ["a"] + ["b"] * 7
    assert tasks.room(PS, ports) == 0


def test_what_is_taken_away_stays_until_the_next_chief_runs() -> None:
    tasks = placed()
    tasks.resize(PS, 1, PORTS)
    assert dict(tasks.cluster)[PS] == ("a.net:8002",)
    assert (tasks.count(PS), len(tasks.of("b"))) == (1, 2)
    assert not tasks.absorb("a", [TaskReport(0, 0), TaskReport(1, 0)])
    assert not tasks.absorb("a", [TaskReport(0, 1, True, BROKEN)]), "that chief is gone"
    tasks.restart(list(tasks.lost.values()))
    assert not tasks.absorb("a", [TaskReport(0, 1)])
    assert tasks.absorb("a", [TaskReport(0, 2)])
    assert tasks.retire() == ["b"]
    assert tasks.of("b") == (Task(0, WORKER, 0, port=8001),)
    assert not tasks.absorb("a", [TaskReport(0, 2)])
    assert tasks.retire() == []


def test_what_is_about_to_go_is_not_lost() -> None:
    tasks = placed()
    tasks.absorb("b", [TaskReport(1, 0, True, BROKEN)])
    assert set(tasks.lost) == {("b", 1)}
    tasks.resize(PS, 1, PORTS)
    assert not tasks.lost
    tasks.absorb("b", [TaskReport(1, 0, True, BROKEN)])
    assert not tasks.lost


def test_a_second_change_waits_for_the_chief_that_knows_both() -> None:
    tasks = placed()
    tasks.resize(PS, 1, PORTS)
    tasks.resize(PS, 2, PORTS)
    assert indexes(tasks, PS) == [("a", 1, 0), ("b", 1, 1), ("b", 2, 1)], "one of them is about to go"
    assert dict(tasks.cluster)[PS] == ("a.net:8002", "b.net:8003")
    assert not tasks.absorb("a", [TaskReport(0, 1)])
    assert tasks.absorb("a", [TaskReport(0, 2)])
    assert tasks.retire() == ["b"]
    assert indexes(tasks, PS) == [("a", 1, 0), ("b", 2, 1)]


def test_ranks_are_not_used_again_and_a_node_whose_last_one_went_gets_the_next() -> None:
    tasks = placed()
    tasks.resize(PS, 1, PORTS)
    tasks.absorb("a", [TaskReport(0, 1)])
    tasks.retire()
    tasks.resize(PS, 2, PORTS)
    assert indexes(tasks, PS) == [("a", 1, 0), ("b", 2, 1)]
    assert tasks.room(PS, PORTS) == 6 + 6


def test_a_port_of_a_task_that_is_about_to_go_is_not_free() -> None:
    tasks = placed(ports={"a": (8001, 8002), "b": (8001, 8002, 8003), "c": ()})
    offered = {"b": (8001, 8002, 8003)}
    tasks.resize(PS, 1, offered)
    tasks.resize(PS, 2, offered)
    assert dict(tasks.cluster)[PS] == ("a.net:8002", "b.net:8003")


def test_a_node_that_is_gone_offers_nothing() -> None:
    assert placed().room(PS, {"a": (8009,)}) == 1
