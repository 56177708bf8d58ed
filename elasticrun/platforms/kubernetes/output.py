"""What is to be installed in a cluster, as YAML."""

from __future__ import annotations

from collections.abc import Sequence

from elasticrun.platforms.kubernetes.crd import crds, rbac
from elasticrun.platforms.manifests.text import as_yaml


def installation(with_crds: bool, with_rbac: bool, namespaces: Sequence[str]) -> str:
    """The definitions of what the operator keeps, and its rights in each of these namespaces, or in all."""
    documents = crds() if with_crds else []
    if with_rbac:
        documents += rbac(*namespaces)
    return as_yaml((), documents)
