"""The objects that the operator creates for a job: its pods, the Service for their names, the token.

The template of the job is taken as it is. Added are only a name, labels, the variables that elastic-run reads
as its options, and what a decision asks for: more memory, other hosts. What the template says itself wins.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

from elasticrun.core.fleet.replicas import Amounts, Start
from elasticrun.platforms.kubernetes.names import (
    API_VERSION,
    INDEX_LABEL,
    JOB_LABEL,
    KIND,
    PORT,
    ROLE_LABEL,
    SIZED,
    SLOT_LABEL,
    UID_LABEL,
    endpoints,
    pod_name,
    secret_name,
    service_name,
    slot_host,
)
from elasticrun.platforms.kubernetes.quantity import to_quantity
from elasticrun.platforms.kubernetes.specs import grace_of, is_tensorflow, role_of

#: Seconds that a node without running workers waits for the replacement of the master's pod.
_MASTER_TIMEOUT = 600


def pod_of(job: Mapping[str, Any], start: Start) -> dict[str, Any]:
    """The pod of one replica."""
    name, uid = job["metadata"]["name"], job["metadata"]["uid"]
    template = copy.deepcopy(role_of(job, start.role)["template"])
    given = template.get("metadata") or {}
    labels = {JOB_LABEL: name, UID_LABEL: uid, INDEX_LABEL: str(start.index)}
    if start.role:
        labels[ROLE_LABEL] = start.role
    spec = template["spec"]
    if start.slot >= 0:
        labels[SLOT_LABEL] = str(start.slot)
        spec["hostname"] = slot_host(name, start.slot)
    spec["subdomain"] = service_name(name, uid)
    spec["restartPolicy"] = "Never"
    container = spec["containers"][0]
    spec.setdefault("terminationGracePeriodSeconds", grace_of(container))
    _set_variables(container, name, uid, start)
    container.setdefault("terminationMessagePolicy", "FallbackToLogsOnError")
    if start.memory:
        _raise_memory(container, start.memory)
    annotations = dict(given.get("annotations") or {})
    if _request(container, start.requests):
        annotations[SIZED] = "true"
    if start.avoided:
        _avoid(spec, start.avoided)
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": pod_name(name, start.index),
            "labels": {**(given.get("labels") or {}), **labels},
            "annotations": annotations,
            "ownerReferences": [owner(job)],
        },
        "spec": spec,
    }


def owner(job: Mapping[str, Any]) -> dict[str, Any]:
    """The reference by which the cluster removes an object together with its job."""
    metadata = job["metadata"]
    return {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "name": metadata["name"],
        "uid": metadata["uid"],
        "controller": True,
    }


def service_of(job: Mapping[str, Any]) -> dict[str, Any]:
    """The Service that gives slots their names, before anything is ready: a master is needed for that."""
    name, uid = job["metadata"]["name"], job["metadata"]["uid"]
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {
            "name": service_name(name, uid),
            "labels": {JOB_LABEL: name},
            "ownerReferences": [owner(job)],
        },
        "spec": {
            "clusterIP": "None",
            "publishNotReadyAddresses": True,
            "selector": {UID_LABEL: uid},
            "ports": [{"name": "rendezvous", "port": PORT}],
        },
    }


def secret_of(job: Mapping[str, Any], token: str) -> dict[str, Any]:
    """The Secret with the job's token, which is never changed."""
    name = job["metadata"]["name"]
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {
            "name": secret_name(name, job["metadata"]["uid"]),
            "labels": {JOB_LABEL: name},
            "ownerReferences": [owner(job)],
        },
        "immutable": True,
        "stringData": {"token": token},
    }


def _set_variables(container: dict[str, Any], name: str, uid: str, start: Start) -> None:
    shape = start.shape
    known = {str(each.get("name")) for each in container.get("env") or []}
    secret = {"secretKeyRef": {"name": secret_name(name, uid), "key": "token"}}
    ours: list[dict[str, Any]] = [
        {"name": "PET_NNODES", "value": str(shape)},
        {"name": "PET_RDZV_BACKEND", "value": "c10d"},
        {"name": "PET_RDZV_ENDPOINT", "value": endpoints(name, uid, shape.slots)},
        {"name": "PET_RDZV_ID", "value": uid},
        {"name": "PET_MASTER_TIMEOUT", "value": str(_MASTER_TIMEOUT)},
        {"name": "ELASTICRUN_TOKEN", "valueFrom": secret},
    ]
    if start.role:
        is_task = is_tensorflow(bounds.role for bounds in shape.roles)
        ours.append({"name": "PET_TF_ROLE" if is_task else "PET_ROLE", "value": start.role})
    container["env"] = [each for each in ours if each["name"] not in known] + (container.get("env") or [])


def _raise_memory(container: dict[str, Any], memory: int) -> None:
    resources = _part(container, "resources")
    for kind in ("requests", "limits"):
        resources[kind] = {**(resources.get(kind) or {}), "memory": to_quantity(memory)}


def _request(container: dict[str, Any], amounts: Amounts) -> bool:
    """Request what was measured; no limit, which could end what goes well. What is there already wins.

    Returns whether anything of it is requested.
    """
    measured = {
        **({"memory": to_quantity(amounts.memory)} if amounts.memory else {}),
        **({"cpu": f"{amounts.cpu}m"} if amounts.cpu else {}),
    }
    if measured:
        resources = _part(container, "resources")
        given = {**(resources.get("limits") or {}), **(resources.get("requests") or {})}
        new = {key: value for key, value in measured.items() if key not in given}
        resources["requests"] = {**(resources.get("requests") or {}), **new}
        return bool(new)
    return False


def _avoid(spec: dict[str, Any], hosts: tuple[str, ...]) -> None:
    """No host of these, whatever else the template asks for: its terms are alternatives, so each gets it."""
    affinity = _part(_part(spec, "affinity"), "nodeAffinity")
    required = _part(affinity, "requiredDuringSchedulingIgnoredDuringExecution")
    terms = required.get("nodeSelectorTerms") or [{}]
    for term in terms:
        fields = [{"key": "metadata.name", "operator": "NotIn", "values": [host]} for host in hosts]
        term["matchFields"] = [*(term.get("matchFields") or []), *fields]
    required["nodeSelectorTerms"] = terms


def _part(whole: dict[str, Any], key: str) -> dict[str, Any]:
    """A part of an object, which there is from now on; null is none."""
    part: dict[str, Any] = whole.get(key) or {}
    whole[key] = part
    return part
