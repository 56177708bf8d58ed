"""The way to a job's master, for whoever asks it again and again: its endpoints, or its socket on this host.

A master that is started again has the same endpoints, but another socket. It is known by its launcher, which
no other job has. If another launcher on this host started it, it says that it took the job up, at the same
endpoint. So who follows one job is not led to another one of the same name.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from elasticrun.clock import within
from elasticrun.config import Endpoint, SecurityConfig
from elasticrun.core.protocol.orders import ControlReply, ControlRequest, WatchEvents
from elasticrun.errors import (
    ElasticRunError,
    EndpointTakenError,
    MasterUnreachableError,
    OrderDeclinedError,
    UsageError,
)
from elasticrun.rpc import nearby

T = TypeVar("T")
#: A host by its name or one of its addresses, and a port there.
Place = tuple[str, int]
#: What the addresses of this host's loopback interface usually are.
_LOOPBACK = ("127.0.0.1", "::1")


class JobLine:
    """Gives orders to one job, each on a connection of its own."""

    def __init__(
        self,
        endpoints: Sequence[Endpoint],
        job_id: str,
        security: SecurityConfig,
        timeout: float,
        on_silent: Callable[[ElasticRunError], None],
        here: nearby.NearbyJob | None = None,
    ) -> None:
        """``here``: the job on this host; None: it is asked at the endpoints. ``timeout``: of each try."""
        self.timeout = timeout
        self._endpoints = tuple(endpoints)
        self._job_id = job_id
        self._security = security
        self._on_silent = on_silent
        self._here = here
        self._following: nearby.Following | None = None  # nobody waits for its next answer

    async def give(self, request: ControlRequest, wait: float = 0.0) -> ControlReply:
        """The answer of a master that obeys; it may take ``wait`` seconds more than usual."""
        return _obeyed(await (self._at_endpoint if self._here is None else self._nearby)(request, wait))

    async def follow(self, after: str, wait: float) -> ControlReply:
        """The answer to ``WatchEvents``. On the master's host the connection stays for the next such question
        until ``close``.
        """
        if self._here is None:
            return await self.give(WatchEvents(after, wait), wait)
        following, self._following = self._following, None
        if following is not None and (following.upto, following.wait) != (after, wait):
            following.close()
            following = None
        if following is None:
            following = await self._found(lambda name: nearby.follow(name, after, wait))
        try:
            reply = _obeyed(await following.next(self.timeout + wait))
        except BaseException:
            following.close()
            raise
        if following.is_over:
            following.close()
        else:
            self._following = following
        return reply

    def close(self) -> None:
        """Follow no more; whatever else is asked has connections of its own."""
        if self._following is not None:
            self._following.close()
            self._following = None

    async def _at_endpoint(self, request: ControlRequest, wait: float) -> ControlReply:
        """Try the endpoints in turn: only the host that has the master listens."""
        from elasticrun.rpc.control import give_order  # imports gRPC, which a job on this host does not need

        endpoints = self._endpoints
        for endpoint in endpoints:
            try:
                reply = await give_order(endpoint, self._job_id, request, self._security, self.timeout + wait)
            except (MasterUnreachableError, EndpointTakenError) as error:
                if endpoint is endpoints[-1]:
                    raise
                self._on_silent(error)
            else:
                self._endpoints = (endpoint, *(each for each in endpoints if each != endpoint))
                return reply
        raise UsageError("a job is asked at one endpoint at least, and none is given")

    async def _nearby(self, request: ControlRequest, wait: float) -> ControlReply:
        reply, _ = await self._found(lambda name: nearby.give(name, request, self.timeout + wait))
        return reply

    async def _found(self, ask: Callable[[str], Awaitable[T]]) -> T:
        """What the master on this host gives, if need be another one of the same job."""
        assert self._here is not None
        try:
            return await ask(self._here.name)
        except nearby.GoneError:  # nothing was heard there
            found, _ = await nearby.jobs(self.timeout)
            again = [job for job in found if _goes_on(job, self._here)]
            if len(again) != 1:
                raise
        self._here = again[0]
        return await ask(self._here.name)


def _obeyed(reply: ControlReply) -> ControlReply:
    if not reply.ok:
        raise OrderDeclinedError(reply.text)
    return reply


def _goes_on(job: nearby.NearbyJob, before: nearby.NearbyJob) -> bool:
    """Whether a job is the same, under another master."""
    if job.status.job_id != before.status.job_id:
        return False
    if job.about.launcher == before.about.launcher:
        return True
    return job.about.since is None and job.about.endpoint == before.about.endpoint != ""


async def find_nearby(
    job_id: str | None, launcher: int | None, timeout: float, endpoints: Sequence[Endpoint] = ()
) -> nearby.NearbyJob:
    """The one job of this user whose master is on this host, or the one of them that is meant.

    With ``endpoints``, only one whose master listens at one of these is. Raises MasterUnreachableError if
    there is none, UsageError if there are several, or may be: of those that give no sensible answer nobody
    knows which job they are.
    """
    found, troubles = await nearby.jobs(timeout)
    meant = [job for job in found if job_id in (None, job.status.job_id)]
    meant = [job for job in meant if launcher in (None, job.about.launcher)]
    endpoints = [each for each in endpoints if each.port]  # port 0 says nothing of where a master is
    if meant and endpoints:
        places = set().union(*[await _places(each.host, each.port, timeout) for each in endpoints])
        meant = [job for job in meant if _is_here(job, places) or places & await _places_of(job, timeout)]
    if not meant and troubles:
        raise troubles[0]
    if not meant and endpoints:
        named = ", ".join(map(str, endpoints))
        raise MasterUnreachableError(f"no job of this user whose master is at {named} is on this host")
    if not meant:
        raise MasterUnreachableError(_none_of(found, job_id, launcher))
    if len(meant) > 1:
        raise UsageError(
            f"{len(meant)} jobs of this user are on this host: name one of {nearby.several(meant)}"
        )
    unknown = [each for each in troubles if not isinstance(each, nearby.BusyError)]
    if unknown and job_id is None and launcher is None:
        raise UsageError(
            f"another job of this user is on this host and gives no sensible answer ({unknown[0]}): name"
            f" the one that is meant, such as {nearby.several(meant)}"
        )
    return meant[0]


def _is_here(job: nearby.NearbyJob, places: set[Place]) -> bool:
    """Whether its port at this host's own loopback address is among these places: its master is here."""
    port = job.about.endpoint.rpartition(":")[2]
    return any(str(number) == port and host in _LOOPBACK for host, number in places)


async def _places_of(job: nearby.NearbyJob, timeout: float) -> set[Place]:
    """Where its master listens; nowhere if it serves this host alone."""
    host, _, port = job.about.endpoint.rpartition(":")
    return await _places(host.strip("[]"), int(port), timeout) if host and port.isdecimal() else set()


async def _places(host: str, port: int, timeout: float) -> set[Place]:
    """All that mean the same place: as it is written, and its addresses, if they are told in time."""
    places: set[Place] = {(host.casefold(), port)}
    lookup = asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    try:
        found = await within(timeout, lookup)
    except (OSError, UnicodeError, asyncio.TimeoutError):
        return places
    return places.union((str(address[0]), port) for _, _, _, _, address in found)


def _none_of(found: Sequence[nearby.NearbyJob], job_id: str | None, launcher: int | None) -> str:
    """That no job of this host is meant, and what to do."""
    if found:
        name = f"of the id {job_id!r}" if launcher is None else f"of the launcher {launcher}"
        return f"no job {name} is on this host; this user's are {nearby.several(found)}"
    return (
        "no job of this user has its master on this host: start one, run this on the master's host, or give"
        " --endpoint HOST:PORT or ELASTICRUN_ENDPOINT"
    )
