"""The state of a job in words, for ``elastic-ctl status``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from elasticrun.core.directives import notice
from elasticrun.core.job_events import JobPhase

if TYPE_CHECKING:
    from elasticrun.core.job_facts import JobFacts


def describe(job: JobFacts) -> str:
    """A line about the job, then one for each node, members first in the order of their ranks."""
    config, budget = job.config, job.budget
    limits = job.limits
    lines = [
        f"job {config.job_id!r}: {job.phase.value}, round {job.round}, {len(job.members.nodes)} nodes of"
        f" {limits.min_nodes}:{limits.max_nodes}, {budget.spent} of {budget.max_restarts} restarts used"
    ]
    if job.phase is JobPhase.GATHERING:
        lines.append(notice(job)[0])
    seated = [name for name in job.current.seats if name in job.members.nodes]
    others = [name for name in job.members.nodes if name not in job.current.seats]
    lines += [_line(job, name) for name in (*seated, *others)]
    return "\n".join(lines)


def _line(job: JobFacts, name: str) -> str:
    node = job.members.nodes[name]
    seat = job.current.seats.get(name)
    place = "spare" if seat is None else f"node {seat.group_rank}"
    here = "" if node.session is not None else ", not attached"
    doubt = job.health.doubtful.get(name, "")
    return f"  {name}: {place}, {node.status.phase.value}{here}{f', {doubt}' if doubt else ''}"
