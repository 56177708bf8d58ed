"""The figures and probes of the operator: ``GET /metrics``, ``/healthz`` and ``/readyz``.

Theory. They are served in the operator's own loop, so a probe that is answered says that this loop turns.
Whoever reaches the port may ask, and learns only counts. The operator needs its files and its time for the
API server, so strangers get a few connections, each for one short question (``serving.py``).

Invariants. No label names a job or a namespace. ``elasticrun/manual/operator.md`` describes each metric; a
test compares it with this module.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AsyncExitStack

from aiohttp import web

from elasticrun import __version__
from elasticrun.core.fleet.figures import Figures
from elasticrun.observer.exposition import Count, Facts, Family, Gauge, Histogram, exposed
from elasticrun.observer.serving import Limits, serve

log = logging.getLogger(__name__)

#: Scrapers and probes are few, and each asks one thing. It takes four turns of the loop from the taking of a
#: connection to the answer: in these no more come than there is room for, so that a flood puts out no probe.
LIMITS = Limits(connections=16, lasts=5.0, line=2048, at_once=3)
_NAME = "operator_"

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def families(figures: Figures) -> Iterator[Family]:
    """All metrics."""
    about = "The version of elasticrun that the operator runs."
    yield Facts(_NAME + "info", about, {"version": __version__})
    about = "Jobs that are kept: all that are there, less those that make no sense or are deleted."
    yield Gauge(_NAME + "jobs", about, {"": len(figures.jobs)})
    about = "Jobs to which something happened, and whose pass has not begun."
    yield Gauge(_NAME + "jobs_waiting", about, {"": figures.waiting})
    about = "Passes: looks at one job, with what is done then, by how they ended."
    yield Histogram(_NAME + "pass_seconds", about, figures.passes, "result")
    about = "How long a job waited for its pass, from the first notice."
    yield Histogram(_NAME + "pass_wait_seconds", about, {"": figures.waits})
    about = "Requests to the API server, without watches, by the class of its answer."
    yield Count(_NAME + "api_requests_total", about, figures.requests, ("verb", "answer"))
    about = "Questions to masters of jobs, by how they ended."
    yield Count(_NAME + "master_questions_total", about, figures.questions, "result")


async def serve_figures(
    figures: Figures,
    ready: asyncio.Event,
    until: asyncio.Event,
    listener: socket.socket,
    stack: AsyncExitStack,
) -> None:
    """Serve until the stack is closed. ``ready``: the operator watches; ``until``: it is to end."""

    async def metrics(_: web.Request) -> web.StreamResponse:
        body, kind = exposed(families(figures), with_process=True)
        return web.Response(body=body, headers={"Content-Type": kind})

    async def healthz(_: web.Request) -> web.StreamResponse:
        return _told(not until.is_set(), "the operator works", "the operator ends")

    async def readyz(_: web.Request) -> web.StreamResponse:
        is_ready = ready.is_set() and not until.is_set()
        return _told(is_ready, "the operator watches its jobs", "the operator does not watch its jobs")

    app = web.Application(middlewares=[_guard])
    app.router.add_get("/metrics", metrics)
    app.router.add_get("/healthz", healthz)
    app.router.add_get("/readyz", readyz)
    await serve(app, listener, stack, limits=LIMITS)


@web.middleware
async def _guard(request: web.Request, handler: Handler) -> web.StreamResponse:
    """One short question on each connection, and no body."""
    answer: web.StreamResponse
    try:
        if request.body_exists:
            answer = _text(413, "a request has no body here")
        else:
            answer = await handler(request)
    except web.HTTPException as error:
        answer = _text(error.status, error.reason)
    except Exception:
        log.exception("a fault of this program, while its figures were asked for")
        answer = _text(500, "a fault of the operator: see its log")
    answer.force_close()
    return answer


def _told(is_so: bool, yes: str, no: str) -> web.Response:
    return _text(200, yes) if is_so else _text(503, no)


def _text(status: int, text: str) -> web.Response:
    return web.Response(status=status, text=f"{text}\n")
