"""What is read from objects of the API server, and what is written: values only."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elasticrun.core.fleet.decide import decide
from elasticrun.core.fleet.replicas import (
    Amounts,
    Cause,
    CleanPolicy,
    Live,
    Operation,
    Phase,
    Record,
    Result,
    ScalePhase,
    Scaling,
    Seen,
    Shape,
    Start,
    Verdict,
    Wish,
)
from elasticrun.core.fleet.sizing import DEFAULT_CAPS
from elasticrun.platforms.kubernetes.crd import rbac
from elasticrun.platforms.kubernetes.names import SIZED, endpoints
from elasticrun.platforms.kubernetes.output import installation
from elasticrun.platforms.kubernetes.pods import pod_of, secret_of, service_of
from elasticrun.platforms.kubernetes.quantity import cpu_of, memory_of, to_quantity
from elasticrun.platforms.kubernetes.sights import operation_of, seen_of
from elasticrun.platforms.kubernetes.specs import SpecError, wish_of
from elasticrun.platforms.kubernetes.statuses import invalid_status, record_of, status_of

UID = "8d5b1234-77"
SHAPE = Shape(2, 4, 2)


def job(**role: Any) -> dict[str, Any]:
    container = {"name": "main", "image": "x", "resources": {"limits": {"memory": "1Gi", "cpu": 2}}}
    template = {"metadata": {"labels": {"team": "a"}}, "spec": {"containers": [container]}}
    whole = {"minReplicas": 2, "maxReplicas": 4, "template": template, **role}
    metadata = {"name": "digits", "namespace": "default", "uid": UID, "generation": 3}
    return {"metadata": metadata, "spec": {"roles": [whole]}}


def pod(state: dict[str, Any] | None = None, phase: str = "Running", **status: Any) -> dict[str, Any]:
    shown = {"name": "main", "state": {"running": {}} if state is None else state}
    side = {"name": "proxy", "state": {"terminated": {"exitCode": 9}}}
    return {
        "metadata": {
            "name": "digits-3",
            "labels": {"elasticrun.io/index": "3", "elasticrun.io/slot": "1"},
            "ownerReferences": [{"uid": UID, "controller": True}],
        },
        "spec": {
            "nodeName": "host",
            "containers": [{"name": "main", "resources": {"limits": {"memory": "2Gi"}}}, {"name": "proxy"}],
        },
        "status": {"phase": phase, "containerStatuses": [side, shown], **status},
    }


def seen(found: dict[str, Any]) -> Seen:
    (only,) = seen_of([found], "digits", UID)
    return only


# -- jobs


def test_a_wish() -> None:
    assert wish_of(job()) == Wish(Shape(2, 4, 2), 4, memory=1 << 30)
    many = job(minReplicas=5, maxReplicas=9, replicas=6, restartLimit=1, maxMemory="16Gi")
    many["spec"]["roles"][0]["template"]["spec"]["terminationGracePeriodSeconds"] = 90
    many["spec"] |= {"suspend": True, "cleanPodPolicy": "All"}
    assert wish_of(many) == Wish(Shape(5, 9, 3), 6, True, 1, 1 << 30, 16 << 30, CleanPolicy.ALL, 90)


@pytest.mark.parametrize(
    ("role", "named"),
    [
        ({"minReplicas": 5}, "more than maxReplicas"),
        ({"replicas": 1}, "not within 2 and 4"),
        ({"replicas": "x"}, "no number"),
        ({"replicas": True}, "no number"),
        ({"template": {}}, "no container"),
        ({"maxMemory": "much"}, "no amount of memory"),
        ({"template": {"spec": {"containers": [{"resources": {"limits": {"memory": "?"}}}]}}}, "no amount"),
    ],
)
def test_a_job_that_makes_no_sense(role: dict[str, Any], named: str) -> None:
    with pytest.raises(SpecError, match=named):
        wish_of(job(**role))


def test_a_job_has_one_role() -> None:
    with pytest.raises(SpecError, match="one role"):
        wish_of({"spec": {"roles": []}})


def test_a_template_is_not_nested_absurdly_deep() -> None:
    deep: list[Any] = []
    for _ in range(5000):
        deep = [deep]
    given = job()
    given["spec"]["roles"][0]["template"]["spec"]["containers"][0]["x"] = deep
    with pytest.raises(SpecError, match="nested more than 100"):
        wish_of(given)


def test_no_job_has_absurdly_many_pods() -> None:
    with pytest.raises(SpecError, match="more than 10000"):
        wish_of(job(maxReplicas=1 << 30))


# -- pods


def test_a_running_pod() -> None:
    assert seen(pod()) == Seen(3, Phase.RUNNING, 1, host="host", memory=2 << 30)


def test_a_copy_of_a_pod_is_not_the_pod() -> None:
    copy = pod({"terminated": {"exitCode": 0}})
    copy["metadata"]["name"] = "debug-3"
    assert seen_of([pod(), copy], "digits", UID) == seen_of([pod()], "digits", UID)


def test_pods_of_others_are_not_seen() -> None:
    assert seen_of([pod()], "digits", "another") == ()
    for label in ("", "-1", "x", "9" * 30):
        strange = pod()
        strange["metadata"]["labels"]["elasticrun.io/index"] = label
        assert seen_of([strange], "digits", UID) == ()
    assert seen_of([{}, {"metadata": {"ownerReferences": [7]}}], "digits", UID) == ()


@pytest.mark.parametrize(
    ("found", "phase", "code", "cause"),
    [
        (pod({"terminated": {"exitCode": 0, "reason": "Completed"}}), Phase.ENDED, 0, Cause.EXITED),
        (
            pod({"terminated": {"exitCode": 137, "reason": "OOMKilled"}}),
            Phase.ENDED,
            137,
            Cause.OUT_OF_MEMORY,
        ),
        (pod({"terminated": {"exitCode": 13}}, "Failed"), Phase.ENDED, 13, Cause.EXITED),
        (pod({"terminated": {"exitCode": 3, "reason": "OOMKilled"}}), Phase.ENDED, 3, Cause.EXITED),
        (pod({}, "Failed", reason="Evicted"), Phase.ENDED, None, Cause.EVICTED),
        (pod({}, "Failed", reason="OutOfcpu"), Phase.ENDED, None, Cause.NOT_STARTED),
        (pod({}, "Succeeded"), Phase.ENDED, None, Cause.EXITED),
        (pod(reason="NodeLost"), Phase.RUNNING, None, Cause.HOST_LOST),
        (
            pod({"terminated": {"exitCode": 143}}, "Failed", reason="Terminated"),
            Phase.ENDED,
            143,
            Cause.PREEMPTED,
        ),
        (
            pod(
                conditions=[{"type": "DisruptionTarget", "status": "True", "reason": "PreemptionByScheduler"}]
            ),
            Phase.RUNNING,
            None,
            Cause.PREEMPTED,
        ),
    ],
)
def test_causes(found: dict[str, Any], phase: Phase, code: int | None, cause: Cause) -> None:
    it = seen(found)
    assert (it.phase, it.exit_code, it.cause) == (phase, code, cause)


def test_a_pod_that_is_being_deleted() -> None:
    leaving = pod()
    leaving["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:30Z"
    assert (seen(leaving).leaves_by, seen(leaving).cause) == (1767225630.0, Cause.DELETED)
    leaving["metadata"]["deletionTimestamp"] = "soon"
    assert seen(leaving).is_leaving


@pytest.mark.parametrize(
    ("found", "trouble"),
    [
        (pod({"waiting": {"reason": "ContainerCreating"}}, "Pending"), ""),
        (
            pod({"waiting": {"reason": "ErrImagePull", "message": "no\nsuch"}}, "Pending"),
            "ErrImagePull: no?such",
        ),
        (pod({"waiting": {"reason": "InvalidImageName"}}, "Pending"), "InvalidImageName: no more is known"),
        (
            pod(
                {},
                "Pending",
                conditions=[
                    {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/3"}
                ],
            ),
            "Unschedulable: 0/3",
        ),
        (
            pod(
                {},
                "Pending",
                conditions=[
                    {
                        "type": "PodScheduled",
                        "status": "False",
                        "reason": "Unschedulable",
                        "message": "0/1 nodes are available: 1 Insufficient cpu.",
                    }
                ],
            ),
            "Unschedulable: 0/1 nodes are available: 1 Insufficient cpu.",
        ),
    ],
)
def test_troubles(found: dict[str, Any], trouble: str) -> None:
    assert (seen(found).phase, seen(found).trouble) == (Phase.PENDING, trouble)
    assert not seen(found).is_homeless
    found["metadata"]["annotations"] = {SIZED: "true"}
    assert seen(found).is_homeless == ("Insufficient cpu" in trouble)


def test_memory_that_makes_no_sense_is_not_known() -> None:
    found = pod()
    found["spec"]["containers"][0]["resources"]["limits"]["memory"] = "much"
    assert seen(found).memory == 0


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                (
                    "metadata",
                    "spec",
                    "status",
                    "labels",
                    "containers",
                    "state",
                    "terminated",
                    "roles",
                    "fleet",
                )
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


@given(st.dictionaries(st.sampled_from(("metadata", "spec", "status")), ANYTHING))
def test_nothing_that_is_read_raises(found: dict[str, Any]) -> None:
    found.setdefault("metadata", {})
    seen_of([found], "", "")
    if isinstance(found["metadata"], dict):
        found["metadata"]["ownerReferences"] = [{"uid": UID, "controller": True}]
        found["metadata"]["labels"] = {"elasticrun.io/index": "3"}
    seen_of([found], "digits", UID)
    status = found.get("status")
    record_of(status if isinstance(status, dict) else {})
    with contextlib.suppress(SpecError):
        wish_of(found)


# -- what is created


def test_a_pod_is_the_template_and_what_elastic_run_needs() -> None:
    found = pod_of(job(), Start(7, 1, 0, (), SHAPE))
    assert found["metadata"]["name"] == "digits-7"
    assert found["metadata"]["labels"] == {
        "team": "a",
        "elasticrun.io/job": "digits",
        "elasticrun.io/job-uid": UID,
        "elasticrun.io/index": "7",
        "elasticrun.io/slot": "1",
    }
    assert found["metadata"]["ownerReferences"][0]["uid"] == UID
    spec = found["spec"]
    assert (spec["hostname"], spec["subdomain"], spec["restartPolicy"]) == (
        "digits-m1",
        "digits-8d5b1234",
        "Never",
    )
    variables = {it["name"]: it.get("value") for it in spec["containers"][0]["env"]}
    assert variables["PET_NNODES"] == "2:4"
    named = "digits-m0.digits-8d5b1234:29400,digits-m1.digits-8d5b1234:29400"
    assert variables["PET_RDZV_ENDPOINT"] == named == endpoints("digits", UID, 2)
    assert "affinity" not in spec
    assert spec["containers"][0]["resources"] == {"limits": {"memory": "1Gi", "cpu": 2}}


@pytest.mark.parametrize(
    ("container", "grace"),
    [
        ({}, 45),
        ({"command": ["elastic-run", "train.py"], "args": None, "env": [{"name": "A"}]}, 45),
        ({"command": ["elastic-run", "--state-storage=/data/run", "train.py"]}, 105),
        ({"command": ["elastic-run"], "args": ["--state_storage", "/data/run", "train.py"]}, 105),
        ({"command": ["sh", "-c", "exec elastic-run --state-storage /data/run train.py"]}, 105),
        ({"env": [{"name": "PET_STATE_STORAGE", "value": "/data/run"}]}, 105),
    ],
)
def test_a_pod_has_the_time_that_its_last_state_needs(container: dict[str, Any], grace: int) -> None:
    given = job()
    given["spec"]["roles"][0]["template"]["spec"]["containers"][0].update(container)
    assert wish_of(given).grace == grace
    assert pod_of(given, Start(7, -1, 0, (), SHAPE))["spec"]["terminationGracePeriodSeconds"] == grace


def test_a_pod_with_more_memory_elsewhere() -> None:
    given = job()
    term = {"matchExpressions": [{"key": "gpu", "operator": "Exists"}]}
    spec = given["spec"]["roles"][0]["template"]["spec"]
    key = "requiredDuringSchedulingIgnoredDuringExecution"
    spec["affinity"] = {"nodeAffinity": {key: {"nodeSelectorTerms": [term, {}]}}}
    spec["containers"][0]["env"] = [{"name": "PET_NNODES", "value": "9"}]
    spec["terminationGracePeriodSeconds"] = 5
    found = pod_of(given, Start(7, -1, 3 << 30, ("a", "b"), SHAPE))["spec"]
    limits = found["containers"][0]["resources"]
    assert limits == {"limits": {"memory": "3072Mi", "cpu": 2}, "requests": {"memory": "3072Mi"}}
    terms = found["affinity"]["nodeAffinity"][key]["nodeSelectorTerms"]
    avoided = [{"key": "metadata.name", "operator": "NotIn", "values": [host]} for host in ("a", "b")]
    assert terms == [{**term, "matchFields": avoided}, {"matchFields": avoided}]
    assert "hostname" not in found
    assert found["terminationGracePeriodSeconds"] == 5
    assert [it["value"] for it in found["containers"][0]["env"] if it["name"] == "PET_NNODES"] == ["9"]
    assert spec["containers"][0]["resources"] == {"limits": {"memory": "1Gi", "cpu": 2}}  # as it was
    plain = pod_of(job(), Start(7, -1, 0, ("a",), SHAPE))["spec"]
    assert plain["affinity"]["nodeAffinity"][key] == {"nodeSelectorTerms": [{"matchFields": avoided[:1]}]}


def test_what_is_left_empty_in_a_template_is_filled() -> None:
    given = job()
    template = given["spec"]["roles"][0]["template"]
    template["metadata"] = {"labels": None, "annotations": None}
    template["spec"]["affinity"] = None
    template["spec"]["containers"][0] |= {"env": None, "resources": None}
    spec = pod_of(given, Start(7, -1, 1 << 30, ("a",), SHAPE))["spec"]
    assert spec["containers"][0]["resources"]["limits"] == {"memory": "1024Mi"}
    assert spec["affinity"]["nodeAffinity"]


def test_a_service_publishes_names_before_anything_is_ready() -> None:
    spec = service_of(job())["spec"]
    assert spec["selector"] == {"elasticrun.io/job-uid": UID}  # not the pods of an earlier job of this name
    assert (spec["clusterIP"], spec["publishNotReadyAddresses"]) == ("None", True)
    assert secret_of(job(), "abc")["stringData"] == {"token": "abc"}


def test_the_operator_may_read_secrets_by_name_only_and_not_change_jobs() -> None:
    _, role, _ = rbac("a")
    verbs = {
        (resource, verb) for rule in role["rules"] for resource in rule["resources"] for verb in rule["verbs"]
    }
    assert {verb for resource, verb in verbs if resource == "secrets"} == {"create", "get"}
    assert {verb for resource, verb in verbs if resource in ("elasticjobs", "scaleouts", "scaleins")} == {
        "get",
        "list",
        "watch",
    }
    assert not any(verb == "*" or resource == "*" for resource, verb in verbs)
    text = installation(True, True, ("a", "b", "a"))
    assert text.count("\nkind: Role\n") == 2
    assert "&id" not in text
    assert text.startswith("---\napiVersion: apiextensions.k8s.io/v1")


@pytest.mark.parametrize(
    ("namespaces", "home", "places"),
    [(("a", "b", "a"), "a", ["a", "b"]), ((), "default", [None])],
)
def test_one_account_has_rights_in_each_namespace(
    namespaces: tuple[str, ...], home: str, places: list[str | None]
) -> None:
    account, *rest = rbac(*namespaces)
    assert account["metadata"] == {"name": "elasticrun-operator", "namespace": home}
    assert [it["metadata"].get("namespace") for it in rest] == [it for it in places for _ in range(2)]
    for role, binding in zip(rest[::2], rest[1::2], strict=True):
        assert binding["subjects"] == [{"kind": "ServiceAccount", **account["metadata"]}]
        assert binding["roleRef"]["kind"] == role["kind"] == ("Role" if places[0] else "ClusterRole")


# -- status


RECORD = Record(
    base=3,
    offset=-1,
    scaling=Scaling("k", 2, False, 0, 1600.0),
    results=(Result("j", ScalePhase.FAILED, "no"),),
    next_index=5,
    shape=SHAPE,
    live=(Live(2, 0, True), Live(4)),
    failures=2,
    streak=1,
    failed_at=1000.0,
    memory=1 << 31,
    avoided=("a", "b"),
    halted="enough",
    verdict=Verdict.AGAIN,
    why="too few",
    since=900.0,
)


def test_a_record_comes_back_as_it_was_kept() -> None:
    for record in (Record(), RECORD):
        decision = replace(decide(Wish(Shape(2, 4), 3), (), Record(), 0.0), record=record)
        status = status_of(decision, 1, {}, 0.0)
        assert record_of(status) == record


@pytest.mark.parametrize(
    "key", ["nextIndex", "shape", "live", "results", "base", "failures", "verdict", "since"]
)
@pytest.mark.parametrize("value", ["x", -1, [{}], [{"index": 9, "slot": 0, "seen": True}]])
def test_a_record_that_makes_no_sense_is_none(key: str, value: object) -> None:
    decision = replace(decide(Wish(Shape(2, 4), 3), (), Record(), 0.0), record=RECORD)
    status = status_of(decision, 1, {}, 0.0)
    status["fleet"][key] = value
    if (key, value) != ("since", -1):
        assert record_of(status) == Record()


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("shape", [1, 1 << 30, 1]),
        ("shape", [4, 2, 1]),
        ("shape", [2, 4, 3]),
        ("memory", float("inf")),
    ],
)
def test_a_record_that_is_absurd_is_none(key: str, value: object) -> None:
    decision = replace(decide(Wish(Shape(2, 4), 3), (), Record(), 0.0), record=RECORD)
    status = status_of(decision, 1, {}, 0.0)
    status["fleet"][key] = value
    assert record_of(status) == Record()


def test_a_condition_keeps_the_moment_of_its_last_change() -> None:
    wish = Wish(Shape(2, 4), 3)
    first = status_of(decide(wish, (), Record(), 0.0), 1, {}, 0.0)
    later = status_of(decide(wish, (), Record(), 0.0, "no quota"), 1, first, 60.0)
    moments = {it["type"]: it["lastTransitionTime"][14:19] for it in later["conditions"]}
    assert moments == {
        "Available": "00:00",
        "Hindered": "01:00",
        "Suspended": "00:00",
        "Complete": "00:00",
        "Failed": "00:00",
    }
    assert later["message"] == "no quota"


def test_an_invalid_job_keeps_its_other_conditions() -> None:
    wish = Wish(Shape(2, 4), 3)
    first = status_of(decide(wish, (), Record(), 0.0), 1, {}, 0.0)
    later = invalid_status("min above max", 2, first, 60.0)
    assert "fleet" not in later
    assert [it["type"] for it in later["conditions"]] == [
        "Available",
        "Suspended",
        "Complete",
        "Failed",
        "Hindered",
    ]
    assert invalid_status("x", 2, {}, 60.0)["conditions"][0]["reason"] == "Invalid"


# -- operations


def asked(kind: str, **spec: Any) -> Operation | None:
    return operation_of({"metadata": {"uid": "k"}, "spec": {"jobName": "digits", **spec}}, kind)


def test_operations() -> None:
    assert asked("ScaleOut", count=2, timeoutSeconds=60) == Operation("k", 2, (), 60.0)
    assert asked("ScaleOut", count=2, podNames=["digits-1"]) == Operation("k", 2)
    assert asked("ScaleIn", count=1) == Operation("k", -1)
    assert asked("ScaleIn", count=1, podNames=["digits-3", "digits-x", "other-1"]) == Operation(
        "k", 0, (3, -1, -1)
    )
    assert asked("ScaleIn", count=1, podNames=7) == Operation("k", -1)
    for phase in ("Succeeded", "Failed"):
        assert operation_of({"metadata": {"uid": "k"}, "status": {"phase": phase}}, "ScaleIn") is None
    assert operation_of({}, "ScaleIn") is None


# -- quantities


@pytest.mark.parametrize(
    ("text", "amount"),
    [
        ("1Gi", 1 << 30),
        ("0.5Gi", 1 << 29),
        ("500M", 500_000_000),
        ("128974848", 128974848),
        (1000, 1000),
        ("1e3", 1000),
        ("1500m", 2),
        ("2E", None),
    ],
)
def test_amounts_of_memory(text: object, amount: int | None) -> None:
    if amount is None:
        with pytest.raises(ValueError, match="too much"):
            memory_of(text)
    else:
        assert memory_of(text) == amount


@pytest.mark.parametrize("text", ["", "1Xi", "Gi", "-1", "1ee3", "1 Gi", None])
def test_what_is_no_amount_of_memory(text: object) -> None:
    with pytest.raises(ValueError, match="no amount"):
        memory_of(text)


def test_amounts_are_written_so_that_they_can_be_read() -> None:
    assert to_quantity(3 << 30) == "3072Mi"
    assert memory_of(to_quantity(12345)) == 12345


# -- what is measured


def unsized(resources: dict[str, Any] | None = None, **role: Any) -> dict[str, Any]:
    found = job(**role)
    container = found["spec"]["roles"][0]["template"]["spec"]["containers"][0]
    container["resources"] = resources
    return found


@pytest.mark.parametrize(
    ("resources", "role", "caps"),
    [
        (None, {}, DEFAULT_CAPS),
        ({}, {"maxMemory": "8Gi", "maxCpu": "2500m"}, Amounts(8 << 30, 2500)),
        ({"requests": {"memory": "1Gi"}}, {"maxCpu": 2}, Amounts(0, 2000)),
        ({"limits": {"cpu": 1}}, {}, Amounts(64 << 30)),
        ({"limits": {"cpu": 1}, "requests": {"memory": 1}}, {}, Amounts()),
    ],
)
def test_what_the_template_says_is_not_measured(
    resources: dict[str, Any] | None, role: dict[str, Any], caps: Amounts
) -> None:
    assert wish_of(unsized(resources, **role)).caps == caps


def test_what_the_template_says_of_the_whole_pod_is_not_measured_either() -> None:
    found = unsized(maxMemory="8Gi")
    found["spec"]["roles"][0]["template"]["spec"]["resources"] = {"limits": {"cpu": 2}}
    assert wish_of(found).caps == Amounts(8 << 30, 0)


def test_a_cap_that_is_no_amount_is_told() -> None:
    with pytest.raises(SpecError, match="'much' is no amount of CPU"):
        wish_of(unsized(maxCpu="much"))


@pytest.mark.parametrize(
    ("text", "amount"), [("2", 2000), (1.5, 1500), ("500m", 500), ("0.0001", 1), ("1e1", 10_000)]
)
def test_amounts_of_cpu(text: object, amount: int) -> None:
    assert cpu_of(text) == amount


@pytest.mark.parametrize(
    ("resources", "memory", "requests"),
    [
        (None, 0, {"memory": "1536Mi", "cpu": "1100m"}),
        ({"requests": None, "limits": {"gpu": 1}}, 0, {"memory": "1536Mi", "cpu": "1100m"}),
        ({"requests": {"cpu": 1}}, 0, {"memory": "1536Mi", "cpu": 1}),
        ({"limits": {"cpu": 1}}, 0, {"memory": "1536Mi"}),
        (None, 1 << 30, {"memory": "1024Mi", "cpu": "1100m"}),
    ],
)
def test_a_pod_requests_what_was_measured_where_nothing_is_said(
    resources: dict[str, Any] | None, memory: int, requests: dict[str, Any]
) -> None:
    start = Start(5, -1, memory, (), SHAPE, Amounts(1536 << 20, 1100))
    container = pod_of(unsized(resources), start)["spec"]["containers"][0]
    assert container["resources"]["requests"] == requests
    assert pod_of(unsized(resources), start)["metadata"]["annotations"] == {SIZED: "true"}
    limits = {**((resources or {}).get("limits") or {}), **({"memory": "1024Mi"} if memory else {})}
    assert (container["resources"].get("limits") or {}) == limits


def test_without_a_measure_a_pod_requests_nothing() -> None:
    container = pod_of(unsized(), Start(5, -1, 0, (), SHAPE))["spec"]["containers"][0]
    assert not container["resources"]


def test_the_status_says_what_was_chosen_and_from_what() -> None:
    decision = decide(wish_of(unsized()), (), Record(), 0.0)
    assert status_of(decision, 1, {}, 0.0)["sizing"] is None
    record = replace(decision.record, requests=Amounts(1536 << 20, 1100), peak=Amounts(1 << 30, 800))
    status = status_of(replace(decision, record=record), 1, {}, 0.0)
    assert status["sizing"] == {
        "memory": "1536Mi",
        "cpu": "1100m",
        "peakMemory": "1024Mi",
        "peakCpu": "800m",
        "withdrawn": None,
    }
    assert record_of(status) == record
    only = replace(record, requests=Amounts(0, 1100))
    shown = status_of(replace(decision, record=only), 1, {}, 0.0)["sizing"]
    assert shown == {"memory": None, "cpu": "1100m", "peakMemory": None, "peakCpu": "800m", "withdrawn": None}
    withdrawn = replace(record, requests=Amounts(), unsized="no host")
    status = status_of(replace(decision, record=withdrawn), 1, {}, 0.0)
    assert status["sizing"]["withdrawn"] == "no host"
    assert record_of(status) == withdrawn


def test_a_record_of_an_earlier_version_has_no_measures() -> None:
    status = status_of(decide(wish_of(unsized()), (), Record(), 0.0), 1, {}, 0.0)
    before = record_of(status)
    del status["fleet"]["requests"], status["fleet"]["peak"]
    assert record_of(status) == before
    status["fleet"]["peak"] = [1 << 80, -1]
    assert record_of(status).peak == Amounts(1 << 60, 0)
    status["fleet"]["peak"] = [1, 2, 3]
    assert record_of(status) == Record()
