"""Manifests for a plain cluster, for Kueue and for JobSet: indexed Jobs, and a StatefulSet.

An indexed Job starts MAX pods, and has succeeded with pod 0: it hosts the master and is a member of each
world, so its launcher ends with 0 only if the job does. Pods that were never needed are stopped then.
"""

from __future__ import annotations

from collections.abc import Iterable

from elasticrun.platforms.manifests.exits import AWAY, GIVE_UP, NODE_FAULTS, SIGTERM_STATUS, STAYING, WAIT
from elasticrun.platforms.manifests.pods import (
    Manifest,
    disruption_budget,
    headless_service,
    labels,
    metadata,
    pod_template,
)
from elasticrun.platforms.manifests.workload import Workload

QUEUE_LABEL = "kueue.x-k8s.io/queue-name"
_MIN_PARALLELISM = "kueue.x-k8s.io/job-min-parallelism"
_EQUAL = "kueue.x-k8s.io/job-completions-equal-parallelism"
#: The name of the one group of nodes in a JobSet, and of the runtime of a TrainJob.
NODE = "node"

# The minor version of Kubernetes from which a field is on by default.
_FAILURE_POLICY, _PER_INDEX, _SUCCESS_POLICY = 26, 29, 31


def job(workload: Workload) -> list[Manifest]:
    """An indexed Job, with the Service that names its pods."""
    return [headless_service(workload), *disruption_budget(workload), _job(workload)]


def kueue(workload: Workload) -> list[Manifest]:
    """The same for a queue of Kueue, which admits the job with any number of nodes from MIN to MAX."""
    made = _job(workload)
    low, high = workload.nodes
    made["metadata"]["labels"][QUEUE_LABEL] = workload.queue
    if low < high:
        made["metadata"]["annotations"] = {_MIN_PARALLELISM: str(low), _EQUAL: "true"}
    made["spec"] = {"suspend": True} | made["spec"]
    return [headless_service(workload), *disruption_budget(workload), made]


def _job(workload: Workload) -> Manifest:
    endpoint = workload.endpoint(f"{workload.name}-{{}}.{workload.name}")
    spec = _job_spec(workload, endpoint, workload.name)
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": metadata(workload), "spec": spec}


def _job_spec(workload: Workload, endpoint: str, subdomain: str) -> Manifest:
    high = workload.nodes[1]
    spec: Manifest = {"completionMode": "Indexed", "parallelism": high, "completions": high}
    if workload.minor >= _PER_INDEX:
        spec["backoffLimitPerIndex"] = NODE_FAULTS
    else:
        spec["backoffLimit"] = NODE_FAULTS * high
    if workload.time_limit:
        spec["activeDeadlineSeconds"] = workload.time_limit
    if workload.minor >= _FAILURE_POLICY:
        spec["podFailurePolicy"] = {"rules": _failure_rules(workload)}
    if workload.minor >= _SUCCESS_POLICY:
        spec["successPolicy"] = {"rules": [{"succeededIndexes": "0"}]}
    spec["template"] = pod_template(workload, workload.argv(endpoint), subdomain=subdomain)
    return spec


def _failure_rules(workload: Workload) -> list[Manifest]:
    """The first rule that fits counts; what fits none is a fault of the node, which has a limit."""
    taken = [{"type": "DisruptionTarget", "status": "True"}]
    rules: list[Manifest] = [{"action": "Ignore", "onPodConditions": taken}]
    rules.append(_on_exit("FailJob", GIVE_UP))
    if workload.minor >= _PER_INDEX:
        rules.append(_on_exit("FailIndex", AWAY))
    rules.append(_on_exit("Ignore", (*WAIT, SIGTERM_STATUS)))
    return rules


def _on_exit(action: str, codes: Iterable[int]) -> Manifest:
    values = sorted(int(code) for code in codes)
    return {"action": action, "onExitCodes": {"operator": "In", "values": values}}


def jobset(workload: Workload) -> list[Manifest]:
    """A JobSet of one indexed Job. It makes the Service by itself."""
    endpoint = workload.endpoint(f"{workload.name}-{NODE}-0-{{}}.{workload.name}")
    child = {
        "name": NODE,
        "replicas": 1,
        "template": {
            "metadata": {"labels": labels(workload)},
            "spec": _job_spec(workload, endpoint, subdomain=""),
        },
    }
    spec: Manifest = {
        "network": {
            "enableDNSHostnames": True,
            "publishNotReadyAddresses": True,
            "subdomain": workload.name,
        },
        "successPolicy": {"operator": "All", "targetReplicatedJobs": [NODE]},
        "failurePolicy": {"maxRestarts": 0},
        "replicatedJobs": [child],
    }
    kind = {"apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet"}
    return [*disruption_budget(workload), {**kind, "metadata": metadata(workload), "spec": spec}]


def statefulset(workload: Workload) -> list[Manifest]:
    """A StatefulSet: for clusters in which nothing else may be made. It starts all that ends again.

    So the last lines of shell in each pod keep it once the job is over, whatever its end. Nothing would
    answer a probe then, and the pod would be started again, so there is none.
    """
    endpoint = workload.endpoint(f"{workload.name}-{{}}.{workload.name}")
    argv = workload.argv(endpoint)
    template = pod_template(workload, argv, before=STAYING, restart="Always")
    for probe in ("startupProbe", "livenessProbe"):
        del template["spec"]["containers"][0][probe]
    spec: Manifest = {
        "serviceName": workload.name,
        "replicas": workload.nodes[1],
        "podManagementPolicy": "Parallel",
        "selector": {"matchLabels": labels(workload)},
        "template": template,
    }
    kind = {"apiVersion": "apps/v1", "kind": "StatefulSet"}
    made = {**kind, "metadata": metadata(workload), "spec": spec}
    return [headless_service(workload), *disruption_budget(workload), made]
