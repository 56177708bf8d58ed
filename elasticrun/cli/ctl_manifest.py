"""``elastic-ctl manifest``: what runs a command line of ``elastic-run`` on a cluster, as text."""

from __future__ import annotations

from typing import Any

import click

from elasticrun.cli.ctl_run import exit_on_errors


class _Manifest(click.Command):
    """Takes options before the script, as elastic-run; or the script first, and its own options behind --.

    There are as many options as elastic-run has. They are made once they are asked for, so that no other verb
    pays for them.
    """

    _has_options = False

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        if not self._has_options:
            from elasticrun.cli.manifest import click_options

            self.params[:0] = click_options()
            self._has_options = True
        return super().get_params(ctx)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        ctx.allow_interspersed_args = bool(args) and not args[0].startswith("-")
        return super().parse_args(ctx, args)


@click.command(
    cls=_Manifest,
    epilog="All options of elastic-run are taken as well: see elastic-run --help. Options stand before the "
    "script, as those of elastic-run; or the script comes first, and its own options behind --.",
)
@click.argument("command", metavar="SCRIPT [ARGS]...", nargs=-1)
def manifest(command: tuple[str, ...], **given: Any) -> None:
    """Print what runs a job on a cluster: a manifest for Kubernetes, or a script for Slurm.

    See elastic-ctl manual kubernetes.
    """
    from elasticrun.cli.manifest import render_manifest

    with exit_on_errors():
        click.echo(render_manifest(command, given), nl=False)
