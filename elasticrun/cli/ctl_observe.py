"""``elastic-ctl observe``: the web page of a job, from any host that reaches it."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING, Any

import click

from elasticrun.cli import values
from elasticrun.cli.asking import EXIT_CODES, Here, find_target, order_options, where_to_look
from elasticrun.cli.ctl_run import exit_on_errors
from elasticrun.cli.secrets import find_token
from elasticrun.config import Endpoint, SecurityConfig
from elasticrun.errors import UsageError

if TYPE_CHECKING:
    from elasticrun.observer.settings import ObserverSettings


@click.command(epilog=EXIT_CODES)
@click.option(
    "--web", required=True, metavar="[HOST]:PORT", help="Where to serve it; only here without HOST."
)
@click.option(
    "--web-read",
    type=click.Choice(("auto", "token", "anyone")),
    default="auto",
    show_default=True,
    help="Who may read it without the job's token; auto: everybody on this host, if only that is served.",
)
@click.option("--traces", metavar="URL", help="Send recoveries as OpenTelemetry traces to this URL.")
@order_options
def observe(web: str, web_read: str, traces: str | None, **given: Any) -> None:
    """Serve a web page that shows a job, until Ctrl-C."""
    with exit_on_errors():
        _observe(_address(web), web_read, traces or "", given)


def _address(text: str) -> Endpoint:
    try:
        return values.web_address(text)
    except ValueError as error:
        raise UsageError(f"--web {text!r} is not valid: {error}; give [HOST]:PORT, such as :8080") from None


def _observe(web: Endpoint, read: str, traces: str, given: dict[str, Any]) -> None:
    from elasticrun.cli.web import check_installed, open_listener
    from elasticrun.observer.access import Reading
    from elasticrun.observer.settings import ObserverSettings

    if traces:
        check_installed("opentelemetry.sdk", "--traces", "traces")
    target = find_target(given)
    security = _own_security() if isinstance(target, Here) else target.security
    listener = open_listener(web, read, security)
    settings = ObserverSettings(
        job_id=target.job_id,
        launcher=target.launcher if isinstance(target, Here) else None,
        endpoints=() if isinstance(target, Here) else target.endpoints,
        security=security,
        timeout=target.timeout,
        listener=listener.fileno(),
        host=web.host,
        reading=Reading(read),
        traces=traces,
    )
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    with where_to_look(target):
        _run(settings, listener)


def _own_security() -> SecurityConfig:
    """The token that this user's jobs on this host have, if any, is the login here as well."""
    token = find_token(None, os.environ, (), [], is_strict=False, make=False)
    return SecurityConfig() if token is None else SecurityConfig(token.text, None, token.source)


def _run(settings: ObserverSettings, listener: Any) -> None:
    import asyncio

    from elasticrun.observer.observe import join, observe
    from elasticrun.observer.priority import give_way_to_workers

    give_way_to_workers()

    async def work() -> None:
        await join(settings)  # a job that is not there is told at once
        until = asyncio.Event()
        for signum in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(signum, until.set)
        await observe(settings, listener, until, lambda url: click.echo(f"web page: {url} (Ctrl-C ends it)"))

    asyncio.run(work())
