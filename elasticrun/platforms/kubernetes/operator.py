"""The operator: kopf watches jobs and their pods, and each event of either leads to a pass of the keeper.

kopf's own handlers of creations and changes are not used. They keep what they have seen in annotations of the
objects, and need finalizers and the right to patch jobs. Here it only tells that something happened, and goes
on watching when a connection breaks or a version is gone.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Any

import kopf

from elasticrun.platforms.keeper import Keeper, Queue
from elasticrun.platforms.kubernetes.adapter import Kubernetes
from elasticrun.platforms.kubernetes.api import Api, access
from elasticrun.platforms.kubernetes.names import GROUP, JOB_LABEL, PLURAL, VERSION

log = logging.getLogger(__name__)


async def operate(
    namespaces: Sequence[str], kubeconfig: str | None, until: asyncio.Event, ready: asyncio.Event
) -> None:
    """Keep the jobs of these namespaces, or of all, until told to stop; ``ready`` is set once it watches.

    Raises PlatformError if there is no access to an API server.
    """
    api = await Api.connect(kubeconfig)
    platform = Kubernetes(api)
    queue = Queue(Keeper(platform).reconcile)
    platform.notify(queue.notice)
    try:
        await kopf.operator(
            registry=_registry(platform, kubeconfig),
            settings=_settings(bool(namespaces)),
            standalone=True,
            clusterwide=not namespaces,
            namespaces=list(namespaces),
            stop_flag=until,
            ready_flag=ready,
        )
    finally:
        await queue.close()
        await api.close()


def _settings(is_namespaced: bool) -> kopf.OperatorSettings:
    settings = kopf.OperatorSettings()
    settings.posting.enabled = False
    settings.scanning.disabled = is_namespaced  # it may not list what belongs to the whole cluster
    settings.watching.server_timeout = 300  # seconds, and whole ones; then it lists anew, which mends what was missed
    return settings


def _registry(platform: Kubernetes, kubeconfig: str | None) -> kopf.OperatorRegistry:
    registry = kopf.OperatorRegistry()

    async def login(**_: Any) -> kopf.ConnectionInfo:
        """The same access as the client's."""
        found = await access(kubeconfig)
        header = await found.get_api_key_with_prefix("BearerToken") or ""
        scheme, _space, token = header.rpartition(" ")
        return kopf.ConnectionInfo(
            server=found.host,
            ca_path=found.ssl_ca_cert,
            insecure=not found.verify_ssl,
            scheme=scheme or None,
            token=token or None,
            certificate_path=found.cert_file,
            private_key_path=found.key_file,
        )

    async def job_changed(namespace: str | None, name: str | None, **_: Any) -> None:
        platform.notice(str(namespace), str(name))

    async def pod_changed(namespace: str | None, labels: Any, **_: Any) -> None:
        platform.notice(str(namespace), labels[JOB_LABEL])

    kopf.on.login(registry=registry)(login)
    kopf.on.event(GROUP, VERSION, PLURAL, registry=registry)(job_changed)
    kopf.on.event("", "v1", "pods", labels={JOB_LABEL: kopf.PRESENT}, registry=registry)(pod_changed)
    return registry
