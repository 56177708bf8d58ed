"""Shares a cluster among its ElasticJobs: reads all of them, has ``core/cluster/sharing.py`` decide, writes.

Theory. What was decided is kept in the status of each job, and is read again from the server before each
plan; so an operator that dies leaves nothing half known, and one that cannot read changes nothing. Each share
is written for the version of the job that was read. If anybody has changed the job since, the server refuses
it, and a new plan is made. Those that free units are written first, and no share grows unless they were.

A plan reads all jobs, so there is one for each burst of changes that matter to it, and not one for each job.
A change matters if the job asks for something else than before. Plans take at most a fifth of the time.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from elasticrun.core.cluster.sharing import Ask, Grant, share_out
from elasticrun.core.fleet.replicas import Note
from elasticrun.platforms.keeper import Queue
from elasticrun.platforms.kubernetes.api import CONFLICT, NOT_FOUND, Api, ApiError
from elasticrun.platforms.kubernetes.asks import ask_of, kept
from elasticrun.platforms.kubernetes.names import API_VERSION, PLURAL, job_path
from elasticrun.platforms.kubernetes.telling import tell

log = logging.getLogger(__name__)

#: Seconds for which changes are gathered before there is a plan; more, if plans take long.
GAP, TIMES = 0.2, 4
#: So many shares are written at a time.
_AT_A_TIME = 8
_ALL = "all jobs"


class Sharer:
    """One cluster. Made, and used, inside the running loop."""

    def __init__(
        self,
        api: Api,
        places: Sequence[str],
        capacity: Mapping[str, int],
        clock: Callable[[], float] = time.time,
    ) -> None:
        """``places``: parts of paths, of the namespaces that are kept. ``capacity``: units of each kind."""
        self._api = api
        self._places = places
        self._capacity = capacity
        self._clock = clock
        self._asks: dict[str, Ask | None] = {}  # as far as is known, to tell what is news
        self._queue = Queue(self._plan, at_a_time=1)
        self._slots = asyncio.Semaphore(_AT_A_TIME)
        self._timer: asyncio.TimerHandle | None = None
        self._took = 0.0  # seconds of the last plan
        self._is_closed = False

    def notice(self, body: Mapping[str, Any], is_gone: bool) -> None:
        """A job is there, was changed, or is gone."""
        name, ask = _name(body), None if is_gone else ask_of(_plain(body), tuple(self._capacity))
        if self._asks.get(name) == ask:
            return
        if is_gone:
            self._asks.pop(name, None)
        else:
            self._asks[name] = ask
        self.look()

    def look(self) -> None:
        """Have a plan soon, with whatever else happens until then."""
        if self._timer is None and not self._is_closed:
            delay = max(GAP, TIMES * self._took)
            self._timer = asyncio.get_running_loop().call_later(delay, self._due)

    def _due(self) -> None:
        self._timer = None
        self._queue.notice(_ALL)

    async def _plan(self, _: str) -> float | None:
        """Plan once; the seconds until the next plan, None: at a notice. Raises PlatformError."""
        began = time.monotonic()
        bodies = {_name(body): body for body in await self._jobs()}
        found = {name: ask_of(body, tuple(self._capacity)) for name, body in bodies.items()}
        asks = [ask for ask in found.values() if ask is not None]
        shared = share_out(asks, self._capacity, self._clock())
        self._took = time.monotonic() - began
        self._asks = {**found}
        frees = [grant for grant in shared.grants if grant.granted.nodes < grant.before]
        others = [grant for grant in shared.grants if grant.granted.nodes >= grant.before]
        for grants in (frees, others):
            if not await self._write(grants, bodies, {ask.name: ask for ask in asks}):
                self.look()
                return None
        return None if shared.look_at is None else max(0.0, shared.look_at - self._clock())

    async def _jobs(self) -> list[Mapping[str, Any]]:
        found = list[Mapping[str, Any]]()
        for place in self._places:
            listed = await self._api.get(f"/apis/{API_VERSION}{place}/{PLURAL}")
            found += listed["items"]
        return found

    async def _write(
        self,
        grants: Iterable[Grant],
        bodies: Mapping[str, Mapping[str, Any]],
        asks: Mapping[str, Ask],
    ) -> bool:
        """Write these shares; whether none of the jobs had changed. Raises PlatformError."""
        done = await asyncio.gather(
            *(self._grant(grant, bodies[grant.name], asks[grant.name]) for grant in grants),
            return_exceptions=True,
        )
        for each in done:
            if isinstance(each, BaseException):
                raise each
        return all(done)

    async def _grant(self, grant: Grant, body: Mapping[str, Any], ask: Ask) -> bool:
        async with self._slots:
            metadata = body["metadata"]
            path = job_path(metadata["namespace"], metadata["name"], "status")
            version = {"resourceVersion": metadata["resourceVersion"]}
            self._asks[grant.name] = replace(ask, granted=grant.granted)  # to hear of it is no news
            share = kept(grant.granted, ask)
            try:
                await self._api.merge(path, {"metadata": version, "status": {"share": share}})
            except ApiError as error:
                if error.status in (CONFLICT, NOT_FOUND):
                    return False
                raise
            if grant.is_change:
                text = f"{grant.granted.nodes} replicas, {grant.before} before: {grant.granted.why}"
                log.info("%s: Shared: %s", grant.name, text)
                await tell(self._api, metadata, Note("Shared", text), self._clock())
            return True

    async def close(self) -> None:
        """End: nothing is planned any more."""
        self._is_closed = True
        if self._timer is not None:
            self._timer.cancel()
        await self._queue.close()


def _name(body: Mapping[str, Any]) -> str:
    return f"{body['metadata']['namespace']}/{body['metadata']['name']}"


def _plain(body: Mapping[str, Any]) -> dict[str, Any]:
    """What is watched comes as a view."""
    return dict(body)
