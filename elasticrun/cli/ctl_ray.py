"""``elastic-ctl ray submit``: has a Ray cluster run ``elastic-run --platform ray`` as one of its jobs."""

from __future__ import annotations

import shlex
import sys
from typing import Any

import click

from elasticrun.cli.ctl_run import exit_on_errors
from elasticrun.errors import ExitCode, UsageError

_PROGRAM = "elastic-run"


@click.group()
def ray() -> None:
    """Run jobs on a Ray cluster. Inside a driver: elastic-run --platform ray."""


@ray.command(context_settings={"allow_interspersed_args": False})
@click.option(
    "--address",
    metavar="URL",
    envvar="RAY_API_SERVER_ADDRESS",
    default="http://127.0.0.1:8265",
    show_default=True,
    help="Of the cluster's dashboard.",
)
@click.option(
    "--working-dir",
    metavar="DIR",
    help="A folder that the hosts get, with the script in it, such as . (default: they have it).",
)
@click.option("--name", metavar="NAME", help="Of the job, for Ray (default: Ray makes one).")
@click.option("--no-wait", is_flag=True, help="Print the name, and do not follow the job.")
@click.argument("words", metavar="-- [OPTIONS OF ELASTIC-RUN] SCRIPT [ARGS]...", nargs=-1, required=True)
def submit(words: tuple[str, ...], no_wait: bool, **given: Any) -> None:
    """Submit a job, show what it prints, and end as it ends.

    Its driver runs in the cluster: Ctrl-C here leaves it there, and ray job stop NAME ends it.
    """
    with exit_on_errors():
        sys.exit(_submit(words, no_wait, **given))


def _submit(
    words: tuple[str, ...], no_wait: bool, address: str, working_dir: str | None, name: str | None
) -> int:
    from elasticrun.cli.web import check_installed

    entrypoint = shlex.join(_checked(words))
    check_installed("ray", "elastic-ctl ray", "ray")
    from elasticrun.platforms.ray.jobs import follow, submit

    submission = submit(address, entrypoint, working_dir, name)
    if no_wait:
        click.echo(submission.name)
        return ExitCode.OK
    click.echo(f"elastic-ctl: Ray runs it as {submission.name}", err=True)
    return follow(submission, lambda text: click.echo(text, nl=False))


def _checked(words: tuple[str, ...]) -> list[str]:
    """The command of the driver. Raises UsageError here for what the driver would refuse there."""
    from elasticrun.cli.arguments import ShowText, read_arguments
    from elasticrun.cli.ray_job import check

    theirs = [*(words[1:] if words[0] == _PROGRAM else words)]
    try:
        check(read_arguments(theirs, {}))
    except ShowText:
        raise UsageError(f"these words start a job and print nothing: ask {_PROGRAM} itself") from None
    # As people start their own drivers: with the Python of the cluster's environment.
    return ["python", "-m", "elasticrun", "--platform", "ray", *theirs]
