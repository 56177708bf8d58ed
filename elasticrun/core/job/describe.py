"""The state of a job, for ``elastic-ctl status``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from elasticrun.config import Endpoint
from elasticrun.core.job.directives import notice
from elasticrun.core.job.scaling import pending_in_words
from elasticrun.core.job.state import JobState
from elasticrun.core.membership.scaling import ScaleResult
from elasticrun.core.protocol.commits import CommitId
from elasticrun.core.protocol.round_progress import NodeFigures
from elasticrun.core.protocol.status import (
    JobPhase,
    JobStatus,
    NodeStatus,
    ScaleEnd,
    TaskStatus,
    fitting,
    mark_of,
)
from elasticrun.core.protocol.tasks import Task, TaskReport
from elasticrun.core.protocol.usage import TaskUsage
from elasticrun.core.state.placement import is_spread

#: The usage of each node's tasks, by the node's session.
Usages = Mapping[int, Sequence[TaskUsage]]


def describe(
    job: JobState, usages: Usages | None = None, figures: Mapping[int, NodeFigures] | None = None
) -> JobStatus:
    """The phase of the job, its nodes and their tasks, with the usage of tasks that ``usages`` has, and what
    ``figures`` says of nodes, by session.
    """
    members = job.members.nodes
    inside = [name for name in job.current.assignments if name in members]
    others = [name for name in members if name not in job.current.assignments]
    nodes = tuple(fitting(_node(job, name, usages or {}, figures or {}) for name in (*inside, *others)))
    return replace(describe_briefly(job), nodes=nodes, unlisted=len(members) - len(nodes))


def mark_now(job: JobState) -> str:
    """The ``mark`` of the status, at a cost that does not grow with the nodes.

    But for a job that waits with exactly half of a world: then it looks for the node that may lead these.
    """
    world = len(job.current.assignments)
    return mark_of(job.round, job.phase, world, _workers(job), job.budget.spent, stranded(job))


def stranded(job: JobState) -> int:
    """How many nodes are here, if the job cannot go on with these; 0: it can, or that is not known."""
    if job.phase is not JobPhase.GATHERING or not job.obstacle or job.members.detached:
        return 0
    return len(job.members.nodes) if job.candidates.are_lost else 0


def _workers(job: JobState) -> int:
    first = next(iter(job.current.assignments.values()), None)
    return 0 if first is None else first.world_size


def describe_briefly(job: JobState) -> JobStatus:
    """The same without its nodes, which are only counted: its size does not grow with them."""
    budget, limits = job.budget, job.limits
    return JobStatus(
        job_id=job.config.job_id,
        phase=job.phase,
        round=job.round,
        min_nodes=limits.min_nodes,
        max_nodes=limits.max_nodes,
        restarts_used=budget.spent,
        max_restarts=budget.max_restarts,
        waiting_for=notice(job)[0] if job.phase is JobPhase.GATHERING else "",
        unlisted=len(job.members.nodes),
        saved=job.ledger.newest_whole(),
        safe=_safe(job),
        durable=job.storing.durable,
        scaling=pending_in_words(job),
        scaled=_scaled(job.scaled),
        world=len(job.current.assignments),
        workers=_workers(job),
        stranded=stranded(job),
    )


def _scaled(last: ScaleResult | None) -> ScaleEnd | None:
    return None if last is None else ScaleEnd(last.operation.number, last.reached, last.reason)


def _safe(job: JobState) -> CommitId | None:
    """The newest saved state that was called safe, if no single host that is here would take it away now."""
    safe, hosts = job.ledger.safe, {name: node.info.host for name, node in job.members.nodes.items()}
    if safe is None or safe not in job.ledger.whole() or len(set(hosts.values())) < 2:
        return None
    return safe if is_spread(job.ledger.holders(safe).values(), hosts, 2) else None


def _node(job: JobState, name: str, usages: Usages, figures: Mapping[int, NodeFigures]) -> NodeStatus:
    node = job.members.nodes[name]
    given = job.current.assignments.get(name)
    return NodeStatus(
        name,
        rank=None if given is None else given.group_rank,
        phase=node.status.phase,
        attached=node.session is not None,
        doubt=job.health.doubtful.get(name, ""),
        tasks=_tasks(job, name, _used(job, name, usages)),
        figures=None if node.session is None else figures.get(node.session),
        cordoned=job.cordoned.get(name, ""),
    )


def _tasks_of(job: JobState, name: str) -> tuple[Task, ...]:
    """The tasks of a node, while a round may run them."""
    tasks = job.current.tasks
    return tasks.of(name) if tasks is not None and job.phase in (JobPhase.RUNNING, JobPhase.STOPPING) else ()


def _reports(job: JobState, name: str) -> dict[int, TaskReport]:
    """A node's reports on its tasks in this round, by local rank."""
    status = job.members.nodes[name].status
    return {report.local_rank: report for report in status.tasks} if status.round == job.round else {}


def _used(job: JobState, name: str, usages: Usages) -> dict[int, TaskUsage]:
    """The usage of a node's running tasks, by local rank."""
    session = job.members.nodes[name].session
    running = {report.local_rank for report in _reports(job, name).values() if not report.ended}
    told = usages.get(session, ()) if session is not None else ()
    return {usage.local_rank: usage for usage in told if usage.local_rank in running}


def _tasks(job: JobState, name: str, used: Mapping[int, TaskUsage]) -> tuple[TaskStatus, ...]:
    reports, address = _reports(job, name), job.members.nodes[name].info.address
    return tuple(
        TaskStatus(
            task.role,
            task.index,
            task.attempt,
            state=_state(task, reports.get(task.local_rank)),
            address=str(Endpoint(address, task.port)) if task.port else "",
            usage=used.get(task.local_rank),
        )
        for task in _tasks_of(job, name)
    )


def _state(task: Task, report: TaskReport | None) -> str:
    if report is None or (report.attempt < task.attempt and report.ended):
        return "starting"
    if report.attempt < task.attempt:
        return f"starts when attempt {report.attempt} has ended"
    if report.failure is not None:
        return report.failure.summary
    return "ended with 0" if report.ended else "running"
