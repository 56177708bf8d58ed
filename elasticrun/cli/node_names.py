"""Completion of the names of nodes: those of this user's one job on this host.

A shell asks at each TAB, and waits. So only the unix socket of a job here is asked, briefly; whatever goes
wrong, nothing is offered.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import click

#: Seconds for an answer.
_TIMEOUT = 1.0


def complete_node(context: click.Context, _: click.Parameter, incomplete: str) -> list[str]:
    """The names that begin so; none if there is no job here, or several, or another one is meant."""
    from elasticrun.cli.ctl_run import run_lean
    from elasticrun.errors import ElasticRunError

    if context.params.get("endpoint"):
        return []

    async def ask() -> list[str]:
        from elasticrun.control import JobControl

        job_id, pid = context.params.get("rdzv_id"), context.params.get("pid")
        status = await (await JobControl.on_this_host(job_id, pid, _TIMEOUT)).status()
        return [node.name for node in status.nodes]

    try:
        return [name for name in run_lean(ask) if name.startswith(incomplete)]
    except (ElasticRunError, OSError):
        return []
