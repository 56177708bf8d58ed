"""Events for ``--event-log-handler``: what torchrun records, from the changes of the agent's phase.

In torchrun no worker starts again while the others run. A task that does, or that ends before the round does,
has events of ours: ``elasticrun.task.started``, ``.ended`` (with 0, or because it was told to), ``.failed``.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from elasticrun.agent.events import EventLog, EventSource, MetadataValue
from elasticrun.agent.tasks import global_rank, role_name
from elasticrun.clock import MonotonicClock
from elasticrun.config import LaunchConfig
from elasticrun.core.protocol.messages import AgentPhase, AgentStatus, Assignment, NodeInfo
from elasticrun.core.protocol.tasks import TaskReport

#: torchrun's word for the state of the workers in each phase.
STATES: dict[AgentPhase, str] = {
    AgentPhase.PREPARING: "INIT",
    AgentPhase.READY: "STOPPED",
    AgentPhase.CHECKING: "INIT",
    AgentPhase.RUNNING: "HEALTHY",
    AgentPhase.FAILED: "FAILED",
    AgentPhase.FINISHED: "SUCCEEDED",
    AgentPhase.STOPPING: "UNHEALTHY",
}


class Recorder:
    """Writes one event per worker and one for the agent whenever the phase changes."""

    def __init__(self, log: EventLog, config: LaunchConfig, node: NodeInfo) -> None:
        self._log = log
        self._config = config
        self._node = node
        self._clock = MonotonicClock()
        self._began = self._clock.now()
        self._last: tuple[AgentPhase, int] | None = None
        self._tasks: dict[int, TaskReport] = {}  # by local rank, of the round that was reported last
        self._round = -1

    def reported(self, status: AgentStatus, assignment: Assignment | None) -> None:
        """Record the phase of a status unless it was recorded already; ``assignment`` is the last one.

        After FINISHED no other phase of that round is recorded: it is the agent's, not the workers'.
        """
        if assignment is not None:
            self._tasks_reported(status, assignment)
        now = (status.phase, status.round)
        if self._last in (now, (AgentPhase.FINISHED, status.round)):
            return
        self._last = now
        state = STATES[status.phase]
        if assignment is not None:
            for local_rank in range(self._node.local_world_size):
                rank = assignment.first_rank + local_rank
                self._record(f"torchelastic.worker.status.{state}", status, assignment, rank)
        self._record(f"elasticrun.agent.{status.phase.value}", status, assignment, None)

    def _tasks_reported(self, status: AgentStatus, assignment: Assignment) -> None:
        before, is_new = self._tasks, status.round != self._round
        self._tasks, self._round = {report.local_rank: report for report in status.tasks}, status.round
        if is_new:
            return  # the workers of a round have started together
        for local_rank, report in self._tasks.items():
            known = before.get(local_rank)
            if known is None or report.attempt != known.attempt:
                self._record_task("started", report, status, assignment)
                known = None
            if report.ended and not (known is not None and known.ended):
                word = "ended" if report.failure is None else "failed"
                self._record_task(word, report, status, assignment)

    def _record_task(
        self, word: str, report: TaskReport, status: AgentStatus, assignment: Assignment
    ) -> None:
        task = assignment.task(report.local_rank)  # None: it was taken away
        rank = global_rank(assignment, self._node.local_world_size, report.local_rank)
        more: dict[str, MetadataValue] = {
            "role": role_name(self._node.role, task),
            "task_index": task.index if task is not None else None,
            "task_attempt": report.attempt,
            "state": {"started": "HEALTHY", "ended": "SUCCEEDED", "failed": "FAILED"}[word],
            "raw_error": report.failure.message if report.failure is not None else None,
        }
        self._record(f"elasticrun.task.{word}", status, assignment, rank, more)

    def _record(
        self,
        name: str,
        status: AgentStatus,
        assignment: Assignment | None,
        rank: int | None,
        more: Mapping[str, MetadataValue] = MappingProxyType({}),
    ) -> None:
        metadata: dict[str, MetadataValue] = {
            "run_id": self._config.job.job_id,
            "global_rank": rank,
            "group_rank": assignment.group_rank if assignment else None,
            "role": self._node.role,
            "hostname": self._node.host,
            "state": STATES[status.phase],
            "round": status.round,
            "total_run_time": int(self._clock.now() - self._began),
            "rdzv_backend": self._config.rendezvous.backend,
            "raw_error": status.failures[0].message if status.failures else None,
            "agent_restarts": assignment.restart_count if assignment else 0,
            **more,
        }
        source = EventSource.AGENT if rank is None else EventSource.WORKER
        self._log.record(name, source, metadata)
