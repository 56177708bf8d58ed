"""Shortens the failures of many tasks in one status; the mapper sees only one value at a time.

A message has room for the texts of MAX_FAILURES failures. Many more tasks may fail at once: the failures
beyond are *abridged*. One sentence is left of such a failure, without the names of its node and its host,
which are those of the first failure in its status.
"""

from __future__ import annotations

from dataclasses import replace

from elasticrun.core.protocol.messages import MAX_FAILURES, MAX_SUMMARY_TEXT, AgentStatus, Failure
from elasticrun.core.protocol.tasks import TaskReport
from elasticrun.rpc import elastic_pb2 as pb
from elasticrun.rpc.text import head

#: Bytes of UTF-8 that an abridged failure has for the name of its role.
_MAX_ROLE = 64


def abridged(status: AgentStatus) -> AgentStatus:
    """The status with the failures abridged that a message has no room for."""
    room = MAX_FAILURES - len(status.failures)
    failed = [report for report in status.tasks if report.failure is not None]
    if len(failed) <= max(0, room):
        return status
    whole = {report.local_rank for report in failed[: max(0, room)]}
    tasks = tuple(report if report.local_rank in whole else _short(report) for report in status.tasks)
    return replace(status, tasks=tasks)


def _short(report: TaskReport) -> TaskReport:
    failure = report.failure
    return report if failure is None else replace(report, failure=_abridged(failure))


def _abridged(failure: Failure) -> Failure:
    """A failure in a few hundred bytes, whatever it says."""
    return replace(
        failure,
        node="",
        host="",
        role=head(failure.role, _MAX_ROLE),
        message=head(failure.message, MAX_SUMMARY_TEXT),
        traceback="",
        stderr_tail="",
        error_file="",
        kernel_log="",
        stacks="",
    )


def name_abridged(said: pb.Hello | pb.Report) -> None:
    """Restores the names of node and host in abridged failures."""
    if not said.status.tasks:  # only failures of tasks are abridged
        return
    failures = [
        *said.status.failures[:1],
        *(task.failure for task in said.status.tasks if task.HasField("failure")),
    ]
    for failure in failures[1:]:
        if not failure.node and not failure.host:
            failure.node, failure.host = failures[0].node, failures[0].host
