"""The verbs of ``elastic-ctl`` that talk to a running job: status, drain, scale and stacks.

Each is an order: the master obeys it only with proof of the job's token. The exit codes are those that
``elastic-run`` has for the same trouble.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import click

from elasticrun.cli import values
from elasticrun.cli.secrets import TOKEN_VARIABLE, Notes, find_token, read_tls
from elasticrun.config import Endpoint, SecurityConfig, TaskRole
from elasticrun.core.protocol.plain import one_line, plain
from elasticrun.core.protocol.tasks import MAX_CLUSTER
from elasticrun.core.tensorflow.cluster import SERVERS
from elasticrun.dataclass import dataclass
from elasticrun.errors import (
    ElasticRunError,
    ExitCode,
    MasterUnreachableError,
    OrderDeclinedError,
    UnauthenticatedError,
    UsageError,
)

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from elasticrun.control import JobControl

    #: Gives an order, and returns the text to show.
    Order = Callable[[JobControl], Coroutine[Any, Any, str]]

F = TypeVar("F", bound=Callable[..., Any])

_FILE = click.Path(dir_okay=False)

#: The roles of which a job may have any number.
_SCALABLE = {role.value: role for role in SERVERS}
#: Shown below the help of every verb.
EXIT_CODES = """\
Exit codes: 0 done; 1 the master declines, and says why; 2 wrong usage; 4 nothing answers at the endpoint;
5 another program holds it; 6 it serves another job; 7 another version of elasticrun; 11 broken protocol;
15 token or certificate wrong; 17 too many connections from here.
"""


@dataclass(frozen=True, slots=True)
class Target:
    """The job to steer, and the credentials for it."""

    endpoints: tuple[Endpoint, ...]
    job_id: str
    security: SecurityConfig
    timeout: float


def add_orders(group: click.Group) -> None:
    """Add the verbs to ``elastic-ctl``."""
    for command in (status, drain, scale, stacks, restart):
        group.add_command(command)


def _common(command: F) -> F:
    """Add the options that every verb has."""
    options = (
        click.option(
            "--endpoint",
            required=True,
            metavar="HOST[:PORT],...",
            help="Where the job's master listens: the --rdzv-endpoint of its nodes.",
        ),
        click.option("--rdzv-id", default="none", show_default=True, metavar="ID", help="Name of the job."),
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
        click.option(
            "--timeout",
            default="15",
            show_default=True,
            metavar="SECONDS",
            help="How long to try each host of the endpoint.",
        ),
    )
    for option in reversed(options):
        command = option(command)
    return command


@click.command(epilog=EXIT_CODES)
@_common
def status(**target: Any) -> None:
    """Show who is there and what the job does."""
    _run(target, lambda: _shown_status)


@click.command(epilog=EXIT_CODES)
@click.argument("node")
@click.option("--reason", default="an operator asked for it", show_default=True, help="Goes into the logs.")
@_common
def drain(node: str, reason: str, **target: Any) -> None:
    """Let NODE leave the job with grace, so that its machine can be taken away."""
    _run(target, lambda: lambda job: job.drain(node, reason))


@click.command(epilog=EXIT_CODES)
@click.argument("nodes", metavar="[N|MIN:MAX]", required=False)
@click.option(
    "--role",
    "roles",
    multiple=True,
    metavar="ROLE=N",
    help="How many ps or workers a TensorFlow job with parameter servers has from now on, such as ps=3.",
)
@_common
def scale(nodes: str | None, roles: tuple[str, ...], **target: Any) -> None:
    """Run with N nodes, or with at least MIN and at most MAX, or with N tasks of a ROLE, from now on."""
    _run(target, lambda: _scale_order(nodes, roles))


@click.command(epilog=EXIT_CODES)
@_common
def stacks(**target: Any) -> None:
    """Have every node save the stacks of its workers beside their logs."""
    _run(target, lambda: lambda job: job.stacks())


@click.command(epilog=EXIT_CODES)
@click.option("--reason", default="an operator asked for it", show_default=True, help="Goes into the logs.")
@_common
def restart(reason: str, **target: Any) -> None:
    """Stop all workers and start them again, from the newest saved state."""
    _run(target, lambda: lambda job: job.restart(reason))


async def _shown_status(job: JobControl) -> str:
    from elasticrun.core.protocol.status import status_in_words

    return status_in_words(await job.status())


def _run(given: dict[str, Any], order: Callable[[], Order]) -> None:
    try:
        text = _give(_target(given), order())
    except OrderDeclinedError as error:
        click.echo(plain(str(error)), err=True)
        sys.exit(error.exit_code)
    except ElasticRunError as error:
        click.echo(f"elastic-ctl: error: {one_line(str(error))}{_advice(error)}", err=True)
        sys.exit(error.exit_code)
    click.echo(plain(text))
    sys.exit(ExitCode.OK)


def _advice(error: ElasticRunError) -> str:
    if isinstance(error, MasterUnreachableError):
        return "; look at --endpoint, and whether the job runs there"
    return ""


def _scale_order(nodes: str | None, roles: Sequence[str]) -> Order:
    if nodes is None and not roles:
        raise UsageError(
            "nothing to scale: give a number of nodes, such as 4 or 1:4, or --role, such as ps=3"
        )
    if nodes is not None and roles:
        raise UsageError(
            f"a number of nodes ({nodes!r}) and --role {roles[0]} cannot be given together: run "
            "scale once for each"
        )
    if len(roles) > 1:
        raise UsageError(f"--role is given {len(roles)} times: order one change, then the other")
    if nodes is None:
        role, count = _role_count(roles[0])
        return lambda job: job.scale_role(role, count)
    low, high = _node_range(nodes)
    return lambda job: job.scale(low, high)


def _role_count(text: str) -> tuple[TaskRole, int]:
    name, _, number = text.partition("=")
    if name not in _SCALABLE:
        known = {role.value for role in TaskRole}
        why = f"a job has at most one {name}" if name in known else f"there is no role {name!r}"
        raise UsageError(f"--role {text!r} is not valid: {why}; give worker=N or ps=N")
    if not (number.isascii() and number.isdigit() and len(number) <= 9 and 1 <= int(number) <= MAX_CLUSTER):
        example = f"a number from 1 to {MAX_CLUSTER}, such as {name}=3"
        raise UsageError(f"--role {text!r} is not valid: give {example}")
    return _SCALABLE[name], int(number)


def _node_range(text: str) -> tuple[int, int]:
    try:
        return values.node_range(text)
    except ValueError as error:
        reason = str(error) or "give N or MIN:MAX with 1 <= MIN <= MAX, such as 2 or 1:4"
        raise UsageError(f"{text!r} is no number of nodes: {reason}") from None


def _target(given: dict[str, Any]) -> Target:
    notes: Notes = []
    try:
        endpoints = values.endpoints(given["endpoint"])
    except ValueError as error:
        reason = str(error) or "give HOST:PORT"
        raise UsageError(f"--endpoint {given['endpoint']!r} is not valid: {reason}") from None
    strict, path = not given["insecure_token"], given["token_file"] or None
    token = find_token(path, os.environ, endpoints, notes, strict, make=False)
    if token is None:
        raise UsageError(
            f"no token found: give the job's by --token-file or {TOKEN_VARIABLE}; "
            "a job that has none takes no orders"
        )
    tls = read_tls(given["tls_ca"], given["tls_cert"], given["tls_key"], notes)
    for level, sentence in notes:
        if level == "warning":
            click.echo(f"elastic-ctl: {sentence}", err=True)
    return Target(
        endpoints, given["rdzv_id"], SecurityConfig(token.text, tls, token.source), _timeout(given["timeout"])
    )


def _timeout(text: str) -> float:
    try:
        return values.some_seconds(text)
    except ValueError:
        raise UsageError(f"--timeout {text!r} is not valid: give a number of seconds above 0") from None


def _give(target: Target, order: Order) -> str:
    from elasticrun.cli.import_trimming import import_asyncio_without_ssl, import_hmac_without_openssl

    os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # else its core prints lines of its own
    import_asyncio_without_ssl()
    import_hmac_without_openssl()
    import asyncio

    from elasticrun.control import JobControl

    job = JobControl(target.endpoints, target.job_id, target.security, target.timeout, _try_next)
    try:
        return asyncio.run(order(job))
    except UnauthenticatedError as error:
        if "token" in str(error):  # not a certificate
            raise UnauthenticatedError(
                f"{error} (the token was read from {target.security.token_source})"
            ) from None
        raise


def _try_next(error: ElasticRunError) -> None:
    click.echo(f"elastic-ctl: {one_line(str(error))}; trying the next one", err=True)
