"""A cluster that ElasticJobs share, on a real control plane: real agents in pods that a fake kubelet runs."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec

import pytest

from elasticrun.platforms.kubernetes.names import job_path
from tests.e2e.test_roles_in_pods import counts, job, role
from tests.support.director import Worker
from tests.support.kube import Object
from tests.support.kubernetes import ControlPlane
from tests.support.operated import JOBS, NAMESPACE, Cluster, operated, without_others

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not all(map(find_spec, ("kopf", "kubernetes"))),
        reason="needs kopf and kubernetes: pip install 'elasticrun[kubernetes]'",
    ),
]

CAPACITY = ("--capacity", "cpu=4")


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory, control_plane: ControlPlane) -> Iterator[Cluster]:
    folder = tmp_path_factory.mktemp("cluster")
    with operated(folder, control_plane, ("host-a", "host-b"), CAPACITY) as made:
        yield made


cluster = pytest.fixture(without_others)


def apply(cluster: Cluster, name: str, least: int, most: int, priority: int = 0) -> None:
    """Create a job each of whose pods takes one core."""
    resources = {"requests": {"cpu": 1}}
    cluster.apply(name, least=least, most=most, resources=resources, priority=priority)


def workers_of(cluster: Cluster, name: str) -> list[Worker]:
    """Those that live; none as long as the watch has not told of the job."""
    uids = {it["metadata"]["uid"] for it in cluster.kube.all(JOBS) if it["metadata"]["name"] == name}
    return [it for it in cluster.director.workers if it.env["TORCHELASTIC_RUN_ID"] in uids and not it.gone]


def wait_world(cluster: Cluster, name: str, size: int) -> None:
    """Return once the newest workers of a job are a world of this size."""

    def is_there() -> bool:
        sizes = [it.env["WORLD_SIZE"] for it in workers_of(cluster, name)]
        return sizes == [str(size)] * size

    cluster.director.wait(is_there, f"world of {size} of {name}")


def end(cluster: Cluster, name: str) -> None:
    for worker in workers_of(cluster, name):
        worker.tell("exit 0")
    cluster.wait_phase(name, "Succeeded")


def wait_waiting(cluster: Cluster, name: str, why: str) -> None:
    def status() -> Object:
        return cluster.status(name)

    cluster.kube.wait(lambda: why in status().get("message", ""), f"word that {name} waits: {why}")
    assert status()["phase"] == "Waiting"
    assert not cluster.pods(name)


def test_jobs_come_wait_and_end_and_the_others_shrink_and_grow(cluster: Cluster) -> None:
    apply(cluster, "first", 1, 4)
    wait_world(cluster, "first", 4)
    before = cluster.wait_running("first", 0, 1, 2, 3)
    apply(cluster, "second", 2, 2)
    wait_world(cluster, "second", 2)
    cluster.took("from a second job's YAML to its world")
    after = cluster.wait_running("first", 0, 1)
    assert after == {index: before[index] for index in (0, 1)}
    wait_world(cluster, "first", 2)
    assert any("room is made for a job that starts" in text for text in cluster.told("first"))
    apply(cluster, "third", 3, 3)
    wait_waiting(cluster, "third", "it needs 3000 units, and 1000 can be had; a unit is a thousandth of")
    cluster.operator.kill()
    cluster.operator.wait()
    end_without_operator = workers_of(cluster, "second")
    for worker in end_without_operator:
        worker.tell("exit 0")
    cluster.director.wait(lambda: all(it.gone for it in end_without_operator), "end of the second job")
    cluster.operator = cluster.operate(*CAPACITY, name="its successor")
    cluster.wait_phase("second", "Succeeded")
    wait_world(cluster, "third", 3)
    assert cluster.wait_running("first", 0) == {0: before[0]}
    end(cluster, "third")
    wait_world(cluster, "first", 4)
    assert before[0] in cluster.wait_running("first", 0, 4, 5, 6).values()
    end(cluster, "first")


def test_a_job_of_higher_priority_gets_more_and_two_operators_double_nothing(cluster: Cluster) -> None:
    beside = cluster.operate(*CAPACITY, name="another beside it")
    apply(cluster, "low", 1, 4)
    wait_world(cluster, "low", 4)
    before = cluster.wait_running("low", 0, 1, 2, 3)
    apply(cluster, "high", 2, 4, priority=2)
    wait_world(cluster, "high", 3)
    cluster.took("from the YAML of an urgent job to its world")
    assert cluster.wait_running("low", 0) == {0: before[0]}
    assert cluster.status("high")["fleet"]["nextIndex"] == 3
    assert len([text for text in cluster.told("low") if text.startswith("1 replicas, 4 before")]) == 1
    cluster.change("high", suspend=True)
    cluster.wait_phase("high", "Suspended")
    wait_world(cluster, "low", 4)
    beside.kill()
    beside.wait()


def test_a_job_that_gains_nothing_from_its_last_nodes_gives_them_to_one_that_does(cluster: Cluster) -> None:
    apply(cluster, "flat", 1, 4)
    wait_world(cluster, "flat", 4)
    apply(cluster, "steep", 1, 4)
    wait_world(cluster, "steep", 2)
    before = cluster.wait_running("flat", 0, 1)
    speeds = [{"nodes": nodes, "workers": nodes, "stepRate": 10.0} for nodes in (1, 2)]
    cluster.kube.merge(job_path(NAMESPACE, "flat", "status"), {"status": {"speeds": speeds}})
    cluster.change("flat", batch="Global")
    wait_world(cluster, "steep", 3)
    cluster.took("from what was measured to the world that it leads to")
    assert cluster.wait_running("flat", 0) == {0: before[0]}


def test_a_scale_in_takes_from_the_share_and_a_scale_out_waits_for_it(cluster: Cluster) -> None:
    apply(cluster, "asked", 1, 4)
    apply(cluster, "other", 2, 2)
    cluster.wait_running("other", 0, 1)
    wait_world(cluster, "asked", 2)
    assert cluster.scale("ScaleIn", "less", "asked", count=1).startswith("Succeeded: 1 replicas")
    wait_world(cluster, "asked", 1)
    assert cluster.scale("ScaleOut", "too-many", "asked", count=2, timeoutSeconds=5).startswith("Failed: ")
    end(cluster, "other")
    assert cluster.scale("ScaleOut", "some", "asked", count=2).startswith("Succeeded: 3 replicas")


def test_of_several_roles_one_shrinks_and_a_job_that_waits_has_no_pods_of_any(cluster: Cluster) -> None:
    mixed, pair = [role("steady", 1, 1), role("spot", 1, 3)], [role("one", 1, 1), role("two", 1, 1)]
    for each in (*mixed, *pair):
        each["template"]["spec"]["containers"][0]["resources"]["requests"] = {"cpu": 1}
    cluster.kube.create(JOBS, job("mixed", *mixed))
    wait_world(cluster, "mixed", 4)
    before = cluster.wait_running("mixed", 0, 1, 2, 3)
    apply(cluster, "second", 2, 2)
    wait_world(cluster, "second", 2)
    wait_world(cluster, "mixed", 2)
    after = cluster.wait_running("mixed", 0, 1)
    assert after == {index: before[index] for index in (0, 1)}
    cluster.kube.wait(lambda: counts(cluster, "mixed") == {"steady": (1, 1), "spot": (1, 1)}, "its roles")
    cluster.kube.create(JOBS, job("pair", *pair))
    wait_waiting(cluster, "pair", "it needs 2000 units, and 0 can be had")
    end(cluster, "second")
    wait_world(cluster, "pair", 2)
