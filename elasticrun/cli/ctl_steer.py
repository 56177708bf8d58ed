"""The verbs of ``elastic-ctl`` that change what a job does with its nodes: cordon, uncordon, check, stop."""

from __future__ import annotations

import sys
from typing import Any

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


def add_steering(group: click.Group) -> None:
    """Add the verbs to ``elastic-ctl``."""
    for command in (cordon, uncordon, check, stop):
        group.add_command(command)


@click.command(epilog=EXIT_CODES)
@click.argument("node", shell_complete=complete_node)
@reason_option
@json_option
@order_options
def cordon(node: str, reason: str, as_json: bool, **target: Any) -> None:
    """Keep NODE out of new worlds. It stays attached, and goes on in the round that runs until that ends.

    The beginning of its name is enough if no other node's begins so.
    """
    carry_out(target, lambda: answering("cordon", as_json, lambda job: job.cordon(node, reason)))


@click.command(epilog=EXIT_CODES)
@click.argument("node", shell_complete=complete_node)
@json_option
@order_options
def uncordon(node: str, as_json: bool, **target: Any) -> None:
    """Let NODE be chosen for new worlds again."""
    carry_out(target, lambda: answering("uncordon", as_json, lambda job: job.uncordon(node)))


@click.command(epilog=EXIT_CODES)
@reason_option
@json_option
@order_options
def check(reason: str, as_json: bool, **target: Any) -> None:
    """Stop the round with grace, check the health of all nodes, and go on with those that are well.

    It spends no restart, and the job need not have been started with --health-check.
    """
    carry_out(target, lambda: answering("check", as_json, lambda job: job.check(reason)))


@click.command(epilog=EXIT_CODES)
@click.option("--yes", is_flag=True, help="Do not ask first. On a pipe nothing is asked.")
@reason_option
@json_option
@order_options
def stop(yes: bool, reason: str, as_json: bool, **target: Any) -> None:
    """End the job with grace: its workers may save their state, as when all launchers get SIGTERM.

    Each launcher of the job ends with 14.
    """
    if not yes and sys.stdin.isatty():
        click.confirm("Stop all workers, and end the job?", abort=True, err=True)
    carry_out(target, lambda: answering("stop", as_json, lambda job: job.stop(reason)))
