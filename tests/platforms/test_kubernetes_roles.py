"""Jobs with several roles, as objects of the API server say it: values only."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from elasticrun.core.fleet.decide import decide
from elasticrun.core.fleet.replicas import (
    Amounts,
    Bounds,
    Live,
    Record,
    Role,
    Scaling,
    Shape,
    Start,
    Tally,
    Wish,
)
from elasticrun.core.fleet.training import Shown, Speed
from elasticrun.platforms.kubernetes.pods import pod_of
from elasticrun.platforms.kubernetes.sights import operation_of, seen_of
from elasticrun.platforms.kubernetes.specs import SpecError, wish_of
from elasticrun.platforms.kubernetes.statuses import record_of, status_of

UID = "8d5b1234-77"


def role(name: str, least: int, most: int, memory: str = "1Gi", **more: Any) -> dict[str, Any]:
    resources = {"limits": {"memory": memory, "cpu": 2}}
    container = {"name": "main", "image": name, "resources": resources}
    template = {"spec": {"containers": [container]}}
    return {"name": name, "minReplicas": least, "maxReplicas": most, "template": template, **more}


def job(*roles: dict[str, Any]) -> dict[str, Any]:
    metadata = {"name": "wide", "namespace": "default", "uid": UID, "generation": 3}
    return {"metadata": metadata, "spec": {"roles": list(roles)}}


SERVED = (
    role("chief", 1, 1),
    role("ps", 2, 2, "4Gi", maxMemory="16Gi", restartLimit=20),
    role("worker", 0, 4, replicas=3),
)
SHAPE = Shape(3, 7, 3, (Bounds("chief", 1, 1), Bounds("ps", 2, 2), Bounds("worker", 0, 4)))
GI = 1 << 30


def test_a_wish_for_several_roles() -> None:
    served = (*SERVED[:2], role("worker", 1, 4, replicas=3))
    served[1]["template"]["spec"]["terminationGracePeriodSeconds"] = 90
    bounds = (*SHAPE.roles[:2], Bounds("worker", 1, 4))
    roles = Role("chief", 1, 10, GI), Role("ps", 2, 20, 4 * GI, 16 * GI), Role("worker", 3, 10, GI)
    assert wish_of(job(*served)) == Wish(Shape(4, 7, 3, bounds), 6, max_failures=20, grace=90, roles=roles)


def test_a_role_after_the_first_may_have_no_pods() -> None:
    wish = wish_of(job(role("steady", 1, 1), role("spot", 0, 6, replicas=0)))
    assert (wish.shape.min_replicas, wish.shape.slots, wish.wanted) == (1, 1, 1)


@pytest.mark.parametrize(
    ("roles", "named"),
    [
        ([role("a", 1, 1), role("a", 1, 1)], "same name: a, a"),
        ([role(f"r{number}", 1, 1) for number in range(9)], "has 9 roles; give one role, or up to 8"),
        ([role("a", 0, 1), role("b", 1, 1)], "minReplicas of the first role is 0"),
        ([role("a", 1, 9000), role("b", 1, 9000)], "of all roles is 18000, which is more than 10000"),
        ([role("a", 1, 1), role("B!", 1, 1)], "'B!' is no name of a role"),
        ([role("a", 1, 1), role("b" * 64, 1, 1)], "no name of a role"),
        ([role("a", 1, 1), role("b", 3, 2)], "role b: minReplicas is 3, which is more than maxReplicas, 2"),
        ([role("chief", 1, 1), role("spot", 1, 1)], "role spot is none of TensorFlow, but others are"),
        (
            [role("chief", 1, 2), role("worker", 1, 1)],
            "with maxReplicas the roles make .*: chief=2",
        ),
        ([role("chief", 1, 1), role("ps", 1, 1)], "lacks the worker that a ps serves"),
        (SERVED, "with minReplicas the roles make no TensorFlow cluster"),
    ],
)
def test_roles_that_make_no_sense(roles: list[dict[str, Any]], named: str) -> None:
    with pytest.raises(SpecError, match=named):
        wish_of(job(*roles))


def variables(pod: dict[str, Any]) -> dict[str, str]:
    return {it["name"]: it.get("value", "") for it in pod["spec"]["containers"][0]["env"]}


def test_a_pod_is_a_node_of_its_role_from_its_own_template() -> None:
    pod = pod_of(job(*SERVED), Start(7, 1, 8 * GI, (), SHAPE, role="ps"))
    container = pod["spec"]["containers"][0]
    assert (pod["metadata"]["name"], pod["metadata"]["labels"]["elasticrun.io/role"]) == ("wide-7", "ps")
    assert (container["image"], container["resources"]["limits"]["memory"]) == ("ps", "8192Mi")
    found = variables(pod)
    assert (found["PET_TF_ROLE"], found["PET_NNODES"]) == ("ps", "3:7")
    assert found["PET_RDZV_ENDPOINT"].count("wide-m") == 3
    (seen,) = seen_of([pod], "wide", UID)
    assert (seen.index, seen.role, seen.slot) == (7, "ps", 1)


def test_roles_of_other_names_are_none_of_tensorflow() -> None:
    shape = Shape(2, 2, 2, (Bounds("worker", 1, 1), Bounds("spot", 1, 1)))
    mixed = job(role("worker", 1, 1), role("spot", 1, 1))
    found = variables(pod_of(mixed, Start(1, -1, 0, (), shape, role="spot")))
    assert found["PET_ROLE"] == "spot" and "PET_TF_ROLE" not in found


def test_what_the_template_says_of_its_role_wins() -> None:
    given = job(*SERVED)
    container = given["spec"]["roles"][2]["template"]["spec"]["containers"][0]
    container["env"] = [{"name": "PET_TF_ROLE", "value": "evaluator"}]
    found = variables(pod_of(given, Start(7, -1, 0, (), SHAPE, role="worker")))
    assert found["PET_TF_ROLE"] == "evaluator"


@pytest.mark.parametrize(
    ("name", "roles", "text"),
    [("gone", SERVED, "there is no role gone any more"), ("", SERVED, "there are several roles now")],
)
def test_a_pod_of_a_role_that_is_gone_is_not_started(name: str, roles: tuple[Any, ...], text: str) -> None:
    with pytest.raises(SpecError, match=f"{text}: suspend and resume the job"):
        pod_of(job(*roles), Start(7, -1, 0, (), SHAPE, role=name))


# -- the record

RECORD = Record(
    next_index=5,
    shape=SHAPE,
    live=(Live(2, 0, True, "chief"), Live(4, role="worker")),
    scaling=Scaling("k", 2, False, 0, 1600.0, "worker"),
    tallies=(
        Tally("ps", 2, 1, 1000.0, 3, 900.0, 8 * GI, "enough", 2, 0, Amounts(GI, 100), Amounts(2, 1), "no"),
        Tally("worker", base=3, offset=-1),
    ),
)


def kept(record: Record) -> dict[str, Any]:
    decision = replace(decide(Wish(Shape(2, 4), 3), (), Record(), 0.0), record=record)
    return status_of(decision, 1, {}, 0.0)


def test_a_record_of_several_roles_comes_back_as_it_was_kept() -> None:
    assert record_of(kept(RECORD)) == RECORD


BAD_SHAPES = [
    [3, 7, 3, ["chief", 1, 1]],  # is not the sum
    [3, 7, 3, ["a", 1, 1], ["a", 2, 6]],
    [3, 7, 3, ["", 3, 7]],
    [3, 7, 3, ["a", 3, 2], ["b", 0, 5]],
    [9, 9, 3, *([f"r{number}", 1, 1] for number in range(9))],
    [3, 7, 3, ["a", -1, 1], ["b", 4, 6]],
    [3, 7, 3, "ab"],
]


@pytest.mark.parametrize(
    ("key", "value"),
    [
        *(("shape", shape) for shape in BAD_SHAPES),
        ("roles", [{"name": "ps"}]),
        ("roles", 7),
        ("roles", kept(RECORD)["fleet"]["roles"] * 2),
        ("roles", [{**kept(RECORD)["fleet"]["roles"][0], "name": f"r{number}"} for number in range(9)]),
        ("scaling", ["k", 2, False, 0, 1600.0, "worker", "x"]),
    ],
)
def test_a_record_whose_roles_make_no_sense_is_none(key: str, value: object) -> None:
    status = kept(RECORD)
    status["fleet"][key] = value
    assert record_of(status) == Record()


def test_a_record_of_an_earlier_version_has_one_role() -> None:
    status = kept(Record(next_index=1, live=(Live(0, 0, True),), scaling=Scaling("k", 2, True, 0, 9.0)))
    status["fleet"]["scaling"].pop()
    del status["fleet"]["roles"]
    record = record_of(status)
    assert (record.live[0].role, record.scaling, record.tallies) == (
        "",
        Scaling("k", 2, True, 0, 9.0),
        (),
    )


def test_the_status_shows_each_of_several_roles() -> None:
    record = Record(tallies=(Tally("ps", failures=3, base=2),))
    shown = status_of(decide(wish_of(job(*served())), (), record, 0.0), 1, {}, 0.0)["roles"]
    assert shown == [
        {"name": "chief", "running": 0, "wanted": 1, "failures": 0},
        {"name": "ps", "running": 0, "wanted": 2, "failures": 3},
        {"name": "worker", "running": 0, "wanted": 3, "failures": 0},
    ]
    assert status_of(decide(Wish(Shape(1, 1), 1), (), Record(), 0.0), 1, {}, 0.0)["roles"] is None


def test_the_speed_of_a_job_with_several_roles_is_not_kept() -> None:
    shown = Shown(None, None, Speed(2, 8, 1.5))
    several = decide(wish_of(job(*served())), (), Record(), 0.0)
    assert "speeds" not in status_of(several, 1, {}, 0.0, shown)
    one = decide(Wish(Shape(1, 1), 1), (), Record(), 0.0)
    assert status_of(one, 1, {}, 0.0, shown)["speeds"]


def served() -> tuple[dict[str, Any], ...]:
    return *SERVED[:2], role("worker", 1, 4, replicas=3)


@pytest.mark.parametrize(
    ("given", "read"), [("ps", "ps"), (None, ""), (7, "7"), ("x" * 900, "x" * 64), ("a\nb", "a?b")]
)
def test_an_operation_names_a_role(given: object, read: str) -> None:
    spec = {"jobName": "wide", "count": 1, "role": given}
    operation = operation_of({"metadata": {"uid": "k"}, "spec": spec}, "ScaleOut")
    assert operation is not None and operation.role == read


def test_the_status_shows_what_each_role_requests() -> None:
    sized = Tally("ps", base=2, requests=Amounts(2 * GI, 0), peak=Amounts(GI, 0))
    withdrawn = Tally("worker", base=3, unsized="refused")
    record = Record(tallies=(sized, withdrawn))
    shown = status_of(decide(wish_of(job(*served())), (), record, 0.0), 1, {}, 0.0)
    assert [it.get("sizing") for it in shown["roles"]] == [None, None, {"withdrawn": "refused"}]
    unlimited = served()[1]
    del unlimited["template"]["spec"]["containers"][0]["resources"]
    free = job(SERVED[0], unlimited, role("worker", 1, 4, replicas=3))
    shown = status_of(decide(wish_of(free), (), record, 0.0), 1, {}, 0.0)
    assert shown["roles"][1]["sizing"] == {"memory": "2048Mi", "peakMemory": "1024Mi"}
    assert shown["sizing"] is None
