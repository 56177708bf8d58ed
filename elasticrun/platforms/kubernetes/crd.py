"""The custom resources, and the rights that their operator needs: one place for both.

``elastic-ctl operator --crds`` and ``--rbac`` print them.
"""

from __future__ import annotations

from typing import Any

from elasticrun.core.cluster.curve import Batch
from elasticrun.core.cluster.jobs import LEAST_PRIORITY, MOST_PRIORITY
from elasticrun.core.fleet.replicas import CleanPolicy
from elasticrun.core.fleet.roles import MOST_ROLES
from elasticrun.platforms.kubernetes.names import (
    GROUP,
    KIND,
    LONGEST_NAME,
    LONGEST_ROLE,
    MOST_REPLICAS,
    NAME_PATTERN,
    OPERATIONS,
    PLURAL,
    ROLE_PATTERN,
    VERSION,
)

_COUNT = {"type": "integer", "minimum": 1, "maximum": MOST_REPLICAS, "format": "int32"}
_ROLE = {"type": "string", "maxLength": LONGEST_ROLE, "pattern": ROLE_PATTERN}
_NAME = {"type": "string", "maxLength": LONGEST_NAME, "pattern": NAME_PATTERN}
#: Of roles: one may have no pods.
_ANY_COUNT = {**_COUNT, "minimum": 0}
_FREE = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
#: What may also be left empty in YAML, which is null.
_OBJECT = {**_FREE, "nullable": True}
_TEXTS = {"type": "object", "nullable": True, "additionalProperties": {"type": "string"}}


def _role() -> dict[str, Any]:
    # Only what the operator adds to has its type here; the API server judges pods as they are created.
    amounts = {"type": "object", "nullable": True, "properties": {"limits": _OBJECT, "requests": _OBJECT}}
    variables = {"type": "array", "nullable": True, "items": {**_FREE, "required": ["name"]}}
    container = {
        **_FREE,
        "required": ["name", "image"],
        "properties": {"env": variables, "resources": {**_FREE, **amounts}},
    }
    containers = {"type": "array", "minItems": 1, "items": container}
    metadata = {**_OBJECT, "properties": {"labels": _TEXTS, "annotations": _TEXTS}}
    pod = {
        **_FREE,
        "required": ["containers"],
        "properties": {"containers": containers, "affinity": _OBJECT},
    }
    return {
        "type": "object",
        "required": ["template"],
        "properties": {
            "name": {**_ROLE, "default": "worker", "description": "No two roles of a job have the same."},
            "minReplicas": {
                **_ANY_COUNT,
                "default": 1,
                "description": "The job runs with at least so many pods; 0 only in a role after the first.",
            },
            "maxReplicas": {**_COUNT, "default": 1, "description": "There are never more pods than this."},
            "replicas": {
                **_ANY_COUNT,
                "description": "How many pods are wanted; as many as there may be if unset.",
            },
            "maxMemory": {
                "x-kubernetes-int-or-string": True,
                "description": "To which a pod's memory limit may be raised after it ran out of memory;"
                " eight times the first if unset.",
            },
            "maxCpu": {
                "x-kubernetes-int-or-string": True,
                "description": "How much CPU pods request at most by what earlier ones used, if the template"
                " says nothing; 16 cores if unset. For memory that is maxMemory, or 64Gi.",
            },
            "restartLimit": {
                "type": "integer",
                "minimum": 0,
                "maximum": 10000,
                "default": 10,
                "description": "How many pods that failed are replaced; evictions, preemptions, lost and"
                " faulty hosts do not count.",
            },
            "template": {
                "type": "object",
                "required": ["spec"],
                "description": "The pod, as in a Job. Its first container runs elastic-run.",
                "properties": {"metadata": metadata, "spec": pod},
            },
        },
    }


def _spec() -> dict[str, Any]:
    return {
        "type": "object",
        "required": ["roles"],
        "properties": {
            "suspend": {
                "type": "boolean",
                "default": False,
                "description": "Remove all pods, and start others once it is false again.",
            },
            "cleanPodPolicy": {
                "type": "string",
                "enum": [policy.value for policy in CleanPolicy],
                "default": CleanPolicy.RUNNING.value,
                "description": "Which pods are removed once the job has ended.",
            },
            "batch": {
                "type": "string",
                "enum": [batch.value for batch in Batch],
                "description": "What a step is of: a batch of fixed size for the whole job, or for each"
                " worker. With this a cluster is shared by how fast the job was measured to be.",
            },
            "priority": {
                "type": "integer",
                "minimum": LEAST_PRIORITY,
                "maximum": MOST_PRIORITY,
                "default": 0,
                "description": "In a cluster that is shared: a node of one more is worth twice as much.",
            },
            "roles": {
                "type": "array",
                "minItems": 1,
                "maxItems": MOST_ROLES,
                "items": _role(),
                "x-kubernetes-list-type": "map",
                "x-kubernetes-list-map-keys": ["name"],
            },
        },
    }


def _status() -> dict[str, Any]:
    text = {"type": "string"}
    condition = {
        "type": "object",
        "required": ["type", "status"],
        "properties": {
            "type": text,
            "status": {"type": "string", "enum": ["True", "False", "Unknown"]},
            "reason": text,
            "message": text,
            "lastTransitionTime": {"type": "string", "format": "date-time"},
        },
    }
    return {
        "type": "object",
        "properties": {
            "phase": text,
            "running": {"type": "integer"},
            "wanted": {"type": "integer"},
            "roles": {"type": "array", "nullable": True, "items": _count_of_role()},
            "message": text,
            "observedGeneration": {"type": "integer", "format": "int64"},
            "conditions": {"type": "array", "items": condition},
            "training": _training(),
            "speeds": _speeds(),
            "sizing": {**_sizing(), "nullable": True},
            "fleet": {**_FREE, "description": "What the operator remembers; not for others."},
            "held": {"type": "integer", "description": "How many pods are meant to run, or still end."},
            "share": {
                "type": "object",
                "description": "What the job may have of a cluster that is shared, and why.",
                "properties": {
                    "nodes": {"type": "integer"},
                    "reason": text,
                    "at": {"type": "number"},
                    "limit": {**_FREE, "description": "What the operator remembers; not for others."},
                    "pods": {**_FREE, "description": "What a pod of each role takes of what is shared."},
                },
            },
            "podsVersion": {**text, "description": "The version of the pods that it remembers."},
        },
    }


def _count_of_role() -> dict[str, Any]:
    count = {"type": "integer"}
    return {
        "type": "object",
        "description": "One of several roles.",
        "properties": {
            "name": {"type": "string"},
            **dict.fromkeys(("running", "wanted", "failures"), count),
            "sizing": _sizing(),
        },
    }


def _sizing() -> dict[str, Any]:
    fields = "memory", "cpu", "peakMemory", "peakCpu", "withdrawn"
    return {
        "type": "object",
        "description": "What new pods request, by the most that earlier ones used.",
        "properties": {field: {"type": "string"} for field in fields},
    }


def _training() -> dict[str, Any]:
    text, count = {"type": "string"}, {"type": "integer", "format": "int64"}
    return {
        "type": "object",
        "description": "What the job's master told last; StatusFresh says whether it still tells.",
        "properties": {
            "phase": text,
            "round": {**count, "description": "The newest world, numbered from 0."},
            "nodes": {**count, "description": "Of the newest round."},
            "workers": {**count, "description": "Of the newest round."},
            "restarts": {**count, "description": "How many of --max-restarts were used."},
            "goodput": {"type": "number", "description": "Of all nodes' time, the share that was new steps."},
            "cause": {**text, "description": "Why the last round that ended did."},
        },
    }


def _speeds() -> dict[str, Any]:
    count = {"type": "integer", "format": "int64"}
    fields = {
        "nodes": count,
        "workers": count,
        "stepRate": {"type": "number", "description": "Steps a second."},
    }
    return {
        "type": "array",
        "description": "How fast the job was with so many nodes, as its master told.",
        "items": {"type": "object", "properties": fields},
    }


def crds() -> list[dict[str, Any]]:
    """The definitions of ElasticJob, ScaleOut and ScaleIn."""
    columns = [
        _column("Phase", ".status.phase"),
        _column("Running", ".status.running", "integer"),
        _column("Wanted", ".status.wanted", "integer"),
        _column("Round", ".status.training.round", "integer"),
        _column("Workers", ".status.training.workers", "integer"),
        _column("Goodput", ".status.training.goodput", "number"),
        {**_column("Restarts", ".status.training.restarts", "integer"), "priority": 1},
        {**_column("Cause", ".status.training.cause"), "priority": 1},
        {**_column("Message", ".status.message"), "priority": 1},
        _column("Age", ".metadata.creationTimestamp", "date"),
    ]
    jobs = _definition(KIND, PLURAL, {"name": _NAME}, _spec(), _status(), columns)
    jobs["spec"]["names"]["shortNames"] = ["ej"]
    return [jobs, *(_operation(kind, plural) for plural, kind in OPERATIONS.items())]


def _operation(kind: str, plural: str) -> dict[str, Any]:
    """The definition of ScaleOut or ScaleIn."""
    text = {"type": "string"}
    timeout = {
        "type": "integer",
        "minimum": 1,
        "maximum": 604800,
        "default": 600,
        "description": "For how long it may take; then it has failed, and a growth is taken back.",
    }
    role = {**_ROLE, "description": "Whose pods; required if the job has several roles."}
    fields = {"jobName": _NAME, "role": role, "count": _COUNT, "timeoutSeconds": timeout}
    spec: dict[str, Any] = {"type": "object", "required": ["jobName"], "properties": fields}
    if kind == "ScaleIn":
        names = {"type": "array", "maxItems": 1000, "items": text}
        fields["podNames"] = {**names, "description": "The pods that leave, instead of a count."}
    else:
        spec["required"].append("count")
    status = {"type": "object", "properties": {"phase": text, "message": text}}
    columns = [
        _column("Job", ".spec.jobName"),
        _column("Phase", ".status.phase"),
        _column("Message", ".status.message"),
        _column("Age", ".metadata.creationTimestamp", "date"),
    ]
    return _definition(kind, plural, {}, spec, status, columns)


def _column(name: str, path: str, kind: str = "string") -> dict[str, Any]:
    return {"name": name, "type": kind, "jsonPath": path}


def _definition(
    kind: str,
    plural: str,
    metadata: dict[str, Any],
    spec: dict[str, Any],
    status: dict[str, Any],
    columns: list[dict[str, Any]],
) -> dict[str, Any]:
    schema = {
        "type": "object",
        "required": ["spec"],
        "properties": {
            "metadata": {"type": "object", **({"properties": metadata} if metadata else {})},
            "spec": spec,
            "status": status,
        },
    }
    version = {
        "name": VERSION,
        "served": True,
        "storage": True,
        "subresources": {"status": {}},
        "additionalPrinterColumns": columns,
        "schema": {"openAPIV3Schema": schema},
    }
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.{GROUP}"},
        "spec": {
            "group": GROUP,
            "scope": "Namespaced",
            "names": {"kind": kind, "plural": plural, "singular": kind.lower()},
            "versions": [version],
        },
    }


#: What the operator does, and nothing else: it changes no job but its status, and reads secrets only for the
#: token of a job, with which it asks the job's master. Without that right all but this is done.
_RULES: list[dict[str, list[str]]] = [
    {"apiGroups": [GROUP], "resources": [PLURAL, *OPERATIONS], "verbs": ["get", "list", "watch"]},
    {
        "apiGroups": [GROUP],
        "resources": [f"{plural}/status" for plural in (PLURAL, *OPERATIONS)],
        "verbs": ["patch"],
    },
    {"apiGroups": [""], "resources": ["pods"], "verbs": ["create", "delete", "list", "watch"]},
    {"apiGroups": [""], "resources": ["services", "secrets", "events"], "verbs": ["create"]},
    {"apiGroups": [""], "resources": ["secrets"], "verbs": ["get"]},
]


def rbac(*namespaces: str, name: str = "elasticrun-operator") -> list[dict[str, Any]]:
    """One service account, as a pod has only one, with the rights that the operator needs in each namespace.

    It is in the first of them; if there is none, in ``default``, with rights in all namespaces.
    """
    account = {"name": name, "namespace": next(iter(namespaces), "default")}
    places = [{"name": name, "namespace": namespace} for namespace in dict.fromkeys(namespaces)]
    found: list[dict[str, Any]] = [{"apiVersion": "v1", "kind": "ServiceAccount", "metadata": account}]
    for bound in places or [{"name": name}]:
        found += _bound(bound, account)
    return found


def _bound(place: dict[str, str], account: dict[str, str]) -> list[dict[str, Any]]:
    """A role, in a namespace or everywhere, and that this account has it."""
    api, prefix = "rbac.authorization.k8s.io", "" if "namespace" in place else "Cluster"
    return [
        {"apiVersion": f"{api}/v1", "kind": f"{prefix}Role", "metadata": place, "rules": _RULES},
        {
            "apiVersion": f"{api}/v1",
            "kind": f"{prefix}RoleBinding",
            "metadata": place,
            "roleRef": {"apiGroup": api, "kind": f"{prefix}Role", "name": place["name"]},
            "subjects": [{"kind": "ServiceAccount", **account}],
        },
    ]
