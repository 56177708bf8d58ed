"""Events for ``--event-log-handler``: what torchrun records, from the changes of the agent's phase."""

from __future__ import annotations

from elasticrun.agent.events import EventLog, EventSource, MetadataValue
from elasticrun.clock import MonotonicClock
from elasticrun.config import LaunchConfig
from elasticrun.core.agent import AgentMachine
from elasticrun.core.protocol import AgentPhase, NodeInfo

#: torchrun's word for the state of the workers in each phase.
STATES: dict[AgentPhase, str] = {
    AgentPhase.PREPARING: "INIT",
    AgentPhase.READY: "STOPPED",
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

    def phase_changed(self, machine: AgentMachine) -> None:
        """Record the machine's phase unless it was recorded already."""
        now = (machine.phase, machine.round)
        if now == self._last:
            return
        self._last = now
        state = STATES[machine.phase]
        if machine.assignment is not None:
            for local_rank in range(self._node.local_world_size):
                rank = machine.assignment.first_rank + local_rank
                self._record(f"torchelastic.worker.status.{state}", EventSource.WORKER, state, machine, rank)
        self._record(f"elasticrun.agent.{machine.phase.value}", EventSource.AGENT, state, machine, None)

    def _record(
        self, name: str, source: EventSource, state: str, machine: AgentMachine, rank: int | None
    ) -> None:
        assignment = machine.assignment
        metadata: dict[str, MetadataValue] = {
            "run_id": self._config.job.job_id,
            "global_rank": rank,
            "group_rank": assignment.group_rank if assignment else None,
            "role": self._node.role,
            "hostname": self._node.host,
            "state": state,
            "round": machine.round,
            "total_run_time": int(self._clock.now() - self._began),
            "rdzv_backend": self._config.rendezvous.backend,
            "raw_error": machine.failures[0].message if machine.failures else None,
            "agent_restarts": assignment.restart_count if assignment else 0,
        }
        self._log.record(name, source, metadata)
