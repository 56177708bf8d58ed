"""``elastic-ctl``: questions and orders to a running job.

A click group; each verb is a command of its own. Imports that only a verb needs stand inside it, so that no
verb pays for another.
"""

# ruff: noqa: E402 the job's folders may hide whatever is imported

from __future__ import annotations

from elasticrun.cli.isolation import isolate

isolate()

import click

from elasticrun import __version__
from elasticrun.cli.ctl_advice import advice
from elasticrun.cli.ctl_audit import audit
from elasticrun.cli.ctl_certs import certs
from elasticrun.cli.ctl_checkpoints import checkpoints
from elasticrun.cli.ctl_events import events
from elasticrun.cli.ctl_launch import launch
from elasticrun.cli.ctl_logs import logs, stacks
from elasticrun.cli.ctl_manifest import manifest
from elasticrun.cli.ctl_manual import manual
from elasticrun.cli.ctl_observe import observe
from elasticrun.cli.ctl_operator import operator
from elasticrun.cli.ctl_orders import add_orders
from elasticrun.cli.ctl_ps import ps
from elasticrun.cli.ctl_ray import ray
from elasticrun.cli.ctl_replay import replay
from elasticrun.cli.ctl_report import report
from elasticrun.cli.ctl_scale import scale
from elasticrun.cli.ctl_simulate import simulate
from elasticrun.cli.ctl_steer import add_steering
from elasticrun.cli.ctl_token import token
from elasticrun.cli.ctl_top import top
from elasticrun.cli.options import PRINT_COMPLETION

PROGRAM = "elastic-ctl"


@click.group(name=PROGRAM, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.option(
    "--print-completion",
    type=click.Choice(PRINT_COMPLETION.choices),
    expose_value=False,
    is_eager=True,
    callback=lambda context, _, shell: _print_completion(context, shell),
    help="Print a script that completes this command in a shell, and exit.",
)
@click.version_option(__version__, prog_name=PROGRAM, message="%(prog)s %(version)s")
def group() -> None:
    """Look at and steer jobs started by elastic-run."""


@group.command()
def version() -> None:
    """Print the version of elasticrun."""
    click.echo(f"{PROGRAM} {__version__}")


add_orders(group)
add_steering(group)
group.add_command(scale)
group.add_command(logs)
group.add_command(stacks)
group.add_command(ps)
group.add_command(top)
group.add_command(launch)
group.add_command(manifest)
group.add_command(token)
group.add_command(certs)
group.add_command(checkpoints)
group.add_command(events)
group.add_command(observe)
group.add_command(operator)
group.add_command(ray)
group.add_command(replay)
group.add_command(report)
group.add_command(advice)
group.add_command(manual)
group.add_command(audit)
group.add_command(simulate)


def _print_completion(context: click.Context, shell: str | None) -> None:
    if shell is None:
        return
    from elasticrun.cli.completion import script

    click.echo(script(group, PROGRAM, shell))
    context.exit()


def main() -> None:
    """Entry point of the console script; exits with click's status, 2 for a usage error."""
    group(prog_name=PROGRAM)


if __name__ == "__main__":
    main()
