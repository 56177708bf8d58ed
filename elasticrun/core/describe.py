"""The state of a job in words, for ``elastic-ctl status``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from elasticrun.config import Endpoint
from elasticrun.core.directives import notice
from elasticrun.core.job_events import JobPhase

if TYPE_CHECKING:
    from elasticrun.core.job_facts import JobFacts
    from elasticrun.core.tasks import Task, TaskReport


def describe(job: JobFacts) -> str:
    """A line about the job, then one for each node, members first in the order of their ranks.

    Below a node that runs tasks of a TensorFlow job stands a line for each of them.
    """
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
    for name in (*seated, *others):
        lines += [_line(job, name), *_tasks(job, name)]
    return "\n".join(lines)


def _tasks(job: JobFacts, name: str) -> list[str]:
    """A line for each task of a node, while a round may run them."""
    if job.phase not in (JobPhase.RUNNING, JobPhase.STOPPING):
        return []
    node = job.members.nodes[name]
    told = node.status.tasks if node.status.round == job.round else ()
    reports = {report.local_rank: report for report in told}
    tasks = job.current.tasks.of(name)
    return [f"    {_task(task, reports.get(task.local_rank), node.info.address)}" for task in tasks]


def _task(task: Task, report: TaskReport | None, address: str) -> str:
    place = f" at {Endpoint(address, task.port)}" if task.port else ""
    return f"{task.role.value} {task.index}{place}: life {task.life}, {_state(task, report)}"


def _state(task: Task, report: TaskReport | None) -> str:
    if report is None or (report.life < task.life and report.ended):
        return "starting"
    if report.life < task.life:
        return f"starts when life {report.life} has ended"
    if report.failure is not None:
        return report.failure.summary
    return "ended with 0" if report.ended else "running"


def _line(job: JobFacts, name: str) -> str:
    node = job.members.nodes[name]
    seat = job.current.seats.get(name)
    place = "spare" if seat is None else f"node {seat.group_rank}"
    here = "" if node.session is not None else ", not attached"
    doubt = job.health.doubtful.get(name, "")
    return f"  {name}: {place}, {node.status.phase.value}{here}{f', {doubt}' if doubt else ''}"
