"""``Platform`` for Kubernetes: jobs are ElasticJobs, replicas are pods, and the record is in the status.

A job is named NAMESPACE/NAME. Each look asks the server anew. The status is written for the version of the
job that was read, and the server refuses that if anybody has changed it since.

Pods are listed from the server's cache: a list from its storage reads the pods of all jobs. Such a list may
be old, and must not lack what the record has seen, or what a notice was about. So it is asked to be no older
than the newest version that the record, the notices or earlier lists name. These are all versions of pods:
with the version of a job, the cache, which hears only of pods, could wait in vain.
"""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from elasticrun.core.fleet.replicas import (
    Decision,
    Note,
    Operation,
    Phase,
    Remove,
    Result,
    ScalePhase,
    Start,
    Usage,
)
from elasticrun.core.protocol.plain import one_line
from elasticrun.dataclass import dataclass
from elasticrun.platforms.kubernetes.api import CONFLICT, NOT_FOUND, Api, ApiError
from elasticrun.platforms.kubernetes.asks import share_of
from elasticrun.platforms.kubernetes.masters import Masters, Place
from elasticrun.platforms.kubernetes.names import (
    JOB_LABEL,
    OPERATIONS,
    core_path,
    is_job_name,
    job_path,
    operation_path,
    pod_name,
)
from elasticrun.platforms.kubernetes.pods import pod_of, secret_of, service_of
from elasticrun.platforms.kubernetes.sights import (
    addresses_of,
    operation_of,
    owner_of,
    seen_of,
)
from elasticrun.platforms.kubernetes.specs import SpecError, wish_of
from elasticrun.platforms.kubernetes.statuses import (
    invalid_status,
    pods_version_of,
    record_of,
    round_told,
    shows,
    status_of,
)
from elasticrun.platforms.kubernetes.telling import tell
from elasticrun.platforms.protocol import PlatformError, Sight

log = logging.getLogger(__name__)

_TOKEN_BYTES = 32
#: How a server says that its cache is older than it may be.
_TOO_NEW = "Too large resource version"


@dataclass(frozen=True, slots=True)
class Read:
    """What a sight was made of."""

    job: Mapping[str, Any]
    version: int  # of the pods


class Kubernetes:
    """One API server."""

    def __init__(
        self,
        api: Api,
        clock: Callable[[], float] = time.time,
        masters: Masters | None = None,
        is_shared: bool = False,
    ) -> None:
        """``masters``: tell what is shown of the trainings; None: nothing is.

        ``is_shared``: no job has more than its share of the cluster.
        """
        self._is_shared = is_shared
        self._api = api
        self._clock = clock
        self._masters = masters
        self._prepared: dict[str, tuple[str, str]] = {}  # jobs, as read, whose Service and Secret are there
        self._own: dict[str, str] = {}  # the version of each job that we have made, and need not look at
        self._versions: dict[str, int] = {}  # the newest of each job's pods that is known
        # What is asked of a job, by uid, as far as it has not ended: the plural of its kind, and the object.
        self._operations: dict[str, dict[str, tuple[str, Mapping[str, Any]]]] = {}
        self._happened: Callable[[str], None] = lambda _: None

    def notify(self, happened: Callable[[str], None]) -> None:
        self._happened = happened

    def notice(self, namespace: str, name: str, version: str = "") -> None:
        """Pass on that something happened, which ``operator.py`` watches for.

        ``version``: of the pod, if it happened to one.
        """
        if not is_job_name(name):
            return
        job = f"{namespace}/{name}"
        self._learn(job, version)
        self._happened(job)

    def notice_operation(self, plural: str, body: Mapping[str, Any], is_gone: bool) -> None:
        """An object that asks for an operation was created, changed or deleted."""
        metadata, name = body["metadata"], (body.get("spec") or {}).get("jobName")
        if not is_job_name(name):
            return
        job = f"{metadata['namespace']}/{name}"
        known = self._operations.setdefault(job, {})
        if is_gone or operation_of(body, OPERATIONS[plural]) is None:
            known.pop(metadata["uid"], None)
        else:
            known[metadata["uid"]] = plural, body
        if not known:
            del self._operations[job]
        self._happened(job)

    def _learn(self, job: str, version: object) -> int:
        known = self._versions.get(job, 0)
        if isinstance(version, str | int) and len(str(version)) < 20 and str(version).isdecimal():
            known = self._versions[job] = max(known, int(version))
        return known

    async def look(self, job: str) -> Sight | None:
        namespace, name = _split(job)
        try:
            found = await self._api.get(job_path(namespace, name))
        except ApiError as error:
            if error.status == NOT_FOUND:
                self._forget(job)
                for key in list(self._operations.get(job, ())):
                    await self._tell_result(job, Result(key, ScalePhase.FAILED, f"there is no job {name}"))
                return None
            raise
        if found["metadata"].get("deletionTimestamp"):
            self._forget(job)
            return None  # the cluster removes what it owns
        try:
            wish = wish_of(found)
        except SpecError as error:
            await self._show_invalid(job, found, str(error))
            return None
        status = found.get("status") or {}
        if self._is_shared:
            wish = replace(wish, share=share_of(status))
        listed = await self._pods(namespace, name, self._learn(job, pods_version_of(status)))
        version = self._learn(job, listed["metadata"]["resourceVersion"])
        uid = found["metadata"]["uid"]
        seen = seen_of(listed["items"], name, uid)
        usage, stranded = Usage(), 0
        if self._masters is not None:
            self._masters.know(job, Place(namespace, name, uid, addresses_of(listed["items"], uid)))
            shown = self._masters.shown(job)
            if shown and shown.training and shown.trouble is None:  # else it may be of before a suspension
                usage = shown.training.usage
            stranded = self._masters.stranded(job)
        return Sight(wish, seen, record_of(status), self._asked(job), Read(found, version), usage, stranded)

    def _asked(self, job: str) -> tuple[Operation, ...]:
        """The operations that have not ended, the oldest first."""
        known = self._operations.get(job, {})
        by_age = sorted(
            known.values(), key=lambda it: (it[1]["metadata"]["creationTimestamp"], it[1]["metadata"]["uid"])
        )
        found = [operation_of(body, OPERATIONS[plural]) for plural, body in by_age]
        return tuple(each for each in found if each is not None)

    async def _pods(self, namespace: str, name: str, oldest: int) -> Any:
        path, selected = core_path(namespace, "pods"), f"{JOB_LABEL}={name}"
        version = {"resourceVersion": str(oldest), "resourceVersionMatch": "NotOlderThan"}
        try:
            return await self._api.get(path, labelSelector=selected, **version)
        except ApiError as error:
            if _TOO_NEW not in str(error):
                raise
        return await self._api.get(path, labelSelector=selected)  # from the storage, as the cache lags behind

    def _forget(self, job: str) -> None:
        self._versions.pop(job, None)
        self._prepared.pop(job, None)
        self._own.pop(job, None)
        if self._masters is not None:
            self._masters.forget(job)

    async def keep(self, job: str, sight: Sight, decision: Decision) -> bool:
        found: Mapping[str, Any] = sight.token.job
        generation = found["metadata"].get("generation", 0)
        before = found.get("status") or {}
        shown = None if self._masters is None else self._masters.shown(job)
        status = status_of(decision, generation, before, self._clock(), shown)
        if not await self._write(job, found, status, sight.token.version):
            return False
        if self._masters is not None and shown is not None and shown.speed is not None:
            self._masters.kept(job, shown.speed)
        if self._masters is not None and (note := self._masters.news(job, round_told(before))):
            log.info("%s: %s: %s", job, note.reason, note.text)
            await self.tell(job, sight, note)
        for result in decision.results:
            await self._tell_result(job, result)
        return True

    async def _tell_result(self, job: str, result: Result) -> None:
        known = self._operations.get(job, {}).get(result.key)
        if known is None:
            return
        plural, body = known
        shown = {"phase": result.phase.value, "message": result.text}
        before = body.get("status") or {}
        if all(before.get(key) == value for key, value in shown.items()):
            return
        namespace, name = body["metadata"]["namespace"], body["metadata"]["name"]
        try:
            await self._api.merge(operation_path(namespace, plural, name), {"status": shown})
        except ApiError as error:
            if not error.is_final:
                raise
            log.warning("%s: the result of %s cannot be told: %s", job, name, error)
        if result.key in self._operations.get(job, {}):  # a notice may have come first
            self._operations[job][result.key] = plural, {**body, "status": shown}

    async def _show_invalid(self, job: str, found: Mapping[str, Any], why: str) -> None:
        before, generation = found.get("status") or {}, found["metadata"].get("generation", 0)
        await self._write(job, found, invalid_status(why, generation, before, self._clock()))

    async def _write(
        self, job: str, found: Mapping[str, Any], status: dict[str, Any], pods: int | None = None
    ) -> bool:
        before = found.get("status") or {}
        if shows(before, status):
            return True
        if pods is not None:
            status["podsVersion"] = str(pods)
        version = {"resourceVersion": found["metadata"]["resourceVersion"]}
        path = job_path(*_split(job), "status")
        try:
            written = await self._api.merge(path, {"metadata": version, "status": status})
        except ApiError as error:
            if error.status in (CONFLICT, NOT_FOUND):
                return False
            raise
        if status.get("held") is not None and "held" not in written["status"]:
            raise PlatformError(
                "the definition of ElasticJob is of an earlier version, which knows no shares: apply what"
                " elastic-ctl operator --crds prints"
            )
        if record_of(before) == record_of(status):
            self._own[job] = written["metadata"]["resourceVersion"]
        return True

    def is_own(self, metadata: Mapping[str, Any]) -> bool:
        """Whether this version of a job is what we have written, and not for the sake of its record.

        Then nobody has to look: it was based on what was looked at.
        """
        own = self._own.get(f"{metadata['namespace']}/{metadata['name']}")
        return own is not None and own == str(metadata["resourceVersion"])

    async def start(self, job: str, sight: Sight, start: Start) -> None:
        found: Mapping[str, Any] = sight.token.job
        await self._prepare(job, found, sight)
        try:
            pod = pod_of(found, start)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise PlatformError(f"the template makes no pod: {one_line(str(error))}") from None
        created = await self._create("pods", found, pod)
        if created:
            self._learn(job, created["metadata"]["resourceVersion"])
        else:
            await self._check_own(found, pod["metadata"]["name"])

    async def _check_own(self, job: Mapping[str, Any], name: str) -> None:
        """A pod of this name that is there is the job's; else it can only be told of."""
        path = core_path(job["metadata"]["namespace"], "pods")
        listed = await self._api.get(path, fieldSelector=f"metadata.name={name}")
        if any(owner_of(pod) != job["metadata"]["uid"] for pod in listed["items"]):
            raise PlatformError(f"there is a pod {name} already, which is not of this job")

    async def _prepare(self, job: str, found: Mapping[str, Any], sight: Sight) -> None:
        """What pods need to find one another; it has to be there before them.

        Somebody may have deleted it since. But while pods run, others with a new token could not join them.
        """
        read = found["metadata"]["uid"], found["metadata"]["resourceVersion"]
        if self._prepared.get(job) == read:
            return
        await self._create("services", found, service_of(found))
        if not any(each.phase is Phase.RUNNING for each in sight.seen):
            await self._create("secrets", found, secret_of(found, secrets.token_urlsafe(_TOKEN_BYTES)))
        self._prepared[job] = read

    async def _create(self, kind: str, job: Mapping[str, Any], body: Mapping[str, Any]) -> Any:
        """The object as it is now; None if there was one of this name."""
        try:
            return await self._api.create(core_path(job["metadata"]["namespace"], kind), body)
        except ApiError as error:
            if error.reason != "AlreadyExists":
                raise
            return None

    async def remove(self, job: str, remove: Remove) -> None:
        namespace, name = _split(job)
        try:
            await self._api.delete(core_path(namespace, "pods", pod_name(name, remove.index)))
        except ApiError as error:
            if error.status != NOT_FOUND:
                raise

    async def tell(self, job: str, sight: Sight, note: Note) -> None:
        await tell(self._api, sight.token.job["metadata"], note, self._clock())


def _split(job: str) -> tuple[str, str]:
    namespace, _, name = job.partition("/")
    return namespace, name
