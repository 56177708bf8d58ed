"""``elastic-ctl ps``: the jobs of this user whose master is on this host."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from elasticrun.cli.ctl_run import exit_on_errors, run_lean
from elasticrun.core.protocol.plain import one_line, plain
from elasticrun.errors import ElasticRunError

if TYPE_CHECKING:
    from elasticrun.cli.documents import ListedJob

_HEADING = ("JOB", "PHASE", "ROUND", "NODES", "ENDPOINT", "SINCE (UTC)", "PID")
_NONE = "no job of this user has its master on this host"
_TIMEOUT = 5.0  # seconds that a job has to say what it is


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object, see elastic-ctl manual nodes.")
def ps(as_json: bool) -> None:
    """List the jobs of this user whose master is on this host.

    No token is needed for them. PID is that of the launcher that started the master. A job whose ENDPOINT is
    "local" can be asked on this host only.

    Exit codes: 0 done, also if there is none; those of elastic-ctl status if a job gave no sensible answer.
    """
    with exit_on_errors():
        found, troubles, status = run_lean(_jobs)
    if as_json:
        from elasticrun.cli.documents import VERSION, JobsDocument, text_of

        click.echo(text_of(JobsDocument(VERSION, tuple(found))))
    else:
        click.echo(plain("\n".join(table(found)) if found else _NONE))
    for trouble in troubles:
        click.echo(f"elastic-ctl: {one_line(str(trouble))}", err=True)
    sys.exit(status)


async def _jobs() -> tuple[list[ListedJob], list[ElasticRunError], int]:
    """The jobs, what is wrong with others, and the exit status for that."""
    from elasticrun.cli.documents import listed
    from elasticrun.rpc import nearby

    found, troubles = await nearby.jobs(_TIMEOUT)
    serious = (each for each in troubles if not isinstance(each, nearby.BusyError))  # a stranger may be busy
    return [listed(job) for job in found], troubles, next((int(each.exit_code) for each in serious), os.EX_OK)


def table(jobs: Sequence[ListedJob]) -> list[str]:
    """The lines of the table."""
    rows = [_HEADING, *map(_cells, jobs)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(_HEADING))]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    ]


def _cells(job: ListedJob) -> tuple[str, ...]:
    return (
        one_line(job.job_id),
        job.phase.value,
        str(job.round),
        f"{job.nodes} of {job.min_nodes}:{job.max_nodes}",
        one_line(job.endpoint or "local"),
        "-" if job.since is None else job.since.partition("+")[0].replace("T", " "),
        str(job.pid),
    )
