"""The verbs of ``elastic-ctl`` that talk to a running job: status, drain and restart."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from elasticrun.cli.asking import (
    EXIT_CODES,
    answering,
    carry_out,
    json_option,
    order_options,
    reason_option,
)
from elasticrun.cli.node_names import complete_node

if TYPE_CHECKING:
    from elasticrun.control import JobControl


def add_orders(group: click.Group) -> None:
    """Add the verbs to ``elastic-ctl``."""
    for command in (status, drain, restart):
        group.add_command(command)


@click.command(epilog=EXIT_CODES)
@order_options
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object, see elastic-ctl manual nodes.")
def status(as_json: bool, **target: Any) -> None:
    """Show who is there and what the job does."""
    carry_out(target, lambda: _status_as_json if as_json else _shown_status)


@click.command(epilog=EXIT_CODES)
@click.argument("node", shell_complete=complete_node)
@reason_option
@json_option
@order_options
def drain(node: str, reason: str, as_json: bool, **target: Any) -> None:
    """Let NODE leave the job with grace, so that its machine can be taken away.

    The beginning of its name is enough if no other node's begins so.
    """
    carry_out(target, lambda: answering("drain", as_json, lambda job: job.drain(node, reason)))


@click.command(epilog=EXIT_CODES)
@reason_option
@json_option
@order_options
def restart(reason: str, as_json: bool, **target: Any) -> None:
    """Stop all workers and start them again, from the newest saved state."""
    carry_out(target, lambda: answering("restart", as_json, lambda job: job.restart(reason)))


async def _shown_status(job: JobControl) -> str:
    from elasticrun.core.protocol.status import status_in_words

    return status_in_words(await job.status())


async def _status_as_json(job: JobControl) -> str:
    from elasticrun.cli.documents import VERSION, StatusDocument, text_of

    return text_of(StatusDocument(VERSION, await job.status()))
