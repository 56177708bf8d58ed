"""The operator: kopf watches jobs and their pods, and each event of either leads to a pass of the keeper.

kopf's own handlers of creations and changes are not used. They keep what they have seen in annotations of the
objects, and need finalizers and the right to patch jobs. Here it only tells that something happened, and goes
on watching when a connection breaks or a version is gone.

An operator that has stopped to watch would be deaf, and nobody would notice. So kopf may ask for as long as
the server is away, and if it gives up a watch for another reason, this program ends: whoever runs it starts
another one, which looks at everything that is there. A server that refuses is asked by kopf for ever as well;
so the rights are looked at here, and this program ends if one is lacking.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import kopf

from elasticrun.clock import pause
from elasticrun.core.fleet.figures import Figures
from elasticrun.platforms.keeper import Keeper, Queue
from elasticrun.platforms.kubernetes.adapter import Kubernetes
from elasticrun.platforms.kubernetes.api import FORBIDDEN, NOT_FOUND, Api, ApiError, access
from elasticrun.platforms.kubernetes.masters import Masters, Questions
from elasticrun.platforms.kubernetes.names import API_VERSION, GROUP, JOB_LABEL, OPERATIONS, PLURAL, VERSION
from elasticrun.platforms.kubernetes.sharer import Sharer
from elasticrun.platforms.protocol import PlatformError

#: Seconds between two looks at everything.
_AGAIN = 600.0
#: An API server takes objects of 10,000 levels, and one that could not be read would end this program each
#: time it is started. Reading takes a few hundred bytes of stack for each level.
_LEVELS = 30_000
#: How kopf says that it has given up a watch, and the logger that says it.
_DEAF, _WATCHES = "Watcher for", "kopf._core.reactor.orchestration"


class _Pauses:
    """Seconds between tries while the server is away: without end."""

    def __iter__(self) -> Iterator[float]:
        return itertools.chain((0.5, 1.0, 2.0, 4.0, 8.0), itertools.repeat(15.0))


class _Deafness(logging.Handler):
    """Ends the operator when a watch was given up."""

    def __init__(self, until: asyncio.Event) -> None:
        super().__init__(logging.ERROR)
        self._until = until
        self.why = ""

    def emit(self, record: logging.LogRecord) -> None:
        """Look at one message of kopf."""
        if record.getMessage().startswith(_DEAF):
            self.end(record.getMessage())

    def end(self, why: str) -> None:
        """Have the operator end, and say why."""
        self.why = why
        self._until.set()


async def operate(
    namespaces: Sequence[str],
    kubeconfig: str | None,
    until: asyncio.Event,
    ready: asyncio.Event,
    capacity: Mapping[str, int] | None = None,
    figures: Figures | None = None,
) -> None:
    """Keep the jobs of these namespaces, or of all, until told to stop.

    ``capacity``: what they share, in units of each resource; None: each job has what it asks for.
    ``figures``: what it counts of its own work.
    ``ready`` is set once it may see all that it should, as it begins to watch.
    Raises PlatformError if there is no access to an API server, a right is lacking, or the operator cannot
    watch any more.
    """
    sys.setrecursionlimit(max(_LEVELS, sys.getrecursionlimit()))
    deafness = _Deafness(until)
    logging.getLogger(_WATCHES).addHandler(deafness)
    figures = figures or Figures()
    api = await Api.connect(kubeconfig, figures)
    try:
        await _check_installed(api)
        if why := await _lacking(api, namespaces):
            raise PlatformError(why)
    except PlatformError:
        await api.close()
        raise
    masters = Masters(Questions(api), figures=figures)
    platform = Kubernetes(api, masters=masters, is_shared=capacity is not None)
    sharer = None if capacity is None else Sharer(api, _places(namespaces), capacity)
    queue = Queue(Keeper(platform, figures=figures).reconcile, figures=figures)
    platform.notify(queue.notice)
    masters.notify(queue.notice)
    again = asyncio.create_task(_look_again(api, platform, namespaces, deafness.end, sharer))
    try:
        await kopf.operator(
            registry=_registry(platform, kubeconfig, sharer),
            settings=_settings(),
            standalone=True,
            clusterwide=not namespaces,
            namespaces=list(namespaces),
            stop_flag=until,
            ready_flag=ready,
        )
    except Exception:
        if not deafness.why:
            raise
    finally:
        logging.getLogger(_WATCHES).removeHandler(deafness)
        again.cancel()
        if sharer is not None:
            await sharer.close()
        await masters.close()
        await queue.close()
        await api.close()
    if deafness.why:
        raise PlatformError(f"the operator cannot watch any more: {deafness.why}")


async def _look_again(
    api: Api,
    platform: Kubernetes,
    namespaces: Sequence[str],
    end: Callable[[str], None],
    sharer: Sharer | None = None,
) -> None:
    """Now and then notice all that is there: whatever was missed is mended then, at the latest.

    ``end`` is told if a right was taken away.
    """
    while True:
        await pause(_AGAIN)
        with contextlib.suppress(PlatformError):
            if why := await _lacking(api, namespaces):
                end(why)
        for place, plural in itertools.product(_places(namespaces), (PLURAL, *OPERATIONS)):
            with contextlib.suppress(PlatformError):
                found = await api.get(f"/apis/{API_VERSION}{place}/{plural}", resourceVersion="0")
                for body in found["items"]:
                    _notice(platform, plural, body, is_gone=False)
        if sharer is not None:
            sharer.look()


def _places(namespaces: Sequence[str]) -> list[str]:
    """Parts of paths."""
    return [f"/namespaces/{namespace}" for namespace in namespaces] or [""]


async def _lacking(api: Api, namespaces: Sequence[str]) -> str:
    """The first right to see something that is lacking, in a sentence; "" if none is.

    Raises PlatformError if the server does not tell.
    """
    paths = {f"/apis/{API_VERSION}": (PLURAL, *OPERATIONS), "/api/v1": ("pods",)}
    for place, (group, plurals) in itertools.product(_places(namespaces), paths.items()):
        for plural in plurals:
            try:
                await api.get(f"{group}{place}/{plural}", limit="1")
            except ApiError as error:
                if error.status != FORBIDDEN:
                    raise
                where = f"namespace {place.rpartition('/')[2]}" if place else "all namespaces"
                advice = "apply what elastic-ctl operator --rbac prints with the same --namespace options"
                return f"there is no right to list {plural} in {where}: {advice}"
    return ""


def _notice(platform: Kubernetes, plural: str, body: Mapping[str, Any], is_gone: bool) -> None:
    if plural == PLURAL:
        platform.notice(body["metadata"]["namespace"], body["metadata"]["name"])
    else:
        platform.notice_operation(plural, body, is_gone)


async def _check_installed(api: Api) -> None:
    """With what is not there kopf has nothing to watch, and would wait."""
    try:
        await api.get(f"/apis/{GROUP}/{VERSION}")
    except ApiError as error:
        if error.status == NOT_FOUND:
            raise PlatformError(
                "this cluster does not know ElasticJob: apply what elastic-ctl operator --crds prints"
            ) from None
        raise


def _settings() -> kopf.OperatorSettings:
    settings = kopf.OperatorSettings()
    settings.posting.enabled = False
    settings.networking.error_backoffs = _Pauses()
    settings.scanning.disabled = True  # it may not list definitions and namespaces, and need not
    settings.watching.server_timeout = 300  # seconds of one watch; whole ones, as the server wants
    if hasattr(
        settings.watching, "label_selectors"
    ):  # else kopf reads all pods, and leaves out others itself
        settings.watching.label_selectors["", "v1", "pods"] = JOB_LABEL
    return settings


def _registry(platform: Kubernetes, kubeconfig: str | None, sharer: Sharer | None) -> kopf.OperatorRegistry:
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

    async def pod_changed(namespace: str | None, labels: Any, meta: Any, **_: Any) -> None:
        platform.notice(str(namespace), labels[JOB_LABEL], meta["resourceVersion"])

    def watch(plural: str) -> None:
        async def changed(body: Any, type: str | None, **_: Any) -> None:
            if sharer is not None and plural == PLURAL:
                sharer.notice(body, type == "DELETED")
            is_changed = plural == PLURAL and type == "MODIFIED"
            if not (is_changed and platform.is_own(body["metadata"])):
                _notice(platform, plural, dict(body), type == "DELETED")

        kopf.on.event(GROUP, VERSION, plural, id=plural, registry=registry)(changed)

    for plural in (PLURAL, *OPERATIONS):
        watch(plural)
    kopf.on.login(registry=registry)(login)
    kopf.on.event("", "v1", "pods", labels={JOB_LABEL: kopf.PRESENT}, registry=registry)(pod_changed)
    return registry
