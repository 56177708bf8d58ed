"""ElasticJobs with several roles on a real control plane: a pod is a node of its role, as is its successor.

No TensorFlow here: the tasks only say what they are told, and serve nothing.
"""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest
import yaml

import elasticrun
from elasticrun.platforms.kubernetes.names import ROLE_LABEL
from elasticrun.platforms.kubernetes.specs import wish_of
from tests.support.director import WORKER, Worker
from tests.support.kube import Object, Refused
from tests.support.kubernetes import ControlPlane
from tests.support.operated import JOB, JOBS, NAMESPACE, Cluster, operated, without_others

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not all(map(find_spec, ("kopf", "kubernetes"))),
        reason="needs kopf and kubernetes: pip install 'elasticrun[kubernetes]'",
    ),
]


def role(name: str, least: int, most: int, memory: str = "64Mi", **more: object) -> Object:
    text = JOB.format(name=name, least=least, most=most, python=sys.executable, script=WORKER)
    found: Object = yaml.safe_load(text)["spec"]["roles"][0]
    container = found["template"]["spec"]["containers"][0]
    container["command"] = [sys.executable, "-m", "elasticrun", "--max-restarts=9", str(WORKER)]
    container["resources"]["limits"]["memory"] = memory
    return {"name": name, **found, **more}


def job(name: str, *roles: Object) -> Object:
    return {
        "apiVersion": "elasticrun.io/v1alpha1",
        "kind": "ElasticJob",
        "metadata": {"name": name},
        "spec": {"roles": list(roles)},
    }


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory, control_plane: ControlPlane) -> Iterator[Cluster]:
    folder = tmp_path_factory.mktemp("cluster")
    with operated(folder, control_plane, ("host-a", "host-b")) as made:
        yield made


cluster = pytest.fixture(without_others)


def served(folder: Path, *roles: Object) -> tuple[Object, ...]:
    """The roles of a job of TensorFlow, which is looked for, and not imported."""
    (folder / "tensorflow.py").touch()
    for each in roles:
        container = each["template"]["spec"]["containers"][0]
        container["command"].insert(3, "--tf-servers=script")
        container["env"] = [{"name": "PYTHONPATH", "value": str(folder)}]
    return roles


def live_roles(cluster: Cluster, name: str) -> dict[int, str]:
    """The roles of the pods that run, by index."""
    pods = cluster.pods(name)
    return {index: pods[index]["metadata"]["labels"][ROLE_LABEL] for index in cluster.running(name)}


def memory(cluster: Cluster, name: str, index: int) -> str:
    limits = cluster.pods(name)[index]["spec"]["containers"][0]["resources"]["limits"]
    return str(limits["memory"])


def tasks(workers: list[Worker]) -> list[tuple[str, int]]:
    return sorted(worker.task for worker in workers)


def counts(cluster: Cluster, name: str) -> dict[str, tuple[int, int]]:
    """Running and wanted pods by role, as the status says."""
    found = cluster.status(name).get("roles") or []
    return {each["name"]: (each["running"], each["wanted"]) for each in found}


def sizing(cluster: Cluster, name: str, role: str) -> Object:
    """What new pods of a role request by what earlier ones used."""
    found: list[Object] = cluster.status(name).get("roles") or []
    return next((it.get("sizing", {}) for it in found if it["name"] == role), {})


def test_tasks_of_tensorflow_keep_their_roles(cluster: Cluster, tmp_path: Path) -> None:
    name, kube, director = "served", cluster.kube, cluster.director
    roles = role("chief", 1, 1), role("ps", 2, 2, "128Mi"), role("worker", 1, 3, replicas=2)
    kube.create(JOBS, job(name, *served(tmp_path, *roles, role("evaluator", 0, 1))))
    cluster.began = time.monotonic()
    wanted = [("chief", 0), ("evaluator", 0), ("ps", 0), ("ps", 1), ("worker", 0), ("worker", 1)]
    assert tasks(director.world(6)) == wanted
    cluster.took("from kubectl apply to a cluster of six tasks")
    begun = cluster.wait_running(name, *range(6))
    of_pods = {0: "chief", 1: "ps", 2: "ps", 3: "worker", 4: "worker", 5: "evaluator"}
    assert live_roles(cluster, name) == of_pods
    kube.wait(lambda: counts(cluster, name).get("worker") == (2, 2), "the roles in the status")
    assert counts(cluster, name) == {"chief": (1, 1), "ps": (2, 2), "worker": (2, 2), "evaluator": (1, 1)}

    last = director.last_round
    cluster.delete_pod(name, 2)
    assert tasks(director.world(6, after=last)) == wanted
    cluster.took("from the deletion of a ps to six tasks again")
    after = cluster.wait_running(name, 0, 1, 3, 4, 5, 6)
    assert live_roles(cluster, name)[6] == "ps"
    assert {index: after[index] for index in (0, 1, 3, 4, 5)} == {i: begun[i] for i in (0, 1, 3, 4, 5)}

    last = director.last_round
    cluster.kubelet.oom(f"{name}-6")
    assert tasks(director.world(6, after=last)) == wanted
    cluster.wait_running(name, 0, 1, 3, 4, 5, 7)
    assert (live_roles(cluster, name)[7], memory(cluster, name, 7)) == ("ps", "256Mi")

    several = "Failed: the job has several roles: name one of chief, ps, worker, evaluator"
    assert cluster.scale("ScaleOut", "nameless", name, count=1) == several
    unknown = "Failed: the job has no role wroker: name one of chief, ps, worker, evaluator"
    assert cluster.scale("ScaleOut", "misnamed", name, role="wroker", count=1) == unknown
    last = director.last_round
    more = cluster.scale("ScaleOut", "more", name, role="worker", count=1)
    assert more == "Succeeded: 3 replicas of worker, as was asked for"
    assert tasks(director.world(7, after=last)) == sorted([*wanted, ("worker", 2)])
    cluster.wait_running(name, 0, 1, 3, 4, 5, 7, 8)
    assert (live_roles(cluster, name)[8], memory(cluster, name, 8)) == ("worker", "64Mi")

    chief = next(it for it in director.of_round(director.last_round) if it.task == ("chief", 0))
    for worker in director.of_round(director.last_round):
        if worker.task == ("evaluator", 0):
            worker.tell("exit 0")
    chief.tell("exit 0")
    cluster.wait_phase(name, "Succeeded")


def test_nodes_of_different_templates_make_one_world(cluster: Cluster) -> None:
    name, director = "mixed", cluster.director
    spot = role("spot", 0, 2, "32Mi")
    spot["template"]["spec"]["containers"][0]["command"].insert(3, "--nproc-per-node=2")
    steady = role("steady", 1, 1)
    del steady["template"]["spec"]["containers"][0]["resources"]
    cluster.kube.create(JOBS, job(name, steady, spot))
    workers = director.world(5)
    assert sorted(worker.env["ROLE_NAME"] for worker in workers) == ["spot"] * 4 + ["steady"]
    cluster.wait_running(name, 0, 1, 2)
    cluster.kube.wait(lambda: "memory" in sizing(cluster, name, "steady"), "what steady pods used")
    assert "memory" not in sizing(cluster, name, "spot")  # which have a limit
    last = director.last_round
    assert cluster.scale("ScaleIn", "fewer", name, role="spot", count=2).startswith("Succeeded")
    director.world(1, after=last)
    cluster.wait_running(name, 0)
    director.order("exit 0")
    cluster.wait_phase(name, "Succeeded")


def test_the_yaml_of_the_manual_is_taken(cluster: Cluster) -> None:
    page = (Path(elasticrun.__file__).parent / "manual" / "operator.md").read_text()
    blocks = re.findall(r"^```yaml\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    found = [it for block in blocks for it in yaml.safe_load_all(block)]
    jobs = [it for it in found if it["kind"] == "ElasticJob"]
    wishes = [wish_of(cluster.kube.create(f"{JOBS}?dryRun=All", each)) for each in jobs]
    assert [(it.shape.min_replicas, it.shape.max_replicas, len(it.roles)) for it in wishes] == [
        (2, 4, 0),
        (5, 7, 3),
    ]
    (deployment,) = (it for it in found if it["kind"] == "Deployment")
    cluster.kube.create(f"/apis/apps/v1/namespaces/{NAMESPACE}/deployments?dryRun=All", deployment)


def test_roles_that_make_no_sense_are_refused(cluster: Cluster) -> None:
    twice = job("twice", role("worker", 1, 1), role("worker", 1, 1))
    with pytest.raises(Refused, match="Duplicate value"):
        cluster.kube.create(f"{JOBS}?dryRun=All", twice)
    with pytest.raises(Refused, match="have at most 8 items"):
        cluster.kube.create(f"{JOBS}?dryRun=All", job("many", *(role(f"r{i}", 1, 1) for i in range(9))))
    cluster.kube.create(JOBS, job("headless", role("ps", 1, 1), role("worker", 1, 1)))
    cluster.kube.wait(lambda: cluster.status("headless").get("message"), "message")
    assert "lacks the chief that a ps serves" in cluster.status("headless")["message"]
    assert not cluster.pods("headless")
