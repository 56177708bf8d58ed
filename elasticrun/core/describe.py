"""The state of a job in words, for ``elastic-ctl status``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from elasticrun.config import Endpoint, TaskRole
from elasticrun.core.directives import notice
from elasticrun.core.job_events import JobPhase
from elasticrun.core.plain import one_line
from elasticrun.core.usage import RoleUsage, TaskUsage, by_role, in_words

if TYPE_CHECKING:
    from elasticrun.core.job_facts import JobFacts
    from elasticrun.core.tasks import Task, TaskReport


#: What the tasks of each node use, by the node's session.
Usages = Mapping[int, Sequence[TaskUsage]]


def describe(job: JobFacts, usages: Usages | None = None) -> str:
    """A line about the job, then one for each node, members first in the order of their ranks.

    Below a node that runs tasks of a TensorFlow job stands a line for each of them, and at the end one for
    each role, with what they use as far as ``usages`` knows.
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
    known: list[tuple[TaskRole, TaskUsage]] = []
    for name in (*seated, *others):
        used = _used(job, name, usages or {})
        lines += [_line(job, name), *_tasks(job, name, used)]
        known += [(task.role, used[task.local_rank]) for task in _seats(job, name) if task.local_rank in used]
    return "\n".join(map(one_line, [*lines, *map(_role, by_role(known))]))


def _seats(job: JobFacts, name: str) -> tuple[Task, ...]:
    """The tasks of a node, while a round may run them."""
    return job.current.tasks.of(name) if job.phase in (JobPhase.RUNNING, JobPhase.STOPPING) else ()


def _reports(job: JobFacts, name: str) -> dict[int, TaskReport]:
    """What a node said of its tasks in this round, by local rank."""
    status = job.members.nodes[name].status
    return {report.local_rank: report for report in status.tasks} if status.round == job.round else {}


def _used(job: JobFacts, name: str, usages: Usages) -> dict[int, TaskUsage]:
    """What the tasks of a node use that run, by local rank."""
    session = job.members.nodes[name].session
    running = {report.local_rank for report in _reports(job, name).values() if not report.ended}
    told = usages.get(session, ()) if session is not None else ()
    return {usage.local_rank: usage for usage in told if usage.local_rank in running}


def _role(usage: RoleUsage) -> str:
    tasks = f"{usage.tasks} task{'s' if usage.tasks > 1 else ''}"
    return f"  {usage.role.value}, {tasks}: {in_words(usage)}"


def _tasks(job: JobFacts, name: str, used: Mapping[int, TaskUsage]) -> list[str]:
    """A line for each task of a node."""
    reports, address = _reports(job, name), job.members.nodes[name].info.address
    return [
        _task(task, reports.get(task.local_rank), address, used.get(task.local_rank))
        for task in _seats(job, name)
    ]


def _task(task: Task, report: TaskReport | None, address: str, used: TaskUsage | None) -> str:
    place = f" at {Endpoint(address, task.port)}" if task.port else ""
    words = f"; {in_words(used)}" if used is not None else ""
    return f"    {task.role.value} {task.index}{place}: life {task.life}, {_state(task, report)}{words}"


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
