"""A real API server takes each manifest whole, and refuses it with a mistake.

It is of 1.20, which cannot refuse fields that it does not know (``fieldValidation`` came with 1.23):
it drops them without a word. So each test compares what comes back with what was sent.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from elasticrun.cli.ctl import group
from elasticrun.platforms.manifests.formats import FORMATS, SBATCH
from tests.support.kubernetes import ControlPlane

#: Where an API server of 1.20 has the kinds of the manifests.
PATHS = {
    "Service": "/api/v1/namespaces/default/services",
    "PodDisruptionBudget": "/apis/policy/v1beta1/namespaces/default/poddisruptionbudgets",
    "batch/v1 Job": "/apis/batch/v1/namespaces/default/jobs",
    "StatefulSet": "/apis/apps/v1/namespaces/default/statefulsets",
    "JobSet": "/apis/jobset.x-k8s.io/v1alpha2/namespaces/default/jobsets",
    "PyTorchJob": "/apis/kubeflow.org/v1/namespaces/default/pytorchjobs",
    "TFJob": "/apis/kubeflow.org/v1/namespaces/default/tfjobs",
    "TrainJob": "/apis/trainer.kubeflow.org/v1alpha1/namespaces/default/trainjobs",
    "batch.volcano.sh/v1alpha1 Job": "/apis/batch.volcano.sh/v1alpha1/namespaces/default/jobs",
}
#: What is younger than 1.20, by API. The schema of JobSet has all of a Job's.
YOUNGER = {
    "policy/v1": {"spec.unhealthyPodEvictionPolicy"},
    "batch/v1": {
        f"spec.{name}"
        for name in ("completionMode", "backoffLimitPerIndex", "podFailurePolicy", "successPolicy", "suspend")
    },
}
WORDS = (
    *("--image", "registry.example/team/digits:1", "--nnodes", "3:5", "--nproc-per-node", "2"),
    *("--max-restarts", "3", "--shutdown-timeout", "20", "--state-storage", "/data/state"),
    *("--cpu", "4", "--memory", "16Gi", "--gpu", "2", "--shm", "2Gi", "--spot"),
    *("--service-account", "trainer", "--pull-secret", "registry", "--volume", "data:/data"),
    *("--env", "NCCL_DEBUG=INFO", "--node-selector", "pool=gpu"),
)
SCRIPT = ("examples/torch/digits.py", "--steps", "$(STEPS)")
KUBERNETES = [form for form in FORMATS if form is not SBATCH]
QUEUE, PODS = ("--queue", "team"), ("--priority-class", "low", "--restricted")
MORE: dict[str, tuple[str, ...]] = {form.name: PODS for form in KUBERNETES if form.name != "trainjob"}
MORE |= dict.fromkeys(("kueue", "volcano", "pytorchjob"), (*QUEUE, *PODS))

#: A field of the last document of each format, and a value that is none.
MISTAKES = {
    "job": ("spec.parallelism", -1),
    "jobset": ("spec.replicatedJobs.0.replicas", "one"),
    "statefulset": ("spec.podManagementPolicy", "Together"),
    "pytorchjob": ("spec.elasticPolicy.minReplicas", "two"),
    "trainjob": ("spec.trainer.numNodes", "many"),
    "volcano": ("spec.tasks.0.minAvailable", "few"),
    "kueue": ("spec.completions", -1),
    "tfjob": ("spec.tfReplicaSpecs.Worker.replicas", "two"),
}


def documents(name: str, *words: str) -> list[dict[str, Any]]:
    line = ["manifest", "--format", name, *MORE.get(name, ()), *WORDS, *words, *SCRIPT]
    result = CliRunner().invoke(group, line)
    assert result.exit_code == 0, result.output
    return list(yaml.safe_load_all(result.output))


def dry_run(control_plane: ControlPlane, document: dict[str, Any]) -> tuple[int, Any]:
    if document["kind"] == "PodDisruptionBudget":
        document = {**document, "apiVersion": "policy/v1beta1"}
    where = PATHS.get(document["kind"]) or PATHS[f"{document['apiVersion']} {document['kind']}"]
    return control_plane.ask("POST", f"{where}?dryRun=All", document)


def lost(sent: Any, got: Any, path: str = "") -> Iterator[str]:
    """The fields of what was sent that did not come back as they were."""
    if isinstance(sent, dict) and isinstance(got, dict):
        for key, value in sent.items():
            here = f"{path}.{key}".lstrip(".")
            if key not in got:
                yield here
            else:
                yield from lost(value, got[key], here)
    elif isinstance(sent, list) and isinstance(got, list) and len(sent) == len(got):
        for number, (one, other) in enumerate(zip(sent, got, strict=True)):
            yield from lost(one, other, f"{path}.{number}")
    elif sent != got:
        yield path


@pytest.mark.parametrize("name", [form.name for form in KUBERNETES])
def test_a_manifest_is_taken_whole(control_plane: ControlPlane, name: str) -> None:
    for document in documents(name):
        status, answer = dry_run(control_plane, document)
        assert status == 201, answer
        younger = YOUNGER.get(document.pop("apiVersion"), set())
        assert set(lost(document, answer)) <= younger, document["kind"]


def test_roles_of_tensorflow_are_taken_whole(control_plane: ControlPlane) -> None:
    line = ["manifest", "--format", "tfjob", "--image", "r/x", "--role-counts", "chief=1,worker=3,ps=2"]
    result = CliRunner().invoke(group, [*line, "examples/tensorflow/wide_deep_ps.py"])
    document = list(yaml.safe_load_all(result.output))[-1]
    status, answer = dry_run(control_plane, document)
    assert status == 201, answer
    assert list(lost(document, answer)) == []
    assert set(document["spec"]["tfReplicaSpecs"]) == {"Chief", "Worker", "PS"}


@pytest.mark.parametrize("name", [form.name for form in KUBERNETES])
def test_a_mistake_is_refused_by_name(control_plane: ControlPlane, name: str) -> None:
    document = documents(name)[-1]
    path, value = MISTAKES[name]
    *way, last = path.split(".")
    place: Any = document
    for step in way:
        place = place[int(step)] if isinstance(place, list) else place[step]
    place[last] = value
    status, answer = dry_run(control_plane, document)
    assert status in (400, 422), answer
    assert last in answer["message"], answer["message"]


@pytest.mark.parametrize("name", [form.name for form in KUBERNETES])
def test_a_misspelt_field_does_not_come_back(control_plane: ControlPlane, name: str) -> None:
    document = copy.deepcopy(documents(name)[-1])
    document["spec"]["minAvailabel"] = 2
    _, answer = dry_run(control_plane, document)
    younger = YOUNGER.get(document.pop("apiVersion"), set())
    assert set(lost(document, answer)) - younger == {"spec.minAvailabel"}


def test_a_pod_disruption_budget_with_a_mistake_is_refused(control_plane: ControlPlane) -> None:
    budget = next(it for it in documents("job") if it["kind"] == "PodDisruptionBudget")
    budget["spec"]["minAvailable"] = -1
    status, answer = dry_run(control_plane, budget)
    assert status == 422
    assert "minAvailable" in answer["message"]
