"""Manifests for the operators of Kubeflow and for Volcano.

The operators of PyTorchJob and TFJob make a Service for each pod, which names ready pods only. So their pods
have no startup probe: with one, a pod would be missing in DNS until its agent answers.
"""

from __future__ import annotations

from typing import Any

from elasticrun.errors import ExitCode
from elasticrun.platforms.manifests.batch import NODE
from elasticrun.platforms.manifests.exits import AWAY, GIVE_UP, KILLED, NODE_FAULTS, RETRYING
from elasticrun.platforms.manifests.pods import (
    Manifest,
    disruption_budget,
    environment,
    escaped,
    labels,
    metadata,
    mounts,
    placement,
    pod_template,
    resources,
    volumes,
)
from elasticrun.platforms.manifests.workload import PORT, Workload

#: Set by the operator of PyTorchJob, as PET_ variables made of the elasticPolicy.
_BY_ELASTIC_POLICY = frozenset(
    {"--nnodes", "--nproc-per-node", "--max-restarts", "--rdzv-id", "--rdzv-conf", "--rdzv-endpoint"}
)
_MANAGER = "elasticrun.io/elastic-ctl"


def pytorchjob(workload: Workload) -> list[Manifest]:
    """A PyTorchJob with an elasticPolicy, from which its operator makes PET_ variables.

    Of several hosts of the endpoint the operator knows nothing, so these are on the command line, which wins.
    """
    low, high = workload.nodes
    endpoint = workload.endpoint(f"{workload.name}-worker-{{}}")
    without = _BY_ELASTIC_POLICY - ({"--rdzv-endpoint"} if "," in endpoint else frozenset())
    argv = workload.argv(endpoint, without)
    elastic: Manifest = {
        "minReplicas": low,
        "maxReplicas": high,
        "maxRestarts": workload.max_restarts,
        "rdzvBackend": "c10d",
        "rdzvHost": f"{workload.name}-worker-0",
        "rdzvPort": PORT,
        "rdzvId": workload.name,
        "rdzvConf": [{"key": key, "value": value} for key, value in workload.conf],
    }
    template = pod_template(workload, argv, "pytorch", RETRYING, restart=None, startup=False)
    spec: Manifest = {
        "runPolicy": _run_policy(workload),
        "nprocPerNode": workload.workers,
        "elasticPolicy": elastic,
        "pytorchReplicaSpecs": {
            "Worker": {"replicas": high, "restartPolicy": "ExitCode", "template": template}
        },
    }
    return _kubeflow(workload, "PyTorchJob", spec)


def tfjob(workload: Workload) -> list[Manifest]:
    """A TFJob, each of whose pods is a node of a TensorFlow job; without roles all are mirrored workers."""
    roles = workload.roles or (("worker", workload.nodes[1]),)
    first = next((role for role, _ in roles if role == "chief"), roles[0][0])
    one_host = f"{workload.name}-{first}-0:{PORT}"
    replicas = {}
    for role, count in roles:
        argv = workload.argv(one_host)
        more = ["--tf-role", role] if workload.roles else ["--framework", "tensorflow"]
        template = pod_template(
            workload, [argv[0], *more, *argv[1:]], "tensorflow", RETRYING, restart=None, startup=False
        )
        kind = "PS" if role == "ps" else role.capitalize()
        replicas[kind] = {"replicas": count, "restartPolicy": "ExitCode", "template": template}
    spec = {"runPolicy": _run_policy(workload), "enableDynamicWorker": True, "tfReplicaSpecs": replicas}
    return _kubeflow(workload, "TFJob", spec)


def _run_policy(workload: Workload) -> Manifest:
    gang: Manifest = {"minAvailable": workload.nodes[0]}
    if workload.queue:
        gang["queue"] = workload.queue
    if workload.priority_class:
        gang["priorityClass"] = workload.priority_class
    found: Manifest = {
        "cleanPodPolicy": "Running",
        "backoffLimit": NODE_FAULTS * workload.nodes[1],
        "schedulingPolicy": gang,
    }
    if workload.time_limit:
        found["activeDeadlineSeconds"] = workload.time_limit
    return found


def _kubeflow(workload: Workload, kind: str, spec: Manifest) -> list[Manifest]:
    made = {"apiVersion": "kubeflow.org/v1", "kind": kind, "metadata": metadata(workload), "spec": spec}
    return [*disruption_budget(workload), made]


def trainjob(workload: Workload) -> list[Manifest]:
    """A TrainJob of Trainer v2, which has a fixed number of nodes: MAX are asked for, MIN are enough to run.

    Its API has no place for probes and ports.
    """
    endpoint = workload.endpoint(f"{workload.name}-{NODE}-0-{{}}.{workload.name}")
    container = {"name": NODE, "volumeMounts": mounts(workload)}
    pod = {**placement(workload), "containers": [container], "volumes": volumes(workload)}
    patch = {"metadata": {"labels": labels(workload)}, "spec": pod}
    child = {"name": NODE, "template": {"spec": {"template": patch}}}
    asked = resources(workload)
    spec: Manifest = {
        "runtimeRef": {"name": workload.runtime},
        "trainer": {
            "image": workload.image,
            "command": [escaped(word) for word in workload.argv(endpoint)],
            "numNodes": workload.nodes[1],
            **({"resourcesPerNode": asked["resources"]} if asked else {}),
            "env": environment(workload),
        },
        "runtimePatches": [
            {
                "manager": _MANAGER,
                "trainingRuntimeSpec": {"template": {"spec": {"replicatedJobs": [child]}}},
            }
        ],
    }
    if workload.workers.isdecimal():
        spec["trainer"]["numProcPerNode"] = int(workload.workers)
    if workload.time_limit:
        spec["activeDeadlineSeconds"] = workload.time_limit
    kind = {"apiVersion": "trainer.kubeflow.org/v1alpha1", "kind": "TrainJob"}
    return [*disruption_budget(workload), {**kind, "metadata": metadata(workload), "spec": spec}]


def volcano(workload: Workload) -> list[Manifest]:
    """A Job of Volcano, whose pod group needs MIN nodes. Its svc plugin makes the Service."""
    low, high = workload.nodes
    endpoint = workload.endpoint(f"{workload.name}-{NODE}-{{}}.{workload.name}")
    task: Manifest = {
        "name": NODE,
        "replicas": high,
        "minAvailable": low,
        "policies": _volcano_policies(),
        "template": pod_template(workload, workload.argv(endpoint)),
    }
    spec: Manifest = {
        "schedulerName": "volcano",
        "minAvailable": low,
        "minSuccess": low,
        "maxRetry": NODE_FAULTS,
        "plugins": {"svc": ["--publish-not-ready-addresses=true", "--disable-network-policy=true"]},
        "tasks": [task],
    }
    if workload.queue:
        spec["queue"] = workload.queue
    if workload.priority_class:
        spec["priorityClassName"] = workload.priority_class
    kind = {"apiVersion": "batch.volcano.sh/v1alpha1", "kind": "Job"}
    return [*disruption_budget(workload), {**kind, "metadata": metadata(workload), "spec": spec}]


def _volcano_policies() -> list[dict[str, Any]]:
    """What each exit code leads to. ``AWAY`` leads to nothing: that pod stays as it is."""
    over = [{"exitCode": int(code), "action": "TerminateJob"} for code in GIVE_UP]
    faults = [int(code) for code in ExitCode if code not in (ExitCode.OK, *GIVE_UP, *AWAY)]
    again = [{"exitCode": code, "action": "RestartPod"} for code in (*faults, *KILLED)]
    return [*over, *again, {"event": "PodEvicted", "action": "RestartPod"}]
