"""The parts that manifests of Kubernetes share: pods, the Service that names them, the disruption budget.

Probes ask the agent whether its own loop turns, and nothing else: they succeed while the master is away and
while workers restart. There is no readiness probe, as nodes have to find one another before any is ready.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from elasticrun.platforms.manifests.workload import PORT, Workload

Manifest = dict[str, Any]

HEALTH_PORT = 8081
TOKEN_FOLDER = "/var/run/secrets/elasticrun"
TEMPORARY = "/tmp"

#: Taints of nodes that may be taken away, as the large clouds set or advise them.
_SPOT = (
    ("cloud.google.com/gke-spot", "true"),
    ("cloud.google.com/gke-preemptible", "true"),
    ("kubernetes.azure.com/scalesetpriority", "spot"),
    ("eks.amazonaws.com/capacityType", "SPOT"),
    ("karpenter.sh/capacity-type", "spot"),
)


def labels(workload: Workload) -> dict[str, str]:
    """What all objects of a job are labelled with, and selected by."""
    return {"app.kubernetes.io/name": "elasticrun", "app.kubernetes.io/instance": workload.name}


def metadata(workload: Workload, **more: Any) -> Manifest:
    """Name, namespace and labels of an object; labels among ``more`` are added."""
    found: Manifest = {"name": workload.name}
    if workload.namespace:
        found["namespace"] = workload.namespace
    found["labels"] = labels(workload) | more.pop("labels", {})
    return found | more


def headless_service(workload: Workload) -> Manifest:
    """Gives each pod a name in DNS from the moment that it has an address, ready or not."""
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": metadata(workload),
        "spec": {
            "clusterIP": "None",
            "publishNotReadyAddresses": True,
            "selector": labels(workload),
            "ports": [{"name": "endpoint", "port": PORT}],
        },
    }


def disruption_budget(workload: Workload) -> list[Manifest]:
    """Lets drains of the cluster take nodes down to MIN; of a job of fixed size, one at a time.

    A job of one node has none: nothing but its end would let the drain go on.
    """
    low, high = workload.nodes
    least = low if low < high else low - 1
    if least < 1:
        return []
    spec: Manifest = {"minAvailable": least, "selector": {"matchLabels": labels(workload)}}
    if workload.minor >= 27:
        spec["unhealthyPodEvictionPolicy"] = "AlwaysAllow"
    kind = {"apiVersion": "policy/v1", "kind": "PodDisruptionBudget"}
    return [{**kind, "metadata": metadata(workload), "spec": spec}]


def pod_template(
    workload: Workload,
    argv: Sequence[str],
    container: str = "elasticrun",
    before: Sequence[str] = (),
    restart: str | None = "Never",
    startup: bool = True,
    subdomain: str = "",
) -> Manifest:
    """The template of a pod, one node of the job.

    ``before``: the words of a program that runs ``argv``. ``restart``: None where the platform sets it.
    ``startup``: whether there is a startup probe; it keeps a pod out of a Service that names ready pods only.
    """
    spec: Manifest = {"restartPolicy": restart} if restart is not None else {}
    if subdomain:
        spec["subdomain"] = subdomain
    spec |= placement(workload)
    spec["automountServiceAccountToken"] = bool(workload.service_account)
    spec["securityContext"] = {"seccompProfile": {"type": "RuntimeDefault"}}
    may: Manifest = {"allowPrivilegeEscalation": False}
    if workload.is_restricted:
        spec["securityContext"]["runAsNonRoot"] = True
        may |= {"capabilities": {"drop": ["ALL"]}, "readOnlyRootFilesystem": True}
    if workload.priority_class:
        spec["priorityClassName"] = workload.priority_class
    spec["containers"] = [
        {
            "name": container,
            "image": workload.image,
            "command": [escaped(word) for word in (*before, *argv)],
            "env": environment(workload),
            "ports": [{"name": "health", "containerPort": HEALTH_PORT}],
            **resources(workload),
            **_probes(startup),
            "securityContext": may,
            "volumeMounts": mounts(workload),
        }
    ]
    spec["volumes"] = volumes(workload)
    return {"metadata": {"labels": labels(workload)}, "spec": spec}


def placement(workload: Workload) -> Manifest:
    """Where a pod may run, as whom, and how long it may take to stop."""
    spec: Manifest = {"terminationGracePeriodSeconds": workload.grace}
    if workload.service_account:
        spec["serviceAccountName"] = workload.service_account
    if workload.pull_secret:
        spec["imagePullSecrets"] = [{"name": workload.pull_secret}]
    if workload.node_selector:
        spec["nodeSelector"] = dict(workload.node_selector)
    if found := _tolerations(workload):
        spec["tolerations"] = found
    return spec


def _tolerations(workload: Workload) -> list[Manifest]:
    found: list[Manifest] = []
    resource, count = workload.gpu
    if count:
        found.append({"key": resource, "operator": "Exists", "effect": "NoSchedule"})
    if workload.is_spot:
        found += [{"key": k, "operator": "Equal", "value": v, "effect": "NoSchedule"} for k, v in _SPOT]
    return found


def environment(workload: Workload) -> list[Manifest]:
    """The variables of a container."""
    ours = [("TORCHELASTIC_HEALTH_CHECK_PORT", str(HEALTH_PORT))]
    if workload.is_restricted and not any(name == "HOME" for name, _ in workload.env):
        ours.append(("HOME", TEMPORARY))  # a user without a name has none, and libraries write there
    return [{"name": name, "value": escaped(value)} for name, value in (*ours, *workload.env)]


def resources(workload: Workload) -> Manifest:
    """What a container asks for. Memory and devices are bounded by the same; cores may be more than asked."""
    bounded: dict[str, Any] = {"memory": workload.memory} if workload.memory else {}
    resource, count = workload.gpu
    if count:
        bounded[resource] = str(count)
    asked = ({"cpu": workload.cpu} if workload.cpu else {}) | bounded
    found: Mapping[str, Any] = {"requests": asked, "limits": bounded}
    found = {name: part for name, part in found.items() if part}
    return {"resources": found} if found else {}


def _probes(startup: bool) -> Manifest:
    ask = {"httpGet": {"path": "/healthz", "port": HEALTH_PORT}, "timeoutSeconds": 10}
    alive: Manifest = {"livenessProbe": {**ask, "periodSeconds": 30, "failureThreshold": 10}}
    if not startup:
        alive["livenessProbe"]["initialDelaySeconds"] = 300
        return alive
    return {"startupProbe": {**ask, "periodSeconds": 10, "failureThreshold": 60}} | alive


def volumes(workload: Workload) -> list[Manifest]:
    """Shared memory, a place to write where the rest is read-only, the token, and the claims of the user."""
    memory = {"medium": "Memory"} | ({"sizeLimit": workload.shm} if workload.shm else {})
    found: list[Manifest] = [{"name": "shm", "emptyDir": memory}]
    if _needs_temporary(workload):
        found.append({"name": "tmp", "emptyDir": {}})
    if workload.token_secret:
        found.append({"name": "token", "secret": {"secretName": workload.token_secret}})
    for number, (claim, _) in enumerate(workload.volumes):
        found.append({"name": f"volume-{number}", "persistentVolumeClaim": {"claimName": claim}})
    return found


def mounts(workload: Workload) -> list[Manifest]:
    """Where the volumes are in a container."""
    found: list[Manifest] = [{"name": "shm", "mountPath": "/dev/shm"}]
    if _needs_temporary(workload):
        found.append({"name": "tmp", "mountPath": TEMPORARY})
    if workload.token_secret:
        found.append({"name": "token", "mountPath": TOKEN_FOLDER, "readOnly": True})
    for number, (_, path) in enumerate(workload.volumes):
        found.append({"name": f"volume-{number}", "mountPath": path})
    return found


def _needs_temporary(workload: Workload) -> bool:
    """Whether there would be no place to write to."""
    return workload.is_restricted and not any(path == TEMPORARY for _, path in workload.volumes)


def escaped(word: str) -> str:
    """A word that Kubernetes hands on as it is: it fills in ``$(NAME)``, and makes ``$`` of ``$$``."""
    return re.sub(r"\$\$+|\$(?=\()", lambda found: 2 * found[0], word)
