"""An observer at work: one follower of the job, the page and what else is derived from it.

The observer is a process of its own. It may be slow, killed or missing; the job does not notice.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack

from elasticrun.control import JobControl
from elasticrun.core.protocol.chronicle import LogEntry
from elasticrun.errors import ElasticRunError, MasterUnreachableError
from elasticrun.follower import Follower
from elasticrun.observer.access import Door, Reading, is_loopback
from elasticrun.observer.extras import metrics_of, tracer_to
from elasticrun.observer.listening import url_of
from elasticrun.observer.live import Live
from elasticrun.observer.settings import ObserverSettings

#: Seconds that a task has to end before it is cancelled again.
CANCEL_TIME = 0.1
#: Seconds that news have which came with the end of the launcher, as most often the job's end does.
LAST_NEWS = 0.5

Taker = Callable[[Sequence[LogEntry], Sequence[str]], None]


async def observe(
    settings: ObserverSettings,
    listener: socket.socket | None,
    until: asyncio.Event,
    tell: Callable[[str], None],
) -> None:
    """Follow the job and serve the page until ``until``.

    Raises ElasticRunError if the job declines to be followed; while it is not found, that is what the page
    says. ``tell`` is called with the page's URL once it is served. The page stays when the job is over.
    """
    tracer = tracer_to(settings.traces, settings.job_id or "") if settings.traces else None
    takers: list[Taker] = []
    if tracer is not None:
        takers.append(lambda entries, _lines: tracer.take(entries))
    follower = Follower(
        lambda: _join_patiently(settings),
        lambda entries, lines: _tell_all(takers, entries, lines),
        patience=float("inf"),
    )
    live = Live(follower)
    takers.append(live.take)
    async with AsyncExitStack() as stack:
        if tracer is not None:
            stack.push_async_callback(asyncio.to_thread, tracer.close)  # a collector may be silent
        if listener is not None:
            await _serve(settings, listener, live, follower, stack)
            tell(url_of(listener, settings.host, settings.security.tls is not None))
        await _work(follower, live, until)


async def _work(follower: Follower, live: Live, until: asyncio.Event) -> None:
    """Follow and publish until told to stop, or until one of them fails."""
    stop = asyncio.ensure_future(until.wait())
    follow, publish = asyncio.ensure_future(follower.run()), asyncio.ensure_future(live.run())
    pending = {stop, follow, publish}
    try:
        while stop in pending and publish in pending:
            done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
            live.take()
            for each in done:
                each.result()
        if follow in pending and publish in pending:
            await asyncio.wait({follow}, timeout=LAST_NEWS)
    finally:
        # Repeated, as whatever the follower waits in may lose a cancellation that comes with a result, as
        # asyncio.wait_for does before Python 3.12: then it would go on for good.
        while left := [each for each in (stop, follow, publish) if not each.done()]:
            for each in left:
                each.cancel()
            await asyncio.wait(left, timeout=CANCEL_TIME)
        await asyncio.gather(stop, follow, publish, return_exceptions=True)


async def join(settings: ObserverSettings) -> JobControl:
    """A client of the job: through the master's own socket if that is on this host, else by its endpoint.

    Raises ElasticRunError if there is no way to it.
    """
    endpoints, security = settings.endpoints, settings.security
    try:
        return await JobControl.on_this_host(settings.job_id, settings.launcher, settings.timeout, endpoints)
    except ElasticRunError:  # whatever is here, the job may be elsewhere
        if not endpoints or security.token is None:
            raise
    return await JobControl.connect(endpoints, settings.job_id or "none", security, settings.timeout)


async def _join_patiently(settings: ObserverSettings) -> JobControl:
    """The same for one who waits for the job: whoever answers in its place, it may still come."""
    try:
        return await join(settings)
    except ElasticRunError as error:
        raise MasterUnreachableError(str(error)) from error


async def _serve(
    settings: ObserverSettings,
    listener: socket.socket,
    live: Live,
    follower: Follower,
    stack: AsyncExitStack,
) -> None:
    from elasticrun.observer.server import Names, Pages  # imports aiohttp, which traces alone do without
    from elasticrun.observer.serving import serve

    tls = settings.security.tls
    context = None
    if tls is not None:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(tls.cert, tls.key)
    door = Door(settings.security.token, _is_open(settings))
    names = frozenset({settings.host.lower(), socket.gethostname().lower(), socket.getfqdn().lower()})
    cookie = f"elasticrun-{listener.getsockname()[1]}"
    pages = Pages(
        live,
        follower.control,
        door,
        Names(names, "https" if context else "http", cookie),
        metrics_of(follower),
    )
    await serve(pages.app(), listener, stack, context)


def _is_open(settings: ObserverSettings) -> bool:
    if settings.reading is Reading.AUTO:
        return is_loopback(settings.host)
    return settings.reading is Reading.ANYONE


def _tell_all(takers: Sequence[Taker], entries: Sequence[LogEntry], lines: Sequence[str]) -> None:
    for take in takers:
        take(entries, lines)
