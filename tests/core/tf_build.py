"""Short ways to say what becomes of the tasks of a TensorFlow job, for the tests of core."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from elasticrun.config import TaskRole
from elasticrun.core.job.events import Decided
from elasticrun.core.job.machine import JobMachine
from elasticrun.core.job.tasks import idle, offered_ports
from elasticrun.core.protocol.messages import (
    AgentPhase,
    AgentStatus,
    Failure,
    FailureKind,
    NodeInfo,
    StartRound,
)
from elasticrun.core.protocol.orders import ScaleRole
from elasticrun.core.protocol.tasks import TaskReport
from elasticrun.core.tensorflow.round_tasks import RoundTasks
from elasticrun.core.tensorflow.scale import scale_refusal
from tests.core.build import Job, info

CHIEF, WORKER, PS, EVALUATOR = TaskRole
Roles = dict[str, tuple[TaskRole, ...]]
#: A cluster with parameter servers, and one without; each on several nodes.
SERVED: Roles = {"a": (CHIEF, PS), "b": (WORKER, PS), "c": (EVALUATOR,)}
MIRRORED: Roles = {"a": (WORKER, EVALUATOR), "b": (WORKER,)}
TORCH: Roles = {"a": (), "b": ()}


def members(roles: Roles) -> list[NodeInfo]:
    return [info(name, roles=own, local_world_size=max(1, len(own))) for name, own in roles.items()]


def died(node: str, local_rank: int, code: int = 1, **changes: Any) -> Failure:
    """How a task failed: by itself after some steps, unless told otherwise."""
    kind = FailureKind.EXIT if code > 0 else FailureKind.SIGNAL
    values: dict[str, Any] = {"kind": kind, "step": 7} | changes
    return Failure(node, node, local_rank, local_rank, "default", 1, exit_code=code, **values)


def tasks_of(machine: JobMachine) -> RoundTasks:
    """The tasks of the newest round; none if there is no round yet."""
    return machine.state.current.tasks or RoundTasks()


class TfJob(Job):
    """A job whose nodes hold ``spare`` ports more than their tasks need, and say how these fare."""

    def __init__(self, roles: Roles, spare: int = 1, **config: Any) -> None:
        usual = {
            "min_nodes": len(roles),
            "max_nodes": len(roles),
            "max_restarts": 3,
            "heartbeat_timeout": 1e6,
        }
        super().__init__(**(usual | config))
        self.ports: dict[str, tuple[int, ...]] = {}
        self.tasks: dict[str, tuple[TaskReport, ...]] = {}
        self.arrive(roles, spare)

    def arrive(self, roles: Roles, spare: int = 1) -> None:
        """Nodes attach, READY."""
        for name, own in roles.items():
            self.ports[name] = tuple(range(8001, 8001 + len(own) + spare))
            self.attach(name, roles=own, local_world_size=max(1, len(own)))

    def status(self, node: str, phase: AgentPhase, round_: int, *failures: Failure) -> AgentStatus:
        said = super().status(node, phase, round_, *failures)
        return replace(said, ports=self.ports[node], tasks=self.tasks.get(node, ()))

    def run(self) -> TfJob:
        """All nodes run what they were told to."""
        for name in self.machine.state.current.assignments:
            self.obey(name)
        return self

    def obey(self, node: str) -> None:
        """A node runs what it was told to; what it took away, or has ended, is as it was."""
        before = {report.local_rank: report for report in self.tasks.get(node, ())}
        reports = []
        for task in tasks_of(self.machine).of(node):
            fresh = TaskReport(task.local_rank, task.attempt)
            old = before.get(task.local_rank, fresh)
            reports.append(old if old.attempt >= task.attempt else fresh)
        self.tasks[node] = tuple(reports)
        self.say(node)

    def say(self, node: str) -> None:
        self.report(node, AgentPhase.RUNNING, self.machine.state.round)

    def lose(self, node: str, local_rank: int, failure: Failure | None) -> None:
        """A task ended in the newest attempt that its node has started; None: with 0."""
        self.tasks[node] = tuple(
            TaskReport(local_rank, report.attempt, True, failure)
            if report.local_rank == local_rank
            else report
            for report in self.tasks[node]
        )
        self.say(node)

    def kill(self, node: str, local_rank: int) -> None:
        self.lose(node, local_rank, died(node, local_rank, -9))

    def scale(self, role: TaskRole, count: int) -> None:
        self.do(ScaleRole(role, count))

    def refusal(self, role: TaskRole, count: int) -> str:
        """What an operator is told who orders this; "" if it is obeyed."""
        state = self.machine.state
        return scale_refusal(state.current.tasks, offered_ports(state), role, count, idle(state))

    @property
    def attempts(self) -> dict[str, int]:
        """The wanted attempt of each task, by its name."""
        wanted = tasks_of(self.machine).wanted
        tasks = [task for of_node in wanted.values() for task in of_node.values()]
        return {f"{task.role.value} {task.index}": task.attempt for task in tasks}

    def raised(self) -> dict[str, int]:
        """The tasks that are in a further attempt."""
        return {name: attempt for name, attempt in self.attempts.items() if attempt}

    def heard(self) -> set[str]:
        """The nodes that the newest event told what to run."""
        return {name for name in self.sessions if self.told(name, StartRound)}

    def decided(self) -> str:
        return "; ".join(said.text for said in self.of(Decided))
