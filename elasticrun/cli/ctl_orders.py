"""The verbs of ``elastic-ctl`` that talk to a running job: status, drain, scale and stacks.

Each is an order. At its endpoint the master obeys it only with proof of the job's token; without an endpoint
it goes to the one job of this user on this host, which needs none (``rpc/nearby.py``). The exit codes are
those that ``elastic-run`` has for the same trouble.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import click

from elasticrun.cli import values
from elasticrun.cli.ctl_run import run_lean
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

#: Stands for --endpoint if that is not given.
ENDPOINT_VARIABLE = "ELASTICRUN_ENDPOINT"

F = TypeVar("F", bound=Callable[..., Any])

_FILE = click.Path(dir_okay=False)

#: The roles of which a job may have any number.
_SCALABLE = {role.value: role for role in SERVERS}
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


def add_orders(group: click.Group) -> None:
    """Add the verbs to ``elastic-ctl``."""
    for command in (status, drain, scale, stacks, restart):
        group.add_command(command)


def _common(command: F) -> F:
    """Add the options that every verb has."""
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
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object, see elastic-ctl manual nodes.")
def status(as_json: bool, **target: Any) -> None:
    """Show who is there and what the job does."""
    _run(target, lambda: _status_as_json if as_json else _shown_status)


@click.command(epilog=EXIT_CODES)
@click.argument("node")
@click.option("--reason", default="an operator asked for it", show_default=True, help="Goes into the logs.")
@_common
def drain(node: str, reason: str, **target: Any) -> None:
    """Let NODE leave the job with grace, so that its machine can be taken away.

    The beginning of its name is enough if no other node's begins so.
    """
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


async def _status_as_json(job: JobControl) -> str:
    from elasticrun.cli.documents import VERSION, StatusDocument, as_json

    return as_json(StatusDocument(VERSION, await job.status()))


def _run(given: dict[str, Any], order: Callable[[], Order]) -> None:
    target: Target | Here | None = None
    try:
        target = _target(given)
        text = _give(target, order())
    except OrderDeclinedError as error:
        click.echo(plain(str(error)), err=True)
        sys.exit(error.exit_code)
    except ElasticRunError as error:
        click.echo(f"elastic-ctl: error: {one_line(str(error))}{_advice(error, target)}", err=True)
        sys.exit(error.exit_code)
    click.echo(plain(text))
    sys.exit(ExitCode.OK)


def _advice(error: ElasticRunError, target: Target | Here | None) -> str:
    if isinstance(error, MasterUnreachableError) and isinstance(target, Target):
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


def _target(given: dict[str, Any]) -> Target | Here:
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


def _give(target: Target | Here, order: Order) -> str:
    async def ask() -> str:
        from elasticrun.control import JobControl

        if isinstance(target, Here):
            job = await JobControl.on_this_host(target.job_id, target.launcher, target.timeout)
        else:
            job = JobControl(target.endpoints, target.job_id, target.security, target.timeout, _try_next)
        return await order(job)

    try:
        return run_lean(ask)
    except UnauthenticatedError as error:
        if "token" in str(error) and isinstance(target, Target):  # not a certificate
            raise UnauthenticatedError(
                f"{error} (the token was read from {target.security.token_source})"
            ) from None
        raise


def _try_next(error: ElasticRunError) -> None:
    click.echo(f"elastic-ctl: {one_line(str(error))}; trying the next one", err=True)


#: For verbs in modules of their own: the options that say which job is meant, and how to ask it.
common_options, give_order = _common, _run
