"""The custom resource ElasticJob, and the rights that its operator needs: one place for both.

``elastic-ctl operator --crds`` and ``--rbac`` print them.
"""

from __future__ import annotations

from typing import Any

from elasticrun.core.fleet.replicas import CleanPolicy
from elasticrun.platforms.kubernetes.names import GROUP, KIND, LONGEST_NAME, PLURAL, VERSION

_COUNT = {"type": "integer", "minimum": 1, "maximum": 10000, "format": "int32"}
_FREE = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}


def _role() -> dict[str, Any]:
    containers = {"type": "array", "minItems": 1, "items": {**_FREE, "required": ["name", "image"]}}
    return {
        "type": "object",
        "required": ["template"],
        "properties": {
            "name": {"type": "string", "default": "worker", "pattern": "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"},
            "minReplicas": {
                **_COUNT,
                "default": 1,
                "description": "The job runs with at least so many pods.",
            },
            "maxReplicas": {**_COUNT, "default": 1, "description": "There are never more pods than this."},
            "replicas": {
                **_COUNT,
                "description": "How many pods are wanted; as many as there may be if unset.",
            },
            "maxMemory": {
                "x-kubernetes-int-or-string": True,
                "description": "To which a pod's memory limit may be raised after it ran out of memory;"
                " eight times the first if unset.",
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
                "properties": {
                    "metadata": _FREE,
                    "spec": {**_FREE, "required": ["containers"], "properties": {"containers": containers}},
                },
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
            "roles": {"type": "array", "minItems": 1, "maxItems": 1, "items": _role()},
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
            "message": text,
            "observedGeneration": {"type": "integer", "format": "int64"},
            "conditions": {"type": "array", "items": condition},
            "fleet": {**_FREE, "description": "What the operator remembers; not for others."},
            "podsVersion": {**text, "description": "The version of the pods that it remembers."},
        },
    }


def crd() -> dict[str, Any]:
    """The definition of ElasticJob."""
    columns = [
        {"name": "Phase", "type": "string", "jsonPath": ".status.phase"},
        {"name": "Running", "type": "integer", "jsonPath": ".status.running"},
        {"name": "Wanted", "type": "integer", "jsonPath": ".status.wanted"},
        {"name": "Message", "type": "string", "jsonPath": ".status.message", "priority": 1},
        {"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"},
    ]
    metadata = {
        "type": "object",
        "properties": {
            "name": {"type": "string", "maxLength": LONGEST_NAME, "pattern": "^[a-z]([-a-z0-9]*[a-z0-9])?$"}
        },
    }
    schema = {
        "type": "object",
        "required": ["spec"],
        "properties": {"metadata": metadata, "spec": _spec(), "status": _status()},
    }
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{PLURAL}.{GROUP}"},
        "spec": {
            "group": GROUP,
            "scope": "Namespaced",
            "names": {"kind": KIND, "plural": PLURAL, "singular": KIND.lower(), "shortNames": ["ej"]},
            "versions": [
                {
                    "name": VERSION,
                    "served": True,
                    "storage": True,
                    "subresources": {"status": {}},
                    "additionalPrinterColumns": columns,
                    "schema": {"openAPIV3Schema": schema},
                }
            ],
        },
    }


#: What the operator does, and nothing else: it reads no secret, and changes no job but its status.
_RULES: list[dict[str, list[str]]] = [
    {"apiGroups": [GROUP], "resources": [PLURAL], "verbs": ["get", "list", "watch"]},
    {"apiGroups": [GROUP], "resources": [f"{PLURAL}/status"], "verbs": ["patch"]},
    {"apiGroups": [""], "resources": ["pods"], "verbs": ["create", "delete", "list", "watch"]},
    {"apiGroups": [""], "resources": ["services", "secrets", "events"], "verbs": ["create"]},
]


def rbac(
    namespace: str, *, everywhere: bool = False, name: str = "elasticrun-operator"
) -> list[dict[str, Any]]:
    """A service account in a namespace with the rights that the operator needs there, or in all of them."""
    api, prefix = "rbac.authorization.k8s.io", "Cluster" if everywhere else ""
    account = {"name": name, "namespace": namespace}
    bound = {"name": name} if everywhere else account
    return [
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": account},
        {"apiVersion": f"{api}/v1", "kind": f"{prefix}Role", "metadata": bound, "rules": _RULES},
        {
            "apiVersion": f"{api}/v1",
            "kind": f"{prefix}RoleBinding",
            "metadata": bound,
            "roleRef": {"apiGroup": api, "kind": f"{prefix}Role", "name": name},
            "subjects": [{"kind": "ServiceAccount", **account}],
        },
    ]
