"""Events for ``--event-log-handler``: what torchrun records, from the changes of the agent's phase."""

from __future__ import annotations

from elasticrun.agent.events import EventLog, EventSource, MetadataValue
from elasticrun.clock import MonotonicClock
from elasticrun.config import LaunchConfig
from elasticrun.core.protocol import AgentPhase, AgentStatus, Assignment, NodeInfo

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

    def reported(self, status: AgentStatus, assignment: Assignment | None) -> None:
        """Record the phase of a status unless it was recorded already; ``assignment`` is the last one.

        Workers that succeeded have: how their agent then gets ready for what comes is no event of theirs.
        """
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

    def _record(
        self, name: str, status: AgentStatus, assignment: Assignment | None, rank: int | None
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
        }
        source = EventSource.AGENT if rank is None else EventSource.WORKER
        self._log.record(name, source, metadata)
