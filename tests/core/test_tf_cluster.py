"""Which roles make a TensorFlow cluster, who sits where in it, and what TF_CONFIG says."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elasticrun.config import TaskRole
from elasticrun.core.protocol.tasks import MAX_CLUSTER, Cluster, Task
from elasticrun.core.tensorflow.cluster import (
    count_roles,
    describe_counts,
    expand,
    impossible,
    is_served,
    leader,
    number_tasks,
    ports_needed,
    tf_config,
)

CHIEF, WORKER, PS, EVALUATOR = TaskRole
LETTERS = {"c": CHIEF, "w": WORKER, "p": PS, "e": EVALUATOR}


def roles(letters: str) -> tuple[TaskRole, ...]:
    """One role per letter."""
    return tuple(LETTERS[letter] for letter in letters)


@pytest.mark.parametrize("letters", ["w", "ww", "c", "cw", "cww", "we", "ce", "cwe", "cwp", "cwwppe"])
def test_possible_clusters(letters: str) -> None:
    assert impossible(count_roles(roles(letters))) == ""


@pytest.mark.parametrize(
    ("counts", "sentence"),
    [
        ({}, "no role at all trains nothing; give for example worker=1"),
        ({PS: 0}, "no role at all trains nothing; give for example worker=1"),
        ({WORKER: -1}, "worker=-1 has a negative count; give 1 or more, or leave the role out"),
        ({CHIEF: 2}, "chief=2, but a cluster has one chief at most; give chief=1"),
        ({EVALUATOR: 3, WORKER: 1}, "evaluator=3, but a cluster has one evaluator at most; give evaluator=1"),
        ({EVALUATOR: 1}, "evaluator=1 trains nothing; give for example worker=1,evaluator=1"),
        (
            {PS: 2},
            "ps=2 lacks the chief and the worker that a ps serves; give for example chief=1,worker=1,ps=2",
        ),
        (
            {PS: 1, WORKER: 4, EVALUATOR: 1},
            "worker=4,ps=1,evaluator=1 lacks the chief that a ps serves; "
            "give for example chief=1,worker=4,ps=1,evaluator=1",
        ),
        (
            {PS: 2, CHIEF: 1},
            "chief=1,ps=2 lacks the worker that a ps serves; give for example chief=1,worker=1,ps=2",
        ),
        (
            {WORKER: MAX_CLUSTER, EVALUATOR: 1},
            f"worker={MAX_CLUSTER},evaluator=1 is more than the {MAX_CLUSTER} tasks of a cluster; give fewer",
        ),
    ],
)
def test_impossible_clusters(counts: dict[TaskRole, int], sentence: str) -> None:
    assert impossible(counts) == sentence


def test_the_largest_cluster_is_possible() -> None:
    assert impossible({WORKER: MAX_CLUSTER}) == ""


@pytest.mark.parametrize(
    ("letters", "counts"),
    [("", {}), ("w", {WORKER: 1}), ("pwecwp", {CHIEF: 1, WORKER: 2, PS: 2, EVALUATOR: 1})],
)
def test_roles_are_counted(letters: str, counts: dict[TaskRole, int]) -> None:
    found = count_roles(iter(roles(letters)))
    assert found == counts
    assert list(found) == [role for role in TaskRole if role in counts]


def test_the_chief_comes_first_on_one_node() -> None:
    assert expand({EVALUATOR: 1, PS: 2, WORKER: 2, CHIEF: 1}) == roles("cwwppe")
    assert expand({WORKER: 1, PS: 0}) == roles("w")


def test_counts_are_described_as_they_are_given() -> None:
    assert describe_counts({PS: 2, CHIEF: 1, EVALUATOR: 0}) == "chief=1,ps=2"
    assert describe_counts({}) == ""


@pytest.mark.parametrize(
    ("letters", "served", "leads"), [("ww", False, WORKER), ("wc", False, CHIEF), ("wpc", True, CHIEF)]
)
def test_shape(letters: str, served: bool, leads: TaskRole) -> None:
    assert is_served(tuple((role, ()) for role in roles(letters))) is served
    assert leader(iter(roles(letters))) is leads


def test_tasks_are_numbered_by_role_over_the_nodes() -> None:
    nodes, cluster = number_tasks(
        [
            ("10.0.0.1", roles("cwep"), (7001, 7002, 7003, 7004)),  # one port to spare
            ("fe80::2", roles("wp"), (9, 8)),
            ("b.net", (), (5,)),
            ("a.net", roles("p"), (7001,)),
        ]
    )
    assert nodes == (
        (Task(0, CHIEF, 0, port=7001), Task(1, WORKER, 0, port=7002), Task(2, EVALUATOR, 0),
         Task(3, PS, 0, port=7003)),
        (Task(0, WORKER, 1, port=9), Task(1, PS, 1, port=8)),
        (),
        (Task(0, PS, 2, port=7001),),
    )  # fmt: skip
    assert cluster == (
        (CHIEF, ("10.0.0.1:7001",)),
        (WORKER, ("10.0.0.1:7002", "[fe80::2]:9")),
        (PS, ("10.0.0.1:7003", "[fe80::2]:8", "a.net:7001")),
    )


def test_a_role_without_a_task_is_no_part_of_the_cluster() -> None:
    assert number_tasks([("h", roles("ew"), (4,))])[1] == ((WORKER, ("h:4",)),)


def test_too_few_ports() -> None:
    with pytest.raises(ValueError, match=r"^b offers 1 ports, but its tasks need 2$"):
        number_tasks([("a", roles("c"), (1,)), ("b", roles("wep"), (2,))])


CLUSTER: Cluster = ((CHIEF, ("a:1",)), (WORKER, ("a:2", "b:1")), (PS, ()))


@pytest.mark.parametrize(
    ("task", "said"),
    [
        (Task(1, WORKER, 1, attempt=3, port=1), {"type": "worker", "index": 1}),
        (Task(2, EVALUATOR, 0), {"type": "evaluator", "index": 0}),
    ],
)
def test_tf_config(task: Task, said: dict[str, object]) -> None:
    assert tf_config(CLUSTER, task) == {
        "cluster": {"chief": ["a:1"], "worker": ["a:2", "b:1"]},
        "task": said,
        "rpc_layer": "grpc",
    }


@given(st.lists(st.lists(st.sampled_from(TaskRole), max_size=5), max_size=5))
def test_every_task_is_found_where_the_cluster_says(members: Sequence[Sequence[TaskRole]]) -> None:
    offers = [
        (f"host{number}", each, tuple(range(100, 100 + ports_needed(each))))
        for number, each in enumerate(members)
    ]
    nodes, cluster = number_tasks(offers)
    serving = dict(cluster)
    assert EVALUATOR not in serving
    assert [[task.role for task in tasks] for tasks in nodes] == [list(each) for each in members]
    for (address, _, ports), tasks in zip(offers, nodes, strict=True):
        assert [task.local_rank for task in tasks] == list(range(len(tasks)))
        assert [task.port for task in tasks if task.port] == list(ports)
        for task in tasks:
            if task.role is EVALUATOR:
                assert task.port == 0
            else:
                assert serving[task.role][task.index] == f"{address}:{task.port}"
    for role, number in count_roles(role for each in members for role in each).items():
        indexes = [task.index for tasks in nodes for task in tasks if task.role is role]
        assert indexes == list(range(number))
        assert role is EVALUATOR or len(serving[role]) == number
