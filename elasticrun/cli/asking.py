"""Which job a verb of ``elastic-ctl`` is about, and how it is asked.

At its endpoint a master obeys only with proof of the job's token; without an endpoint an order goes to the
one job of this user on this host, which needs none (``rpc/nearby.py``). The exit codes are those that
``elastic-run`` has for the same trouble.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

import click

from elasticrun.cli import values
from elasticrun.cli.ctl_run import exit_on_errors, run_lean
from elasticrun.cli.secrets import TOKEN_VARIABLE, Notes, find_token, read_tls
from elasticrun.config import Endpoint, SecurityConfig
from elasticrun.core.protocol.plain import one_line, plain
from elasticrun.dataclass import dataclass
from elasticrun.errors import (
    ElasticRunError,
    ExitCode,
    MasterUnreachableError,
    UnauthenticatedError,
    UsageError,
)

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from elasticrun.control import JobControl

    #: Gives an order, and returns the text to show.
    Order = Callable[[JobControl], Coroutine[Any, Any, str]]

#: Stands for --endpoint if that is not given.
ENDPOINT_VARIABLE = "ELASTICRUN_ENDPOINT"
#: Seconds to try each host, if nothing else is said.
CONNECT_TIMEOUT = "15"

F = TypeVar("F", bound=Callable[..., Any])

_FILE = click.Path(dir_okay=False)

#: Options that say how to prove oneself at an endpoint.
_FOR_ENDPOINTS = ("token_file", "insecure_token", "tls_ca", "tls_cert", "tls_key")
#: Shown below the help of every verb.
EXIT_CODES = """\
Exit codes: 0 done; 1 the master declines, and says why; 2 wrong usage; 4 nothing answers at the endpoint, or
no such job is on this host; 5 another program holds it; 6 it serves another job; 7 another version of
elasticrun; 11 broken protocol; 15 token or certificate wrong; 17 too many connections from here.
"""


@dataclass(frozen=True, slots=True)
class Target:
    """The job to steer, and the credentials for it."""

    endpoints: tuple[Endpoint, ...]
    job_id: str
    security: SecurityConfig
    timeout: float


@dataclass(frozen=True, slots=True)
class Here:
    """The one job of this user on this host, or the one of them that is named."""

    job_id: str | None
    launcher: int | None
    timeout: float


def order_options(command: F) -> F:
    """Add the options that every verb has."""
    timeout = click.option(
        "--timeout",
        default=CONNECT_TIMEOUT,
        show_default=True,
        metavar="SECONDS",
        help="How long to try each host of the endpoint.",
    )
    return target_options(timeout(command))


def target_options(command: F) -> F:
    """Add the options that say which job is meant."""
    options = (
        click.option(
            "--endpoint",
            metavar="HOST[:PORT],...",
            help="Where the job's master listens: the --rdzv-endpoint of its nodes "
            f"(default: {ENDPOINT_VARIABLE}, else this user's job on this host, which needs no token).",
        ),
        click.option("--rdzv-id", metavar="ID", help="Name of the job (default: none; on this host: any)."),
        click.option(
            "--pid",
            type=click.IntRange(1),
            metavar="PID",
            help="The job on this host whose launcher this is, as elastic-ctl ps shows it.",
        ),
        click.option(
            "--token-file",
            type=_FILE,
            metavar="FILE",
            help=f"File with the job's token (default: {TOKEN_VARIABLE}, else what agents find here).",
        ),
        click.option("--insecure-token", is_flag=True, help="As given to the job's nodes."),
        click.option("--tls-ca", type=_FILE, metavar="FILE", help="As given to the job's nodes, PEM."),
        click.option("--tls-cert", type=_FILE, metavar="FILE", help="A certificate for this host, PEM."),
        click.option("--tls-key", type=_FILE, metavar="FILE", help="Its key, PEM."),
    )
    for option in reversed(options):
        command = option(command)
    return command


def json_option(command: F) -> F:
    """Add ``--json`` to a verb that changes something."""
    text = "Print one JSON object, see elastic-ctl manual nodes; an error is a sentence on stderr as ever."
    return click.option("--json", "as_json", is_flag=True, help=text)(command)


def reason_option(command: F) -> F:
    """Add ``--reason`` to a verb that changes something."""
    default = "an operator asked for it"
    return click.option("--reason", default=default, show_default=True, help="Goes into the logs.")(command)


def answering(verb: str, as_json: bool, order: Order) -> Order:
    """The same order, with the answer as a document if that is wanted."""

    async def ask(job: JobControl) -> str:
        from elasticrun.cli.documents import VERSION, OrderDocument, text_of

        return text_of(OrderDocument(VERSION, verb, await order(job)))

    return ask if as_json else order


def carry_out(given: dict[str, Any], order: Callable[[], Order]) -> None:
    """Give the order that ``order`` makes to the job that the options mean, show its answer, and exit."""
    with exit_on_errors():
        target = find_target(given)
        give = order()

        async def ask() -> str:
            return await give(await connector(target, _try_next)())

        with where_to_look(target):
            text = run_lean(ask)
    if text:  # "": the order has shown what there is
        click.echo(plain(text))
    sys.exit(ExitCode.OK)


def connector(
    target: Target | Here, on_silent: Callable[[ElasticRunError], None] = lambda _: None
) -> Callable[[], Awaitable[JobControl]]:
    """What makes a client of the job, as often as it is asked to: always of the one that it found first.

    ``on_silent``: hears why an endpoint is passed over for the next one.
    """
    found: list[JobControl] = []

    async def connect() -> JobControl:
        from elasticrun.control import JobControl

        if found:
            return found[0]
        if isinstance(target, Here):
            found.append(await JobControl.on_this_host(target.job_id, target.launcher, target.timeout))
            return found[0]
        return JobControl(target.endpoints, target.job_id, target.security, target.timeout, on_silent)

    return connect


@contextmanager
def where_to_look(target: Target | Here) -> Iterator[None]:
    """Add to what goes wrong at an endpoint where the mistake may be."""
    try:
        yield
    except MasterUnreachableError as error:
        if isinstance(target, Here):
            raise
        raise MasterUnreachableError(f"{error}; look at --endpoint, and whether the job runs there") from None
    except UnauthenticatedError as error:
        if isinstance(target, Here) or "token" not in str(error):  # the certificate
            raise
        source = target.security.token_source
        raise UnauthenticatedError(f"{error} (the token was read from {source})") from None


def refuse_target(log: object, given: Mapping[str, Any]) -> None:
    """Raises UsageError if options say which job is meant, as an event log is read in its place."""
    named = next((name for name in ("endpoint", "rdzv_id", "pid") if given[name] is not None), None)
    if named is not None:
        raise UsageError(
            f"--{named.replace('_', '-')} is for a job that is asked, and {str(log)!r} is a log: give one"
        )


def find_target(given: dict[str, Any]) -> Target | Here:
    """Where the order goes. Raises UsageError for what cannot be used."""
    text, source = given["endpoint"], "--endpoint"
    if text is None and given["pid"] is None and (text := os.environ.get(ENDPOINT_VARIABLE) or None):
        source = ENDPOINT_VARIABLE
    if text is None:
        if lonely := next((name for name in _FOR_ENDPOINTS if given[name]), None):
            raise UsageError(
                f"--{lonely.replace('_', '-')} is for a job that is asked at its endpoint: give --endpoint as"
                " well, or neither for a job of this host"
            )
        return Here(given["rdzv_id"], given["pid"], _timeout(given["timeout"]))
    if given["pid"] is not None:
        raise UsageError(f"{source} and --pid exclude each other: give --pid for a job on this host")
    try:
        endpoints = values.endpoints(text)
    except ValueError as error:
        reason = str(error) or "give HOST:PORT"
        raise UsageError(f"{source} {text!r} is not valid: {reason}") from None
    return _target_at(endpoints, given)


def _target_at(endpoints: tuple[Endpoint, ...], given: dict[str, Any]) -> Target:
    notes: Notes = []
    strict, path = not given["insecure_token"], given["token_file"] or None
    token = find_token(path, os.environ, endpoints, notes, strict, make=False)
    if token is None:
        raise UsageError(
            f"no token found: give the job's by --token-file or {TOKEN_VARIABLE}; "
            "a job that has none takes orders on its master's host only, without --endpoint"
        )
    tls = read_tls(given["tls_ca"], given["tls_cert"], given["tls_key"], notes)
    for level, sentence in notes:
        if level == "warning":
            click.echo(f"elastic-ctl: {sentence}", err=True)
    security, job_id = SecurityConfig(token.text, tls, token.source), given["rdzv_id"]
    return Target(endpoints, "none" if job_id is None else job_id, security, _timeout(given["timeout"]))


def _timeout(text: str) -> float:
    try:
        return values.some_seconds(text)
    except ValueError:
        raise UsageError(f"--timeout {text!r} is not valid: give a number of seconds above 0") from None


def _try_next(error: ElasticRunError) -> None:
    click.echo(f"elastic-ctl: {one_line(str(error))}; trying the next one", err=True)
