"""``Platform`` for Kubernetes: jobs are ElasticJobs, replicas are pods, and the record is in the status.

A job is named NAMESPACE/NAME. Each look asks the server anew: the job first, then its pods, so that the
record is never newer than what is seen. The status is written for the version of the job that was read, and
the server refuses that if anybody has changed it since.
"""

from __future__ import annotations

import contextlib
import logging
import secrets
import time
from collections.abc import Callable, Mapping
from datetime import datetime, timezone
from typing import Any

from elasticrun.core.fleet.replicas import Decision, Note, Remove, Start
from elasticrun.dataclass import dataclass
from elasticrun.platforms.kubernetes.api import CONFLICT, NOT_FOUND, Api, ApiError
from elasticrun.platforms.kubernetes.names import API_VERSION, JOB_LABEL, KIND, core_path, job_path, pod_name
from elasticrun.platforms.kubernetes.pods import pod_of, secret_of, service_of
from elasticrun.platforms.kubernetes.sights import SpecError, seen_of, wish_of
from elasticrun.platforms.kubernetes.statuses import invalid_status, record_of, status_of
from elasticrun.platforms.protocol import Sight

log = logging.getLogger(__name__)

_TOKEN_BYTES = 32
COMPONENT = "elasticrun-operator"


@dataclass(frozen=True, slots=True)
class Read:
    """What a sight was made of."""

    job: Mapping[str, Any]


class Kubernetes:
    """One API server."""

    def __init__(self, api: Api, clock: Callable[[], float] = time.time) -> None:
        self._api = api
        self._clock = clock
        self._prepared: set[str] = set()  # uids of jobs whose Service and Secret are there
        self._happened: Callable[[str], None] = lambda _: None

    def notify(self, happened: Callable[[str], None]) -> None:
        self._happened = happened

    def notice(self, namespace: str, name: str) -> None:
        """Pass on that something happened; ``operator.py`` watches for it."""
        self._happened(f"{namespace}/{name}")

    async def look(self, job: str) -> Sight | None:
        namespace, name = _split(job)
        try:
            found = await self._api.get(job_path(namespace, name))
        except ApiError as error:
            if error.status == NOT_FOUND:
                return None
            raise
        if found["metadata"].get("deletionTimestamp"):
            return None  # the cluster removes what it owns
        try:
            wish = wish_of(found)
        except SpecError as error:
            await self._show_invalid(job, found, str(error))
            return None
        listed = await self._api.get(core_path(namespace, "pods"), labelSelector=f"{JOB_LABEL}={name}")
        seen = seen_of(listed["items"], found["metadata"]["uid"])
        return Sight(wish, seen, record_of(found.get("status") or {}), Read(found))

    async def keep(self, job: str, sight: Sight, decision: Decision) -> bool:
        found: Mapping[str, Any] = sight.token.job
        generation = found["metadata"].get("generation", 0)
        before = found.get("status") or {}
        return await self._write(
            job, found, status_of(sight.wish, decision, generation, before, self._clock())
        )

    async def _show_invalid(self, job: str, found: Mapping[str, Any], why: str) -> None:
        before, generation = found.get("status") or {}, found["metadata"].get("generation", 0)
        await self._write(job, found, invalid_status(why, generation, before, self._clock()))

    async def _write(self, job: str, found: Mapping[str, Any], status: dict[str, Any]) -> bool:
        before = found.get("status") or {}
        if all(before.get(key) == value for key, value in status.items()):
            return True
        version = {"resourceVersion": found["metadata"]["resourceVersion"]}
        try:
            await self._api.merge(job_path(*_split(job), "status"), {"metadata": version, "status": status})
        except ApiError as error:
            if error.status in (CONFLICT, NOT_FOUND):
                return False
            raise
        return True

    async def start(self, job: str, sight: Sight, start: Start) -> None:
        found: Mapping[str, Any] = sight.token.job
        await self._prepare(found)
        await self._create("pods", found, pod_of(found, sight.wish, start))

    async def _prepare(self, found: Mapping[str, Any]) -> None:
        """What pods need to find one another; it has to be there before them."""
        uid = found["metadata"]["uid"]
        if uid in self._prepared:
            return
        await self._create("services", found, service_of(found))
        await self._create("secrets", found, secret_of(found, secrets.token_urlsafe(_TOKEN_BYTES)))
        self._prepared.add(uid)

    async def _create(self, kind: str, job: Mapping[str, Any], body: Mapping[str, Any]) -> None:
        try:
            await self._api.create(core_path(job["metadata"]["namespace"], kind), body)
        except ApiError as error:
            if error.reason != "AlreadyExists":
                raise

    async def remove(self, job: str, remove: Remove) -> None:
        namespace, name = _split(job)
        try:
            await self._api.delete(core_path(namespace, "pods", pod_name(name, remove.index)))
        except ApiError as error:
            if error.status != NOT_FOUND:
                raise

    async def tell(self, job: str, sight: Sight, note: Note) -> None:
        metadata = sight.token.job["metadata"]
        moment = datetime.fromtimestamp(self._clock(), timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
        body = {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"generateName": f"{metadata['name']}.", "namespace": metadata["namespace"]},
            "involvedObject": {
                "apiVersion": API_VERSION,
                "kind": KIND,
                **{key: metadata[key] for key in ("name", "namespace", "uid")},
            },
            "reason": note.reason,
            "message": note.text[:1024],
            "type": "Warning" if note.is_warning else "Normal",
            "source": {"component": COMPONENT},
            "firstTimestamp": moment,
            "lastTimestamp": moment,
            "count": 1,
        }
        with contextlib.suppress(ApiError):  # it is in the log as well
            await self._api.create(core_path(metadata["namespace"], "events"), body)


def _split(job: str) -> tuple[str, str]:
    namespace, _, name = job.partition("/")
    return namespace, name
