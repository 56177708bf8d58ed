"""``elastic-ctl scale``: other bounds, fewer nodes, or more, and the end of a wait for these.

``scale 2:4`` has no verb of its own, so what is no subcommand goes to a hidden one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click
from click.shell_completion import CompletionItem

from elasticrun.cli import values
from elasticrun.cli.asking import (
    CONNECT_TIMEOUT,
    EXIT_CODES,
    answering,
    carry_out,
    json_option,
    order_options,
    reason_option,
    target_options,
)
from elasticrun.cli.node_names import complete_node
from elasticrun.config import TaskRole
from elasticrun.core.protocol.orders import MAX_NAMED, MAX_SCALE_WAIT
from elasticrun.core.protocol.tasks import MAX_CLUSTER
from elasticrun.core.tensorflow.cluster import SERVERS
from elasticrun.errors import UsageError

if TYPE_CHECKING:
    from elasticrun.cli.asking import Order
    from elasticrun.control import JobControl

#: The roles of which a job may have any number.
_SCALABLE = {role.value: role for role in SERVERS}
_BOUNDS = "bounds"
_MOST = 2**31 - 1
_HELP = ("-h", "--help")
_OUT_CODES = f"{EXIT_CODES.rstrip().removesuffix('.')}; 18 not enough nodes came in time.\n"


class _Scale(click.Group):
    """Takes what is no subcommand for bounds."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Put the hidden subcommand in front of bounds."""
        is_plain = bool(args) and (args[0] in self.commands or args[0] in _HELP)
        if not is_plain and not ctx.resilient_parsing:
            args = [_BOUNDS, *args]
        return super().parse_args(ctx, args)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Offer the subcommands, and the options for bounds."""
        bounds = self.commands[_BOUNDS]
        return [*super().shell_complete(ctx, incomplete), *bounds.shell_complete(ctx, incomplete)]


@click.group(
    cls=_Scale, epilog=EXIT_CODES, subcommand_metavar="[N|MIN:MAX|--role ROLE=N|in|out|cancel] [OPTIONS]"
)
def scale() -> None:
    """Change the number of nodes: to N, or to at least MIN and at most MAX, or by some.

    \b
    elastic-ctl scale 2:4            run with 2 to 4 nodes from now on
    elastic-ctl scale --role ps=3    in a TensorFlow job with parameter servers
    elastic-ctl scale in --count 1   one node leaves, and nothing replaces it
    elastic-ctl scale out --count 1 --timeout 600
    elastic-ctl scale cancel         wait no more for nodes of scale out
    """  # noqa: D301 # for click it has to be that character


@scale.command(_BOUNDS, hidden=True, epilog=EXIT_CODES)
@click.argument("nodes", metavar="[N|MIN:MAX]", required=False)
@click.option(
    "--role",
    "roles",
    multiple=True,
    metavar="ROLE=N",
    help="How many ps or workers a TensorFlow job with parameter servers has from now on, such as ps=3.",
)
@json_option
@order_options
def bounds(nodes: str | None, roles: tuple[str, ...], as_json: bool, **target: Any) -> None:
    """Run with N nodes, or with at least MIN and at most MAX, or with N tasks of a ROLE, from now on."""
    carry_out(target, lambda: answering("scale", as_json, _bounds_order(nodes, roles)))


@scale.command("in", epilog=EXIT_CODES)
@click.option("--count", type=click.IntRange(1, _MOST), metavar="K", help="How many; the master chooses.")
@click.option(
    "--name",
    "names",
    multiple=True,
    metavar="NODE",
    shell_complete=complete_node,
    help="Which node; may be given several times. The beginning of one name is enough.",
)
@reason_option
@json_option
@order_options
def scale_in(count: int | None, names: tuple[str, ...], reason: str, as_json: bool, **target: Any) -> None:
    """Let K nodes, or those named, leave with grace, and let nothing replace them: MAX falls by as many.

    The master chooses nodes whose health is in doubt, then cordoned ones, then those that came last. The one
    that hosts it is the last to leave. Spares stay: drain sends one away.
    """
    carry_out(target, lambda: answering("scale in", as_json, _in_order(count, names, reason)))


@scale.command("out", epilog=_OUT_CODES)
@click.option("--count", type=click.IntRange(1, _MOST), metavar="K", required=True, help="How many more.")
@click.option(
    "--timeout",
    "wait",
    default="600",
    show_default=True,
    metavar="SECONDS",
    help="How long to wait for them.",
)
@json_option
@target_options
def scale_out(count: int, wait: str, as_json: bool, **target: Any) -> None:
    """Wait until the world has K nodes more, which others start; MAX grows by as many.

    If they do not come in time, the job is as it was. Ctrl-C ends the wait, not the operation; that ends with
    elastic-ctl scale cancel.
    """
    carry_out({**target, "timeout": CONNECT_TIMEOUT}, lambda: _out_order(count, wait, as_json))


@scale.command("cancel", epilog=EXIT_CODES)
@reason_option
@json_option
@order_options
def scale_cancel(reason: str, as_json: bool, **target: Any) -> None:
    """Wait no more for the nodes of scale out: the bounds are as before.

    Whoever waits for it hears that it has failed. A scale in cannot be cancelled.
    """
    carry_out(target, lambda: answering("scale cancel", as_json, lambda job: job.scale_cancel(reason)))


def _bounds_order(nodes: str | None, roles: Sequence[str]) -> Order:
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
    if text in scale.commands:
        raise UsageError(
            f"options stand before {text!r}: give them after it, as in elastic-ctl scale {text} ..."
        )
    try:
        return values.node_range(text)
    except ValueError as error:
        reason = str(error) or "give N or MIN:MAX with 1 <= MIN <= MAX, such as 2 or 1:4"
        raise UsageError(f"{text!r} is no number of nodes: {reason}") from None


def _in_order(count: int | None, names: tuple[str, ...], reason: str) -> Order:
    if (count is None) is (not names):
        raise UsageError("which nodes leave is not clear: give either --count K or --name NODE")
    if len(names) > MAX_NAMED or not all(names):
        raise UsageError(f"--name is not valid: give the names of at most {MAX_NAMED} nodes")
    return lambda job: job.scale_in(count or names, reason)


def _out_order(count: int, wait: str, as_json: bool) -> Order:
    try:
        seconds = values.some_seconds(wait)
    except ValueError:
        seconds = 0.0
    if not 0.0 < seconds <= MAX_SCALE_WAIT:
        most = f"{MAX_SCALE_WAIT:.0f}"
        raise UsageError(f"--timeout {wait!r} is not valid: give a number of seconds above 0, at most {most}")
    return lambda job: _grow(job, count, seconds, as_json)


async def _grow(job: JobControl, count: int, seconds: float, as_json: bool) -> str:
    from asyncio import CancelledError

    begun: list[str] = []

    def tell(answer: str) -> None:
        begun.append(answer)
        if not as_json:
            click.echo(answer)

    try:
        ended = await job.scale_out(count, seconds, tell)
    except CancelledError:
        if begun:
            text = "the operation goes on without this wait, until elastic-ctl scale cancel"
            click.echo(f"elastic-ctl: {text}: {begun[0]}", err=True)
        raise
    if not as_json:
        return ended
    from elasticrun.cli.documents import VERSION, OrderDocument, text_of

    return text_of(OrderDocument(VERSION, "scale out", begun[0], ended))
